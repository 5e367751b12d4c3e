"""The chain of digests over a ledger's rows.

Each digest covers the header (the ledger's id, cap and filter) and all rows up to its
own. Whoever knows the number and the digest of a row recognizes the ledger, and
notices if that row or any before it was changed, removed or replaced.
"""

import hashlib
from typing import NamedTuple


class Head(NamedTuple):
    """The last row that a reader knows.

    Attributes:
        number: How many rows there are up to here.
        digest: The digest of the header and of all these rows, in hexadecimal.
    """

    number: int
    digest: str

    def then(self, row: str) -> "Head":
        """Return the head after one more row, given as its text."""
        digest = hashlib.sha256(f"{self.digest}\n{row}".encode()).hexdigest()
        return Head(self.number + 1, digest)


def start(header: str) -> Head:
    """Return the head of a ledger without rows."""
    return Head(0, hashlib.sha256(header.encode()).hexdigest())
