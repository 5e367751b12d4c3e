"""Totals of charges to disjoint partitions of a data set.

A record is in one partition, so it pays for the charges to its partition and for the
common ones, which concern all records. See ``docs/theory/parallel_composition.md``.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from botorch_dp._validation import check_instance
from botorch_dp.exceptions import InvalidArgumentError

# The assumption of a guarantee that leaves out the charges to other partitions.
DISJOINT = (
    "the partitions are disjoint, with fixed public membership: nobody is in two of "
    "them, and a neighbouring data set differs in one only"
)
_LONGEST_NAME = 200


class Part(NamedTuple):
    """What charges concern, and under which budget they also count.

    Attributes:
        partition: The partition of the data set; empty if they concern all of it.
        budget: The budget with a cap of its own; empty if there is none.
    """

    partition: str = ""
    budget: str = ""


WHOLE = Part()


class PartitionTotals:
    """The total of the common charges, and that of each partition.

    Totals are vectors in the unit of a filter, and add up.
    """

    def __init__(self) -> None:
        self._common: Any = 0.0
        self._own: dict[str, Any] = {}
        self._largest: Any = 0.0

    def add(self, partition: str, cost: Any) -> None:
        """Add the cost of charges to a partition, or of common ones."""
        if not partition:
            self._common = self._common + cost
            return
        total = self._own.get(partition, 0.0) + cost
        self._own[partition] = total
        # Totals only grow, so the largest is that of now.
        self._largest = np.maximum(self._largest, total)

    def bound(self, partition: str = "") -> Any:
        """Return what a record has paid at most: in a partition, or in any."""
        if partition:
            return self._common + self._own.get(partition, 0.0)
        return self._common + self._largest

    def each(self) -> Iterator[Any]:
        """Return what a record of each partition has paid, equal totals once."""
        distinct = {np.asarray(total).tobytes(): total for total in self._own.values()}
        yield self._common + np.asarray(0.0)
        for total in distinct.values():
            yield self._common + total


def check_name(argument: str, name: str) -> str:
    """Return the name of a partition or budget, if it is one."""
    check_instance(argument, name, str, expected="a string")
    if not 0 < len(name) <= _LONGEST_NAME:
        raise InvalidArgumentError(
            f"{argument} must have 1 to {_LONGEST_NAME} characters, got {len(name)}."
        )
    return name


def pseudonym(person: str, key: bytes) -> str:
    """Return a name that stands for a person, and that only the key connects to them.

    Args:
        person: What identifies the person.
        key: A secret of at least 16 bytes. Without it nobody can find out whether a
            given person is in the ledger.
    """
    check_instance("person", person, str, expected="a string")
    check_instance("key", key, bytes, expected="a secret key (bytes)")
    if len(key) < 16:
        raise InvalidArgumentError(
            f"key must have at least 16 bytes, got {len(key)}: "
            "secrets.token_bytes(32) makes one."
        )
    digest = hmac.new(key, person.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return f"person-{digest.hexdigest()[:32]}"


def is_pseudonym(name: str) -> bool:
    """Return whether a partition is one person, with a name by :func:`pseudonym`."""
    return re.fullmatch("person-[0-9a-f]{32}", name) is not None
