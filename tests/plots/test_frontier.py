"""What is drawn of utilities against guarantees."""

import math

import matplotlib as mpl
import numpy as np
import pytest
import torch

from botorch_dp import GDP, ApproxDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.plots import plot_frontier
from botorch_dp.privacy import RDP

from .reading import band_of, legend_of


@pytest.fixture
def found():
    # Not in the order of mu, with as many replications as there happen to be.
    return {GDP(2.0): [0.9, 0.7, 0.8], GDP(0.5): [0.2, 0.6], GDP(1.0): [0.5]}


def test_means_bands_and_references(found):
    _, given = mpl.pyplot.subplots()
    references = {"not private": 0.95, "default": 0.1}
    ax = plot_frontier({"ours": found}, references=references, ax=given)
    assert ax is given
    line, *horizontal = ax.get_lines()
    assert line.get_xdata().tolist() == [0.5, 1.0, 2.0]
    assert line.get_ydata().tolist() == pytest.approx([0.4, 0.5, 0.8])
    low, high = band_of(ax)
    assert low == pytest.approx([0.2, 0.5, 0.7])
    assert high == pytest.approx([0.6, 0.5, 0.9])
    assert [set(other.get_ydata()) for other in horizontal] == [{0.95}, {0.1}]
    assert len({other.get_linestyle() for other in horizontal}) == 2
    assert legend_of(ax) == ["ours", "not private", "default"]
    assert (ax.get_xlabel(), ax.get_xscale()) == ("mu", "log")


def test_quantiles(found):
    low, high = band_of(plot_frontier({"ours": found}, quantiles=(0.25, 0.75)))
    assert low == pytest.approx([0.3, 0.5, 0.75])
    assert high == pytest.approx([0.5, 0.5, 0.85])


def test_a_line_for_each_method_and_a_band_where_there_are_replications(found):
    single = {GDP(1.0): [0.3], GDP(3.0): [0.4]}
    ax = plot_frontier({"ours": found, "theirs": single})
    lines = ax.get_lines()
    assert [line.get_label() for line in lines] == ["ours", "theirs"]
    assert lines[1].get_xdata().tolist() == [1.0, 3.0]
    assert len(ax.collections) == 1


@pytest.mark.parametrize("convert", [list, tuple, np.array, torch.tensor])
def test_what_replications_may_be(convert):
    with torch.device("cpu"):
        values = convert([0.25, 0.75])
    (line,) = plot_frontier({"ours": {GDP(1.0): values}}).get_lines()
    assert line.get_ydata().tolist() == [0.5]


def test_guarantees_as_they_are():
    pure = plot_frontier({"a": {PureDP(1.0): [1.0], PureDP(2.0): [2.0]}})
    assert pure.get_xlabel() == "epsilon"
    assert pure.get_lines()[0].get_xdata().tolist() == [1.0, 2.0]
    approx = plot_frontier({"a": {ApproxDP(3.0, 1e-6): [1.0]}})
    assert approx.get_xlabel() == "epsilon at delta=1e-06"
    assert approx.get_lines()[0].get_xdata().tolist() == [3.0]


def test_all_kinds_on_one_axis():
    delta = 1e-5
    kinds = {
        # The closed form for pure guarantees: (e^eps - e^x) / (1 + e^eps) = delta.
        PureDP(1.0): math.log(math.e - delta * (1 + math.e)),
        GDP(1.0): 4.377178,
        ApproxDP(6.0, delta): 6.0,
        RDP(8.0, 0.5): 1.709902,
    }
    utilities = {repr(kind): {kind: [0.0]} for kind in kinds}
    ax = plot_frontier(utilities, delta=delta)
    amounts = [float(line.get_xdata()[0]) for line in ax.get_lines()]
    assert amounts == pytest.approx(list(kinds.values()), rel=1e-6)
    assert ax.get_xlabel() == "epsilon at delta=1e-05"


@pytest.mark.parametrize(
    ("utilities", "match"),
    [
        ({}, "at least one method"),
        ({"ours": {}}, "each at least one guarantee"),
        ({"ours": {1.0: [0.5]}}, r"guarantees as keys.*got 1\.0"),
        ({"ours": {GDP(1.0): []}}, r"'ours' at GDP\(mu=1\).*each replication"),
        ({"ours": {GDP(1.0): [[0.5]]}}, "finite numbers"),
        ({"ours": {GDP(1.0): 0.5}}, "finite numbers"),
        ({"ours": {GDP(1.0): [0.5, math.nan]}}, "finite numbers"),
        ({"a": {GDP(1.0): [1.0]}, "b": {PureDP(1.0): [1.0]}}, "one kind.*epsilon, mu"),
        ({"a": {ApproxDP(1, 1e-5): [1], ApproxDP(1, 1e-6): [1]}}, "one kind.*delta="),
        ({"a": {RDP(8.0, 0.5): [1.0]}}, r"delta must be given to draw RDP"),
    ],
)
def test_bad_utilities(utilities, match):
    with pytest.raises(InvalidArgumentError, match=match):
        plot_frontier(utilities)


def test_other_bad_input(found):
    with pytest.raises(InvalidArgumentError, match="quantiles must be"):
        plot_frontier({"ours": found}, quantiles=(0.9, 0.1))
    with pytest.raises(InvalidArgumentError, match="delta must lie"):
        plot_frontier({"ours": found}, delta=0.0)
    with pytest.raises(InvalidArgumentError, match=r"delta is too small.*ApproxDP"):
        plot_frontier({"ours": {ApproxDP(1.0, 1e-5): [0.5]}}, delta=1e-7)
