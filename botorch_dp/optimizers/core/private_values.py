"""Private values: the inputs of ``tell``, their checks, and the kept losses."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
)

from botorch_dp._validation import check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.privacy import mallows_weights

# All records at once, or chunks of them, or a function that makes the chunks.
Losses = Tensor | Iterable[Tensor] | Callable[[Tensor], Iterable[Tensor]]
# Public labels that say which record each row is about.
RecordIds = Tensor | Sequence[Hashable]

# Records worked on at a time. On a CPU, what is computed about them stays in the cache:
# measured at 1e5 records, blocks of 3,000 took a quarter of the time of one block. A
# power of two is slower, since its rows compete for the same lines of the cache. On
# another device a block is as large as memory allows: each one launches operations.
_CPU_BLOCK, _DEVICE_BLOCK = 3000, 500_000


class PrivateValues:
    """The only place where private tensors outlive a call.

    It holds the losses of every record at the points seen so far. Only :meth:`blocks`
    and :meth:`columns` hand them out, to code that feeds a mechanism. They cannot be
    shown, pickled or copied, and they are not part of any state.
    """

    def __init__(self) -> None:
        # M x n, a row for each point: some points are then read in one sweep.
        self._buffer: Tensor | None = None
        self._size = 0

    def reserve(self, num_points: int, like: Tensor) -> None:
        """Make room for the ``n x num_points`` losses ``like``."""
        needed = self._size + num_points
        if self._buffer is None or needed > len(self._buffer):
            # Doubled, so that appending costs a copy now and then, not every time.
            grown = like.new_empty(max(needed, 2 * self._size), len(like))
            if self._buffer is not None:
                grown[: self._size] = self._buffer[: self._size]
            self._buffer = grown

    def append(self, losses: Tensor) -> list[int]:
        """Keep the ``n x b`` losses at b points, and return their rows."""
        self.reserve(losses.shape[-1], losses)
        assert self._buffer is not None
        rows = range(self._size, self._size + losses.shape[-1])
        self._buffer[rows.start : rows.stop] = losses.mT
        self._size = rows.stop
        return list(rows)

    def blocks(
        self, rows: Tensor, chunks: Iterable[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield kept and new losses for blocks of consecutive records.

        Args:
            rows: The rows of the kept losses, as :meth:`append` returned them.
            chunks: The new losses, in chunks of consecutive records.

        Yields:
            Pairs of kept losses, a row for each point, and new losses, a row for each
            record.
        """
        first = 0
        for chunk in chunks:
            size = _CPU_BLOCK if chunk.device.type == "cpu" else _DEVICE_BLOCK
            for told in chunk.split(size):
                last = first + len(told)
                if self._buffer is None or not len(rows):
                    yield told.new_empty(0, len(told)), told
                else:
                    yield self._buffer[:, first:last].index_select(0, rows), told
                first = last

    def columns(self, rows: list[int]) -> Tensor:
        """Return the kept ``n x len(rows)`` losses of some points, contiguous."""
        assert self._buffer is not None
        chosen = torch.tensor(rows, device=self._buffer.device)
        return self._buffer.mT.index_select(1, chosen)

    def forget(self) -> None:
        """Drop all values."""
        self._buffer, self._size = None, 0

    def __repr__(self) -> str:
        return "PrivateValues(not shown)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OptimizerStateError("Private values cannot be pickled or copied.")


class RecordOrder:
    """Makes row i the same record in every ``tell``, by public labels of the rows.

    Args:
        num_records: The number n of records.
    """

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records
        self.restart()

    def restart(self) -> None:
        """Forget the order: the next ``tell`` fixes it."""
        self._is_first = True
        self._ids: list[Hashable] | None = None

    def align(
        self, losses: Losses, record_ids: RecordIds | None
    ) -> tuple[Losses, list[Hashable] | None]:
        """Return the losses in the order of the first ``tell``, and their labels.

        Args:
            losses: The losses of this ``tell``.
            record_ids: The labels of their rows, or None if there are none.
        """
        ids = None if record_ids is None else self._check_ids(record_ids)
        if self._is_first or ids == self._ids:
            return losses, ids
        if ids is None or self._ids is None:
            raise InvalidArgumentError(
                "record_ids must be given in every tell or in none, got "
                f"{'none' if ids is None else 'some'} after a tell with "
                f"{'none' if self._ids is None else 'some'}."
            )
        row_of = {label: row for row, label in enumerate(ids)}
        if row_of.keys() != set(self._ids):
            raise InvalidArgumentError(
                "record_ids must be those of the first tell, in any order, got others: "
                "a run is about the same records from beginning to end."
            )
        if not isinstance(losses, Tensor):
            raise InvalidArgumentError(
                "losses told in chunks must have the records in the order of the first "
                "tell, got record_ids in another order: yield chunks in that order, or "
                "tell one tensor, whose rows are put in order."
            )
        if losses.shape[:1] != (self._num_records,):
            return losses, self._ids  # the shape is wrong, and refused later
        rows = [row_of[label] for label in self._ids]
        return losses[torch.tensor(rows, device=losses.device)], self._ids

    def keep(self, ids: list[Hashable] | None) -> None:
        """Remember the labels of a ``tell`` that succeeded."""
        self._is_first, self._ids = False, ids

    def _check_ids(self, record_ids: RecordIds) -> list[Hashable]:
        if isinstance(record_ids, str | bytes) or not (
            isinstance(record_ids, Tensor | Iterable)
        ):
            raise InvalidArgumentError(
                f"record_ids must be a sequence of {self._num_records} labels, got a "
                f"{type(record_ids).__name__}."
            )
        ids = record_ids.tolist() if hasattr(record_ids, "tolist") else [*record_ids]
        try:
            distinct = len(set(ids))
        except TypeError as error:
            raise InvalidArgumentError(
                "record_ids must be one label for each record, such as a row number, "
                f"got one that cannot be compared: {error}."
            ) from error
        if distinct != len(ids) or len(ids) != self._num_records:
            raise InvalidArgumentError(
                f"record_ids must be num_records={self._num_records} distinct labels, "
                f"got {len(ids)}, of which {distinct} are distinct."
            )
        return ids


