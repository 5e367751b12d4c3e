"""Wins, ties and losses, by hand."""

import math

import pytest

from benchmarks._arena_verdicts import (
    LOSS,
    TIE,
    WIN,
    best,
    compare,
    difference,
    gaps,
)
from benchmarks.contenders import ALTERNATIVE, NOT_PRIVATE

OURS, CELL = "dp-gibo (old)", "quadratic-d6-n5000-eps3"


def cell(**regrets):
    names = {
        "ours": OURS,
        "start": "no search",
        "flip": "permute-and-flip 200",
        "spsa": "SPSA",
        "random": "random search",
        "tpe": "TPE",
    }
    return {names[key]: {"regret": r, "seconds": 0.1} for key, r in regrets.items()}


def test_difference_in_pairs():
    found = difference([0.1, 0.2, 0.3], [0.2, 0.4, 0.3])
    assert found.mean == pytest.approx(-0.1)
    # The differences are -0.1, -0.2 and 0, with standard deviation 0.1.
    assert found.error == pytest.approx(0.1 / math.sqrt(3))
    assert str(found) == "-0.1000 ± 0.0577"


def test_only_common_seeds_count():
    found = difference([0.1, 0.2, 9.0], [0.2, 0.4])
    assert found.mean == pytest.approx(-0.15)
    assert found.error == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ([0.1, 0.1, 0.1], [0.2, 0.2, 0.2], WIN),
        ([0.2, 0.2, 0.2], [0.1, 0.1, 0.1], LOSS),
        ([0.1015, 0.1015], [0.1, 0.1], TIE),  # below 0.002
        ([0.1025, 0.1025], [0.1, 0.1], LOSS),
        ([0.1, 0.3], [0.1, 0.1], TIE),  # 0.1 +- 0.1
        ([0.2, 0.3], [0.1, 0.1], LOSS),  # 0.15 +- 0.05
        ([0.9], [0.1], TIE),  # one seed alone
    ],
)
def test_verdicts(first, second, verdict):
    assert difference(first, second).verdict() == verdict


def test_best_of_a_kind_in_hindsight():
    known = cell(ours=[0.0], start=[0.3], flip=[0.2], spsa=[0.1], random=[0.05])
    assert best(known, ALTERNATIVE) == "SPSA"
    assert best(known, NOT_PRIVATE) == "random search"
    assert best({}, ALTERNATIVE) is None


def test_compare():
    results = {
        CELL: cell(ours=[0.1, 0.1], start=[0.3, 0.3], spsa=[0.2, 0.2]),
        "levy-d4-n500-eps1": cell(ours=[0.1, 0.1], start=[0.05, 0.05], spsa=[0.2, 0.2]),
        "pareto-d2-n500-eps1": cell(start=[0.05, 0.05]),
    }
    first, second = compare(results, OURS)
    assert (first.cell, first.rival, first.verdict) == (CELL, "SPSA", WIN)
    assert not first.is_worse_than_no_search
    assert (second.rival, second.verdict) == ("no search", LOSS)
    assert second.is_worse_than_no_search
    assert second.regret == 0.1
    assert second.rival_regret == 0.05


def test_no_search_counts_two_errors_alone():
    results = {CELL: cell(ours=[0.101, 0.101], start=[0.1, 0.1])}
    (one,) = compare(results, OURS)
    assert one.verdict == TIE
    assert one.is_worse_than_no_search


def test_gaps():
    regrets = {"start": [0.5, 0.5], "random": [0.3, 0.3], "tpe": [0.1, 0.1]}
    results = {
        CELL: cell(ours=[0.14, 0.14], **regrets),  # 0.04 of 0.4
        "cover-d4-n5000-eps1": cell(ours=[0.14, 0.14], **regrets),  # not smooth
        "quadratic-d6-n500-eps1": cell(ours=[0.14, 0.14], **regrets),  # n eps 500
        "levy-d4-n5000-eps3": cell(ours=[0.1], start=[0.1], tpe=[0.1]),  # no range
    }
    assert gaps(results, OURS, 5000) == {CELL: pytest.approx(0.1)}
    assert len(gaps(results, OURS, 100)) == 2
