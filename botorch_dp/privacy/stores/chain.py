"""The chain of digests over a ledger's rows.

Each digest covers the header (the ledger's id, cap and filter) and all rows up to its
own. A reader who knows the number and the digest of a row recognizes the ledger, and
notices if that row or an earlier one was changed, removed or replaced.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple


class Head(NamedTuple):
    """The last row that a reader knows.

    Attributes:
        number: The number of rows up to here.
        digest: The hexadecimal digest of the header and of all these rows.
    """

    number: int
    digest: str

    def digests(self, rows: Iterable[str]) -> list[str]:
        """Return the digests after each of the rows that follow."""
        _, *digests = accumulate(rows, _digest, initial=self.digest)
        return digests

    def moved(self, digests: Sequence[str]) -> "Head":
        """Return the head after rows with these digests."""
        last = digests[-1] if digests else self.digest
        return Head(self.number + len(digests), last)

    def then(self, *rows: str) -> "Head":
        """Return the head after more rows."""
        return self.moved(self.digests(rows))


def start(header: str) -> Head:
    """Return the head of a ledger without rows."""
    return Head(0, hashlib.sha256(header.encode()).hexdigest())


def _digest(before: str, row: str) -> str:
    return hashlib.sha256(f"{before}\n{row}".encode()).hexdigest()
