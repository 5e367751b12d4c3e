"""The dimensions of a search space."""

import math

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Categorical, Integer, Real


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: Real(1.0, 1.0),
            r"low must be below high, and both.* got Real\(low=1.0",
        ),
        (lambda: Real(0.0, math.inf), "both must be finite"),
        (lambda: Real(0.0, 1.0, log=True), "low must be above 0 with log=True"),
        (lambda: Real("0", 1.0), "low and high must be numbers"),
        (lambda: Integer(1.5, 3), "low of an Integer must be a whole number, got 1.5"),
        (lambda: Integer(1, math.inf), "high of an Integer must be a whole number"),
        (lambda: Integer(math.nan, 3), "low of an Integer must be a whole number"),
        (lambda: Integer("a", "b"), "low of an Integer must be a whole number"),
        (lambda: Real(None, 1.0), "low and high must be numbers"),
        (lambda: Integer(1, True), "high of an Integer must be a whole number"),
        (lambda: Categorical("rbf"), "choices must be a list or a tuple, got 'rbf'"),
        (lambda: Categorical(["rbf"]), "choices must have at least two values"),
        (lambda: Categorical([1, 1.0]), "choices must be different"),
    ],
)
def test_bad_dimensions(make, match):
    with pytest.raises(InvalidArgumentError, match=match):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda when: Real(0.0, 1.0, when=when),
        lambda when: Integer(1, 3, when=when),
        lambda when: Categorical(["a", "b"], when=when),
    ],
)
class TestConditions:
    def test_are_shown_and_compared(self, make):
        assert make(None) == make(None) != make({"kernel": "rbf"})
        assert "when" not in repr(make(None))
        assert repr(make({"kernel": "rbf"})).endswith("when={'kernel': 'rbf'})")

    @pytest.mark.parametrize("when", [{}, "kernel", [("kernel", "rbf")]])
    def test_must_name_values(self, make, when):
        with pytest.raises(InvalidArgumentError, match="when must map names of param"):
            make(when)


def test_ranges_can_be_hashed():
    conditional = Real(0, 1, when={"a": [1]})
    assert len({Real(0, 1), Real(0, 1), conditional, Integer(0, 1)}) == 3
