"""The arena's tasks: losses against a loop over records, ranges, seeds, the optimum."""

import math

import pytest
import torch

from benchmarks._arena_cells import DIMENSIONS
from benchmarks.problems import arena_tasks
from benchmarks.problems.arena_tasks import FAMILIES, TASKS, make_task

# Tasks are drawn on the CPU, as all benchmarks are run there.
pytestmark = pytest.mark.default_device
SMALLEST = [(name, min(dims)) for name, dims in DIMENSIONS.items()]


def loss_of(name, record, x):
    """The loss of one record at one point, in plain Python; None if BoTorch has it."""
    d = len(x)
    if name == "quadratic":
        own, curvature = record[:d], record[d:]
        terms = [
            4 * c * (a - b) ** 2 for a, b, c in zip(x, own, curvature, strict=True)
        ]
        return min(1.0, sum(terms) / d)
    if name == "cover":
        distance = math.dist(x, record[:d]) / math.sqrt(d)
        return float(distance > record[d])
    if name == "classify":
        return float(sum(r * (a - 0.5) for r, a in zip(record, x, strict=True)) <= 0)
    if name == "regression":
        value = sum(r * a for r, a in zip(record[:d], x, strict=True))
        return min(1.0, 2 * abs(value - record[d]))
    if name == "pareto":
        return min(1.0, record[d] * math.dist(x, record[:d]) ** 2 / d)
    return None


@pytest.mark.parametrize(("name", "dim"), SMALLEST)
def test_losses_against_a_loop(name, dim):
    task = make_task(name, dim, 40, seed=3)
    X = torch.rand(5, dim, dtype=torch.float64)
    losses = task.losses(X)
    assert losses.shape == (40, 5)
    for i, record in enumerate(task.records.tolist()):
        for j, x in enumerate(X.tolist()):
            expected = loss_of(name, record, x)
            if expected is None:  # functions of BoTorch: one record and point at a time
                expected = float(task.loss(task.records[i][None, None], X[j][None]))
            assert losses[i, j] == pytest.approx(expected, abs=1e-12)
    assert task.mean(X) == pytest.approx(losses.mean(dim=0))


def test_a_moved_function_is_the_function_of_botorch():
    function = arena_tasks.Levy(dim=4).to(dtype=torch.float64)
    task = make_task("levy", 4, 10, seed=0)
    X = torch.full((1, 4), 0.45, dtype=torch.float64)
    low, high = function.bounds
    values = torch.stack(
        [function(low + (high - low) * (X[0] - record)) for record in task.records]
    )
    losses = task.losses(X)[:, 0]
    ratio = losses / values  # the optimal value is 0, so only a scale is left
    assert ratio == pytest.approx(ratio[0].expand(10))


@pytest.mark.parametrize(("name", "dim"), SMALLEST)
def test_range_and_seeds(name, dim):
    task, again = (make_task(name, dim, 200, seed=1) for _ in range(2))
    other = make_task(name, dim, 200, seed=2)
    X = torch.rand(30, dim, dtype=torch.float64)
    losses = task.losses(X)
    assert losses.min() >= 0
    assert losses.max() <= 1
    assert losses.std() > 0
    assert torch.equal(losses, again.losses(X))
    assert not torch.equal(losses, other.losses(X))
    assert task.dim == dim
    assert task.num_records == 200
    assert ((task.bounds[0] <= task.start) & (task.start <= task.bounds[1])).all()


@pytest.mark.parametrize(("name", "dim"), SMALLEST)
def test_the_optimum_has_little_regret(name, dim):
    task = make_task(name, dim, 100, seed=0)
    least = task.least()
    at_optimum = float(task.fresh_mean(task.optimum[None]))
    random = task.fresh_mean(torch.rand(200, dim, dtype=torch.float64))
    assert least <= at_optimum <= least + 0.05
    assert float(random.min()) >= least - 0.002
    assert float(task.fresh_mean(task.start[None])) > least + 0.01


def test_blocks_do_not_change_losses(monkeypatch):
    task = make_task("quadratic", 2, 50, seed=0)
    X = torch.rand(7, 2, dtype=torch.float64)
    whole = task.losses(X)
    monkeypatch.setattr(arena_tasks, "_BLOCK", 30)
    assert torch.equal(task.losses(X), whole)


def test_every_task_has_a_family_and_dimensions():
    assert sorted(TASKS) == sorted(DIMENSIONS)
    assert sorted(TASKS) == sorted(
        name for names in FAMILIES.values() for name in names
    )
