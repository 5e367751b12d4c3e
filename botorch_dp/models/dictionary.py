r"""A dictionary of public points whose Cholesky factor follows as points come and go.

With :math:`D` the points, :math:`K = k(D, D) + s^2 I` and :math:`L L^T = K`, appending
b points costs :math:`O(M^2 b)`, deleting one :math:`O(M^2)`, and what the posterior
would be without each of the points comes from one :math:`K^{-1}` instead of M refits.

Everything here is geometry: it depends on public points and fixed hyperparameters.
Private losses enter only as a right-hand side, linearly; nothing looks at their values.

References:
    .. [Rasmussen2006gp] C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for
        Machine Learning. MIT Press, 2006. Equations 5.10 to 5.12.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.cholesky import append_rows, delete_row, drop

# Rounding errors of size u in a kernel matrix move its eigenvalues by about u sqrt(M).
# Measured with clustered points, M = 400, both dtypes: 1 such unit of noise is not
# enough to keep the factor, 4 always were.
_ROUNDING = 8.0


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

    @property
    def covariance_increase(self) -> Tensor:
        r"""``batch_shape x M x t x t``: :math:`\Sigma_{-j} - \Sigma`."""
        columns = self.weights.mT.unsqueeze(-1)  # batch_shape x M x t x 1
        return columns * columns.mT / self.inverse_diagonal[..., None, None]


@torch.no_grad()
def nearest_points(kernel: Kernel, points: Tensor, x: Tensor, window: int) -> Tensor:
    """Find the points nearest to x in the kernel's own metric.

    Args:
        kernel: The covariance function.
        points: A ``batch_shape x M x d`` tensor.
        x: A ``batch_shape x d`` tensor.
        window: How many points; all if there are fewer.

    Returns:
        A ``batch_shape x min(window, M)`` tensor of indices, the nearest first.
    """
    cross = kernel(points, x.unsqueeze(-2)).to_dense().squeeze(-1)
    distances = kernel(points, diag=True) - 2.0 * cross
    return distances.argsort(dim=-1, stable=True)[..., :window]


class KernelDictionary:
    r"""Public points with the Cholesky factor of :math:`K = k(D, D) + s^2 I`.

    Every element of a batch has its own points, and the same number M of them. To
    change some elements only, append to all and let the others delete the last point
    again: that leaves their factor as it was, to the bit.

    Points may repeat: :math:`s^2` keeps K positive definite. It counts for no less than
    rounding does, :math:`8 u \sqrt M` of the prior variance with u the rounding unit
    (at M = 1700, 7e-14 in double and 4e-5 in single precision); should that not
    suffice, K is factorized anew with ten times as much. Tensors handed out are not
    changed by later calls.

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
        >>> window = dictionary.nearest(points[2], window=2)
        >>> window
        tensor([1, 2])
        >>> dictionary.subset(window).num_points
        2
    """

    def __init__(
        self, kernel: Kernel, points: Tensor, *, noise_variance: float = 1e-6
    ) -> None:
        if not isinstance(points, Tensor) or points.dim() < 2:
            raise InvalidArgumentError(
                f"points must be a batch_shape x M x d tensor, got {points!r}."
            )
        if points.dtype not in (torch.float32, torch.float64):
            raise InvalidArgumentError(
                "points must have dtype torch.float32 or torch.float64, got "
                f"{points.dtype}."
            )
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.kernel = copy.deepcopy(kernel).requires_grad_(False).eval().to(points)
        self._inverse_diagonal: Tensor | None = None
        self._rounding = _ROUNDING * torch.finfo(points.dtype).eps
        self._points = points.detach()[..., :0, :]
        self._factor = points.new_empty(*points.shape[:-2], 0, 0)
        self._check_points("points", points, "M")
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
        self._check_points("X", X, "b")
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
        self._check_indices("index", index, self.batch_shape)
        factor = delete_row(self._factor, index)
        self._points, self._factor = drop(self._points, index, dim=-2), factor
        self._inverse_diagonal = None

    def refresh(self) -> None:
        """Factorize anew, in O(M^3), to remove whatever rounding has accumulated."""
        self._grow(*self._nothing(), self._points)

    def solve(self, rhs: Tensor) -> Tensor:
        r"""Return :math:`K^{-1}` times ``rhs``, a ``batch_shape x M x m`` tensor."""
        self._check("rhs", rhs, *self.batch_shape, self.num_points, "m")
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
        r"""Say what the posterior of some targets would lose with each of the points.

        Args:
            cross_covariance: A ``batch_shape x t x M`` tensor C: the prior covariance
                of t targets (such as the gradient at some point) with the values at D.
        """
        C = cross_covariance
        self._check("cross_covariance", C, *self.batch_shape, "t", self.num_points)
        return LeaveOneOut(self.solve(C.mT).mT, self.inverse_diagonal())

    def leave_one_out_predictions(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        r"""Predict every target from all others ([Rasmussen2006gp]_, equation 5.12).

        Args:
            targets: A ``batch_shape x M x m`` tensor of m sets of observations at D.

        Returns:
            The ``batch_shape x M x m`` means :math:`y_j - [K^{-1} y]_j / [K^{-1}]_{jj}`
            and the ``batch_shape x M`` variances :math:`1 / [K^{-1}]_{jj}` of an
            observation, noise included.
        """
        self._check("targets", targets, *self.batch_shape, self.num_points, "m")
        diagonal = self.inverse_diagonal()
        return targets - self.solve(targets) / diagonal.unsqueeze(-1), 1.0 / diagonal

    @torch.no_grad()
    def nearest(self, x: Tensor, window: int) -> Tensor:
        r"""Find the nearest points in the kernel's own metric.

        That is :math:`k(x, x) - 2 k(x, z) + k(z, z)`: for a stationary kernel the order
        of Euclidean distances after division by the length scales.

        Args:
            x: A ``batch_shape x d`` tensor.
            window: How many points; all if there are fewer.

        Returns:
            A ``batch_shape x min(window, M)`` tensor of indices, the nearest first.
        """
        check_count("window", window)
        self._check_points("x", x)
        return nearest_points(self.kernel, self._points, x, window)

    def subset(self, indices: Tensor) -> "KernelDictionary":
        """Return a dictionary of some of the points, such as the nearest, in O(w^3).

        Args:
            indices: A ``batch_shape x w`` tensor.
        """
        self._check_indices("indices", indices, (*self.batch_shape, "w"))
        chosen = self._points.take_along_dim(indices.unsqueeze(-1), dim=-2)
        smaller = copy.copy(self)
        smaller._grow(*self._nothing(), chosen)
        return smaller

    def state_dict(self) -> dict[str, Tensor]:
        """Return the points, from which :meth:`load_state_dict` rebuilds the factor."""
        return {"points": self._points.clone()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Replace the points by those of :meth:`state_dict`, and factorize anew."""
        points = state_dict["points"].to(self._points)
        self._check_points("points", points, "M")
        self._grow(*self._nothing(), points)

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

    def _check_points(self, name: str, value: Tensor, *rows: str) -> None:
        self._check(name, value, *self.batch_shape, *rows, self._points.shape[-1])
        finite = value.isfinite()
        if not finite.all():
            raise InvalidArgumentError(
                f"{name} must be finite, got {value[~finite][0].item()!r} in it."
            )

    def _check_indices(
        self, name: str, value: Tensor, shape: tuple[int | str, ...]
    ) -> None:
        self._check(name, value, *shape, dtype=torch.int64)
        if ((value < 0) | (value >= self.num_points)).any():
            raise InvalidArgumentError(
                f"{name} must be at least 0 and below the number of points, "
                f"{self.num_points}, got {value.tolist()}."
            )

    def _check(
        self,
        name: str,
        value: Tensor,
        *shape: int | str,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Check type, shape (a letter stands for any size), dtype and device."""
        if not isinstance(value, Tensor):
            raise InvalidArgumentError(
                f"{name} must be a torch.Tensor, got {type(value).__name__}."
            )
        if value.dim() != len(shape) or any(
            isinstance(expected, int) and size != expected
            for size, expected in zip(value.shape, shape, strict=True)
        ):
            raise InvalidArgumentError(
                f"{name} must have shape {' x '.join(map(str, shape)) or '()'}, got "
                f"{tuple(value.shape)}."
            )
        dtype = dtype or self.dtype
        if value.dtype != dtype or value.device != self.device:
            raise InvalidArgumentError(
                f"{name} must be {dtype} on {self.device}, got {value.dtype} on "
                f"{value.device}."
            )
