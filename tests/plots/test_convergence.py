"""What is drawn of runs: their points, and what they knew of gradients."""

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import Tensor

from botorch_dp import DPGIBO, GDP, GIBO
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import Step
from botorch_dp.plots import plot_convergence, plot_trace

from .reading import band_of


class TestOfRuns:
    """Two runs on public functions, and what is drawn of them."""

    @pytest.fixture
    def runs(self, double):
        return [_run(seed, double) for seed in (1, 2)]

    def test_one_run(self, runs, double):
        run = runs[0]
        start = torch.full((2,), 0.5, **double)
        for given in (run, run.history, run.result()):  # all the same
            ax = plot_convergence(given, _squared_norm, initial_x=start)
            (line,) = ax.get_lines()
            assert line.get_xdata().tolist() == [0, 3, 6, 9, 12]
            expected = [float(step.x.square().sum()) for step in run.history]
            assert line.get_ydata().tolist() == pytest.approx([0.5, *expected])
            assert not ax.collections  # no band
            assert ax.get_legend() is None

    def test_mean_and_range_of_several(self, runs):
        _, given = mpl.pyplot.subplots()
        ax = plot_convergence(runs, _squared_norm, label="private", ax=given)
        assert ax is given
        (line,) = ax.get_lines()
        first, second = (
            [float(step.x.square().sum()) for step in run.history] for run in runs
        )
        assert line.get_ydata().tolist() == pytest.approx(
            [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        )
        low, high = band_of(ax)
        assert low == pytest.approx([min(p) for p in zip(first, second, strict=True)])
        assert high == pytest.approx([max(p) for p in zip(first, second, strict=True)])
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["private"]

    def test_quantiles(self, runs):
        low, high = band_of(
            plot_convergence(runs, _squared_norm, quantiles=(0.25, 0.75))
        )
        widest = band_of(plot_convergence(runs, _squared_norm))
        widths = np.subtract(high, low)
        assert widths == pytest.approx(np.subtract(widest[1], widest[0]) / 2)

    def test_coordinates_without_evaluation(self, runs):
        ax = plot_convergence(runs[0])
        for index, line in enumerate(ax.get_lines()):
            expected = [float(step.x[index]) for step in runs[0].history]
            assert line.get_ydata().tolist() == pytest.approx(expected)
            assert line.get_label() == f"$x_{{{index + 1}}}$"
        named = plot_convergence(runs[0], label="run")
        assert [line.get_label() for line in named.get_lines()] == ["run 1", "run 2"]

    @pytest.mark.parametrize("convert", [Tensor.numpy, Tensor.tolist, Tensor.float])
    def test_what_evaluate_may_return(self, runs, convert):
        ax = plot_convergence(runs[0], lambda X: convert(_squared_norm(X)))
        expected = _squared_norm(torch.stack([s.x for s in runs[0].history])).tolist()
        assert ax.get_lines()[0].get_ydata().tolist() == pytest.approx(expected)

    def test_trace_and_noise(self, runs):
        ax = plot_trace(runs)
        surrogate, noise = ax.get_lines()
        traces = np.array([[s.trace for s in run.history] for run in runs])
        assert surrogate.get_xdata().tolist() == [1, 2, 3, 4]
        assert surrogate.get_ydata().tolist() == pytest.approx(traces.mean(axis=0))
        low, high = band_of(ax)
        assert low == pytest.approx(traces.min(axis=0))
        assert high == pytest.approx(traces.max(axis=0))
        # 2 B sqrt(T) / (n mu) in each of two coordinates.
        assert noise.get_ydata().tolist() == pytest.approx([2 * 0.04**2] * 4)
        assert ax.get_yscale() == "log"

    def test_no_noise_no_line(self, double):
        public = GIBO(torch.tensor([[0.0] * 2, [1.0] * 2], **double), 10, 2)
        public.run(lambda X: _squared_norm(X).expand(10, -1), progress=False)
        lines = plot_trace(public, label="public").get_lines()
        assert [line.get_label() for line in lines] == ["public, surrogate"]

    def test_bad_input(self, runs, double):
        plain = [Step(number=1, x=torch.zeros(2, **double), num_evaluations=1)]
        for bad in ([], (), [()], [runs[0], plain]):
            with pytest.raises(
                InvalidArgumentError, match="must have at least one step"
            ):
                plot_convergence(bad)
        with pytest.raises(InvalidArgumentError, match="with a surrogate"):
            plot_trace(plain)
        with pytest.raises(InvalidArgumentError, match="must return 4 values for 4"):
            plot_convergence(runs[0], lambda X: X)
        for bad in ((0.9, 0.1), (-0.1, 0.5), (0.0, 1.5)):
            with pytest.raises(InvalidArgumentError, match="quantiles must be"):
                plot_convergence(runs, _squared_norm, quantiles=bad)


def _squared_norm(X):
    return X.square().sum(dim=-1)


def _run(seed, double):
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **double)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    optimizer = DPGIBO(bounds, 100, GDP(1.0), 4, clip_norm=1.0, generator=generator)
    optimizer.run(lambda X: _squared_norm(X).expand(100, -1), progress=False)
    return optimizer
