r"""The synthetic tasks of the arena: records of their own, regret on fresh records.

A task is a mean of per-record losses in [0, 1] over the unit cube. The seed draws the
records and moves the optimum. The regret of a point is its mean loss on fresh records
above the least one, which is found by local search from the known optimum.

* ``quadratic`` (family Q): each record has its own optimum and curvatures.
* ``ackley``, ``hartmann``, ``levy``, ``rosenbrock``, ``styblinski`` (M): a known
  function, moved by a little for each record; ``deceptive`` (M): a wide shallow basin
  near the start and a narrow deep one elsewhere.
* ``cover``, ``classify`` (P): losses are 0 or 1.
* ``regression``, ``pareto`` (H): heavy-tailed losses, clipped to 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.test_functions import (
    Ackley,
    Hartmann,
    Levy,
    Rosenbrock,
    StyblinskiTang,
    SyntheticTestFunction,
)
from torch import Tensor

NUM_FRESH = 4000
DOUBLE = torch.float64
# Records x points x parameters at a time: few enough to stay in a cache.
_BLOCK = 100_000

Loss = Callable[[Tensor, Tensor], Tensor]  # (n x 1 x k records, b x d points) -> n x b


@dataclass(frozen=True, eq=False)
class ArenaTask:
    """Private records, and what everybody knows about them.

    Attributes:
        start: The start, a ``d`` tensor, as a user would give it.
        records: The private records, n x k.
        loss: The losses of records at points.
        fresh: Other records of the same kind, to measure regret.
        optimum: Where to begin the search for the least mean loss.
    """

    start: Tensor
    records: Tensor
    fresh: Tensor
    loss: Loss
    optimum: Tensor

    @property
    def dim(self) -> int:
        return len(self.start)

    @property
    def num_records(self) -> int:
        return len(self.records)

    @property
    def bounds(self) -> Tensor:
        return torch.stack([torch.zeros_like(self.start), torch.ones_like(self.start)])

    def losses(self, X: Tensor) -> Tensor:
        """Return the n x b private losses, between 0 and 1."""
        return self._losses(self.records, X)

    def mean(self, X: Tensor) -> Tensor:
        """Return the exact means of the private losses, without n x b in memory."""
        return torch.cat([self.losses(x).mean(dim=0) for x in X.split(20)])

    def fresh_mean(self, X: Tensor) -> Tensor:
        """Return the mean losses of the fresh records at b points."""
        return self._losses(self.fresh, X).mean(dim=0)

    def _losses(self, records: Tensor, X: Tensor) -> Tensor:
        size = max(1, _BLOCK // (len(X) * self.dim))
        blocks = [self.loss(block.unsqueeze(1), X) for block in records.split(size)]
        return torch.cat(blocks)

    def least(self) -> float:
        """Return the least mean loss of the fresh records, by pattern search."""
        x, width = self.optimum.clone(), 0.1
        best = float(self.fresh_mean(x.unsqueeze(0)))
        generator = torch.Generator().manual_seed(0)
        for _ in range(40):
            steps = torch.randn(16, self.dim, dtype=DOUBLE, generator=generator)
            points = (x + width * steps / math.sqrt(self.dim)).clamp(0.0, 1.0)
            values = self.fresh_mean(points)
            index = int(values.argmin())
            if values[index] < best:
                best, x = float(values[index]), points[index]
            else:
                width *= 0.7
        return best


def make_task(name: str, dim: int, num_records: int, seed: int) -> ArenaTask:
    """Draw a task.

    Args:
        name: One of ``TASKS``.
        dim: The number of parameters.
        num_records: The number n of private records.
        seed: Draws the records and the place of the optimum.
    """
    generator = torch.Generator().manual_seed(1000 * seed + dim)
    return TASKS[name](dim, num_records, generator)


def _uniform(low: float, high: float, *size: int, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(*size, dtype=DOUBLE, generator=generator)


def _normal(*size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*size, dtype=DOUBLE, generator=generator)


def _centre(dim: int) -> Tensor:
    return torch.full((dim,), 0.5, dtype=DOUBLE)


def _task(
    draw: Callable[[int], Tensor],
    loss: Loss,
    n: int,
    optimum: Tensor,
    start: Tensor | None = None,
) -> ArenaTask:
    start = _centre(len(optimum)) if start is None else start
    return ArenaTask(start, draw(n), draw(NUM_FRESH), loss, optimum)


def quadratic(dim: int, n: int, generator: torch.Generator) -> ArenaTask:
    optimum = _uniform(0.15, 0.85, dim, generator=generator)

    def draw(count: int) -> Tensor:
        own = optimum + 0.15 * _normal(count, dim, generator=generator)
        curvature = (0.5 * _normal(count, dim, generator=generator)).exp()
        return torch.cat([own, curvature], dim=-1)

    def loss(records: Tensor, X: Tensor) -> Tensor:
        own, curvature = records.split(dim, dim=-1)
        return (4 * curvature * (X - own).square()).mean(dim=-1).clamp(max=1.0)

    return _task(draw, loss, n, optimum)


def _moved_function(
    function: SyntheticTestFunction, shift: float, start: float
) -> Callable[[int, int, torch.Generator], ArenaTask]:
    """Return a maker of tasks: the function, moved for each seed and each record."""
    low, high = function.bounds.double()
    dim = function.dim
    sample = _uniform(0, 1, 4096, dim, generator=torch.Generator().manual_seed(0))
    values = function._evaluate_true(low + (high - low) * sample)
    least = float(function.optimal_value)
    scale = float(values.quantile(0.9)) - least
    best = (function.optimizers[0].double() - low) / (high - low)

    def make(_: int, n: int, generator: torch.Generator) -> ArenaTask:
        move = _uniform(-shift, shift, dim, generator=generator)

        def draw(count: int) -> Tensor:
            return move + 0.03 * _normal(count, dim, generator=generator)

        def loss(records: Tensor, X: Tensor) -> Tensor:
            points = low + (high - low) * (X - records)
            values = function._evaluate_true(points)  # no check of the bounds
            return ((values - least) / scale).clamp(0.0, 1.0)

        first = torch.full((dim,), start, dtype=DOUBLE)
        return _task(draw, loss, n, (best + move).clamp(0.0, 1.0), first)

    return make


def _function(
    kind: type[SyntheticTestFunction],
    shift: float,
    interval: tuple[float, float] | None = None,
    start: float = 0.5,
) -> Callable[[int, int, torch.Generator], ArenaTask]:
    """Return a maker of tasks from a test function of BoTorch, on a smaller box."""

    def make(dim: int, n: int, generator: torch.Generator) -> ArenaTask:
        bounds = None if interval is None else [interval] * dim
        function = kind(dim=dim, bounds=bounds).to(dtype=DOUBLE)
        return _moved_function(function, shift, start)(dim, n, generator)

    return make


def deceptive(dim: int, n: int, generator: torch.Generator) -> ArenaTask:
    side = torch.where(_normal(dim, generator=generator) > 0, 1.0, -1.0)
    shallow = 0.5 - 0.15 * side
    deep = 0.5 + 0.28 * side

    def draw(count: int) -> Tensor:
        return 0.03 * _normal(count, dim, generator=generator)

    def loss(records: Tensor, X: Tensor) -> Tensor:
        moved = X - records
        wide = 0.5 + (moved - shallow).square().mean(dim=-1)
        narrow = 1 - (-(moved - deep).square().mean(dim=-1) / 0.04).exp()
        return torch.minimum(wide, narrow).clamp(0.0, 1.0)

    return _task(draw, loss, n, deep)


def cover(dim: int, n: int, generator: torch.Generator) -> ArenaTask:
    optimum = _uniform(0.2, 0.8, dim, generator=generator)

    def draw(count: int) -> Tensor:
        own = optimum + 0.15 * _normal(count, dim, generator=generator)
        radius = 0.18 + 0.04 * _normal(count, 1, generator=generator)
        return torch.cat([own, radius], dim=-1)

    def loss(records: Tensor, X: Tensor) -> Tensor:
        own, radius = records.split([dim, 1], dim=-1)
        distance = (X - own).square().mean(dim=-1).sqrt()
        return (distance > radius.squeeze(-1)).to(X)

    return _task(draw, loss, n, optimum)


def classify(dim: int, n: int, generator: torch.Generator) -> ArenaTask:
    direction = _normal(dim, generator=generator)
    direction = 0.35 * direction / direction.norm()
    guess = _normal(dim, generator=generator)
    guess = 0.35 * guess / guess.norm()
    start = 0.5 + (direction + 1.5 * guess) / 2

    def draw(count: int) -> Tensor:
        features = _normal(count, dim, generator=generator)
        noise = 0.2 * _normal(count, generator=generator)
        sign = torch.where(features @ direction / 0.35 + noise > 0, 1.0, -1.0)
        return features * sign.unsqueeze(-1)

    def loss(records: Tensor, X: Tensor) -> Tensor:
        return (records.squeeze(1) @ (X - 0.5).mT <= 0).to(X)

    return _task(draw, loss, n, 0.5 + direction, start.clamp(0.05, 0.95))


def regression(dim: int, n: int, generator: torch.Generator) -> ArenaTask:
    optimum = _uniform(0.15, 0.85, dim, generator=generator)

    def draw(count: int) -> Tensor:
        features = _normal(count, dim, generator=generator) / math.sqrt(dim)
        tail = _normal(count, generator=generator).abs() ** 1.5
        noise = 0.05 * _normal(count, generator=generator) / (tail + 0.05)
        return torch.cat([features, (features @ optimum + noise)[:, None]], dim=-1)

    def loss(records: Tensor, X: Tensor) -> Tensor:
        features, target = records.squeeze(1).split([dim, 1], dim=-1)
        return (2 * (features @ X.mT - target).abs()).clamp(max=1.0)

    return _task(draw, loss, n, optimum)


def pareto(dim: int, n: int, generator: torch.Generator) -> ArenaTask:
    optimum = _uniform(0.15, 0.85, dim, generator=generator)

    def draw(count: int) -> Tensor:
        own = optimum + 0.1 * _normal(count, dim, generator=generator)
        weight = torch.rand(count, 1, dtype=DOUBLE, generator=generator) ** (-1 / 1.2)
        return torch.cat([own, weight], dim=-1)

    def loss(records: Tensor, X: Tensor) -> Tensor:
        own, weight = records.split([dim, 1], dim=-1)
        distance = (X - own).square().mean(dim=-1)
        return (weight.squeeze(-1) * distance).clamp(max=1.0)

    return _task(draw, loss, n, optimum)


TASKS: dict[str, Callable[[int, int, torch.Generator], ArenaTask]] = {
    "quadratic": quadratic,
    "ackley": _function(Ackley, 0.25, (-5.0, 5.0)),
    "hartmann": _function(Hartmann, 0.0),
    "levy": _function(Levy, 0.15),
    "rosenbrock": _function(Rosenbrock, 0.05, (-2.0, 2.0), start=0.38),
    "styblinski": _function(StyblinskiTang, 0.15),
    "deceptive": deceptive,
    "cover": cover,
    "classify": classify,
    "regression": regression,
    "pareto": pareto,
}
FAMILIES = {
    "Q": ("quadratic",),
    "M": ("ackley", "hartmann", "levy", "rosenbrock", "styblinski", "deceptive"),
    "P": ("cover", "classify"),
    "H": ("regression", "pareto"),
}
