"""What hyperparameters may be, and how they become points and back."""

import itertools
import math

import numpy as np
import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Categorical, Integer, Real
from botorch_dp.integrations.sklearn.branch import Branch
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
    ("space", "match"),
    [
        ({}, "space must be a dict"),
        ([], "space must be a dict.*or a list of such dicts"),
        ([{}], "space must be a dict"),
        ("C", "space must be a dict"),
        ([Real(0, 1)], "space must be a dict"),
        ({"C": 0.1}, r"space\['C'\] must be Real\(low"),
        ({1: Real(0, 1)}, r"space\[1\]"),
        ({"C": [1.0]}, r"space\['C'\]: choices must have at least two values"),
        ([{"C": [1.0]}], "space must have at least two points"),
        ([{"C": [1.0]}, {"C": [1.0]}], "space must have at least two points"),
    ],
)
def test_bad_spaces(space, match):
    with pytest.raises(InvalidArgumentError, match=match):
        SearchSpace(space)


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
        found = SPACE.candidates(8, first=first, seed=0)
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
    assert SearchSpace({"C": np.array([1, 2])}).branches == [
        Branch({"C": Categorical([1, 2])})
    ]


class TestNumbers:
    def test_number_of_points(self):
        assert SPACE.num_points == math.inf
        finite = {"kernel": ["rbf", "linear"], "depth": Integer(1, 4)}
        space = SearchSpace(finite)
        assert space.num_points == 8 == len(space.candidates(8, first=None, seed=0))
        assert SearchSpace({"whole": Integer(0, 10**30)}).num_points > 1e29


KERNELS = [
    {"kernel": ["linear"], "C": Real(1e-2, 1e2, log=True)},
    {
        "kernel": ["rbf", "poly"],
        "C": Real(1e-2, 1e2, log=True),
        "gamma": Real(0.0, 1.0),
        "degree": Integer(2, 4),
    },
    {"kernel": ["none"]},
]


class TestBranches:
    space = SearchSpace(KERNELS)

    def test_candidates_of_all(self):
        found = self.space.candidates(60, first=None, seed=0)
        names = [tuple(params) for params in found]
        assert names.count(("kernel",)) == 1  # a branch with a single point
        for branch in self.space.branches[:2]:
            assert names.count(tuple(branch.names)) >= 15
        assert all(params in self.space.branch_of(params) for params in found)

    def test_small_ones_are_exhausted(self):
        space = SearchSpace([{"a": [1, 2], "b": ["x"]}, {"a": [2, 3]}, {"a": [3, 4]}])
        found = space.candidates(10, first={"a": 3}, seed=0)
        assert found[0] == {"a": 3}
        assert len(found) == 5  # {"a": 3} is in two branches
        assert space.num_points == 6

    def test_different_candidates_have_different_points(self):
        # The middle of a range is where numbers are that are not set.
        space = SearchSpace([{"x": Real(0, 1)}, {"x": Real(1, 2), "z": Real(0, 1)}])
        points = [{"x": 0.5}, {"x": 1.5, "z": 0.5}]
        assert torch.equal(
            space.encoded(points),
            torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64, device="cpu"),
        )
        found = self.space.candidates(60, first=None, seed=0)
        rows = self.space.encoded(found)
        assert len(rows.unique(dim=0)) == len(found) == 60

    def test_facts(self):
        assert self.space.widest is self.space.branches[1]
        assert self.space.names == ["C", "gamma", "degree", "kernel"]
        assert self.space.chosen_names == self.space.names  # C is not set with "none"
        assert SearchSpace(KERNELS[:2]).chosen_names == ["gamma", "degree", "kernel"]
        assert self.space.needs_choice
        assert self.space.num_points == math.inf
        assert self.space.models_per_point == 2

    @pytest.mark.parametrize(
        ("own", "names"),
        [
            ({"kernel": "linear", "C": 1.0, "gamma": "scale"}, {"kernel", "C"}),
            ({"kernel": "none", "C": 1.0}, {"kernel"}),
            (
                {"kernel": "poly", "C": 9.0, "gamma": "scale", "degree": 3},
                {"kernel", "C", "gamma", "degree"},
            ),
            ({"kernel": "other", "C": 1.0}, {"kernel", "C"}),  # the first branch
        ],
    )
    def test_start_in_the_branch_of_the_categories(self, own, names):
        start = self.space.start(own)
        assert start.keys() == names
        assert start in self.space.branch_of(start)
        kept = {"C", "degree"} & names
        assert {name: start[name] for name in kept} == {n: own[n] for n in kept}

    def test_a_point_starts_at_itself(self):
        space = SearchSpace([{"x": Real(0, 1)}, {"x": Real(0, 1), "z": Real(0, 1)}])
        for point in ({"x": 0.1}, {"x": 0.1, "z": 0.2}):
            assert space.start(point) == point

    def test_text_tells_spaces_apart(self):
        other = [*KERNELS[:2], {"kernel": ["nothing"]}]
        assert repr(SearchSpace(KERNELS)) == repr(self.space)
        assert repr(SearchSpace(other)) != repr(self.space)


def test_kind():
    """Points of one kind differ in numbers alone."""
    space = SearchSpace([{"a": (0.0, 1.0), "b": ["x", "y"]}, {"a": [2], "c": (1, 5)}])
    assert space.kind_of({"a": 0.5, "b": "y"}) == {"b": "y"}
    assert space.kind_of({"a": 2, "c": 3}) == {"a": 2}
    assert SearchSpace({"a": (0.0, 1.0)}).kind_of({"a": 1.0 + 1e-16}) == {}
    assert SearchSpace({"a": (0.0, 1.0)}).kind_of({"a": 1.0 + 1e-12}) == {}
