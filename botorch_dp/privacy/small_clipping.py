"""Clipping of a few rows in the memory of the host, for streams of single users.

On a handful of numbers a call of torch costs more than its arithmetic, and numpy's
calls cost a third as much.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_private_tensor
from botorch_dp.privacy.clipping import check_bound, clip_rows

# Up to this many numbers, this is faster than ``clip_rows``: 3 times at 5 numbers.
_FEW = 4096
_SMALLEST = np.finfo(np.float64).tiny  # smaller numbers may count as zero


def clip_few_rows(private_rows: Tensor, bound: float, *, norm: str = "l2") -> Tensor:
    """Scale every row whose norm exceeds ``bound`` down to it, as ``clip_rows`` does.

    The result is that of :func:`~botorch_dp.privacy.clip_rows` up to rounding, with the
    same guarantees: norms never exceed ``bound``, rows within it are unchanged, and
    rows with a non-finite value become zeros. No step depends on values.

    Args:
        private_rows: A ``... x d`` tensor of float32 or float64.
        bound: The largest norm.
        norm: ``"l2"`` (for Gaussian noise) or ``"l1"`` (for Laplace noise).

    Example:
        >>> clip_few_rows(torch.tensor([[3.0, 4.0], [float("nan"), 0.0]]), bound=1.0)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    check_private_tensor("private_rows", private_rows, min_dim=1)
    if private_rows.device.type != "cpu" or private_rows.numel() > _FEW:
        return clip_rows(private_rows, bound, norm=norm)
    check_choice("norm", norm, ("l1", "l2"))
    safe_bound = _safe_bound(bound, private_rows.shape[-1], private_rows.dtype)
    rows = private_rows.numpy(force=True)
    with np.errstate(all="ignore"):  # a warning would reveal something about a row
        largest = np.maximum.reduce(
            np.abs(rows), axis=-1, keepdims=True, dtype=np.float64
        )  # ... x 1; keeps nan and inf
        # Divided by their largest entry, so that no norm overflows.
        divisor = np.where(largest >= _SMALLEST, largest, 1.0)
        unit_rows = rows / divisor
        powers = unit_rows * unit_rows if norm == "l2" else np.abs(unit_rows)
        norms = np.add.reduce(powers, axis=-1, keepdims=True)
        if norm == "l2":
            norms = np.sqrt(norms)  # between 1 and d for rows that are not zero
        clipped = unit_rows * np.minimum(divisor, safe_bound / norms)
        clipped = np.where(np.isfinite(largest), clipped, 0.0)
    return torch.from_numpy(clipped.astype(rows.dtype, copy=False))


@lru_cache(maxsize=64, typed=True)
def _safe_bound(bound: float, size: int, dtype: torch.dtype) -> float:
    """Return the bound less the room for rounding of :func:`clip_rows`.

    It covers every order of summation.
    """
    bound = check_bound(bound, dtype)
    slack = (size + 8) * torch.finfo(torch.float64).eps
    return bound * (1.0 - slack - 2 * torch.finfo(dtype).eps)
