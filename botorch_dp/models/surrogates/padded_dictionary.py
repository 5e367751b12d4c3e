r"""A batch of dictionaries with different numbers of points, in tensors of one shape.

:class:`~botorch_dp.models.KernelDictionary` keeps a Cholesky factor and needs the same
number of points in every element of a batch. Here an element has S slots, some of them
empty, and :math:`K^{-1}` with :math:`K = k(D, D) + s^2 I`. Its rows and columns are
zero in empty slots, and so are weights, so that sums over points may include all slots.
Points come and go by rank-one updates: with :math:`v = K^{-1} k(D, \xi)` and the Schur
complement :math:`\sigma = k(\xi, \xi) + s^2 - k(\xi, D) v`,

.. math::
    K^{-1} \leftarrow K^{-1} + \frac{1}{\sigma} u u^\top, \quad
    u = (v, -1), \qquad \text{and} \qquad
    K^{-1} \leftarrow K^{-1} - \frac{K^{-1}_{\cdot j} K^{-1}_{j \cdot}}{K^{-1}_{jj}}

append a point :math:`\xi` and delete point j, in :math:`O(S^2)`.

Everything here is geometry: it depends on public points and fixed hyperparameters.
"""

import copy
import math
from collections.abc import Mapping

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn.functional import pad

from botorch_dp._deprecated import renamed_attribute, renamed_names
from botorch_dp._validation import check_like, check_positive, check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.dictionary import LeaveOneOut
from botorch_dp.models.gradient_weights import GradientWeights
from botorch_dp.models.kernels.covariances import Covariances

# The smallest noise, as a multiple of sqrt(u) and the prior variance (u is the rounding
# unit): rounding moves K^-1 by u / s^2, and a Schur complement can be as small as s^2.
# Measured with 100 copies of a point, appended one by one, both dtypes: the inverse was
# useless with 4, and its error was 13 % with 16 and 0.5 % with 64 (the default).
_ROUNDING = 16.0
# The number of slots that are added at a time.
_GROWTH = 4


