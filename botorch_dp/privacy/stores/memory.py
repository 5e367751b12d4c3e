"""Storage of a ledger's rows in memory, for one process."""

import contextlib
import os
from collections.abc import Iterator

from botorch_dp.exceptions import LedgerError
from botorch_dp.privacy.stores.chain import Head


class MemoryStore:
    """A store that keeps rows in a list.

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
        """Append all rows of the block, or none if it raises."""
        if self._pid != os.getpid():
            raise LedgerError(
                "This ledger in memory belongs to another process, which would not see "
                "charges made here: give it a path."
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
