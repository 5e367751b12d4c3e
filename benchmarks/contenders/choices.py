r"""One private choice among space-filling points and the start.

A mean has sensitivity 1 / n, so each of these is epsilon-DP with noise of scale
2 / (n epsilon): exponential noise is permute-and-flip [McKenna2020permute]_, Gumbel
noise the exponential mechanism, Laplace noise report-noisy-max.

References:
    .. [McKenna2020permute] R. McKenna and D. Sheldon. Permute-and-Flip: A New Mechanism
        for Differentially Private Selection. NeurIPS 2020.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.contenders.base import (
    Run,
    design,
    exponential_like,
    laplace_like,
    pure_epsilon,
    seeded,
)
from benchmarks.problems.arena_tasks import ArenaTask

Noise = Callable[[Tensor, torch.Generator], Tensor]


def gumbel_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return -exponential_like(x, generator).log()


def choice_scale(num_records: int, epsilon: float) -> float:
    """Return the scale of the noise on each mean: twice the sensitivity / epsilon."""
    return 2 / (num_records * epsilon)


def choose(means: Tensor, scale: float, noise: Noise, gen: torch.Generator) -> int:
    """Return the index of the least noisy mean."""
    return int((means - scale * noise(means, gen)).argmin())


def noisy_choice(name: str, noise: Noise, count: int) -> Run:
    """Return a contender: the best of ``count`` points and the start, with noise."""

    def run(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
        points, means = design(task, seed, count)
        scale = choice_scale(task.num_records, pure_epsilon(epsilon))
        return points[choose(means, scale, noise, seeded(name, seed))]

    return run


NOISES: dict[str, Noise] = {
    "permute-and-flip": exponential_like,
    "exponential mechanism": gumbel_like,
    "noisy max": laplace_like,
}
