"""A part of a search space in which the same parameters are always set."""

import itertools
import math

import numpy as np
import pytest

from botorch_dp.integrations.sklearn import Categorical, Integer, Real
from botorch_dp.integrations.sklearn.branch import Branch

BRANCH = Branch(
    {
        "C": Real(1e-2, 1e2, log=True),
        "kernel": Categorical(["rbf", "linear", "poly"]),
        "depth": Integer(1, 4),
        "shrinkage": Real(-1.0, 1.0),
    },
    {"tol": 0.1},
)


def test_numbers_and_choices():
    assert BRANCH.bounds.tolist() == [[1e-2, 1, -1], [1e2, 4, 1]]
    assert BRANCH.transform == ("log", "linear", "linear")
    assert [*BRANCH.numbers] == ["C", "depth", "shrinkage"]
    assert BRANCH.choices == {"kernel": Categorical(["rbf", "linear", "poly"])}
    assert repr(BRANCH.choices["kernel"]) == "Categorical(['rbf', 'linear', 'poly'])"
    assert BRANCH.rounded([1.0, 2.6, 0.5]) == {"C": 1.0, "depth": 3, "shrinkage": 0.5}
    assert isinstance(BRANCH.rounded([1.0, 2.6, 0.5])["depth"], int)


class TestInterpolation:
    space = Branch({"a": Integer(0, 9), "x": Real(0, 1), "b": Integer(0, 9)})

    def test_whole_points_stand_for_themselves(self):
        assert self.space.corners([3.0, 0.25, 9.0]) == [
            (1.0, {"a": 3, "x": 0.25, "b": 9})
        ]

    def test_weights_reproduce_the_point(self):
        corners = self.space.corners([3.25, 0.5, 7.75])
        assert len(corners) == 3
        assert sum(weight for weight, _ in corners) == pytest.approx(1.0)
        for name, value in (("a", 3.25), ("x", 0.5), ("b", 7.75)):
            mean = sum(weight * params[name] for weight, params in corners)
            assert mean == pytest.approx(value)
        assert all(isinstance(params["a"], int) for _, params in corners)

    def test_any_function_is_met_at_whole_points_and_continuous_between(self):
        rng = np.random.default_rng(0)
        table = rng.normal(size=(10, 10))  # any function on whole numbers

        def interpolated(a, b):
            return sum(
                weight * table[params["a"], params["b"]]
                for weight, params in self.space.corners([a, 0.0, b])
            )

        for a, b in itertools.product(range(1, 9), repeat=2):
            assert interpolated(a, b) == table[a, b]
        # Across the edges of the triangles, at a whole number and along a diagonal.
        for a, b in rng.uniform(1, 8, size=(100, 2)):
            for point in ((math.floor(a), b), (a, math.floor(b) + a % 1)):
                near = [np.add(point, 1e-9 * rng.normal(size=2)) for _ in range(8)]
                values = [interpolated(*p) for p in near]
                assert np.ptp(values) < 1e-6


class TestContains:
    inside = {"C": 1.0, "kernel": "poly", "depth": 2, "shrinkage": 0, "tol": 0.1}  # noqa: RUF012

    def test_its_points(self):
        assert self.inside in BRANCH
        assert all(BRANCH.params_at([u] * 4) in BRANCH for u in (0.0, 0.3, 1.0))

    @pytest.mark.parametrize(
        "change", [{"tol": 0.2}, {"C": 1e3}, {"kernel": "no"}, {"depth": 2.5}, {"a": 1}]
    )
    def test_no_other_values(self, change):
        assert {**self.inside, **change} not in BRANCH

    def test_no_parameter_less(self):
        for name in self.inside:
            rest = {key: self.inside[key] for key in self.inside if key != name}
            assert rest not in BRANCH


class TestModelsAtAPoint:
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
    def test_never_more_than_said(self, count):
        """Interpolated up to two integers, rounded beyond."""
        names = [f"i{k}" for k in range(count)]
        space = Branch({"x": Real(0, 1)} | dict.fromkeys(names, Integer(0, 9)))
        point = [0.25, *(3.1 + 0.2 * k for k in range(count))]
        models = space.models_at(point)
        assert len(models) == space.models_per_point == (count + 1, 1)[count > 2]
        if count <= 2:
            assert models == space.corners(point)
        else:
            assert models == [(1.0, space.rounded(point))]

    def test_number_of_points(self):
        assert BRANCH.num_points == math.inf
        assert Branch({}, {"kernel": "rbf"}).num_points == 1
        assert Branch({}, {"kernel": "rbf"}).all_params() == [{"kernel": "rbf"}]
