"""Pictures: what is drawn, not how it looks."""

import matplotlib as mpl
import numpy as np
import pytest
import torch
from torch import Tensor

from botorch_dp import DPGIBO, GDP, GIBO, LDPBO, ApproxDP, Ledger
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import Step
from botorch_dp.plots import plot_convergence, plot_ledger, plot_stream, plot_trace
from botorch_dp.privacy import GaussianEvent
from botorch_dp.problems import LinearStream

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    mpl.pyplot.close("all")


@pytest.fixture
def spent_by_count():
    return [0.0] + [GDP(0.5 * np.sqrt(n)).epsilon(1e-5) for n in range(1, 5)]


def test_spending_and_cap(spent_by_count):
    ledger = Ledger(cap=ApproxDP(5.0, 1e-5))
    for _ in range(4):
        ledger.charge(GaussianEvent(2.0))
    ax = plot_ledger(ledger)
    spent, cap = ax.get_lines()
    assert spent.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert spent.get_ydata().tolist() == pytest.approx(spent_by_count)
    assert set(cap.get_ydata()) == {5.0}
    assert ax.get_ylabel() == "epsilon at delta=1e-05"


def test_in_the_unit_of_the_cap():
    ledger = Ledger(cap=GDP(1.0))
    for _ in range(4):
        ledger.charge(GaussianEvent(2.0))
    ax = plot_ledger(ledger)
    assert ax.get_lines()[0].get_ydata()[-1] == pytest.approx(1.0)
    assert ax.get_ylabel() == "mu"


def test_without_cap_on_given_axes_and_at_another_delta(spent_by_count):
    _, ax = mpl.pyplot.subplots()
    ledger = Ledger()
    for _ in range(4):
        ledger.charge(GaussianEvent(2.0))
    assert plot_ledger(ledger, ax=ax) is ax
    assert ax.get_lines()[0].get_ydata().tolist() == pytest.approx(spent_by_count)
    other = plot_ledger(ledger, delta=1e-3)
    assert other.get_ylabel() == "epsilon at delta=0.001"
    assert other.get_lines()[0].get_ydata()[-1] == pytest.approx(GDP(1.0).epsilon(1e-3))


def test_long_ledgers_are_thinned_but_end_at_the_end():
    ledger = Ledger()
    for _ in range(1000):
        ledger.charge(GaussianEvent(100.0))
    line = plot_ledger(ledger).get_lines()[0]
    assert len(line.get_xdata()) <= 101
    assert line.get_xdata()[-1] == 1000


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
        low, high = _band(ax)
        assert low == pytest.approx([min(p) for p in zip(first, second, strict=True)])
        assert high == pytest.approx([max(p) for p in zip(first, second, strict=True)])
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["private"]

    def test_quantiles(self, runs):
        low, high = _band(plot_convergence(runs, _squared_norm, quantiles=(0.25, 0.75)))
        widest = _band(plot_convergence(runs, _squared_norm))
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
        low, high = _band(ax)
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
            with pytest.raises(InvalidArgumentError, match="runs must have steps"):
                plot_convergence(bad)
        with pytest.raises(InvalidArgumentError, match="with a surrogate"):
            plot_trace(plain)
        with pytest.raises(InvalidArgumentError, match="must return 4 values for 4"):
            plot_convergence(runs[0], lambda X: X)
        for bad in ((0.9, 0.1), (-0.1, 0.5), (0.0, 1.5)):
            with pytest.raises(InvalidArgumentError, match="quantiles must be"):
                plot_convergence(runs, _squared_norm, quantiles=bad)


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
        assert _band(ax) == ([2.0, 1.0], [4.0, 5.0])
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
        assert _band(ax) == ([2.0, 1.0], [2.0, 1.0])
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
        with pytest.raises(InvalidArgumentError, match="runs must have steps"):
            plot_stream([])
        others = [Step(n, torch.zeros(2, 2, **double), 0) for n in (5, 11)]
        with pytest.raises(InvalidArgumentError, match="must have the same steps"):
            plot_stream([steps, others])
        for bad in (-1, 2, 0.5):
            with pytest.raises(InvalidArgumentError, match="coordinate must be one of"):
                plot_stream(steps, coordinate=bad)
        wrong = torch.zeros(3, **double)
        for bad in (wrong, lambda user: wrong):
            with pytest.raises(InvalidArgumentError, match="truth must be 2 numbers"):
                plot_stream(steps, bad)
        with pytest.raises(InvalidArgumentError, match="quantiles must be"):
            plot_stream(steps, quantiles=(0.9, 0.1))


def _squared_norm(X):
    return X.square().sum(dim=-1)


def _run(seed, double):
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **double)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    optimizer = DPGIBO(bounds, 100, GDP(1.0), 4, clip_norm=1.0, generator=generator)
    optimizer.run(lambda X: _squared_norm(X).expand(100, -1), progress=False)
    return optimizer


def _band(ax):
    """The lower and the upper edge of the only band."""
    (band,) = ax.collections
    (path,) = band.get_paths()
    edges = {}
    for x, y in path.vertices:
        edges.setdefault(float(x), []).append(float(y))
    return [min(ys) for ys in edges.values()], [max(ys) for ys in edges.values()]
