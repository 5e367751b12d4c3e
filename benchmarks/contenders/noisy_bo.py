r"""Bayesian optimization on means with Gaussian noise, in the cube or a trust region.

Each of T means has sensitivity 1 / n and gets noise of deviation sqrt(T) / (n mu), so
that together they are mu-GDP. Everything else, the Gaussian process and the next point,
is computed from the noisy means. Its hyperparameters are fixed.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.contenders.base import (
    mean_noise,
    normal_like,
    seeded,
    sobol,
    uniform_like,
)
from benchmarks.problems.arena_tasks import ArenaTask

NUM_EVALUATIONS = 30
NUM_INITIAL = 8
NUM_CANDIDATES = 2000
NUM_PERTURBED = 200
PRIOR_STD = 0.25


@dataclass
class NoisyGP:
    """A Gaussian process with a constant mean and a Matern-5/2 kernel.

    Attributes:
        X: The points, m x d.
        y: The noisy means there.
        noise: The standard deviation of their noise.
    """

    X: Tensor
    y: Tensor
    noise: float

    def __post_init__(self) -> None:
        K = PRIOR_STD**2 * self._matern(self.X, self.X)
        K += (self.noise**2 + 1e-8) * torch.eye(len(K), dtype=K.dtype)
        self._chol = torch.linalg.cholesky(K)
        ones = torch.ones_like(self.y)[:, None]
        weights = torch.cholesky_solve(ones, self._chol)[:, 0]
        self._mean = float(weights @ self.y / weights.sum())
        self._alpha = torch.cholesky_solve((self.y - self._mean)[:, None], self._chol)

    def posterior(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and standard deviations of the loss at b points."""
        k = PRIOR_STD**2 * self._matern(X, self.X)
        explained = torch.linalg.solve_triangular(self._chol, k.mT, upper=False)
        variance = PRIOR_STD**2 - explained.square().sum(dim=0)
        mean = self._mean + (k @ self._alpha)[:, 0]
        return mean, variance.clamp(min=1e-12).sqrt()

    def expected_improvement(self, X: Tensor) -> Tensor:
        """Return EI below the least posterior mean of the points so far."""
        mean, std = self.posterior(X)
        z = (self.posterior(self.X)[0].min() - mean) / std
        density = (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
        return std * (z * torch.special.ndtr(z) + density)

    @staticmethod
    def _matern(A: Tensor, B: Tensor) -> Tensor:
        lengthscale = 0.3 * math.sqrt(A.shape[-1])
        r = math.sqrt(5) * torch.cdist(A, B) / lengthscale
        return (1 + r + r.square() / 3) * (-r).exp()


def noisy_means(
    task: ArenaTask, X: Tensor, noise: float, gen: torch.Generator
) -> Tensor:
    """Release the means at the points."""
    means = task.mean(X)
    return means + noise * normal_like(means, gen)


def _perturbed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return points around x: all coordinates move, or some of them."""
    steps = normal_like(x.expand(NUM_PERTURBED, -1), generator)
    width = 0.1 * uniform_like(steps[:, :1], generator)
    moved = uniform_like(steps, generator) < max(0.3, 2 / len(x))
    return (x + width * steps * moved).clamp(0.0, 1.0)


def noisy_bo(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the best posterior mean after 30 noisy means, chosen by EI."""
    generator = seeded("noisy BO", seed)
    noise = mean_noise(NUM_EVALUATIONS, task.num_records, epsilon)
    candidates = sobol(NUM_CANDIDATES, task.dim, seed)
    X = torch.cat([task.start[None], candidates[: NUM_INITIAL - 1]])
    y = noisy_means(task, X, noise, generator)
    while True:
        gp = NoisyGP(X, y, noise)
        best = X[int(gp.posterior(X)[0].argmin())]
        near = torch.cat([candidates, _perturbed(best, generator)])
        if len(X) == NUM_EVALUATIONS:
            near = torch.cat([near, X])
            return near[int(gp.posterior(near)[0].argmin())]
        x = near[int(gp.expected_improvement(near).argmax())][None]
        X, y = torch.cat([X, x]), torch.cat([y, noisy_means(task, x, noise, generator)])


def noisy_turbo(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the best posterior mean of the points of a trust region that moves.

    Points are drawn in a box around the best one, whose side doubles after two
    successes and halves after three failures.
    """
    generator = seeded("noisy TuRBO", seed)
    noise = mean_noise(NUM_EVALUATIONS, task.num_records, epsilon)
    cube = sobol(NUM_CANDIDATES // 2, task.dim, seed)
    X = torch.cat([task.start[None], cube[: NUM_INITIAL - 1]])
    y = noisy_means(task, X, noise, generator)
    side, successes, failures = 0.8, 0, 0
    while True:
        gp = NoisyGP(X, y, noise)
        means = gp.posterior(X)[0]
        best = X[int(means.argmin())]
        moved = uniform_like(cube, generator) < max(0.2, min(1.0, 20 / task.dim))
        region = (best + side * (cube - 0.5) * moved).clamp(0.0, 1.0)
        if len(X) == NUM_EVALUATIONS:
            return best
        x = region[int(gp.expected_improvement(region).argmax())][None]
        new = noisy_means(task, x, noise, generator)
        is_success = float(new) < float(means.min()) - noise / 2
        successes, failures = (successes + 1, 0) if is_success else (0, failures + 1)
        if successes == 2:
            side, successes = min(1.6, 2 * side), 0
        if failures == 3:
            side, failures = max(0.05, side / 2), 0
        X, y = torch.cat([X, x]), torch.cat([y, new])
