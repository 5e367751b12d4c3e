"""The rows of a ledger that a process has read, and what may come after them."""

import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from botorch_dp.exceptions import InvalidArgumentError, LedgerError
from botorch_dp.privacy.cap import CapCounter
from botorch_dp.privacy.entries import (
    LedgerBudget,
    LedgerEntry,
    LedgerHeader,
    LedgerPlan,
    Releases,
)
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.ledger_rows import Item as Item
from botorch_dp.privacy.ledger_rows import read_row
from botorch_dp.privacy.partitions import DISJOINT, WHOLE, Part, is_pseudonym
from botorch_dp.privacy.spending import Spending
from botorch_dp.privacy.stores.chain import Head, start


class BudgetView(NamedTuple):
    """A named budget as it was after some row.

    Attributes:
        name: The name.
        cap: What its charges must not exceed together.
        spent: How its cap counts them.
        limit: The largest amount that may be spent.
    """

    name: str
    cap: Guarantee
    spent: Spending
    limit: float


class LedgerView(NamedTuple):
    """A ledger as it was after some row.

    Attributes:
        header: The header.
        head: The end of the chain of digests after the last row.
        entries: The charges up to there that a record of the partition has to pay for.
        counted: How the cap counts all charges; None without a cap or charges.
        partition: The partition that is viewed; empty for the whole ledger.
        has_partitions: Whether any charge up to there concerns one partition only.
        budgets: The named budgets, in the order in which they were declared.
    """

    header: LedgerHeader
    head: Head
    entries: tuple[LedgerEntry, ...]
    counted: Spending | None
    partition: str = ""
    has_partitions: bool = False
    budgets: tuple[BudgetView, ...] = ()

    @property
    def conditions(self) -> tuple[str, ...]:
        """The assumptions, in words, of leaving out charges to other partitions."""
        return (DISJOINT,) if self.partition else ()


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
        budgets: The count of the charges of each named budget under its cap.
    """

    def __init__(self, header_row: str) -> None:
        self.header = LedgerHeader.from_row(header_row)
        self.head = start(header_row)
        self.entries: list[LedgerEntry] = []
        self.plan: LedgerPlan | None = None
        self.counter: CapCounter | None = None
        self.budgets: dict[str, CapCounter] = {}
        if self.header.cap is not None:
            self.counter = CapCounter(self.header.cap, self.header.filter)

    def view(self, part: Part = WHOLE) -> LedgerView:
        """Return what was read so far, as a value that does not change."""
        counted = None
        if self.counter is not None and self.entries:
            counted = self.counter.counted()
        return LedgerView(
            self.header,
            self.head,
            tuple(self.entries_of(part)),
            counted,
            partition=part.partition,
            has_partitions=any(entry.partition for entry in self.entries),
            budgets=tuple(
                BudgetView(name, counter.cap, counter.counted(), counter.limit)
                for name, counter in self.budgets.items()
            ),
        )

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
            charges = []
            if isinstance(item, LedgerBudget):
                if item.name in self.budgets:
                    raise LedgerError(
                        f"The ledger is damaged: it has the budget {item.name!r} "
                        "twice, and a cap is final."
                    )
                self.budgets[item.name] = CapCounter(item.cap, item.filter)
                continue
            self.plan = item
            if self.counter is not None:
                self.counter.take_plan(item)
        self._add_charges(charges)
        self.head = head

    def _add_charges(self, charges: Sequence[LedgerEntry]) -> None:
        names = {charge.budget for charge in charges if charge.budget}
        if unknown := names - self.budgets.keys():
            raise LedgerError(f"The ledger is damaged: it has no budgets {unknown}.")
        self.entries += charges
        if self.counter is not None and charges:
            self.counter.take_charges(charges)
        for name in names:
            own = [
                charge.with_checked(partition="")  # a budget counts them together
                for charge in charges
                if charge.budget == name
            ]
            self.budgets[name].take_charges(own)

    def entries_of(self, part: Part) -> list[LedgerEntry]:
        """Return the charges that a record of a partition has to pay for."""
        if not part.partition:
            return self.entries
        return [
            entry for entry in self.entries if entry.partition in ("", part.partition)
        ]

    def admits(self, releases: Releases, part: Part) -> bool:
        """Return whether a charge fits under all caps by their filters."""
        return (
            self.counter is None
            or self.counter.admits(releases, partition=part.partition)
        ) and self.has_budget(releases, part)

    def has_budget(self, releases: Releases, part: Part) -> bool:
        """Return whether a charge fits under the cap of its named budget."""
        return not part.budget or self.budgets[part.budget].admits(releases)

    def admit(
        self,
        items: Sequence[LedgerEntry | LedgerPlan],
        releases: Releases,
        *,
        exactly: bool,
        part: Part = WHOLE,
    ) -> list[Item]:
        """Return what to append for charges or a reservation, or refuse all of it.

        Args:
            items: The charges, or the reservation.
            releases: What they charge or reserve.
            exactly: Whether the releases fit by exact accounting.
            part: The partition and the budget of the charges or the reservation.

        Raises:
            BudgetExceededError: If a cap would be exceeded.
        """
        self._refuse_other_neighbours(items)
        if is_pseudonym(part.partition) and items[0].unit != "person":
            raise InvalidArgumentError(
                f"unit must be 'person' in the ledger of a person, got "
                f"{items[0].unit!r}: the cap is for the person, not for each "
                f"{items[0].unit}."
            )
        if not self.has_budget(releases, part):
            self.budgets[part.budget].refuse(releases)
        admitted: list[Item] = []
        if self.counter is not None:
            neighbours = (items[0].adjacency, items[0].unit)
            plan = self.counter.plan_needed(
                releases,
                items[0],
                exactly=exactly,
                partition=part.partition,
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

    def _refuse_other_neighbours(
        self, items: Sequence[LedgerEntry | LedgerPlan]
    ) -> None:
        """Raise if a charge or plan has another adjacency or unit than earlier ones."""
        first: LedgerEntry | LedgerPlan
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
