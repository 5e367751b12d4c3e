r"""A batch of dictionaries with different numbers of points, in tensors of one shape.

:class:`~botorch_dp.models.KernelDictionary` keeps a Cholesky factor and needs the same
number of points in every element of a batch. Here an element has S slots, some of them
empty, and :math:`K^{-1}` with :math:`K = k(D, D) + s^2 I`, whose rows and columns are
zero in empty slots. Then weights are zero there too, sums over points run over slots,
and points come and go as rank-one updates: with :math:`v = K^{-1} k(D, \xi)` and the
Schur complement :math:`\sigma = k(\xi, \xi) + s^2 - k(\xi, D) v`,

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

from botorch_dp._deprecated import renamed_names
from botorch_dp._validation import check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.dictionary import LeaveOneOut
from botorch_dp.models.gradient_weights import GradientWeights
from botorch_dp.models.kernels.covariances import Covariances
from botorch_dp.models.surrogates.base import describe_tensor

# The least noise, in roots of the rounding unit, of the prior variance: rounding moves
# what K^-1 gives by u / s^2, and a Schur complement may be as small as s^2. Measured
# with 100 points on top of one another, appended one by one, both dtypes: with 4 the
# inverse was lost, with 16 it was right to 13 %, with 64 (as by default) to 0.5 %.
_ROUNDING = 16.0
# Slots added at a time.
_GROWTH = 4


class PaddedDictionary:
    r"""Public points in slots, with :math:`K^{-1}`, for each element of a batch.

    Updates add up rounding errors, which :meth:`settle` removes. The noise :math:`s^2`
    counts for no less than :math:`16 \sqrt u` of the prior variance, with u the
    rounding unit: 2.4e-7 in double and 5.5e-3 in single precision. Where that is too
    much, use :class:`~botorch_dp.models.KernelDictionary`. Tensors handed out are not
    changed by later calls.

    Args:
        kernel: A twice differentiable kernel without batch dimensions. A copy is kept,
            its hyperparameters fixed and moved to the points' dtype and device.
        points: A ``batch_shape x S x p`` tensor; S may be 0.
        mask: A ``batch_shape x S`` tensor: which slots hold a point. All by default.
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
        if not isinstance(points, Tensor) or points.dim() < 2:
            raise InvalidArgumentError(
                f"points must be a batch_shape x S x p tensor, got {points!r}."
            )
        if points.dtype not in (torch.float32, torch.float64):
            raise InvalidArgumentError(
                "points must have dtype torch.float32 or torch.float64, got "
                f"{points.dtype}."
            )
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self._batch_shape = points.shape[:-2]
        self._covariances = Covariances(kernel, points)
        self._points = self._flat(points.detach()).clone()
        if mask is None:
            mask = torch.ones(points.shape[:-1], dtype=torch.bool, device=points.device)
        self._check("mask", mask, *points.shape[:-1], dtype=torch.bool)
        self._mask = self._flat(mask).clone()
        self._check_finite("points", self._points)
        self._inverse = self._factorize(self._points, self._mask)
        if not self.num_slots:
            self._pad(1)  # no kernel has to cope with no points

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
        """The ``batch_shape x S x p`` points; empty slots hold something finite."""
        return self._shaped(self._points)

    @property
    def mask(self) -> Tensor:
        """A ``batch_shape x S`` tensor: which slots hold a point."""
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
        self._check("X", X, *self.batch_shape, self._points.shape[-1])
        self._check_finite("X", X)
        solved, schur = self.condition(X.unsqueeze(-2))
        self.append_conditioned(X, solved.squeeze(-1), schur.squeeze(-1), where)

    @torch.no_grad()
    def condition(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Say what the dictionary knows about values at other points.

        Args:
            X: A ``batch_shape x m x p`` tensor.

        Returns:
            The ``batch_shape x S x m`` solutions :math:`K^{-1} k(D, X)` and the
            ``batch_shape x m`` Schur complements: the variance of an observation at
            each point of X given D, noise included.
        """
        self._check("X", X, *self.batch_shape, "m", self._points.shape[-1])
        flat = self._flat(X)
        covariance = self._covariances.value(self._points, flat)  # B x S x m
        variance = self._covariances.variance(flat)  # B x m
        noise = self._noise(variance)
        solved = self._inverse @ covariance
        schur = variance + noise - (covariance * solved).sum(dim=-2)
        # No less than the noise but for rounding.
        schur = torch.maximum(schur, noise)
        return self._shaped(solved), self._shaped(schur)

    @torch.no_grad()
    def append_conditioned(
        self, X: Tensor, solved: Tensor, schur: Tensor, where: Tensor | None = None
    ) -> None:
        """Add points of which :meth:`condition` is known already.

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
            index: A ``batch_shape`` tensor of slots that hold a point.
            where: A ``batch_shape`` tensor of booleans: which elements change.
        """
        self._check("index", index, *self.batch_shape, dtype=torch.int64)
        chosen, flat = self._chosen(where), self._flat(index).unsqueeze(-1)
        slots = flat.clamp(min=0, max=self.num_slots - 1)
        held = (self._mask.gather(-1, slots) & (slots == flat)).squeeze(-1)
        if not (held | ~chosen).all():
            raise InvalidArgumentError(
                f"index must be slots that hold a point, got {index.tolist()}."
            )
        column = self._inverse.take_along_dim(slots.unsqueeze(-1), dim=-1).squeeze(-1)
        pivot = column.gather(-1, slots)  # B x 1
        safe = torch.where(chosen.unsqueeze(-1), pivot, torch.ones_like(pivot))
        scaled = column * (chosen.unsqueeze(-1) / safe)
        slot = torch.zeros_like(self._mask).scatter(-1, slots, chosen.unsqueeze(-1))
        inverse = torch.addcmul(
            self._inverse, scaled.unsqueeze(-1), column.unsqueeze(-2), value=-1.0
        )
        # Zero but for rounding.
        emptied = slot.unsqueeze(-1) | slot.unsqueeze(-2)
        self._inverse = inverse.masked_fill(emptied, 0.0)
        self._mask = self._mask & ~slot

    @torch.no_grad()
    def settle(self) -> None:
        """Factorize anew, in O(S^3), to remove whatever rounding has accumulated."""
        self._inverse = self._factorize(self._points, self._mask)

    @torch.no_grad()
    def compact(self) -> None:
        """Move points to the first slots, and keep as many slots as the most points.

        There is always one slot.
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
        self._check("x", x, *self.batch_shape, self._points.shape[-1])
        flat = self._flat(x)
        # Not gradient_weights, which factorizes K: here K^-1 is up to date already.
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
        r"""Say what the posterior of some targets would lose with each of the points.

        Args:
            cross_covariance: A ``batch_shape x t x S`` tensor: the prior covariance of
                t targets with the values at D.

        Returns:
            Weights, zero in empty slots, and the diagonal of :math:`K^{-1}`, one in
            empty slots, so that nothing is lost with them.
        """
        C = cross_covariance
        self._check("cross_covariance", C, *self.batch_shape, "t", self.num_slots)
        return LeaveOneOut(C @ self.inverse, self.inverse_diagonal())

    def inverse_diagonal(self) -> Tensor:
        r"""Return the ``batch_shape x S`` diagonal of :math:`K^{-1}`, else one."""
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
        """Return the points, the mask and the inverse, to go on from to the bit."""
        return {
            "points": self.points.clone(),
            "mask": self.mask.clone(),
            "inverse": self.inverse.clone(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Take over the points of :meth:`state_dict`."""
        points, mask, inverse = (
            state_dict[name] for name in ("points", "mask", "inverse")
        )
        points, inverse = points.to(self._points), inverse.to(self._points)
        mask = mask.to(self._mask)
        shape, slots = self.batch_shape, mask.shape[-1]
        self._check("points", points, *shape, slots, self._points.shape[-1])
        self._check("mask", mask, *shape, slots, dtype=torch.bool)
        self._check("inverse", inverse, *shape, slots, slots)
        self._check_finite("points", points)
        self._check_finite("inverse", inverse)
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
            return torch.ones(
                self._mask.shape[:-1], dtype=torch.bool, device=self.device
            )
        self._check("where", where, *self.batch_shape, dtype=torch.bool)
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
        """Check type, shape (a letter stands for any size), dtype and device."""
        dtype = dtype or self.dtype
        if (
            not isinstance(value, Tensor)
            or value.dim() != len(shape)
            or any(
                isinstance(expected, int) and size != expected
                for size, expected in zip(value.shape, shape, strict=True)
            )
            or value.dtype != dtype
            or value.device != self.device
        ):
            raise InvalidArgumentError(
                f"{name} must be a {dtype} tensor of shape "
                f"{' x '.join(map(str, shape)) or '()'} on {self.device}, got "
                f"{describe_tensor(value)}."
            )

    @staticmethod
    def _check_finite(name: str, value: Tensor) -> None:
        if not value.isfinite().all():
            raise InvalidArgumentError(f"{name} must be finite, got nan or inf in it.")


__getattr__ = renamed_names(__name__, {"PaddedGradient": "GradientWeights"})
