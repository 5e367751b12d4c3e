"""What is drawn of streams: a parameter, its error, and the dictionary's size."""

import matplotlib as mpl
import numpy as np
import pytest
import torch

from botorch_dp import GDP, LDPBO
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import Step
from botorch_dp.plots import plot_dictionary_size, plot_stream
from botorch_dp.problems import LinearStream

from .reading import band_of, legend_of


class TestOfStreams:
    """Replications of a parameter that follows users."""

    @pytest.fixture
    def steps(self, double):
        points = torch.tensor([[[1, 0], [3, 4]], [[2, 1], [4, 1]]], **double)
        return [Step(n, x, 4 * n) for n, x in zip((5, 10), points, strict=True)]

    def test_error(self, steps, double):
        _, given = mpl.pyplot.subplots()
        truth = torch.tensor([1.0, 2.0], **double)
        ax = plot_stream(steps, truth, label="private", ax=given)
        assert ax is given
        (line,) = ax.get_lines()
        assert line.get_xdata().tolist() == [5, 10]
        # ((0 + 4) / 2 + (4 + 4) / 2) / 2 and ((1 + 1) / 2 + (9 + 1) / 2) / 2
        assert line.get_ydata().tolist() == pytest.approx([3.0, 3.0])
        assert band_of(ax) == ([2.0, 1.0], [4.0, 5.0])
        assert ax.get_yscale() == "log"
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["private"]
        assert plot_stream(steps, truth).get_legend() is None

    def test_error_against_a_truth_that_moves(self, steps, double):
        ax = plot_stream(steps, lambda user: torch.full((2,), user / 5, **double))
        # Truths (1, 1) and (2, 2): ((0 + 1) / 2 + (4 + 9) / 2) / 2, and so on.
        assert ax.get_lines()[0].get_ydata().tolist() == pytest.approx([3.5, 1.5])

    def test_one_coordinate_and_its_truth(self, steps, double):
        truth = torch.tensor([1.0, 2.0], **double)
        ax = plot_stream(steps, truth, coordinate=1, quantiles=(0.5, 0.5))
        line, true = ax.get_lines()
        assert line.get_ydata().tolist() == [2.0, 1.0]
        assert true.get_ydata().tolist() == [2.0, 2.0]
        assert band_of(ax) == ([2.0, 1.0], [2.0, 1.0])
        assert line.get_label() == "$x_{2}$"
        assert ax.get_yscale() == "linear"

    def test_all_coordinates_of_several_runs_without_replications(self, steps):
        split = [
            [Step(step.number, step.x[index], 0) for step in steps] for index in (0, 1)
        ]
        ax = plot_stream(split, label="theta")  # as if they were a batch
        lines = ax.get_lines()
        assert [line.get_label() for line in lines] == ["theta 1", "theta 2"]
        assert [line.get_ydata().tolist() for line in lines] == [[2, 3], [2, 1]]

    def test_an_optimizer_and_its_result(self):
        stream = LinearStream(2, num_replications=3, device="cpu")
        x = stream.initial_x.expand(3, 2)
        opt = LDPBO(x, GDP(1.0), clip_norm=stream.gradient_bound)
        result = opt.run(stream, 4, progress=False)
        expected = [float((s.x - 1).square().mean()) for s in result.history]
        for given in (opt, result, result.history):
            for truth in (stream.optimal_x, stream.optimal_x_at):
                (line,) = plot_stream(given, truth).get_lines()
                assert line.get_xdata().tolist() == [1, 2, 3, 4]
                assert line.get_ydata().tolist() == pytest.approx(expected)

    def test_bad_input(self, steps, double):
        with pytest.raises(InvalidArgumentError, match="must have at least one step"):
            plot_stream([])
        others = [Step(n, torch.zeros(2, 2, **double), 0) for n in (5, 11)]
        with pytest.raises(InvalidArgumentError, match="have the same step numbers"):
            plot_stream([steps, others])
        for bad in (-1, 2, 0.5):
            with pytest.raises(InvalidArgumentError, match="coordinate must be one of"):
                plot_stream(steps, coordinate=bad)
        wrong = torch.zeros(3, **double)
        for bad in (wrong, lambda user: wrong):
            with pytest.raises(InvalidArgumentError, match="truth must have shape"):
                plot_stream(steps, bad)
        with pytest.raises(InvalidArgumentError, match="quantiles must be"):
            plot_stream(steps, quantiles=(0.9, 0.1))


class TestDictionarySize:
    """Numbers of points, read from the history and from the surrogate itself."""

    @pytest.fixture
    def steps(self, double):
        sizes = {5: (3, 5), 10: (4, 4), 15: (3, 9)}
        x = torch.zeros(2, 2, **double)
        return [Step(n, x, 0, num_points=sizes[n]) for n in sizes]

    def test_mean_and_range(self, steps):
        _, given = mpl.pyplot.subplots()
        ax = plot_dictionary_size(steps, label="kappa = 0.1", ax=given)
        assert ax is given
        (line,) = ax.get_lines()
        assert line.get_xdata().tolist() == [5, 10, 15]
        assert line.get_ydata().tolist() == [4.0, 4.0, 6.0]
        assert band_of(ax) == ([3.0, 4.0, 3.0], [5.0, 4.0, 9.0])
        assert legend_of(ax) == ["kappa = 0.1"]
        assert plot_dictionary_size(steps).get_legend() is None
        median = plot_dictionary_size(steps, quantiles=(0.5, 0.5))
        assert band_of(median) == ([4.0, 4.0, 6.0],) * 2

    def test_several_runs_are_replications(self, steps, double):
        x = torch.zeros(2, **double)
        alone = [Step(step.number, x, 0, num_points=(7,)) for step in steps]
        ax = plot_dictionary_size([steps, alone])
        expected = np.mean([[3, 4, 3], [5, 4, 9], [7, 7, 7]], axis=0)
        assert ax.get_lines()[0].get_ydata().tolist() == pytest.approx(expected)

    def test_one_run_has_no_band(self, double):
        stream = LinearStream(3, device="cpu")
        opt = LDPBO(stream.initial_x, GDP(1.0), stream.gradient_bound, mode="swc")
        sizes = []
        for number in range(1, 7):
            opt.tell(stream.losses(number, opt.ask()))
            sizes.append(int(opt.server.surrogate.num_points))
        for given in (opt, opt.history, opt.result()):
            ax = plot_dictionary_size(given)
            (line,) = ax.get_lines()
            assert line.get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
            assert line.get_ydata().tolist() == sizes
            assert not ax.collections

    def test_bad_input(self, steps):
        stream = LinearStream(2, device="cpu")
        stencil = LDPBO(stream.initial_x, GDP(1.0), clip_norm=1.0)
        stencil.run(stream, 3, progress=False)
        with pytest.raises(InvalidArgumentError, match=r"must have a dictionary.*swc"):
            plot_dictionary_size(stencil)
        with pytest.raises(InvalidArgumentError, match="have the same step numbers"):
            plot_dictionary_size([steps[:2], steps[1:]])
        with pytest.raises(InvalidArgumentError, match="must have at least one step"):
            plot_dictionary_size([])
        with pytest.raises(InvalidArgumentError, match="quantiles must be"):
            plot_dictionary_size(steps, quantiles=(0.9, 0.1))
