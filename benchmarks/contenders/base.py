"""What the contenders of the arena share: budgets, designs and random numbers.

The losses lie between 0 and 1, and neighbours differ in one of n records, so a mean
loss has sensitivity 1 / n. Every contender of the kind "alternative" is private at
(epsilon, 1e-5); its noise is written out here and in the files beside this one, so that
a reader can check it in a few lines.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks.problems.arena_tasks import ArenaTask
from botorch_dp.privacy import ApproxDP

DELTA = 1e-5
OURS, ALTERNATIVE, NOT_PRIVATE = "ours", "alternative", "not private"
# The points that choices share; a choice among fewer takes the first of them.
MOST_POINTS = 1000

Run = Callable[[ArenaTask, float, int], Tensor]


@dataclass(frozen=True)
class Contender:
    """A method of the arena.

    Attributes:
        name: Its name in tables.
        kind: ``OURS``, ``ALTERNATIVE`` or ``NOT_PRIVATE``.
        run: A function from a task, an epsilon and a seed to a point of the unit cube.
        most_seeds: The number of seeds, if it is too slow for all of them.
        most_dims: The largest dimension that it is run in.
    """

    name: str
    kind: str
    run: Run
    most_seeds: int | None = None
    most_dims: int | None = None

    @property
    def uses_epsilon(self) -> bool:
        """Whether the result depends on epsilon."""
        return self.kind != NOT_PRIVATE

    def supports(self, dim: int) -> bool:
        """Return whether to run it in this dimension."""
        return self.most_dims is None or dim <= self.most_dims


@lru_cache
def gaussian_mu(epsilon: float) -> float:
    """Return the mu of all Gaussian releases together, by the exact curve."""
    return ApproxDP(epsilon, DELTA).to_gdp().mu


@lru_cache
def pure_epsilon(epsilon: float) -> float:
    """Return the pure epsilon that implies (epsilon, delta), by the exact curve."""
    return ApproxDP(epsilon, DELTA).to_pure().epsilon


def mean_noise(num_releases: int, num_records: int, epsilon: float) -> float:
    """Return the deviation of the noise on each of T means: sqrt(T) / (n mu)."""
    return math.sqrt(num_releases) / (num_records * gaussian_mu(epsilon))


def seeded(name: str, seed: int) -> torch.Generator:
    """Return random numbers of one contender, independent of those of others."""
    return torch.Generator().manual_seed(zlib.crc32(f"{name}-{seed}".encode()))


def uniform_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(x.shape, dtype=x.dtype, generator=generator)


def normal_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype, generator=generator)


def laplace_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard Laplace noise: the difference of two exponentials."""
    return exponential_like(x, generator) - exponential_like(x, generator)


def exponential_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return -torch.log1p(-uniform_like(x, generator))


def sobol(count: int, dim: int, seed: int) -> Tensor:
    """Return scrambled Sobol points of the unit cube."""
    return SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=torch.float64)


_DESIGNS: WeakKeyDictionary[ArenaTask, dict[int, tuple[Tensor, Tensor]]]
_DESIGNS = WeakKeyDictionary()


def design(task: ArenaTask, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the start and ``count`` Sobol points, and the private means there.

    The means are computed once for each task.
    """
    known = _DESIGNS.setdefault(task, {})
    if seed not in known:
        points = torch.cat([task.start[None], sobol(MOST_POINTS, task.dim, seed)])
        known[seed] = points, task.mean(points)
    points, means = known[seed]
    return points[: count + 1], means[: count + 1]
