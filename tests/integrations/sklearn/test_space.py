"""What hyperparameters may be, and how they become points and back."""

import itertools
import math

import numpy as np
import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Categorical, Integer, Real
from botorch_dp.integrations.sklearn.space import SearchSpace

SPACE = SearchSpace(
    {
        "C": Real(1e-2, 1e2, log=True),
        "kernel": ["rbf", "linear", "poly"],
        "depth": Integer(1, 4),
        "shrinkage": Real(-1.0, 1.0),
    }
)


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
        (lambda: SearchSpace({}), "space must be a dict"),
        (lambda: SearchSpace([Real(0, 1)]), "space must be a dict"),
        (lambda: SearchSpace({"C": (0.1, 10)}), r"space\['C'\] must be Real\(low"),
        (lambda: SearchSpace({1: Real(0, 1)}), r"space\[1\]"),
    ],
)
def test_bad_spaces(make, match):
    with pytest.raises(InvalidArgumentError, match=match):
        make()


def test_numbers_and_choices():
    assert SPACE.bounds.tolist() == [[1e-2, 1, -1], [1e2, 4, 1]]
    assert SPACE.transform == ("log", "linear", "linear")
    assert [*SPACE.numbers] == ["C", "depth", "shrinkage"]
    assert SPACE.choices == {"kernel": Categorical(["rbf", "linear", "poly"])}
    assert repr(SPACE.choices["kernel"]) == "Categorical(['rbf', 'linear', 'poly'])"
    assert SPACE.rounded([1.0, 2.6, 0.5]) == {"C": 1.0, "depth": 3, "shrinkage": 0.5}
    assert isinstance(SPACE.rounded([1.0, 2.6, 0.5])["depth"], int)


class TestInterpolation:
    space = SearchSpace({"a": Integer(0, 9), "x": Real(0, 1), "b": Integer(0, 9)})

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


class TestCandidates:
    def test_in_the_space_and_different(self):
        found = SPACE.candidates(64, first=None, seed=0)
        assert len(found) == 64
        assert len({repr(params) for params in found}) == 64
        assert all(SPACE.start(params) == params for params in found)
        assert all(isinstance(params["depth"], int) for params in found)
        # Whole numbers and choices come up equally often, about.
        for name, values in (("depth", (1, 2, 3, 4)), ("kernel", ("rbf", "linear"))):
            for value in values:
                share = sum(params[name] == value for params in found) / 64
                assert 0.15 < share < 0.45
        logs = [math.log10(params["C"]) for params in found]
        assert np.mean(logs) == pytest.approx(0.0, abs=0.1)

    def test_begin_where_told(self):
        first = {"C": 1.0, "kernel": "poly", "depth": 2, "shrinkage": 0.0}
        found = SPACE.candidates(8, first={**first, "other": 1}, seed=0)
        assert found[0] == first
        assert len(found) == 8

    def test_the_seed_changes_them(self):
        assert SPACE.candidates(8, first=None, seed=0) != SPACE.candidates(
            8, first=None, seed=1
        )

    def test_small_spaces_are_exhausted(self):
        space = SearchSpace({"depth": Integer(1, 3), "kernel": ["rbf", "linear"]})
        found = space.candidates(32, first={"depth": 2, "kernel": "rbf"}, seed=0)
        assert len(found) == 6
        assert {(p["depth"], p["kernel"]) for p in found} == {
            *itertools.product((1, 2, 3), ("rbf", "linear"))
        }

    def test_encoded(self):
        candidates = [
            {"C": 1e-2, "kernel": "rbf", "depth": 1, "shrinkage": 0.0},
            {"C": 1.0, "kernel": "poly", "depth": 4, "shrinkage": 0.0},
        ]
        # C, depth, rbf, poly; shrinkage and linear tell nothing.
        assert torch.equal(
            SPACE.encoded(candidates),
            torch.tensor(
                [[0.0, 0.0, 1.0, 0.0], [0.5, 1.0, 0.0, 1.0]],
                dtype=torch.float64,
                device="cpu",
            ),
        )


# Of the ranges, in search coordinates; of choices the first.
MIDDLE = {"C": 1.0, "kernel": "rbf", "depth": 3, "shrinkage": 0.0}


@pytest.mark.parametrize(
    "change",
    [
        {"C": 1e3},
        {"C": "auto"},
        {"depth": 2.5},
        {"depth": None},
        {"depth": np.inf},
        {"depth": np.nan},
        {"depth": np.bool_(True)},
        {"kernel": "sigmoid"},
    ],
)
def test_start_where_values_are_in_the_space(change):
    inside = {"C": 10.0, "kernel": "poly", "depth": 2, "shrinkage": 0}
    assert SPACE.start({**inside, "other": 3}) == inside
    (name,) = change
    found = SPACE.start({**inside, **change})
    assert found.pop(name) == pytest.approx(MIDDLE[name])
    assert found == {key: inside[key] for key in found}


def test_start_without_values():
    found = SPACE.start({})
    assert found.pop("kernel") == MIDDLE["kernel"]
    assert found == pytest.approx({name: MIDDLE[name] for name in found})


def test_values_of_numpy_are_numbers():
    space = SearchSpace({"depth": Integer(1, 9), "rate": Real(0.0, 1.0)})
    inside = {"depth": np.int64(3), "rate": np.float32(0.25)}
    assert space.start(inside) == {"depth": 3, "rate": 0.25}


def test_choices_from_an_array():
    assert SearchSpace({"C": np.array([1, 2])}).choices["C"] == Categorical([1, 2])


class TestModelsAtAPoint:
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
    def test_never_more_than_said(self, count):
        """Interpolated up to two integers, rounded beyond."""
        names = [f"i{k}" for k in range(count)]
        space = SearchSpace({"x": Real(0, 1)} | dict.fromkeys(names, Integer(0, 9)))
        point = [0.25, *(3.1 + 0.2 * k for k in range(count))]
        models = space.models_at(point)
        assert len(models) == space.models_per_point == (count + 1, 1)[count > 2]
        if count <= 2:
            assert models == space.corners(point)
        else:
            assert models == [(1.0, space.rounded(point))]

    def test_number_of_points(self):
        assert SPACE.num_points == math.inf
        finite = {"kernel": ["rbf", "linear"], "depth": Integer(1, 4)}
        space = SearchSpace(finite)
        assert space.num_points == 8 == len(space.candidates(8, first=None, seed=0))
        assert SearchSpace({"whole": Integer(0, 10**30)}).num_points > 1e29
