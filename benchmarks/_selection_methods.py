"""What selection, composition and released scores reach on a pool of training runs.

A pool stands for the distribution of runs: its settings are independent draws from the
search space. The expected score of the best of K runs is computed exactly for every K
up to the number of runs in the pool, as the mean over all its subsets of K runs, which
is unbiased. A larger K counts as the whole pool, so it is underestimated. The noise of
the score is drawn many times.
"""

import math

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from botorch_dp.optimizers.selection.adaptive import History, Proposals, draw_index

NUM_DRAWS = 200  # of the noise of all scores
NUM_SEARCHES = 40  # simulated searches that follow released scores
NUM_SELECTIONS = 20  # simulated selections that follow their own runs
LENGTH_SCALE, JITTER = 0.3, 1e-4
_NUM_FIRST = 4  # random runs before the first one that follows the model


def best_of_weights(probabilities: np.ndarray, size: int) -> np.ndarray:
    """Return how often each run of a pool is the best of a random number of runs.

    Args:
        probabilities: The probabilities of K = 0, 1, ... runs. What is missing to one
            counts as the whole pool.
        size: The number of runs in the pool.

    Returns:
        The probability that the run with the i-th smallest score is selected; they
        add up to the probability of at least one run.
    """
    given = np.zeros(size + 1)
    used = probabilities[: size + 1]
    given[: len(used)] = used
    given[size] += max(0.0, 1.0 - given.sum())
    ranks, counts = np.meshgrid(np.arange(size), np.arange(1, size + 1), indexing="ij")
    # Of the subsets of k runs, those in which the run of rank i (from 0) is the best
    # one have their other k - 1 runs among the i runs below it.
    is_possible = counts - 1 <= ranks
    below = np.where(is_possible, ranks, counts - 1)
    logs = _log_choose(below, counts - 1) - _log_choose(
        np.full_like(counts, size), counts
    )
    return np.where(is_possible, np.exp(logs), 0.0) @ given[1:]


def _log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def best_of(
    probabilities: np.ndarray,
    scores: Tensor,
    values: Tensor,
    *,
    noise_std: float,
    seed: int,
    default: float = 0.0,
) -> float:
    """Return the expected value of the run with the largest noisy score.

    Args:
        probabilities: The probabilities of K = 0, 1, ... runs.
        scores: The scores of the pool's runs, without noise.
        values: What the runs are worth: their scores on test records.
        noise_std: The standard deviation of the noise of a score.
        seed: The seed of the noise.
        default: The value of what is released without any run.
    """
    weights = torch.from_numpy(best_of_weights(probabilities, len(scores)))
    draws = NUM_DRAWS if noise_std > 0 else 1
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(draws, len(scores), generator=random, dtype=torch.float64)
    order = (scores + noise_std * noise).argsort(dim=1)
    none = float(probabilities[0]) if len(probabilities) else 0.0
    return float((values[order] @ weights).mean()) + none * default


def expected_improvement(points: Tensor, seen: Tensor, scores: Tensor) -> int:
    """Return the unseen point with the largest expected improvement.

    A Gaussian process with a fixed Matern-5/2 kernel is fitted to standardized scores.
    The scores are noisy releases, so they are public.

    Args:
        points: All points, ``P x d``, in the unit cube.
        seen: The indices of the points with scores.
        scores: The released scores of these points.
    """
    mean, std = model_of_scores(points, points[seen], scores)
    gap = mean - float(_standardized(scores).max())
    ratio = gap / std
    normal = torch.distributions.Normal(0.0, 1.0)
    gain = gap * normal.cdf(ratio) + std * normal.log_prob(ratio).exp()
    gain[seen] = -1.0
    return int(gain.argmax())


def model_of_scores(
    points: Tensor, seen: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    """Return posterior means and deviations of standardized scores at points."""
    targets = _standardized(scores)
    within = matern(seen, seen) + JITTER * torch.eye(len(seen), dtype=seen.dtype)
    across = matern(points, seen)
    root = torch.linalg.cholesky(within)
    mean = across @ torch.cholesky_solve(targets[:, None], root)[:, 0]
    half = torch.linalg.solve_triangular(root, across.T, upper=False)
    variance = (1.0 - half.square().sum(dim=0)).clamp_min(1e-9)
    return mean, variance.sqrt()


def matern(a: Tensor, b: Tensor) -> Tensor:
    """Return the Matern-5/2 kernel between points."""
    r = math.sqrt(5.0) * torch.cdist(a, b) / LENGTH_SCALE
    return (1.0 + r + r.square() / 3.0) * torch.exp(-r)


def _standardized(scores: Tensor) -> Tensor:
    std = scores.std() if len(scores) > 1 else torch.ones((), dtype=scores.dtype)
    return (scores - scores.mean()) / std.clamp_min(1e-6)


def composed_search(
    num_runs: int,
    points: Tensor,
    scores: Tensor,
    values: Tensor,
    *,
    noise_std: float,
    seed: int,
) -> float:
    """Return the mean value of searches that release the score of every run.

    The first runs are random, the others have the largest expected improvement among
    the settings of the pool that were not tried yet. The run with the largest released
    score is taken.
    """
    random = np.random.default_rng([seed, 2])
    found: list[float] = []
    for _ in range(NUM_SEARCHES):
        noise = torch.from_numpy(noise_std * random.standard_normal(len(scores)))
        released = scores + noise
        seen = [int(i) for i in random.permutation(len(scores))[:_NUM_FIRST]]
        while len(seen) < num_runs:
            index = torch.tensor(seen)
            seen.append(expected_improvement(points, index, released[index]))
        best = max(seen, key=lambda i: float(released[i]))
        found.append(float(values[best]))
    return float(np.mean(found))


def proposed_search(
    probabilities: np.ndarray,
    proposals: Proposals,
    scores: Tensor,
    values: Tensor,
    *,
    noise_std: float,
    seed: int,
) -> float:
    """Return the mean value of selections whose proposals follow their own runs.

    The settings of the pool are the candidates. A setting that is proposed again has
    the same model, with new noise on its score.

    Args:
        probabilities: The probabilities of K = 0, 1, ... runs.
        proposals: The rule, started with the settings of the pool.
        scores: The scores of the pool's runs, without noise.
        values: What the runs are worth.
        noise_std: The standard deviation of the noise of a score.
        seed: The seed of counts, proposals and noise.
    """
    random = np.random.default_rng([seed, 3])
    shares = probabilities / probabilities.sum()
    found: list[float] = []
    for count in random.choice(len(shares), size=NUM_SELECTIONS, p=shares):
        history: list[tuple[int, float]] = []
        for _ in range(count):
            index = draw_index(proposals, history, random.random())
            noise = noise_std * random.standard_normal()
            history.append((index, float(scores[index]) + noise))
        best = max(history, key=lambda run: run[1], default=None)
        found.append(0.0 if best is None else float(values[best[0]]))
    return float(np.mean(found))


class UniformProposals(Proposals):
    """Proposes all candidates alike, to compare with."""

    def log_weights(self, private_history: History) -> Tensor:
        """Return equal weights."""
        del private_history
        return torch.zeros(self._num_candidates, dtype=torch.float64)

    def density(self, private_history: History) -> Tensor:
        """Return the uniform density, without looking for it."""
        del private_history
        return torch.ones(self._num_candidates, dtype=torch.float64)


def exactly(count: int) -> np.ndarray:
    """Return the probabilities of a fixed number of runs."""
    return np.eye(count + 1)[count]
