"""The rows of a ledger that a process has read, and what may come after them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from botorch_dp.exceptions import InvalidArgumentError, LedgerError
from botorch_dp.privacy.cap import CapCounter
from botorch_dp.privacy.entries import (
    LedgerEntry,
    LedgerHeader,
    LedgerPlan,
    Releases,
    read_row,
)
from botorch_dp.privacy.stores.chain import start

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

    def read(self, rows: Iterable[str]) -> None:
        """Add rows that are in the store."""
        for row in rows:
            try:
                item = read_row(row, number=len(self.entries) + 1)
            except (KeyError, TypeError, ValueError) as error:
                raise LedgerError(
                    f"Row {self.head.number + 1} of the ledger is damaged: {error!r}."
                ) from error
            self.add(item, row)

    def add(self, item: Item, row: str) -> None:
        """Add a charge or a plan that is in the store, with its row."""
        if isinstance(item, LedgerPlan):
            self.plan = item
            if self.counter is not None:
                self.counter.take_plan(item)
        else:
            self.entries.append(item)
            if self.counter is not None:
                self.counter.take_charge(item)
        self.head = self.head.then(row)

    def admit(self, item: Item, releases: Releases, *, exactly: bool) -> list[Item]:
        """Return what to append for a charge or a reservation, or refuse it.

        Args:
            item: The charge or the reservation.
            releases: What it charges or reserves.
            exactly: Whether the releases fit by exact accounting.

        Raises:
            BudgetExceededError: If the cap would be exceeded.
        """
        self._refuse_other_neighbours(item)
        items: list[Item] = []
        if self.counter is not None:
            neighbours = (item.adjacency, item.unit)
            plan = self.counter.plan_needed(
                releases,
                item,
                exactly=exactly,
                other_neighbours=self.plan is not None
                and (self.plan.adjacency, self.plan.unit) != neighbours,
            )
            if plan is not None:
                items.append(plan)
        if isinstance(item, LedgerEntry):
            items.append(replace(item, number=len(self.entries) + 1))
        return items

    def _refuse_other_neighbours(self, item: Item) -> None:
        """Raise if a charge or plan has another adjacency or unit than earlier ones."""
        first: Item
        if self.entries:
            first = self.entries[0]
        elif isinstance(item, LedgerEntry) and self.plan and self.plan.committed:
            first = self.plan
        else:
            return
        if first.adjacency != item.adjacency:
            raise InvalidArgumentError(
                f"adjacency must be {first.adjacency!r}, as in earlier charges, got "
                f"{item.adjacency!r}: guarantees for different adjacencies do not "
                "compose."
            )
        if first.unit != item.unit:
            raise InvalidArgumentError(
                f"unit must be {first.unit!r}, as in earlier charges, got "
                f"{item.unit!r}: a guarantee for one unit says little about the other. "
                "Use one ledger for each."
            )
