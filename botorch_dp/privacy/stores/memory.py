"""Storage of a ledger's rows in memory, for one process."""

import contextlib
import os
from collections.abc import Iterator, Sequence

from botorch_dp.exceptions import LedgerError
from botorch_dp.privacy.stores.chain import Head, start


class MemoryStore:
    """A store that keeps rows in a list.

    Args:
        header: The ledger's id, cap and filter, as JSON.
    """

    path = None

    def __init__(self, header: str) -> None:
        self.header = header
        self._rows: list[str] = []
        self._head = start(header)
        self._pid = os.getpid()

    @contextlib.contextmanager
    def transaction(self) -> Iterator["MemoryStore"]:
        """Append all rows of the block, or none if it raises."""
        if self._pid != os.getpid():
            raise LedgerError(
                "This ledger in memory belongs to another process, which would not see "
                "charges made here: give it a path."
            )
        before = self._head
        try:
            yield self
        except BaseException:
            del self._rows[before.number :]
            self._head = before
            raise

    def append(self, rows: Sequence[str], head: Head) -> Head:
        """Add rows after ``head``, and return the head after them."""
        assert head == self._head
        self._head = head.then(*rows)
        self._rows += rows
        return self._head

    def read_after(self, head: Head) -> tuple[list[str], Head]:
        """Return the rows after ``head``, in order, and the head after them."""
        return self._rows[head.number :], self._head
