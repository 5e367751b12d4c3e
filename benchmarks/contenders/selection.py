r"""The best of a random number of noisy evaluations, and the first good one.

References:
    .. [Liu2019selection] J. Liu and K. Talwar. Private Selection from Private
        Candidates. STOC 2019. Theorem 3.2: the best of a geometric number of
        independent runs of an epsilon-DP mechanism is 3 epsilon-DP.
    .. [Lyu2017sparse] M. Lyu, D. Su and N. Li. Understanding the Sparse Vector
        Technique for Differential Privacy. VLDB 2017. Algorithm 1.
"""

import math

import torch
from torch import Tensor

from benchmarks.contenders.base import design, laplace_like, pure_epsilon, seeded
from benchmarks.problems.arena_tasks import ArenaTask

MEAN_COUNT = 30
NUM_POINTS = 200


def selection_scale(num_records: int, epsilon: float) -> float:
    """Return the scale of the noise on a mean: each run may cost epsilon / 3."""
    return 3 / (num_records * epsilon)


def geometric_count(generator: torch.Generator) -> int:
    """Return 1, 2, ... with mean ``MEAN_COUNT``."""
    uniform = float(torch.rand((), dtype=torch.float64, generator=generator))
    return 1 + int(math.log1p(-uniform) / math.log1p(-1 / MEAN_COUNT))


def private_selection(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the best of a geometric number of points, by noisy means.

    A run draws one point of the design with replacement, so that runs are independent
    as the theorem asks, and releases the point and its mean with Laplace noise.
    """
    generator = seeded("private selection", seed)
    points, means = design(task, seed, NUM_POINTS)
    drawn = torch.randint(
        len(points), (geometric_count(generator),), generator=generator
    )
    scale = selection_scale(task.num_records, pure_epsilon(epsilon))
    noisy = means[drawn] + scale * laplace_like(means[drawn], generator)
    return points[drawn[int(noisy.argmin())]]


def sparse_vector_scales(num_records: int, epsilon: float) -> tuple[float, float]:
    """Return the scales of the noise on the threshold and on each mean.

    Both the threshold, which is the mean at the start less a constant, and a mean have
    sensitivity 1 / n. Shifting the noise of the threshold by 2 / n and that of the last
    mean by 4 / n turns the outcome on one data set into that on its neighbour, and each
    shift costs half of epsilon.
    """
    half = epsilon / 2
    return 2 / (num_records * half), 4 / (num_records * half)


def sparse_vector(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the first random point that is better than the start by a margin."""
    generator = seeded("sparse vector", seed)
    points, means = design(task, seed, NUM_POINTS)
    on_threshold, on_mean = sparse_vector_scales(
        task.num_records, pure_epsilon(epsilon)
    )
    # Above the noise of most means, or the first points would win by chance.
    margin = max(0.1, on_mean * math.log(10))
    threshold = means[0] - margin + on_threshold * laplace_like(means[0], generator)
    noisy = means[1:] + on_mean * laplace_like(means[1:], generator)
    passed = (noisy < threshold).nonzero()
    return points[1 + int(passed[0])] if len(passed) else task.start
