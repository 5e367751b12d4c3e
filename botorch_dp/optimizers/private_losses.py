"""Losses that stay inside: what an optimizer remembers of private records."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from botorch_dp._checks import check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError

# What `tell` takes: all records at once, or chunks of them, or what makes the chunks.
Losses = Tensor | Iterable[Tensor] | Callable[[Tensor], Iterable[Tensor]]

# Records worked on at a time: their gradients are temporary, and small beside losses.
_CHUNK = 65536


class PrivateLosses:
    """The losses of every record at the points seen so far, n x M.

    They are left of the mechanism: only :meth:`blocks` hands them out, nothing prints
    them, and they are no part of any state.
    """

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._size = 0

    def append(self, losses: Tensor) -> list[int]:
        """Keep the losses of some points, and return their columns."""
        columns = list(range(self._size, self._size + losses.shape[-1]))
        needed = self._size + losses.shape[-1]
        if self._buffer is None or needed > self._buffer.shape[-1]:
            # Doubled, so that appending costs a copy now and then, not every time.
            grown = losses.new_empty(len(losses), max(needed, 2 * self._size))
            if self._buffer is not None:
                grown[:, : self._size] = self._buffer[:, : self._size]
            self._buffer = grown
        self._buffer[:, self._size : needed] = losses
        self._size = needed
        return columns

    def blocks(
        self, columns: list[int], chunks: Iterable[Tensor]
    ) -> Iterator[tuple[Tensor | None, Tensor]]:
        """Yield, for blocks of records, what is known of them and what was just told.

        Args:
            columns: Which of the points seen before.
            chunks: The losses just told, consecutive records.
        """
        first = 0
        for chunk in chunks:
            for told in chunk.split(_CHUNK):
                known = None
                if columns and self._buffer is not None:
                    rows = self._buffer[first : first + len(told), : self._size]
                    known = _select(rows, columns)
                yield known, told
                first += len(told)

    def forget(self) -> None:
        """Drop everything."""
        self._buffer, self._size = None, 0

    def __repr__(self) -> str:
        return "PrivateLosses(not shown)"


def checked_chunks(
    losses: Losses, X: Tensor, num_records: int, width: int, what: str
) -> Iterator[Tensor]:
    """Yield the told values in chunks of records, after checking their shapes.

    Args:
        losses: What was told.
        X: The points asked for, handed to ``losses`` if it is callable.
        num_records: How many rows there have to be in all.
        width: How many columns.
        what: What a row holds, for error messages.
    """
    if callable(losses) and not isinstance(losses, Tensor):
        losses = losses(X)
    chunks = [losses] if isinstance(losses, Tensor) else losses
    if not isinstance(chunks, Iterable):
        raise InvalidArgumentError(
            f"losses must be an n x {width} tensor, chunks of its rows, or a callable "
            f"that makes them from the points, got {type(losses).__name__}."
        )
    total = 0
    for chunk in chunks:
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


def _select(rows: Tensor, columns: list[int]) -> Tensor:
    if columns == list(range(rows.shape[-1])):
        return rows
    return rows.index_select(-1, torch.tensor(columns, device=rows.device))
