"""The chain of digests over a ledger's rows.

Each digest covers the header (the ledger's id, cap and filter) and all rows up to its
own. A reader who knows the number and the digest of a row recognizes the ledger, and
notices if that row or an earlier one was changed, removed or replaced.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from botorch_dp.exceptions import LedgerError


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


def follow(
    head: Head, known: Head, rows: Sequence[tuple[int, str, str]], *, place: object
) -> tuple[list[str], Head]:
    """Return the texts of stored rows, if they continue a chain, and its end.

    Args:
        head: The last row that the reader knows.
        known: What the store has in the place of this row.
        rows: The number, text and digest of each row after it.
        place: Where the ledger is stored.

    Raises:
        LedgerError: If the store does not continue what the reader knows.
    """
    if known != head:
        raise LedgerError(
            f"The ledger {place} is not the one that this process has used: it was "
            "replaced by another ledger or by an older copy. The privacy spent is "
            "unknown: restore the newest copy."
        )
    texts = [str(text) for _, text, _ in rows]
    digests = head.digests(texts)
    pairs = zip(rows, digests, strict=True)
    for expected, ((number, _, found), digest) in enumerate(pairs, head.number + 1):
        if number != expected:
            raise LedgerError(f"Row {number - 1} of the ledger is lost.")
        if found != digest:
            raise LedgerError(
                f"Row {number} of the ledger {place} is damaged: it does not match "
                "its digest."
            )
    return texts, head.moved(digests)


def _digest(before: str, row: str) -> str:
    return hashlib.sha256(f"{before}\n{row}".encode()).hexdigest()
