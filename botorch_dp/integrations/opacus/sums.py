r"""Norms and sums of gradients of single records, with a bound for their rounding.

Clipping bounds what a record changes in the exact sum. The computed sum also has
rounding errors, and those of all records change with one of them. Here is why the
computed sum nevertheless changes by at most the norm C.

Let u = 2^-53, and let N be the number of records of the data set, which is the same for
``zero_out`` neighbors. A batch has at most N records. Gradients are taken as stored,
:math:`g_1, \dots, g_n` with d entries.

1. *Norms.* Squares are added in double precision, in any order, so a computed norm is
   at least :math:`1 - (d + 8) u` times the true one [Higham2002accuracy]_. Squares of
   single-precision numbers neither overflow nor underflow. For other rows an overflow
   gives an infinite norm and a factor of zero, and an underflow is far below the
   smallest C of 1e-100.
2. *Factors.* With :math:`C' = (1 - r) C` and :math:`f_i = \min(1, C' / |g_i|)` as
   computed, :math:`|f_i g_i| \le (1 + (d + 11) u) C'`, which is at most
   :math:`(1 + 10^{-6}) C'` for d up to 9e9.
3. *Blocks.* At most m rows are added at a time, by a matrix product in double
   precision. Whatever its order, and with or without fused operations, the error in an
   entry is at most :math:`\gamma_{m + 2} \sum_i |f_i g_{ik}|`. So the norm of the
   errors of all blocks is at most :math:`\gamma_{m + 2} \sum_i |f_i g_i|`.
4. *Blocks and parts of a batch* are added up with the error of every addition
   (:class:`CompensatedSum`). This leaves an error of at most
   :math:`2 u + 2 (N u)^2` times :math:`\sum_i |f_i g_i|`.

Together, each of two sums that differ in one record has an error of at most
:math:`e = N ((m + 8) u + 2 (N u)^2)` times :math:`(1 + 10^{-6}) C'`. Underflow adds
less than 1e-300. One record changes the sum by at most
:math:`(1 + 2 e) (1 + 10^{-6}) C'`, which is at most C if :math:`r = 10^{-6} + 2 e`.

References:
    .. [Higham2002accuracy] N. Higham. Accuracy and Stability of Numerical Algorithms,
        2nd edition. SIAM 2002. Section 3.1 (products), 4.3 (compensated sums).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.linalg import vector_norm

from botorch_dp.integrations.opacus.rows import OuterRows, Rows

# The room for errors of norms and factors, relative to the norm.
_ROUNDING = 1e-6
# m: the number of rows that are added without compensation.
_MOST_ROWS = 2**12
# The number of entries converted to double at a time, to stay in the cache.
_CHUNK = 2**19


def norm_with_room(max_grad_norm: float, num_records: int) -> float:
    """Return the norm C' to which gradients are clipped, with room for rounding.

    Args:
        max_grad_norm: The norm C that bounds what one record changes.
        num_records: The number N of records of the data set.
    """
    u = torch.finfo(torch.float64).eps / 2
    error = num_records * ((_MOST_ROWS + 8) * u + 2 * (num_records * u) ** 2)
    return max(0.0, 1 - _ROUNDING - 2 * error) * max_grad_norm


def clip_factors(gradients: Sequence[Rows], clip_norm: float) -> Tensor:
    """Return the factor that clips each record's gradient, in double precision.

    Args:
        gradients: One row for each record, for each parameter.
        clip_norm: The norm C' of the gradient over all parameters.
    """
    norms = vector_norm(torch.stack([_norms(rows) for rows in gradients]), dim=0)
    # An infinite norm gives zero and a zero norm infinity, cut at 1: never NaN.
    return (clip_norm / norms).clamp(max=1.0)


def _norms(rows: Rows) -> Tensor:
    """Return the norm of each row, in double precision."""
    if isinstance(rows, OuterRows):
        return vector_norm(rows.outputs, dim=-1) * vector_norm(rows.inputs, dim=-1)
    size = max(1, _CHUNK // max(1, rows.shape[-1]))
    return _joined([vector_norm(part, dim=-1) for part in _in_double(rows.split(size))])


class CompensatedSum:
    """A sum of tensors in double precision that keeps the error of every addition."""

    def __init__(self) -> None:
        self._high: Tensor | None = None
        self._low: Tensor | None = None

    def add(self, value: Tensor) -> None:
        """Add a tensor; without overflow, its error is exact [Higham2002accuracy]_."""
        if self._high is None:
            self._high = value
            return
        total = self._high + value
        part = total - self._high
        error = (self._high - (total - part)) + (value - part)
        self._high, self._low = total, error if self._low is None else self._low + error

    def add_weighted(self, factors: Tensor, rows: Rows) -> None:
        """Add the sum of the rows times their factors."""
        blocks = factors.split(_MOST_ROWS)
        if isinstance(rows, OuterRows):
            outputs, inputs = rows.outputs, rows.inputs
            for f, b, a in zip(
                blocks, outputs.split(_MOST_ROWS), inputs.split(_MOST_ROWS), strict=True
            ):
                self.add(((f * b.T) @ a).flatten())
        else:
            for f, block in zip(blocks, rows.split(_MOST_ROWS), strict=True):
                self.add(_weighted_block(f, block))

    def value(self) -> Tensor:
        """Return the sum."""
        assert self._high is not None
        return self._high if self._low is None else self._high + self._low


def _weighted_block(factors: Tensor, rows: Tensor) -> Tensor:
    size = max(1, _CHUNK // max(1, len(rows)))
    parts = _in_double(rows.split(size, dim=-1))
    return _joined([factors @ part for part in parts])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _in_double(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield tensors in double precision that share one buffer."""
    if parts[0].dtype == torch.float64:
        yield from parts
        return
    # The first part is the largest.
    place = torch.empty(parts[0].numel(), dtype=torch.float64, device=parts[0].device)
    for part in parts:
        yield place[: part.numel()].view(part.shape).copy_(part)
