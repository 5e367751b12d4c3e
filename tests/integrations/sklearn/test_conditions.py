"""Conditions become branches."""

import itertools

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Categorical, Integer, Real
from botorch_dp.integrations.sklearn.conditions import resolve_conditions

KERNEL = Categorical(["linear", "rbf", "poly"])


def gamma(**when):
    return Real(0.1, 1.0, when=when or None)


def test_none():
    dims = {"kernel": KERNEL, "gamma": gamma()}
    (branch,) = resolve_conditions(dims, {"tol": 1})
    assert branch.dimensions == dims
    assert branch.fixed == {"tol": 1}


def test_one_or_several_values():
    dims = {
        "kernel": KERNEL,
        "gamma": gamma(kernel=["rbf", "poly"]),
        "degree": Integer(2, 4, when={"kernel": "poly"}),
        "C": Real(0.0, 9.0),
    }
    found = resolve_conditions(dims, {})
    assert [branch.fixed["kernel"] for branch in found] == ["linear", "rbf", "poly"]
    assert [{*branch.numbers} for branch in found] == [
        {"C"},
        {"C", "gamma"},
        {"C", "gamma", "degree"},
    ]
    assert found[2].numbers["gamma"] == gamma()  # without its condition


def test_against_brute_force():
    """Every point of a space with nested conditions is in exactly one branch."""
    dims = {
        "a": Categorical([0, 1, 2]),
        "b": Categorical(["x", "y"], when={"a": [1, 2]}),
        "c": Categorical([True, False], when={"b": "y", "a": 2}),
        "d": Categorical(["p", "q"]),
        "e": Categorical([5, 6], when={"c": True, "d": "q"}),
    }
    wanted = []
    for a, b, c, d, e in itertools.product(*(dim.choices for dim in dims.values())):
        point = {"a": a, "d": d}
        if a in (1, 2):
            point["b"] = b
            if b == "y" and a == 2:
                point["c"] = c
                if c and d == "q":
                    point["e"] = e
        if point not in wanted:
            wanted.append(point)
    branches = resolve_conditions(dims, {})
    found = [params for branch in branches for params in branch.all_params()]
    assert len(found) == len(wanted)
    assert all(params in wanted for params in found)


def test_values_that_are_lists():
    layers = Categorical([[8], [8, 8]])
    dims = {"layers": layers, "rate": gamma(layers=[8, 8])}
    found = resolve_conditions(dims, {})
    assert [{*branch.numbers} for branch in found] == [set(), {"rate"}]


def test_on_a_fixed_value():
    (branch,) = resolve_conditions({"gamma": gamma(kernel="rbf")}, {"kernel": "rbf"})
    assert branch.fixed == {"kernel": "rbf"}
    assert [*branch.numbers] == ["gamma"]


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        (
            {"kernel": KERNEL, "gamma": gamma(kernle="rbf")},
            r"when of space\['gamma'\] must name a category.*got 'kernle'.*no such "
            r"parameter\. Did you mean 'kernel'\?",
        ),
        (
            {"C": gamma(), "gamma": gamma(C=1.0)},
            r"got 'C', but the space has Real\(.*there",
        ),
        (
            {"kernel": KERNEL, "gamma": gamma(kernel="rbff")},
            r"must name values of 'kernel', which are 'linear', 'rbf', 'poly', got "
            r"'rbff'\. Did you mean 'rbf'\?",
        ),
        (
            {
                "a": Categorical([1, 2], when={"b": 1}),
                "b": Categorical([1, 2], when={"a": 1}),
            },
            r"space\['a'\] is never set: when={'b': 1} can never hold",
        ),
        (
            {"kernel": KERNEL, "gamma": gamma(kernel=[])},
            r"space\['gamma'\] is never set",
        ),
    ],
)
def test_refused(dims, match):
    with pytest.raises(InvalidArgumentError, match=match):
        resolve_conditions(dims, {})
