"""Federated Thompson sampling as it is usually written, for comparison only.

Agents run one at a time, in the order of the authors' scripts. In every iteration an
agent fits its model to all its observations twice: with new features for its own
choice, and with the shared ones for its message. It maximizes its own sample and the
broadcast, each from 1,000 random points and 20 runs of L-BFGS with numerical gradients.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

NUM_POINTS, NUM_STARTS = 1000, 20
Features = tuple[np.ndarray, np.ndarray]


def draw_features(
    rng: np.random.Generator, num: int, lengthscale: float, dim: int
) -> Features:
    """Frequencies and phases of an RBF kernel."""
    frequencies = rng.standard_normal((num, dim)) / lengthscale
    return frequencies, rng.uniform(0.0, 2.0 * np.pi, num)


def phi(features: Features, X: np.ndarray) -> np.ndarray:
    frequencies, phases = features
    waves = np.cos(X @ frequencies.T + phases)
    return waves / np.linalg.norm(waves, axis=-1, keepdims=True)


class NaiveAgent:
    """One agent in the unit cube.

    Args:
        index: Its number.
        score: Its own function, to be maximized.
        features: What all agents share.
        cuts: In how many parts each dimension is cut.
        lengthscale: The length scale of the kernel.
        noise_variance: The noise variance of a score.
        num_initial: How many points to begin with.
    """

    def __init__(
        self,
        index: int,
        score: Callable[[np.ndarray], float],
        features: Features,
        cuts: Sequence[int],
        *,
        lengthscale: float,
        noise_variance: float = 1e-2,
        num_initial: int = 10,
    ) -> None:
        self.rng = np.random.default_rng(index)
        self.score, self.features = score, features
        self.cuts, self.dim = np.array(cuts), len(cuts)
        self.lengthscale, self.noise_variance = lengthscale, noise_variance
        cell = np.unravel_index(index % int(np.prod(cuts)), cuts)
        points = (np.array(cell) + self.rng.random((num_initial, self.dim))) / self.cuts
        self.X = points
        self.y = np.array([score(x) for x in points])

    def step(self, number: int, broadcast: np.ndarray | None) -> np.ndarray:
        """Algorithm 2: evaluate once, and return the message.

        Args:
            number: The index of the round, starting at 1.
            broadcast: The weights for each region.
        """
        fresh = draw_features(
            self.rng, len(self.features[1]), self.lengthscale, self.dim
        )
        weights = self._sample(fresh)
        x = self._maximize(lambda X: phi(fresh, X) @ weights)
        if broadcast is not None:
            shared = self._maximize(lambda X: self._broadcast_value(broadcast, X))
            if self.rng.random() < 1.0 / np.sqrt(number):
                x = shared
        self.X = np.vstack([self.X, x])
        self.y = np.append(self.y, self.score(x))
        return self._sample(self.features)

    def _sample(self, features: Features) -> np.ndarray:
        """Equation 2, with a matrix that is inverted anew."""
        design = phi(features, self.X)
        precision = design.T @ design + self.noise_variance * np.eye(design.shape[1])
        covariance = np.linalg.inv(precision)
        mean = covariance @ design.T @ self.y
        return self.rng.multivariate_normal(mean, self.noise_variance * covariance)

    def _broadcast_value(self, broadcast: np.ndarray, X: np.ndarray) -> np.ndarray:
        cells = np.minimum((X * self.cuts).astype(int), self.cuts - 1)
        regions = np.ravel_multi_index(cells.T, self.cuts)
        return (phi(self.features, X) * broadcast[regions]).sum(axis=-1)

    def _maximize(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        points = self.rng.random((NUM_POINTS, self.dim))
        values = function(points)
        best, value = points[values.argmax()], values.max()
        for start in self.rng.random((NUM_STARTS, self.dim)):
            found = minimize(
                lambda x: -float(function(x[None])[0]),
                start,
                bounds=[(0.0, 1.0)] * self.dim,
                method="L-BFGS-B",
            )
            if -found.fun > value:
                best, value = found.x, -found.fun
        return np.clip(best, 0.0, 1.0)
