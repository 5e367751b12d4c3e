"""Helpers of plots: axes, histories, bands and names."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import Step
from botorch_dp.plots._common import (
    check_quantiles,
    draw_coordinates,
    draw_mean,
    finish,
    get_axes,
    histories_of,
    same_numbers,
)

from .reading import band_of, legend_of


def steps(*numbers):
    x = torch.zeros(1, device="cpu")
    return [Step(number, x, num_evaluations=number) for number in numbers]


class TestHistories:
    def test_one_or_several(self):
        one, two = steps(1, 2), steps(1, 3)
        assert histories_of(one) == [one]
        assert histories_of([one, two]) == [one, two]

    @pytest.mark.parametrize("runs", [[], [[]], [steps(1), steps(1, 2)]])
    def test_refused(self, runs):
        with pytest.raises(InvalidArgumentError, match="runs must have at least one"):
            histories_of(runs)

    def test_numbers(self):
        assert same_numbers([steps(2, 4), steps(2, 4)]) == [2, 4]
        with pytest.raises(InvalidArgumentError, match="the same step numbers"):
            same_numbers([steps(2, 4), steps(2, 5)])


def test_quantiles():
    check_quantiles((0.25, 0.25))
    check_quantiles((0.0, 1.0))
    for quantiles in ((0.6, 0.4), (-0.1, 0.5), (0.5, 1.1)):
        with pytest.raises(InvalidArgumentError, match="two ascending numbers"):
            check_quantiles(quantiles)


def test_axes():
    _, given = pyplot.subplots()
    assert get_axes(given, "a plot") is given
    assert get_axes(None, "a plot") is not given


class TestDrawing:
    def test_mean_and_band(self):
        values = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0]])
        ax = get_axes(None, "a plot")
        line = draw_mean(ax, [0, 1], values, (0.0, 0.5), "name")
        assert line.get_ydata().tolist() == [3.0, 5.0]
        assert line.get_label() == "name"
        low, high = band_of(ax)
        assert low == [1.0, 2.0]
        assert high == [3.0, 6.0]

    def test_one_run_has_no_band(self):
        ax = get_axes(None, "a plot")
        draw_mean(ax, [0, 1], np.ones((1, 2)), (0.0, 1.0), None)
        assert not ax.collections

    @pytest.mark.parametrize(
        ("label", "coordinate", "names"),
        [
            (None, None, ["$x_{1}$", "$x_{2}$"]),
            ("run", None, ["run 1", "run 2"]),
            ("run", 1, ["run 2"]),
        ],
    )
    def test_coordinates(self, label, coordinate, names):
        paths = np.arange(6.0).reshape(1, 3, 2)
        ax = get_axes(None, "a plot")
        draw_coordinates(ax, [1, 2, 3], paths, (0.0, 1.0), label, coordinate)
        lines = ax.get_lines()
        assert [line.get_label() for line in lines] == names
        assert lines[-1].get_ydata().tolist() == [1.0, 3.0, 5.0]

    def test_finish(self):
        ax = get_axes(None, "a plot")
        ax.plot([0, 1], label="line")
        assert finish(ax, "x", "y", legend=False) is ax
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")
        assert ax.get_legend() is None
        assert legend_of(finish(ax, "x", "y")) == ["line"]