class PaddedDictionary:
    r"""Public points in slots, with :math:`K^{-1}`, for each element of a batch.

    Updates accumulate rounding errors, which :meth:`refactorize` removes. The noise
    :math:`s^2` is at least :math:`16 \sqrt u` of the prior variance, with u the
    rounding unit: 2.4e-7 in double and 5.5e-3 in single precision. If that is too much,
    use :class:`~botorch_dp.models.KernelDictionary`. Later calls do not change tensors
    that were returned before.

    Args:
        kernel: A twice differentiable kernel without batch dimensions. A copy is kept,
            its hyperparameters fixed and moved to the points' dtype and device.
        points: A ``batch_shape x S x p`` tensor; S may be 0.
        mask: A ``batch_shape x S`` tensor: which slots have a point. All by default.
        noise_variance: The variance :math:`s^2`.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> points = torch.zeros(2, 1, 3, dtype=torch.float64)
        >>> dictionary = PaddedDictionary(RBFKernel(), points)
        >>> dictionary.append(points[:, 0] + 1.0, where=torch.tensor([True, False]))
        >>> dictionary.num_points
        tensor([2, 1])
        >>> dictionary.compact()
        >>> dictionary.mask
        tensor([[ True,  True],
                [ True, False]])
    """

    @torch.no_grad()
    def __init__(
        self,
        kernel: Kernel,
        points: Tensor,
        mask: Tensor | None = None,
        *,
        noise_variance: float = 1e-6,
    ) -> None:
        check_tensor("points", points, ("...", "S", "p"), finite=True, allow_empty=True)
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self._batch_shape = points.shape[:-2]
        self._covariances = Covariances(kernel, points)
        self._points = self._flat(points.detach()).clone()
        if mask is None:
            mask = torch.ones(points.shape[:-1], dtype=torch.bool, device=points.device)
        check_like("mask", mask, points.shape[:-1], points, dtype=torch.bool)
        self._mask = self._flat(mask).clone()
        self._inverse = self._factorize(self._points, self._mask)
        if not self.num_slots:
            self._pad(1)  # not all kernels can be evaluated at zero points

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self._covariances.kernel

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of the batch of independent dictionaries."""
        return self._batch_shape

    @property
    def num_slots(self) -> int:
        """The number S of slots."""
        return self._points.shape[-2]

    @property
    def num_points(self) -> Tensor:
        """The ``batch_shape`` numbers of points."""
        return self._shaped(self._mask.sum(dim=-1))

    @property
    def points(self) -> Tensor:
        """The ``batch_shape x S x p`` points; empty slots have any finite value."""
        return self._shaped(self._points)

    @property
    def mask(self) -> Tensor:
        """A ``batch_shape x S`` tensor: which slots have a point."""
        return self._shaped(self._mask)

    @property
    def inverse(self) -> Tensor:
        r"""The ``batch_shape x S x S`` tensor :math:`K^{-1}`, zero in empty slots."""
        return self._shaped(self._inverse)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the points."""
        return self._points.dtype

    @property
    def device(self) -> torch.device:
        """The device of the points."""
        return self._points.device

    @torch.no_grad()
    def append(self, X: Tensor, where: Tensor | None = None) -> None:
        """Add one point to each element, or to some.

        Args:
            X: A ``batch_shape x p`` tensor.
            where: A ``batch_shape`` tensor of booleans: which elements change.
        """
        self._check("X", X, self._points.shape[-1])
        check_tensor("X", X, finite=True)
        solved, schur = self.condition(X.unsqueeze(-2))
        self.append_conditioned(X, solved.squeeze(-1), schur.squeeze(-1), where)

    @torch.no_grad()
    def condition(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Condition values at other points on those of the dictionary.

        Args:
            X: A ``batch_shape x m x p`` tensor.

        Returns:
            The ``batch_shape x S x m`` solutions :math:`K^{-1} k(D, X)` and the
            ``batch_shape x m`` Schur complements: the variance of an observation at
            each point of X given D, noise included.
        """
        self._check("X", X, "m", self._points.shape[-1])
        flat = self._flat(X)
        covariance = self._covariances.value(self._points, flat)  # B x S x m
        variance = self._covariances.variance(flat)  # B x m
        noise = self._noise(variance)
        solved = self._inverse @ covariance
        schur = variance + noise - (covariance * solved).sum(dim=-2)
        # Without rounding, it would never be below the noise.
        schur = torch.maximum(schur, noise)
        return self._shaped(solved), self._shaped(schur)

    @torch.no_grad()
    def append_conditioned(
        self, X: Tensor, solved: Tensor, schur: Tensor, where: Tensor | None = None
    ) -> None:
        """Add points for which :meth:`condition` was computed before.

        Args:
            X: A ``batch_shape x p`` tensor.
            solved: A ``batch_shape x S`` tensor.
            schur: A ``batch_shape`` tensor.
            where: A ``batch_shape`` tensor of booleans: which elements change.
        """
        chosen = self._chosen(where)
        solved = self._flat(solved)
        if (self._mask.all(dim=-1) & chosen).any():
            self._pad(_GROWTH)
            solved = pad(solved, (0, _GROWTH))
        empty = (~self._mask).to(torch.uint8).argmax(dim=-1, keepdim=True)  # the first
        slot = torch.zeros_like(self._mask).scatter(-1, empty, chosen.unsqueeze(-1))
        u = solved.masked_fill(slot, -1.0)
        scaled = u * (chosen / self._flat(schur)).unsqueeze(-1)
        self._inverse = torch.addcmul(
            self._inverse, scaled.unsqueeze(-1), u.unsqueeze(-2)
        )
        X = self._flat(X).unsqueeze(-2)
        self._points = torch.where(slot.unsqueeze(-1), X, self._points)
        self._mask = self._mask | slot

    @torch.no_grad()
    def delete(self, index: Tensor, where: Tensor | None = None) -> None:
        """Remove one point of each element, or of some; its slot is then empty.

        Args:
            index: A ``batch_shape`` tensor of slots that have a point.
            where: A ``batch_shape`` tensor of booleans: which elements change.
        """
        self._check("index", index, dtype=torch.int64)
        chosen, flat = self._chosen(where), self._flat(index).unsqueeze(-1)
        slots = flat.clamp(min=0, max=self.num_slots - 1)
        full = (self._mask.gather(-1, slots) & (slots == flat)).squeeze(-1)
        if not (full | ~chosen).all():
            raise InvalidArgumentError(
                f"index must be slots that have a point, got {index.tolist()}."
            )
        column = self._inverse.take_along_dim(slots.unsqueeze(-1), dim=-1).squeeze(-1)
        pivot = column.gather(-1, slots)  # B x 1
        safe = torch.where(chosen.unsqueeze(-1), pivot, torch.ones_like(pivot))
        scaled = column * (chosen.unsqueeze(-1) / safe)
        slot = torch.zeros_like(self._mask).scatter(-1, slots, chosen.unsqueeze(-1))
        inverse = torch.addcmul(
            self._inverse, scaled.unsqueeze(-1), column.unsqueeze(-2), value=-1.0
        )
        # Rounding leaves these entries close to zero; weights must be zero there.
        emptied = slot.unsqueeze(-1) | slot.unsqueeze(-2)
        self._inverse = inverse.masked_fill(emptied, 0.0)
        self._mask = self._mask & ~slot

    @torch.no_grad()
    def refactorize(self) -> None:
        """Factorize K again, in O(S^3), to remove accumulated rounding errors."""
        self._inverse = self._factorize(self._points, self._mask)

    settle = renamed_attribute("settle", "refactorize")

    @torch.no_grad()
    def compact(self) -> None:
        """Move points to the first slots, and drop slots that are empty everywhere.

        At least one slot remains.
        """
        order = (~self._mask).to(torch.uint8).argsort(dim=-1, stable=True)
        order = order[:, : max(1, int(self._mask.sum(dim=-1).max()))]
        self._points = self._points.take_along_dim(order.unsqueeze(-1), dim=-2)
        rows = self._inverse.take_along_dim(order.unsqueeze(-1), dim=-2)
        self._inverse = rows.take_along_dim(order.unsqueeze(-2), dim=-1)
        self._mask = self._mask.gather(-1, order)

    @torch.no_grad()
    def gradient(self, x: Tensor) -> GradientWeights:
        """Return the posterior of the gradient at ``x``, a ``batch_shape x p`` tensor.

        Weights are zero in empty slots. Everything is nan where ``x`` is not finite.
        """
        self._check("x", x, self._points.shape[-1])
        flat = self._flat(x)
        # Not gradient_weights, which factorizes K: rank-one updates keep K^-1 current.
        cross = self._covariances.gradient(flat, self._points)
        parts = (cross @ self._inverse, cross, self._covariances.prior(flat))
        return GradientWeights.from_solution(*(self._shaped(part) for part in parts))

    def variance(self, X: Tensor) -> Tensor:
        """Return the prior variances of values at X, any tensor of points."""
        return self._covariances.variance(X)

    @torch.no_grad()
    def gradient_covariance(self, x: Tensor, X: Tensor) -> Tensor:
        """Return the ``batch_shape x p x m`` prior covariance of gradient and values.

        Args:
            x: A ``batch_shape x p`` tensor: where the gradient is.
            X: A ``batch_shape x m x p`` tensor: where the values are.
        """
        covariance = self._covariances.gradient(self._flat(x), self._flat(X))
        return self._shaped(covariance)

    def leave_one_out(self, cross_covariance: Tensor) -> LeaveOneOut:
        r"""Return what the posterior of some targets loses with each of the points.

        Args:
            cross_covariance: A ``batch_shape x t x S`` tensor: the prior covariance of
                t targets with the values at D.

        Returns:
            Weights, zero in empty slots, and the diagonal of :math:`K^{-1}`, one in
            empty slots: the increase is zero there.
        """
        C = cross_covariance
        self._check("cross_covariance", C, "t", self.num_slots)
        return LeaveOneOut(C @ self.inverse, self.inverse_diagonal())

    def inverse_diagonal(self) -> Tensor:
        r"""Return the ``batch_shape x S`` diagonal, one in empty slots."""
        diagonal = self._inverse.diagonal(dim1=-2, dim2=-1)
        return self._shaped(diagonal.masked_fill(~self._mask, 1.0))

    @torch.no_grad()
    def select(self, index: Tensor) -> "PaddedDictionary":
        """Return a dictionary of some elements of the batch.

        Args:
            index: A vector of elements, counted through the flattened batch.
        """
        chosen = copy.copy(self)
        chosen._batch_shape = index.shape
        chosen._points = self._points[index]
        chosen._mask = self._mask[index]
        chosen._inverse = self._inverse[index]
        return chosen

    @torch.no_grad()
    def assign(self, index: Tensor, other: "PaddedDictionary") -> None:
        """Replace some elements, the counterpart of :meth:`select`."""
        slots = max(self.num_slots, other.num_slots)
        other = copy.copy(other)
        other._pad(slots - other.num_slots)
        self._pad(slots - self.num_slots)
        self._points = self._points.index_copy(0, index, other._points)
        self._mask = self._mask.index_copy(0, index, other._mask)
        self._inverse = self._inverse.index_copy(0, index, other._inverse)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the points, the mask and the inverse, to continue to the bit."""
        tensors = {"points": self.points, "mask": self.mask, "inverse": self.inverse}
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Replace the points by those of :meth:`state_dict`."""
        points = state_dict["points"].to(self._points)
        mask = state_dict["mask"].to(self._mask)
        inverse = state_dict["inverse"].to(self._points)
        slots = mask.shape[-1]
        self._check("points", points, slots, self._points.shape[-1])
        self._check("mask", mask, slots, dtype=torch.bool)
        self._check("inverse", inverse, slots, slots)
        check_tensor("points", points, finite=True)
        check_tensor("inverse", inverse, finite=True)
        self._points = self._flat(points).clone()
        self._mask = self._flat(mask).clone()
        self._inverse = self._flat(inverse).clone()

    def _factorize(self, points: Tensor, mask: Tensor) -> Tensor:
        K = self._covariances.value(points, points)
        variance = self._covariances.variance(points)
        K = K + torch.diag_embed(self._noise(variance))
        both = mask.unsqueeze(-1) & mask.unsqueeze(-2)
        identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        factor, info = torch.linalg.cholesky_ex(torch.where(both, K, identity))
        if info.any() or not factor.isfinite().all():
            raise InvalidArgumentError(
                "kernel must be finite and positive semidefinite on the points; "
                f"its matrix is not: {self.kernel!r}."
            )
        return torch.cholesky_inverse(factor).masked_fill(~both, 0.0)

    def _noise(self, variance: Tensor) -> Tensor:
        floor = _ROUNDING * math.sqrt(torch.finfo(variance.dtype).eps)
        return (floor * variance).clamp(min=self.noise_variance)

    def _pad(self, slots: int) -> None:
        """Add empty slots."""
        if slots:
            self._points = pad(self._points, (0, 0, 0, slots))
            self._inverse = pad(self._inverse, (0, slots, 0, slots))
            self._mask = pad(self._mask, (0, slots), value=False)

    def _chosen(self, where: Tensor | None) -> Tensor:
        if where is None:
            return torch.ones_like(self._mask.any(dim=-1))
        self._check("where", where, dtype=torch.bool)
        return self._flat(where)

    def _flat(self, shaped: Tensor) -> Tensor:
        batch = len(self._batch_shape)
        if batch == 1:
            return shaped
        return shaped.reshape(self._batch_shape.numel(), *shaped.shape[batch:])

    def _shaped(self, flat: Tensor) -> Tensor:
        if len(self._batch_shape) == 1:
            return flat
        return flat.reshape(self._batch_shape + flat.shape[1:])

    def _check(
        self,
        name: str,
        value: Tensor,
        *shape: int | str,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Check a tensor with the batch shape, dtype and device of the points."""
        check_like(name, value, (*self.batch_shape, *shape), self._points, dtype=dtype)


__getattr__ = renamed_names(__name__, {"PaddedGradient": "GradientWeights"})
