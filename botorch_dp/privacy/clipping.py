"""Clipping: bounds what one record can contribute, whatever its values are.

Rows are the last dimension: a batch of records is ``... x n x d``. A record with a
non-finite value silently contributes zero, because an error, a warning or a count would
reveal something about it. The curator may call :func:`private_clipping_diagnostics`.

References:
    .. [Avella2021robust] M. Avella-Medina. Privacy-Preserving Parametric Inference: A
        Case for Robust Statistics. JASA, 2021. Mallows weights for privacy.
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import gammaincinv
from torch import Tensor

from botorch_dp._validation import (
    LARGEST_CLIP_NORM,
    check_choice,
    check_count,
    check_positive,
    check_private_tensor,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError

_NORMS = {"l2": 2.0, "l1": 1.0}
# The number of clipped rows that can be summed in their own precision.
_MOST_ROWS = 1e8


def clip_rows(private_rows: Tensor, bound: float, *, norm: str = "l2") -> Tensor:
    """Scale every row whose norm exceeds ``bound`` down to it.

    The norm of a clipped row never exceeds ``bound``, not even by rounding: norms are
    computed in double precision, and rows are scaled to just below the bound. Rows
    within the bound are returned unchanged, bit for bit; rows with a non-finite value
    become zeros.

    Args:
        private_rows: A ``... x d`` tensor of float32 or float64.
        bound: The largest norm, at most 1e100, or 3.4e30 in single precision, so that
            sums of clipped rows are finite.
        norm: ``"l2"`` (for Gaussian noise) or ``"l1"`` (for Laplace noise).

    Returns:
        A ``... x d`` tensor.

    Example:
        >>> clip_rows(torch.tensor([[3.0, 4.0], [float("nan"), 0.0]]), bound=1.0)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    check_private_tensor("private_rows", private_rows, min_dim=1)
    check_choice("norm", norm, tuple(_NORMS))
    bound = check_bound(bound, private_rows.dtype)
    private_rows = private_rows.detach()
    unit_rows, largest, finite = _scale_to_unit(private_rows)
    unit_norms = _norms(unit_rows, norm)  # between 1 and d for rows that are not zero

    # Room for rounding: at most d + 2 relative errors of a double in the norm, one of
    # the rows' dtype in the product, and one in the scale itself.
    slack = _slack(private_rows)
    safe_bound = bound * (1.0 - slack - 2 * torch.finfo(private_rows.dtype).eps)
    within = largest * unit_norms <= safe_bound
    scale = (safe_bound / unit_norms.clamp(min=1.0)).to(private_rows.dtype)
    clipped = torch.where(within, private_rows, unit_rows.mul_(scale))
    return clipped.masked_fill_(~finite, 0.0)


def clipped_row_sum(private_rows: Tensor, bound: float, *, norm: str = "l2") -> Tensor:
    r"""Return the sum of rows clipped as in :func:`clip_rows`, without storing them.

    With :math:`m_i` the largest entry of row i and :math:`N_i` the norm of
    :math:`r_i / m_i`, a row contributes :math:`s_i (r_i / m_i)` with
    :math:`s_i = \min(m_i, B' / N_i)`, and zero if it is not finite. Everything is
    computed in double precision, whatever the dtype of the rows.

    **One row adds a vector of norm at most B**, so replacing a row moves the sum by at
    most 2 B, and zeroing it by at most B. With u = 2^-53 and d columns: no entry of
    :math:`r_i / m_i` exceeds 1, so nothing overflows. The computed :math:`N_i` is at
    least :math:`1 - (d + 2) u` times the norm of the computed :math:`r_i / m_i`,
    because it sums d rounded terms, none negative, and takes a root. The quotient
    :math:`B' / N_i` and the product with :math:`s_i` each add a factor of at most
    1 + u. Entries that underflow add less than :math:`2^{-1074}` each, which is nothing
    beside the smallest bound. The contribution is therefore at most
    :math:`B' (1 + (d + 6) u)`, and :math:`B' = B (1 - 2 (d + 8) u)`. As s_i is a
    minimum, the same holds for rows within the bound.

    The additions themselves round, as those of ``clip_rows(...).sum(dim=-2)`` do:
    :func:`~botorch_dp.privacy.budget.mean_sensitivity` leaves room for that.

    Args:
        private_rows: A ``... x n x d`` tensor of float32 or float64. The transpose of a
            ``d x n`` tensor is several times faster than other layouts.
        bound: The largest norm of a row, as in :func:`clip_rows`.
        norm: ``"l2"`` or ``"l1"``.

    Returns:
        A ``... x d`` tensor of float64.

    Example:
        >>> rows = torch.tensor([[3.0, 4.0], [float("nan"), 0.0], [0.25, 0.0]])
        >>> clipped_row_sum(rows, bound=1.0)
        tensor([0.8500, 0.8000], dtype=torch.float64)
    """
    check_private_tensor("private_rows", private_rows, min_dim=2)
    check_choice("norm", norm, tuple(_NORMS))
    bound = check_bound(bound, private_rows.dtype)
    rows = private_rows.detach().double()
    largest = rows.abs().amax(dim=-1, keepdim=True)  # keeps nan and inf
    finite = largest.isfinite()
    largest = largest.masked_fill(~finite, 0.0)
    unit_rows = rows / largest.masked_fill(largest == 0.0, 1.0)
    unit_rows.masked_fill_(~finite, 0.0)
    if norm == "l2":
        norms = unit_rows.square().sum(dim=-1, keepdim=True).sqrt_()
    else:
        norms = unit_rows.abs().sum(dim=-1, keepdim=True)
    safe_bound = bound * (1.0 - _slack(rows))
    scale = torch.minimum(largest, safe_bound / norms.clamp_(min=1.0))
    return unit_rows.mul_(scale).sum(dim=-2)