def checked_chunks(
    losses: Losses, X: Tensor, num_records: int, width: int, what: str
) -> Iterator[Tensor]:
    """Yield private losses in chunks of records, after checking their shapes.

    Args:
        losses: The argument of ``tell``.
        X: The points that were asked for; ``losses`` gets them if it is a function.
        num_records: The number of rows that all chunks must have together.
        width: The number of columns that each chunk must have.
        what: What a row holds, for the error message.
    """
    if callable(losses) and not isinstance(losses, Tensor):
        losses = losses(X)
    chunks = [losses] if isinstance(losses, Tensor) else losses
    _refuse_shuffling(chunks)
    if not isinstance(chunks, Iterable):
        raise InvalidArgumentError(
            f"losses must be an n x {width} tensor, chunks of its rows, or a callable "
            f"that makes them from the points, got {type(losses).__name__}."
        )
    total = 0
    for chunk in chunks:
        if width or not isinstance(chunk, Tensor):  # a step may need no new losses
            check_private_tensor("losses", chunk)
        total += len(chunk) if chunk.dim() else 0
        if chunk.dim() != 2 or chunk.shape[-1] != width or total > num_records:
            raise InvalidArgumentError(
                f"losses must be {num_records} x {width} ({what}), in one tensor or in "
                f"chunks of rows; got {tuple(chunk.shape)}"
                f"{f', and {total} rows in all' if total > num_records else ''}."
            )
        yield chunk.detach().to(X)
    if total != num_records:
        raise InvalidArgumentError(
            f"losses must have num_records={num_records} rows, one for each record, "
            f"got {total}."
        )


def with_record_dim(losses: Losses, num_records: int, width: int) -> Losses:
    """Return the values of one record as a row: without records, ``tell`` takes b.

    Args:
        losses: The argument of ``tell``.
        num_records: The number of records.
        width: The number b of points.
    """
    if num_records == 1 and isinstance(losses, Tensor) and losses.shape == (width,):
        return losses.unsqueeze(0)
    return losses


def _refuse_shuffling(chunks: object) -> None:
    """Raise if the chunks come from a loader that does not keep records in order."""
    if not isinstance(chunks, DataLoader) or isinstance(
        chunks.dataset, IterableDataset
    ):
        return
    order = chunks.sampler if chunks.batch_sampler is None else chunks.batch_sampler
    if type(order) is BatchSampler:
        order = order.sampler
    if type(order) is not SequentialSampler:
        raise InvalidArgumentError(
            "losses must have row i for the same record in every tell, got a "
            f"DataLoader with a {type(order).__name__}, which may shuffle: use "
            "DataLoader(..., shuffle=False)."
        )


def mallows_weighted(
    losses: Callable[[Tensor], Tensor], private_inputs: Tensor, constant: float = 2.0
) -> Callable[[Tensor], Tensor]:
    r"""Wrap losses so that their gradients are bounded without being cut.

    A loss of a linear predictor is multiplied by :math:`\min(1, c / \|x\|^2)`, see
    :func:`~botorch_dp.privacy.mallows_weights`. Clipping at
    :math:`\sqrt c` times the largest slope then changes nothing, hence adds no bias; it
    stays the safety net that the guarantee rests on.

    Args:
        losses: From points to a record's losses (``M``), or records' (``n x M``).
        private_inputs: The covariates, ``d`` or ``n x d``.
        constant: The constant c.

    Example:
        >>> x, y = torch.tensor([3.0, 4.0]), 1.0  # private
        >>> losses = mallows_weighted(lambda X: (y - X @ x).abs(), x)
        >>> losses(torch.zeros(1, 2))
        tensor([0.0800])
    """
    weights = mallows_weights(private_inputs, constant)
    return lambda X: weights.unsqueeze(-1) * losses(X)
