"""Plans from public numbers: how much to evaluate, and where."""

import itertools

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.planning import (
    default_evaluations,
    plan_steps,
    spread_out,
)
from tests.optimizers.problems import DEVICE, DOUBLE, seeded


@pytest.mark.parametrize(
    ("num_records", "epsilon", "expected"),
    [(10, 1.0, 16), (100, 1.0, 50), (300, 0.5, 75), (399, 1.0, 200), (10**6, 9.0, 200)],
)
def test_default_evaluations(num_records, epsilon, expected):
    assert default_evaluations(num_records, epsilon) == expected


class TestSteps:
    @pytest.mark.parametrize(
        ("num_steps", "batch_size", "limit", "expected"),
        [
            (None, None, None, (1, 50)),
            (None, None, 20, (1, 20)),
            (None, None, 70, (1, 50)),
            (None, 10, None, (5, 10)),
            (None, 20, None, (2, 20)),
            (None, 99, None, (1, 50)),
            (7, None, None, (7, 1)),
            (7, 3, None, (7, 3)),
        ],
    )
    def test_in_batches(self, num_steps, batch_size, limit, expected):
        found = plan_steps(
            num_steps,
            batch_size,
            limit,
            planned=50,
            num_candidates=None,
            in_batches=True,
        )
        assert found == expected

    def test_no_more_than_there_are(self):
        common = {"planned": 50, "num_candidates": 30}
        assert plan_steps(None, None, None, in_batches=True, **common) == (1, 30)
        assert plan_steps(None, None, None, in_batches=False, **common) == (30, 1)

    @pytest.mark.parametrize(
        ("arguments", "planned", "match"),
        [
            ((None, None, None), None, "num_steps must be given"),
            ((5, None, 9), 50, "max_evaluations must be None if num_steps"),
            ((0, None, None), 50, "num_steps"),
            ((None, 0, None), 50, "batch_size"),
            ((None, None, 0), 50, "max_evaluations"),
        ],
    )
    def test_misuse(self, arguments, planned, match):
        with pytest.raises(InvalidArgumentError, match=match):
            plan_steps(
                *arguments, planned=planned, num_candidates=None, in_batches=True
            )


class TestSpreadOut:
    def test_by_brute_force(self):
        # Each is the point with the largest distance to all before it.
        points = torch.rand(60, 3, generator=seeded(), **DOUBLE)
        chosen = spread_out(points, 12, start=7)
        assert chosen[0] == 7
        for number in range(1, 12):
            gaps = torch.cdist(points, points[chosen[:number]]).amin(dim=-1)
            assert chosen[number] == int(gaps.argmax())

    def test_starts_near_the_centre(self):
        points = torch.tensor([[0.0], [0.4], [0.55], [1.0]], **DOUBLE)
        assert spread_out(points, 1) == [2]
        assert spread_out(points, 3) == [2, 0, 3]

    def test_all_of_them(self):
        points = torch.rand(5, 2, generator=seeded(), **DOUBLE)
        assert spread_out(points, 5, start=3) == [3, 0, 1, 2, 4]

    def test_never_twice(self):
        points = torch.zeros(6, 1, **DOUBLE)
        points[5] = 1.0
        assert len(set(spread_out(points, 5))) == 5

    def test_fills_a_cube(self):
        # The widest hole of 27 among 3,000 points is hardly wider than that of a grid.
        points = torch.rand(3000, 3, generator=seeded(), **DOUBLE)
        chosen = points[spread_out(points, 27)]
        axis = torch.tensor([1 / 6, 1 / 2, 5 / 6], **DOUBLE)
        grid = torch.tensor(
            [*itertools.product(axis, repeat=3)], device=DEVICE
        ).double()
        holes = [
            float(torch.cdist(points, centres).amin(dim=-1).max())
            for centres in (chosen, grid)
        ]
        assert holes[0] < 1.6 * holes[1]
