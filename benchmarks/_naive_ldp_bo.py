"""LDP-BO as Algorithms 1 and 2 of its paper are written, for comparison only.

It handles one replication, one candidate and one leave-one-out distance at a time. It
factorizes a posterior again whenever its points change, and minimizes the acquisition
from several random starts. It includes the two corrections that convergence and
compression need: losses are evaluated again at every point of the dictionary, and line
10 removes the point.
"""

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

NUM_STARTS, NUM_DIRECTIONS = 5, 100


class NaiveSWC:
    """The dictionary of one replication."""

    def __init__(self, x: Tensor, kappa: float, rule: str, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.kappa, self.rule, self.p = kappa, rule, len(x)
        self.lengthscale = max(2.0, self.p**0.5)
        self.points = np.empty((0, self.p))
        directions = self.rng.standard_normal((NUM_DIRECTIONS, self.p))
        self.directions = directions / np.linalg.norm(directions, axis=1)[:, None]
        self.update(x)

    def _kernel(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        distances = ((A[:, None] - B[None]) ** 2).sum(-1)
        return self.lengthscale**2 * np.exp(-distances / 2 / self.lengthscale**2)

    def _weights(self, x: np.ndarray, D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """W and the posterior covariance of the gradient, from scratch."""
        K = self._kernel(D, D) + 1e-6 * self.lengthscale**2 * np.eye(len(D))
        C = (self._kernel(x[None], D) * (D - x).T) / self.lengthscale**2
        W = np.linalg.solve(K, C.T).T
        return W, np.eye(self.p) - W @ C.T

    def _acquisition(self, point: np.ndarray, x: np.ndarray) -> float:
        _, covariance = self._weights(x, np.vstack([self.points, point]))
        return float(np.trace(covariance))

    def _distance(self, first: np.ndarray, second: np.ndarray) -> float:
        deviations = []
        for direction in self.directions:
            variances = direction @ first @ direction, direction @ second @ direction
            a, b = np.sqrt(np.maximum(variances, 0.0))
            deviations.append((a - b) ** 2)
        return float(np.sqrt(np.mean(deviations)))

    def update(self, x: Tensor) -> None:
        self.x = np.asarray(x)
        if self.rule == "literal":
            self._append()
            self._compress()
        else:
            for _ in range(2 * self.p + 2):
                if len(self.points) > self.p:
                    _, covariance = self._weights(self.x, self.points)
                    if np.trace(covariance) / self.p <= self.kappa**2:
                        break
                self._append()
            self._prune()

    def _append(self) -> None:
        best, value = None, np.inf
        for _ in range(NUM_STARTS):
            start = self.x + 0.4 * self.lengthscale * self.rng.standard_normal(self.p)
            found = minimize(
                self._acquisition, start, args=(self.x,), method="L-BFGS-B"
            )
            if best is None or found.fun < value:
                best, value = found.x, found.fun
        self.points = np.vstack([self.points, best])

    def _compress(self) -> None:
        _, reference = self._weights(self.x, self.points)
        while len(self.points) > 1:
            distances = [
                self._distance(
                    self._weights(self.x, np.delete(self.points, j, axis=0))[1],
                    reference,
                )
                for j in range(len(self.points))
            ]
            j = int(np.argmin(distances))
            if distances[j] > self.kappa:
                return
            self.points = np.delete(self.points, j, axis=0)

    def _prune(self) -> None:
        while len(self.points) > self.p + 1:
            traces = [
                np.trace(self._weights(self.x, np.delete(self.points, j, axis=0))[1])
                for j in range(len(self.points))
            ]
            j = int(np.argmin(traces))
            if traces[j] / self.p > self.kappa**2:
                return
            self.points = np.delete(self.points, j, axis=0)

    def gradient(self, losses: Tensor) -> Tensor:
        W, _ = self._weights(self.x, self.points)
        return torch.from_numpy(W @ np.asarray(losses))
