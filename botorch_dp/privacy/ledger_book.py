"""The rows of a ledger that a process has read, and what may come after them."""

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from botorch_dp.exceptions import InvalidArgumentError, LedgerError
from botorch_dp.privacy.cap import CapCounter
from botorch_dp.privacy.entries import (
    LedgerEntry,
    LedgerHeader,
    LedgerPlan,
    Releases,
)
from botorch_dp.privacy.ledger_rows import read_row
from botorch_dp.privacy.stores.chain import Head, start

Item: TypeAlias = LedgerEntry | LedgerPlan


class LedgerBook:
    """The charges and the plan of a ledger, and the count of its cap.

    Args:
        header_row: The header as it is stored, where the chain of digests starts.

    Attributes:
        header: The header.
        head: The end of the chain of digests after the last row read.
        entries: All charges.
        plan: The last plan.
        counter: The count of all charges under the cap; None without a cap.
    """

    def __init__(self, header_row: str) -> None:
        self.header = LedgerHeader.from_row(header_row)
        self.head = start(header_row)
        self.entries: list[LedgerEntry] = []
        self.plan: LedgerPlan | None = None
        self.counter: CapCounter | None = None
        if self.header.cap is not None:
            self.counter = CapCounter(self.header.cap, self.header.filter)

    def read(self, rows: Sequence[str], head: Head) -> None:
        """Add rows that are in the store, after which the chain ends in ``head``."""
        with _no_garbage_collection():
            self.add(self._items_of(rows), head)

    def _items_of(self, rows: Sequence[str]) -> list[Item]:
        items: list[Item] = []
        number = len(self.entries) + 1
        for row in rows:
            try:
                item = read_row(row, number=number)
            except (KeyError, TypeError, ValueError) as error:
                raise LedgerError(
                    f"Row {self.head.number + len(items) + 1} of the ledger is "
                    f"damaged: {error!r}."
                ) from error
            items.append(item)
            number += isinstance(item, LedgerEntry)
        return items

    def add(self, items: Iterable[Item], head: Head) -> None:
        """Add charges and plans that are in the store, and the head after them."""
        charges: list[LedgerEntry] = []
        for item in items:
            if isinstance(item, LedgerEntry):
                charges.append(item)
                continue
            self._add_charges(charges)
            charges, self.plan = [], item
            if self.counter is not None:
                self.counter.take_plan(item)
        self._add_charges(charges)
        self.head = head

    def _add_charges(self, charges: Sequence[LedgerEntry]) -> None:
        self.entries += charges
        if self.counter is not None and charges:
            self.counter.take_charges(charges)

    def admit(
        self, items: Sequence[Item], releases: Releases, *, exactly: bool
    ) -> list[Item]:
        """Return what to append for charges or a reservation, or refuse all of it.

        Args:
            items: The charges, or the reservation.
            releases: What they charge or reserve.
            exactly: Whether the releases fit by exact accounting.

        Raises:
            BudgetExceededError: If the cap would be exceeded.
        """
        self._refuse_other_neighbours(items)
        admitted: list[Item] = []
        if self.counter is not None:
            neighbours = (items[0].adjacency, items[0].unit)
            plan = self.counter.plan_needed(
                releases,
                items[0],
                exactly=exactly,
                other_neighbours=self.plan is not None
                and (self.plan.adjacency, self.plan.unit) != neighbours,
            )
            if plan is not None:
                admitted.append(plan)
        charges = (item for item in items if isinstance(item, LedgerEntry))
        admitted += [
            charge.with_checked(number=number)
            for number, charge in enumerate(charges, len(self.entries) + 1)
        ]
        return admitted

    def _refuse_other_neighbours(self, items: Sequence[Item]) -> None:
        """Raise if a charge or plan has another adjacency or unit than earlier ones."""
        first: Item
        if self.entries:
            first = self.entries[0]
        elif isinstance(items[0], LedgerEntry) and self.plan and self.plan.committed:
            first = self.plan
        else:
            first = items[0]
        for item in items:
            if first.adjacency != item.adjacency:
                raise InvalidArgumentError(
                    f"adjacency must be {first.adjacency!r}, as in earlier charges, "
                    f"got {item.adjacency!r}: guarantees for different adjacencies do "
                    "not compose."
                )
            if first.unit != item.unit:
                raise InvalidArgumentError(
                    f"unit must be {first.unit!r}, as in earlier charges, got "
                    f"{item.unit!r}: a guarantee for one unit says little about the "
                    "other. Use one ledger for each."
                )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Create many objects, none of them garbage, without searching for garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