def mallows_weights(private_rows: Tensor, constant: float) -> Tensor:
    """Return the weights min(1, c / ||x||^2) of [Avella2021robust]_, one per row.

    A loss whose gradient grows at most like ||x||^2 has a bounded gradient after
    multiplication by such a weight, so clipping, on which the guarantee rests, rarely
    changes it. A row with a non-finite value has weight zero.

    Args:
        private_rows: A ``... x d`` tensor of covariates.
        constant: The constant c.

    Returns:
        A ``...`` tensor of weights between 0 and 1.
    """
    check_private_tensor("private_rows", private_rows, min_dim=1)
    constant = check_positive("constant", constant)
    unit_rows, largest, finite = _scale_to_unit(private_rows.detach())
    norms = largest * _norms(unit_rows, "l2")
    # Divide twice by the norm, not once by its square, which would overflow earlier.
    weights = (constant / norms / norms).clamp(max=1.0)
    weights = torch.where(norms == 0.0, torch.ones_like(weights), weights)
    weights = torch.where(finite, weights, torch.zeros_like(weights))
    return weights.squeeze(-1).to(private_rows.dtype)


def mallows_gradient_bound(
    dim: int, *, constant: float = 2.0, share: float = 0.99
) -> float:
    r"""Return a clip norm for losses with Mallows weights, from public facts alone.

    A loss :math:`\phi(x^\top \theta)` with slope at most 1 and weight
    :math:`\min(1, c / \|x\|^2)` has a gradient of norm at most
    :math:`\min(\|x\|, c / \|x\|) \le \sqrt c`. The result bounds the gradients of a
    share of the records if covariates are standard normal; in many dimensions it is far
    below :math:`\sqrt c`. With other covariates, clipping changes more or fewer
    gradients, but the guarantee stays the same.

    Args:
        dim: The number of covariates.
        constant: The constant c.
        share: The share of the records, strictly between 0 and 1.

    Example:
        >>> round(mallows_gradient_bound(2), 4), round(mallows_gradient_bound(20), 4)
        (1.4142, 0.6959)
    """
    check_count("dim", dim)
    constant = check_positive("constant", constant)
    share = check_probability("share", share)
    # The bound decreases in ||x|| beyond sqrt(c), so the lower quantile matters.
    quantile = 2.0 * float(gammaincinv(dim / 2, 1.0 - share))  # of ||x||^2
    smallest = max(quantile, constant)
    return constant / math.sqrt(smallest)


@dataclass(frozen=True)
class PrivateClippingDiagnostics:
    """The effect of clipping on the records. Private: never publish, log or store it.

    Attributes:
        num_rows: The number of rows.
        num_clipped: The number of rows that exceeded the bound.
        num_non_finite: The number of rows with a non-finite value.
        median_norm: The median norm of the finite rows.
    """

    num_rows: int
    num_clipped: int
    num_non_finite: int
    median_norm: float


def private_clipping_diagnostics(
    private_rows: Tensor, bound: float, *, norm: str = "l2"
) -> PrivateClippingDiagnostics:
    """Count what :func:`clip_rows` would change, for the curator only.

    The counts are exact functions of private values, without noise. Choosing a bound by
    them and then publishing results under it is a leak.
    """
    check_private_tensor("private_rows", private_rows, min_dim=1)
    check_choice("norm", norm, tuple(_NORMS))
    bound = check_bound(bound, private_rows.dtype)
    unit_rows, largest, finite = _scale_to_unit(private_rows.detach())
    norms = (largest * _norms(unit_rows, norm))[finite]
    return PrivateClippingDiagnostics(
        num_rows=finite.numel(),
        num_clipped=int((norms > bound).sum()),
        num_non_finite=int((~finite).sum()),
        median_norm=float(norms.median()) if norms.numel() else 0.0,
    )


def _scale_to_unit(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Divide rows by their largest entry, so that no norm overflows.

    Returns:
        The rows, their largest entries in double precision, and whether they are
        finite; the last two with a last dimension of one. Mask the rows that are not
        finite.
    """
    largest = torch.linalg.vector_norm(
        rows, ord=torch.inf, dim=-1, keepdim=True
    )  # ... x 1; keeps nan and inf
    finite = largest.isfinite()
    divisor = torch.where(largest == 0, torch.ones_like(largest), largest)
    return rows / divisor, largest.double(), finite


def _slack(rows: Tensor) -> float:
    """Return the room that rounding errors of norms in double precision need."""
    return (rows.shape[-1] + 8) * torch.finfo(torch.float64).eps


def _norms(unit_rows: Tensor, norm: str) -> Tensor:
    return torch.linalg.vector_norm(
        unit_rows, ord=_NORMS[norm], dim=-1, keepdim=True, dtype=torch.float64
    )


def check_bound(bound: float, dtype: torch.dtype) -> float:
    """Return a clip norm if values of this dtype can be clipped to it."""
    bound = check_positive("bound", bound)
    info = torch.finfo(dtype)
    smallest = info.tiny / info.eps  # below this, rounding is no longer relative
    largest = min(LARGEST_CLIP_NORM, info.max / _MOST_ROWS)
    if not smallest <= bound <= largest:
        raise InvalidArgumentError(
            f"bound must lie between {smallest:.3g} and {largest:.3g} for {dtype}, "
            f"where sums of clipped rows are finite, got {bound!r}."
        )
    return bound
