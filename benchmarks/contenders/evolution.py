r"""(1 + m)-evolution: each generation is one choice by the exponential mechanism.

References:
    .. [Cesar2021bounding] M. Cesar and R. Rogers. Bounding, Concentrating, and
        Truncating. ALT 2021. An exponential mechanism of epsilon costs epsilon^2 / 8 in
        zero-concentrated privacy.
"""

import math

import torch
from torch import Tensor

from benchmarks.contenders.base import DELTA, normal_like, seeded
from benchmarks.contenders.choices import choice_scale, choose, gumbel_like
from benchmarks.problems.arena_tasks import ArenaTask

NUM_GENERATIONS, NUM_CHILDREN = 10, 20
FIRST_WIDTH, SHRINKAGE = 0.25, 0.8


def epsilon_of_a_generation(epsilon: float) -> float:
    """Return the budget of each generation: the larger of two valid ones.

    By basic composition epsilon / G, or by zero-concentrated privacy, where
    epsilon = rho + 2 sqrt(rho log(1 / delta)) and each generation costs rho / G.
    """
    log = math.log(1 / DELTA)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    return max(epsilon / NUM_GENERATIONS, math.sqrt(8 * rho / NUM_GENERATIONS))


def evolution(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Keep the best of a parent and its children, ten times."""
    generator = seeded("evolution", seed)
    scale = choice_scale(task.num_records, epsilon_of_a_generation(epsilon))
    x, width = task.start, FIRST_WIDTH
    for _ in range(NUM_GENERATIONS):
        steps = normal_like(x.expand(NUM_CHILDREN, -1), generator)
        children = (x + width * steps).clamp(0.0, 1.0)
        family = torch.cat([x[None], children])
        x = family[choose(task.mean(family), scale, gumbel_like, generator)]
        width *= SHRINKAGE
    return x
