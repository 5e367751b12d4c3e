r"""Public points with a Cholesky factor that is updated as points come and go.

With :math:`D` the points, :math:`K = k(D, D) + s^2 I` and :math:`L L^T = K`, appending
b points costs :math:`O(M^2 b)`, deleting one :math:`O(M^2)`, and one :math:`K^{-1}`
gives the posterior without each of the points, instead of M refits
([Rasmussen2006gp]_).

Everything here is geometry: it depends on public points and fixed hyperparameters.
Private losses enter only as a right-hand side, linearly; nothing looks at their values.

References:
    .. [Rasmussen2006gp] C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for
        Machine Learning. MIT Press, 2006. Equations 5.10 to 5.12.
"""

import copy
import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_count, check_like, check_positive, check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.cholesky import append_rows, delete_row, drop
from botorch_dp.models.kernels.radial import RadialKernel

# Rounding errors of size u in a kernel matrix move its eigenvalues by about u sqrt(M).
# Measured with clustered points, M = 400, both dtypes: the factorization failed with 1
# such unit of noise and never with 4.
ROUNDING = 8.0


@dataclass(frozen=True)
class LeaveOneOut:
    r"""What a posterior loses with each point, for all M points at once.

    Without point j the covariance of the targets is
    :math:`\Sigma_{-j} = \Sigma + w_j w_j^T / [K^{-1}]_{jj}`.

    Attributes:
        weights: A ``batch_shape x t x M`` tensor :math:`W = C K^{-1}`; column j is
            :math:`w_j`.
        inverse_diagonal: A ``batch_shape x M`` tensor, the diagonal of :math:`K^{-1}`.
    """

    weights: Tensor
    inverse_diagonal: Tensor

    @property
    def trace_increase(self) -> Tensor:
        r"""``batch_shape x M``: the trace of :math:`\Sigma_{-j} - \Sigma`."""
        return self.weights.square().sum(dim=-2) / self.inverse_diagonal


@torch.no_grad()
def nearest_points(
    kernel: Kernel | RadialKernel, points: Tensor, x: Tensor, window: int
) -> Tensor:
    r"""Find the points nearest to x in the kernel's own metric.

    That is :math:`k(x, x) - 2 k(x, z) + k(z, z)`: for a stationary kernel the order
    of Euclidean distances after division by the length scales.

    Args:
        kernel: The covariance function, or its radial form, which is faster.
        points: A ``batch_shape x M x d`` tensor.
        x: A ``batch_shape x d`` tensor.
        window: How many points to return; all if there are fewer.

    Returns:
        A ``batch_shape x min(window, M)`` tensor of indices, the nearest first.
    """
    if isinstance(kernel, RadialKernel):
        z = (points - x.unsqueeze(-2)) * kernel.inverse_lengthscale
        distances = 1.0 - 2.0 * kernel.unit_profile(z.square().sum(dim=-1))[0]
    else:
        cross = kernel(points, x.unsqueeze(-2)).to_dense().squeeze(-1)
        distances = kernel(points, diag=True) - 2.0 * cross
    return distances.argsort(dim=-1, stable=True)[..., :window]


