"""The chain of digests over a ledger's rows.

Each digest covers the header (the ledger's id, cap and filter) and all rows up to its
own. A reader who knows the number and the digest of a row recognizes the ledger, and
notices if that row or an earlier one was changed, removed or replaced.
"""

import hashlib
from typing import NamedTuple


class Head(NamedTuple):
    """The last row that a reader knows.

    Attributes:
        number: The number of rows up to here.
        digest: The hexadecimal digest of the header and of all these rows.
    """

    number: int
    digest: str

    def then(self, row: str) -> "Head":
        """Return the head after one more row."""
        digest = hashlib.sha256(f"{self.digest}\n{row}".encode()).hexdigest()
        return Head(self.number + 1, digest)


def start(header: str) -> Head:
    """Return the head of a ledger without rows."""
    return Head(0, hashlib.sha256(header.encode()).hexdigest())
