"""Every contender returns a point of the cube, the same one for the same seed."""

import math

import pytest
import torch

import botorch_dp
from benchmarks.contenders import (
    ALTERNATIVE,
    CONTENDERS,
    NOT_PRIVATE,
    not_private,
)
from benchmarks.contenders.base import DELTA, design, gaussian_mu
from benchmarks.contenders.ours import old_clip_norm
from benchmarks.problems.arena_tasks import make_task

pytestmark = pytest.mark.default_device  # benchmarks run on the CPU


@pytest.fixture(scope="module")
def task():
    return make_task("quadratic", 3, 200, seed=0)


@pytest.fixture(scope="module")
def large_task():
    return make_task("quadratic", 2, 20_000, seed=2)


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_point_of_the_cube(name, task, monkeypatch):
    monkeypatch.setattr(not_private, "NUM_TRIALS", 12)
    monkeypatch.setattr(not_private, "NUM_EVALUATIONS", 12)
    contender = CONTENDERS[name]
    x, again = (contender.run(task, 1.0, 5) for _ in range(2))
    assert x.shape == (3,)
    assert x.dtype == torch.float64
    assert ((x >= 0) & (x <= 1)).all()
    assert torch.equal(x, again)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, one in CONTENDERS.items()
        if one.kind == ALTERNATIVE and name != "no search"
    ],
)
def test_much_data_beats_the_start(name, large_task):
    """A sign error in a search would fail here."""
    x = CONTENDERS[name].run(large_task, 3.0, 0)
    before = float(large_task.mean(large_task.start[None]))
    # Private selection may draw few points by chance, so it only has to be close.
    slack = 0.1 if name == "private selection" else -0.01
    assert float(large_task.mean(x[None])) < before + slack


def test_kinds_and_limits():
    kinds = {name: one.kind for name, one in CONTENDERS.items()}
    assert [name for name in kinds if kinds[name] == NOT_PRIVATE] == [
        "random search",
        "TPE",
        "LogEI",
    ]
    assert kinds["minimize"] == kinds["dp-gibo (old)"] == "ours"
    assert CONTENDERS["LogEI"].supports(10)
    assert not CONTENDERS["LogEI"].supports(11)
    assert CONTENDERS["LogEI"].most_seeds == 2
    assert CONTENDERS["SPSA"].uses_epsilon
    assert not CONTENDERS["TPE"].uses_epsilon


def test_the_design_is_shared_and_begins_with_the_start(task):
    points, means = design(task, 7, 200)
    more, more_means = design(task, 7, 1000)
    assert points.shape == (201, 3)
    assert torch.equal(points[0], task.start)
    assert torch.equal(more[:201], points)
    assert means.data_ptr() == more_means.data_ptr()
    assert means == pytest.approx(task.losses(points).mean(dim=0))


def test_old_clip_norm_is_that_of_the_search():
    assert old_clip_norm(500, 1.0) == 0.25
    expected = 0.003 * 50_000 * gaussian_mu(3.0) / (2 * math.sqrt(10))
    assert old_clip_norm(50_000, 3.0) == pytest.approx(expected)
    assert expected > 0.25


def test_minimize_is_called_with_public_facts(task, monkeypatch):
    seen = {}

    def minimize(losses, bounds, **kwargs):
        seen.update(kwargs, losses=losses, bounds=bounds)
        return type("Result", (), {"x": task.start})

    monkeypatch.setattr(botorch_dp, "minimize", minimize)
    contender = CONTENDERS["minimize"]
    assert torch.equal(contender.run(task, 2.0, 0), task.start)
    assert seen["guarantee"] == botorch_dp.ApproxDP(2.0, DELTA)
    assert seen["num_records"] == 200
    assert seen["loss_range"] == (0.0, 1.0)
    assert torch.equal(seen["initial_x"], task.start)
    assert seen["losses"](seen["bounds"]).shape == (200, 2)
