"""A ledger's rows in memory, for one process."""

import contextlib
import os
from collections.abc import Iterator

from botorch_dp.exceptions import LedgerError
from botorch_dp.privacy.stores.chain import Head


class MemoryStore:
    """Rows in a list.

    Args:
        header: The ledger's id, cap and filter, as JSON.
    """

    path = None

    def __init__(self, header: str) -> None:
        self.header = header
        self._rows: list[str] = []
        self._pid = os.getpid()

    @contextlib.contextmanager
    def transaction(self) -> Iterator["MemoryStore"]:
        """Return a view in which rows can be appended: all of them, or none."""
        if self._pid != os.getpid():
            raise LedgerError(
                "A ledger in memory was carried into another process, where its parent "
                "would not see what is charged: give it a path."
            )
        before = len(self._rows)
        try:
            yield self
        except BaseException:
            del self._rows[before:]
            raise

    def append(self, row: str, head: Head) -> None:
        """Add a row, after which the chain ends in ``head``."""
        assert head.number == len(self._rows) + 1
        self._rows.append(row)

    def read_after(self, head: Head) -> list[str]:
        """Return the rows after ``head``, in order."""
        return self._rows[head.number :]