class KernelDictionary:
    r"""Public points with the Cholesky factor of :math:`K = k(D, D) + s^2 I`.

    Every element of a batch has its own points, and the same number M of them. To
    change some elements only, append to all and let the others delete the last point
    again: that leaves their factor unchanged, to the bit.

    Points may repeat, since :math:`s^2` keeps K positive definite. The noise is at
    least :math:`8 u \sqrt M` of the prior variance, with u the rounding unit (at
    M = 1700, 7e-14 in double and 4e-5 in single precision). If that is not enough, K is
    factorized again with ten times as much. Later calls do not change tensors that were
    returned before.

    Args:
        kernel: The covariance function. A copy is kept, its hyperparameters fixed and
            moved to the dtype and device of the points.
        points: A ``batch_shape x M x d`` tensor; M may be 0.
        noise_variance: The variance :math:`s^2`.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> points = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
        >>> dictionary = KernelDictionary(RBFKernel(), points, noise_variance=1e-4)
        >>> dictionary.append(torch.tensor([[2.0]], dtype=torch.float64))
        >>> dictionary.delete(1)
        >>> dictionary.points.squeeze(-1)
        tensor([0., 3., 2.], dtype=torch.float64)
        >>> K = dictionary.kernel(dictionary.points).to_dense()
        >>> K += 1e-4 * torch.eye(3, dtype=torch.float64)
        >>> torch.allclose(dictionary.cholesky, torch.linalg.cholesky(K))
        True
    """

    def __init__(
        self, kernel: Kernel, points: Tensor, *, noise_variance: float = 1e-6
    ) -> None:
        check_tensor("points", points, ("...", "M", "d"), finite=True, allow_empty=True)
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.kernel = copy.deepcopy(kernel).requires_grad_(False).eval().to(points)
        self._inverse_diagonal: Tensor | None = None
        self._rounding = ROUNDING * torch.finfo(points.dtype).eps
        self._points = points.detach()[..., :0, :]
        self._factor = points.new_empty(*points.shape[:-2], 0, 0)
        self._grow(*self._nothing(), points)

    @property
    def points(self) -> Tensor:
        """The ``batch_shape x M x d`` points, the oldest first."""
        return self._points

    @property
    def cholesky(self) -> Tensor:
        """The ``batch_shape x M x M`` lower triangular factor of K."""
        return self._factor

    @property
    def num_points(self) -> int:
        """The number M of points."""
        return self._points.shape[-2]

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of the batch of independent dictionaries."""
        return self._points.shape[:-2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the points and of the factor."""
        return self._points.dtype

    @property
    def device(self) -> torch.device:
        """The device of the points and of the factor."""
        return self._points.device

    def append(self, X: Tensor) -> None:
        r"""Add points at the end, in :math:`O(M^2 b)`.

        Args:
            X: A ``batch_shape x b x d`` tensor.
        """
        shape = (*self.batch_shape, "b", self._points.shape[-1])
        check_like("X", X, shape, self._points)
        check_tensor("X", X, finite=True)
        self._grow(self._points, self._factor, X)

    @torch.no_grad()
    def delete(self, index: int | Tensor) -> None:
        r"""Remove one point, in :math:`O(M^2)`; later points move up by one.

        Args:
            index: Which point, or a ``batch_shape`` tensor: one for each element.
        """
        if not isinstance(index, Tensor):
            index = check_count("index", index, minimum=0)
            index = torch.full(self.batch_shape, index, device=self.device)
        check_like("index", index, self.batch_shape, self._points, dtype=torch.int64)
        if ((index < 0) | (index >= self.num_points)).any():
            raise InvalidArgumentError(
                "index must be at least 0 and below the number of points, "
                f"{self.num_points}, got {index.tolist()}."
            )
        factor = delete_row(self._factor, index)
        self._points, self._factor = drop(self._points, index, dim=-2), factor
        self._inverse_diagonal = None

    def solve(self, rhs: Tensor) -> Tensor:
        r"""Return :math:`K^{-1}` times ``rhs``, a ``batch_shape x M x m`` tensor."""
        check_like("rhs", rhs, (*self.batch_shape, self.num_points, "m"), self._points)
        # Measured at M = 1700: half the time of torch.cholesky_solve.
        half = torch.linalg.solve_triangular(self._factor, rhs, upper=False)
        return torch.linalg.solve_triangular(self._factor.mT, half, upper=True)

    def inverse_diagonal(self) -> Tensor:
        r"""Return the ``batch_shape x M`` diagonal of :math:`K^{-1}`: O(M^3), once."""
        if self._inverse_diagonal is None:
            identity = torch.eye(self.num_points, dtype=self.dtype, device=self.device)
            inverse_factor = torch.linalg.solve_triangular(
                self._factor, identity.expand_as(self._factor), upper=False
            )
            self._inverse_diagonal = inverse_factor.square().sum(dim=-2)
        return self._inverse_diagonal

    def leave_one_out(self, cross_covariance: Tensor) -> LeaveOneOut:
        r"""Return what the posterior of some targets loses with each of the points.

        Args:
            cross_covariance: A ``batch_shape x t x M`` tensor C: the prior covariance
                of t targets (such as the gradient at some point) with the values at D.
        """
        C = cross_covariance
        shape = (*self.batch_shape, "t", self.num_points)
        check_like("cross_covariance", C, shape, self._points)
        return LeaveOneOut(self.solve(C.mT).mT, self.inverse_diagonal())

    @torch.no_grad()
    def _grow(self, points: Tensor, factor: Tensor, X: Tensor) -> None:
        """Become ``points``, whose factor is known, and ``X``; or raise, unchanged."""
        together, rounding = torch.cat([points, X], dim=-2), self._rounding
        while (grown := self._grow_factor(points, factor, X, rounding)) is None:
            rounding *= 10.0
            if rounding > 0.1:
                raise InvalidArgumentError(
                    "kernel must be finite and positive semidefinite on the points; "
                    f"its matrix is not: {self.kernel!r}."
                )
            points, factor, X = *self._nothing(), together
        self._points, self._factor, self._rounding = together, grown, rounding
        self._inverse_diagonal = None

    def _grow_factor(
        self, points: Tensor, factor: Tensor, X: Tensor, rounding: float
    ) -> Tensor | None:
        block = self._covariance(X, X)  # batch_shape x b x b
        unit = rounding * math.sqrt(points.shape[-2] + X.shape[-2])
        noise = unit * block.diagonal(dim1=-2, dim2=-1)  # batch_shape x b
        noise = torch.diag_embed(noise.clamp(min=self.noise_variance))
        return append_rows(factor, self._covariance(X, points), block + noise)

    def _nothing(self) -> tuple[Tensor, Tensor]:
        return self._points[..., :0, :], self._factor[..., :0, :0]

    def _covariance(self, X1: Tensor, X2: Tensor) -> Tensor:
        shape = (*self.batch_shape, X1.shape[-2], X2.shape[-2])
        if 0 in shape:
            return X1.new_empty(shape)
        covariance = self.kernel(X1, X2).to_dense()
        if covariance.shape != shape:
            raise InvalidArgumentError(
                "kernel must give one number per pair of points, a matrix of shape "
                f"{shape}, got {tuple(covariance.shape)}."
            )
        return covariance
