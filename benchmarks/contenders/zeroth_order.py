r"""Descent along clipped differences of each record's own losses.

A step releases the mean of per-record vectors of norm at most C, which replacing one
record moves by 2 C / n. With T steps, noise of deviation 2 C sqrt(T) / (n mu) on each
number is mu-GDP in all. Step sizes and radii shrink as usual for SPSA [Spall1998spsa]_.

References:
    .. [Spall1998spsa] J. Spall. Implementation of the Simultaneous Perturbation
        Algorithm for Stochastic Optimization. 1998. alpha = 0.602, gamma = 0.101.
"""

import math

import torch
from torch import Tensor

from benchmarks.contenders.base import gaussian_mu, normal_like, seeded
from benchmarks.problems.arena_tasks import ArenaTask

SPSA_STEPS, GRADIENT_STEPS = 50, 20
ALPHA, GAMMA = 0.602, 0.101
RADIUS = 0.1
CLIP = 1.0


def step_noise(clip: float, num_steps: int, num_records: int, epsilon: float) -> float:
    """Return the deviation of the noise on a mean of vectors clipped to ``clip``."""
    return 2 * clip * math.sqrt(num_steps) / (num_records * gaussian_mu(epsilon))


def differences(task: ArenaTask, x: Tensor, radius: float, U: Tensor) -> Tensor:
    """Return each record's slopes along the k rows of U, n x k: private."""
    X = torch.cat([x + radius * U, x - radius * U]).clamp(0.0, 1.0)
    up, down = task.losses(X).split(len(U), dim=-1)
    return (up - down) / (2 * radius)


def clipped_mean(rows: Tensor, clip: float) -> Tensor:
    """Return the mean of the rows, each scaled down to norm ``clip``."""
    norms = rows.norm(dim=-1, keepdim=True)
    return (rows * (clip / norms.clamp(min=clip))).mean(dim=0)


def spsa(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Follow the slope along one random direction a step."""
    generator = seeded("SPSA", seed)
    noise = step_noise(CLIP, SPSA_STEPS, task.num_records, epsilon)
    x, path = task.start, []
    first = 0.15 * (1 + SPSA_STEPS / 10) ** ALPHA
    for t in range(1, SPSA_STEPS + 1):
        signs = torch.where(normal_like(x, generator) > 0, 1.0, -1.0).to(x)[None]
        slopes = differences(task, x, RADIUS / t**GAMMA, signs)
        mean = clipped_mean(slopes, CLIP)
        slope = mean + noise * normal_like(mean, generator)
        x = x - first / (t + SPSA_STEPS / 10) ** ALPHA * slope * signs[0]
        x = x.clamp(0.0, 1.0)
        path.append(x)
    return torch.stack(path[SPSA_STEPS // 2 :]).mean(dim=0)


def two_point(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Follow the gradient from differences along all d axes."""
    generator = seeded("two-point", seed)
    noise = step_noise(CLIP, GRADIENT_STEPS, task.num_records, epsilon)
    x, path = task.start, []
    axes = torch.eye(task.dim, dtype=x.dtype)
    for t in range(1, GRADIENT_STEPS + 1):
        slopes = differences(task, x, RADIUS / t**GAMMA, axes)
        mean = clipped_mean(slopes, CLIP)
        gradient = mean + noise * normal_like(mean, generator)
        # The step has the same length whatever the scale of the loss.
        step = 0.2 * math.sqrt(task.dim) * gradient / gradient.norm().clamp(min=1e-12)
        x = (x - step / t**ALPHA).clamp(0.0, 1.0)
        path.append(x)
    return torch.stack(path[GRADIENT_STEPS // 2 :]).mean(dim=0)
