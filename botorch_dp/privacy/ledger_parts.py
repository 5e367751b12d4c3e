"""Parts of a ledger: disjoint partitions, persons, and named budgets."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError, LedgerError
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.entries import LedgerBudget
from botorch_dp.privacy.filters import FILTERS
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.ledger_book import LedgerBook
from botorch_dp.privacy.partitions import WHOLE, Part, check_name, pseudonym
from botorch_dp.privacy.stores.opening import LOCK, Store


class LedgerParts:
    """What a ledger offers for the parts of a data set and of an organization.

    A part is a ledger with the same rows. Its charges have a label, and what it says of
    its spending is what a record of the part has to pay for.
    """

    _store: Store
    _book: LedgerBook
    _part: Part
    _refresh: Callable[[], None]

    def partition(self, name: str) -> Self:
        """Return the ledger of one of several disjoint partitions of the data set.

        A charge to it concerns the records of this partition only, so it does not
        count for those of others. The cap holds for the charges to each partition
        together with the common ones (those of the ledger itself). This is valid if you
        know that the partitions are disjoint, and that a record cannot move from one to
        another: for example the patients of each hospital. The certificate states it.

        Args:
            name: The name of the partition.

        Example:
            >>> from botorch_dp.privacy import Ledger, PureDP, PureEvent
            >>> ledger = Ledger(cap=PureDP(1.0))
            >>> for hospital in ("north", "south"):
            ...     entry = ledger.partition(hospital).charge(PureEvent(0.7))
            >>> entry = ledger.charge(PureEvent(0.3))  # concerns all patients
            >>> round(ledger.spent(), 3), ledger.allows(PureEvent(0.1))
            (1.0, False)
        """
        check_name("name", name)
        if self._part.partition:
            raise InvalidArgumentError(
                f"partition {self._part.partition!r} has no partitions of its own: "
                "call partition() of the whole ledger."
            )
        return self._with(self._part._replace(partition=name))

    def person(self, person: str, *, key: bytes) -> Self:
        """Return the ledger of one person, who is a partition of their own.

        The cap then holds for each person. The ledger has a pseudonym instead of the
        person's name. Charge it with ``unit="person"``; it refuses other units.

        Args:
            person: What identifies the person, always written in the same way.
            key: A secret of at least 16 bytes, the same for all persons. Whoever has
                it can find out which charges concern a given person; whoever loses it
                gives everybody a new budget.
        """
        return self.partition(pseudonym(person, key))

    def budget(
        self, name: str, cap: Guarantee | None = None, *, filter: str | None = None
    ) -> Self:
        """Return the ledger of a team, whose charges also have a cap of their own.

        All charges count in the whole ledger as well, and must fit under both caps. The
        cap of a team divides a budget; the guarantee for a record is that of the whole
        ledger, which the team's ledger reports.

        Args:
            name: The name of the budget.
            cap: The cap of its charges together. The first call decides; later ones
                may leave it out.
            filter: How an ``ApproxDP`` cap counts, by default ``"renyi"``.

        Example:
            >>> from botorch_dp.privacy import Ledger, PureDP, PureEvent
            >>> ledger = Ledger(cap=PureDP(1.0))
            >>> team = ledger.budget("research", PureDP(0.4))
            >>> team.allows(PureEvent(0.4)), team.allows(PureEvent(0.5))
            (True, False)
        """
        check_name("name", name)
        if self._part.budget:
            raise InvalidArgumentError(
                f"budget {self._part.budget!r} has no budgets of its own: call "
                "budget() of the whole ledger or of a partition."
            )
        if cap is not None:
            check_guarantee("cap", cap)
        if filter is not None:
            check_choice("filter", filter, FILTERS)
        with LOCK:
            self._refresh()
            if name not in self._book.budgets:
                self._declare(name, cap, filter)
            counter = self._book.budgets[name]
        if cap not in (None, counter.cap) or filter not in (None, counter.filter):
            raise LedgerError(
                f"The budget {name!r} has the cap {counter.cap!r} and the filter "
                f"{counter.filter!r}, which are final; got cap={cap!r}, "
                f"filter={filter!r}."
            )
        return self._with(self._part._replace(budget=name))

    @property
    def whole(self) -> Self:
        """The ledger that this is a part of: the ledger itself if it is no part."""
        return self._with(WHOLE)

    def _declare(self, name: str, cap: Guarantee | None, filter: str | None) -> None:
        if cap is None:
            known = ", ".join(map(repr, self._book.budgets)) or "none"
            raise LedgerError(
                f"There is no budget {name!r} (there are: {known}). Give its cap to "
                "create it."
            )
        by_default = "renyi" if isinstance(cap, ApproxDP) else ""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        declared = LedgerBudget(time, name, cap, filter or by_default)
        with self._store.transaction() as transaction:
            self._book.read(*transaction.read_after(self._book.head))
            if name in self._book.budgets:  # another process came first
                return
            head = transaction.append([declared.to_row()], self._book.head)
        self._book.add([declared], head)

    def _with(self, part: Part) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(vars(self))
        other._part = part
        return other
