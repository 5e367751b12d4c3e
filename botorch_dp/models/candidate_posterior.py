r"""A Gaussian process on a finite set of candidates, updated one observation at a time.

With :math:`K = k(D, D) + s^2 I = L L^\top` and :math:`V = L^{-1} k(D, \Lambda)`, an
observation adds a row to V, after which the posterior at all candidates is

.. math::
    \mu = V^\top L^{-1} y, \qquad
    \sigma^2 = k(\lambda, \lambda) - \sum_t V_{t \lambda}^2.

The t-th observation costs O(N t) for N candidates, compared with O(t^3 + N t^2) for a
new factorization. Variances depend on public points only, means also on the values.
"""

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_count, check_positive, check_tensor
from botorch_dp.exceptions import InvalidArgumentError


class CandidatePosterior:
    """Posterior means and variances at all candidates, zero prior mean.

    Args:
        kernel: The covariance function, its hyperparameters fixed.
        candidates: An ``N x d`` tensor.
        noise_variance: The variance of the observations' noise; at least about the
            rounding error.
        max_observations: The largest number of observations. Memory for all of them, N
            numbers each, is allocated at once.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> candidates = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
        >>> posterior = CandidatePosterior(
        ...     RBFKernel(), candidates, noise_variance=1e-4, max_observations=2
        ... )
        >>> posterior.observe(2, value=1.0)
        >>> int(posterior.mean.argmax())
        2
    """

    @torch.no_grad()
    def __init__(
        self,
        kernel: Kernel,
        candidates: Tensor,
        *,
        noise_variance: float,
        max_observations: int,
    ) -> None:
        check_tensor("candidates", candidates, ("N", "d"))
        check_count("max_observations", max_observations)
        self._kernel, self._candidates = kernel, candidates
        # At least the error that rounding makes in the variance at an observed point.
        rounding = 8 * torch.finfo(candidates.dtype).eps * math.sqrt(max_observations)
        self.noise_variance = max(
            check_positive("noise_variance", noise_variance), rounding
        )
        self._rows = candidates.new_empty(max_observations, len(candidates))  # V
        self._whitened = candidates.new_empty(max_observations)  # L^-1 y
        self._size = 0
        self.mean = candidates.new_zeros(len(candidates))
        self.variance = kernel(candidates, diag=True).clone()

    @property
    def num_observations(self) -> int:
        """The number of observations."""
        return self._size

    @torch.no_grad()
    def observe(self, index: int, value: float | Tensor = 0.0) -> None:
        """Condition on one observation at a candidate.

        Args:
            index: The index of the candidate.
            value: The observed value; variances do not depend on it.
        """
        if self._size == len(self._rows):
            raise InvalidArgumentError(
                f"max_observations must be above {self._size} for one more observation."
            )
        rows, t = self._rows[: self._size], self._size
        factor = rows[:, index].clone()  # L^-1 k(D, z)
        z = self._candidates[index].unsqueeze(0)
        prior = self._kernel(z, self._candidates).to_dense().squeeze(0)
        # Rounding can make the variance at an observed point negative.
        left = (self.variance[index] + self.noise_variance).clamp(
            min=self.noise_variance
        )
        row = (prior - factor @ rows) / left.sqrt()
        self._rows[t] = row
        whitened = (value - factor @ self._whitened[:t]) / left.sqrt()
        self._whitened[t] = whitened
        self._size += 1
        self.mean = self.mean + row * whitened
        self.variance = (self.variance - row.square()).clamp(min=0.0)

    @torch.no_grad()
    def covariance_root(self, among: Tensor) -> Tensor:
        """Return a root of the posterior covariance of some candidates.

        A standard normal vector times the root, plus the mean, is a posterior sample.

        Args:
            among: The indices of m candidates.

        Returns:
            An ``m x m`` tensor R; R R^T is the covariance, up to rounding.
        """
        points, rows = self._candidates[among], self._rows[: self._size, among]
        covariance = self._kernel(points).to_dense() - rows.mT @ rows
        # Negative eigenvalues are rounding errors.
        values, vectors = torch.linalg.eigh(covariance)
        return vectors * values.clamp(min=0.0).sqrt()
