"""Caps: they admit a plan that is fixed beforehand, or what passes a filter."""

import math
from collections.abc import Sequence
from typing import NoReturn

from botorch_dp.exceptions import BudgetExceededError, LedgerError
from botorch_dp.privacy.accountant import PrivacyAccountant, Spending, budget_limit
from botorch_dp.privacy.entries import (
    LedgerEntry,
    LedgerPlan,
    PlannedReleases,
    Releases,
    releases_of,
)
from botorch_dp.privacy.filters import Filter, make_filter, suitable_filter
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.partitions import PartitionTotals

# Another machine may have accounted for a plan that should use up the cap exactly.
_ROUNDING = 1e-6


class CapCounter:
    """Counts the charges of a ledger under its cap, in constant time for each.

    Before the first charge, no release exists that a choice could depend on. A plan
    made at that time may therefore be accounted for exactly, and may decide how the cap
    counts afterwards; the last such plan is valid. If only exact accounting shows that
    it fits, the ledger is committed to it.

    Args:
        cap: The budget.
        filter: The name of the filter; None lets the first plan or charge decide.
    """

    def __init__(self, cap: Guarantee, filter: str | None) -> None:
        self.cap = cap
        self.limit = budget_limit(cap)
        self._is_final = filter is not None or not isinstance(cap, ApproxDP)
        self._filter = make_filter(cap, filter or "") if self._is_final else None
        self._totals = PartitionTotals()
        self._spent = PrivacyAccountant()  # the charges of a committed plan
        self._plan: LedgerPlan | None = None
        self._planned: PlannedReleases | None = None
        self._num_charges = 0
        self._is_checked = False  # whether the committed plan is known to fit

    @property
    def filter(self) -> str | None:
        """The name of the filter; None while that is undecided."""
        return None if self._filter is None else self._filter.name

    @property
    def is_untouched(self) -> bool:
        """Whether there is no charge yet that a plan could depend on."""
        return self._num_charges == 0

    def admits(
        self, releases: Releases, *, replan: bool = False, partition: str = ""
    ) -> bool:
        """Return whether these releases fit, however they were chosen.

        Args:
            releases: The releases to charge or reserve.
            replan: Whether they may replace a plan without charges.
            partition: The partition that they concern; empty if they concern all.
        """
        return self._is_planned(releases) or (
            (self._planned is None or (replan and self.is_untouched))
            and self._fits(releases, partition)
        )

    def fits_exactly(self, releases: Releases) -> bool:
        """Return whether a plan fits by exact accounting, which may take seconds."""
        return _composed(PrivacyAccountant(), releases).within(self.cap)

    def counted(self, releases: Releases = ()) -> Spending:
        """Return how the cap counts all charges so far and these releases.

        With partitions, this is an upper bound for a record of any of them.
        """
        if self._planned is not None:
            spent = PrivacyAccountant()
            spent.load_state_dict(self._spent.state_dict())
            return _composed(spent, releases).spent_of(self.cap)
        return self._filtered(releases)

    def plan_needed(
        self,
        releases: Releases,
        source: LedgerEntry | LedgerPlan,
        *,
        exactly: bool,
        other_neighbours: bool = False,
        partition: str = "",
    ) -> LedgerPlan | None:
        """Return the plan to record with a charge or reservation, or refuse it.

        Args:
            releases: The releases to charge or reserve.
            source: The charge or reservation.
            exactly: Whether the releases fit by exact accounting.
            other_neighbours: Whether the earlier plan has another adjacency or unit.
            partition: The partition that they concern; empty if they concern all.

        Raises:
            BudgetExceededError: If they do not fit.
        """
        replan = isinstance(source, LedgerPlan)
        may_plan = self.is_untouched and (replan or self._planned is None)
        admitted = self.admits(releases, replan=replan, partition=partition)
        if not admitted and not (exactly and may_plan):
            self.refuse(releases, whole_plan=replan, partition=partition)
        if self._is_planned(releases):
            if not other_neighbours:
                return None
            admitted = False  # the same plan for another adjacency or unit
        if not self.is_untouched:
            return None
        is_decided = self._filter_for(releases) is self._filter
        if admitted and is_decided and self._planned is None:
            return None
        return LedgerPlan(
            time=source.time,
            releases=tuple(releases),
            adjacency=source.adjacency,
            unit=source.unit,
            run=source.run,
            filter=self._filter_for(releases).name,
            committed=not admitted,
        )

    def take_plan(self, plan: LedgerPlan) -> None:
        """Follow a recorded plan from now on.

        Raises:
            LedgerError: If there are charges, on which the plan may depend.
        """
        if not self.is_untouched:
            raise LedgerError(
                "The ledger is damaged: it has a plan after its first charge. No "
                "charge is accepted, because such a plan can exceed the cap."
            )
        self._is_checked = False
        if not self._is_final:
            self._filter = make_filter(self.cap, plan.filter)
        self._plan = plan
        self._planned = PlannedReleases(plan.releases) if plan.committed else None

    def take_charges(self, entries: Sequence[LedgerEntry]) -> None:
        """Count recorded charges."""
        self._num_charges += len(entries)
        if self._planned is not None:  # all partitions together use up one plan
            for event, count in releases_of(entries):
                self._planned.take(event, count)
                self._spent.compose(event, count)
            return
        assert self._filter is not None
        charged: dict[str, list[LedgerEntry]] = {}
        for entry in entries:
            charged.setdefault(entry.partition, []).append(entry)
        for partition, own in charged.items():
            self._totals.add(partition, self._filter.total(releases_of(own)))

    def _is_planned(self, releases: Releases) -> bool:
        if self._plan is None or self._planned is None:
            return False
        if not self._planned.covers(releases):
            return False
        if not self._is_checked:
            self._check_plan(self._plan)
        return True

    def _check_plan(self, plan: LedgerPlan) -> None:
        """Raise if a plan that somebody recorded does not fit, once per process.

        Whoever may append rows could write one that this class would have refused.
        """
        spent = _composed(PrivacyAccountant(), plan.releases).spent_of(self.cap)
        if not spent.amount <= self.limit * (1 + _ROUNDING):
            raise LedgerError(
                "The ledger is damaged: the plan that it is committed to has "
                f"{spent.unit}={spent.amount:.8g}, past the cap {self.cap!r}."
            )
        self._is_checked = True

    def _fits(self, releases: Releases, partition: str) -> bool:
        counter = self._filter_for(releases)
        cost = counter.total(releases)
        if counter.within(self._totals.bound(partition) + cost, self.limit):
            return True
        if partition:
            return False
        # The bound takes the largest value of each component of a total, which may be
        # those of different partitions.
        return all(
            counter.within(total + cost, self.limit) for total in self._totals.each()
        )

    def _filtered(self, releases: Releases, partition: str = "") -> Spending:
        counter = self._filter_for(releases)
        return counter.spent(self._totals.bound(partition) + counter.total(releases))

    def _filter_for(self, releases: Releases) -> Filter:
        current = self._filter
        if current is not None and (self._is_final or self._num_charges):
            return current
        # The filter of an earlier reservation, as long as these releases fit.
        if (
            current is not None
            and self._planned is None
            and current.within(current.total(releases), self.limit)
        ):
            return current
        return make_filter(self.cap, suitable_filter(releases))

    def refuse(
        self, releases: Releases, *, whole_plan: bool = False, partition: str = ""
    ) -> NoReturn:
        """Raise an error that says why these releases do not fit.

        Args:
            releases: The releases.
            whole_plan: Whether they are the plan of a run.
            partition: The partition that they concern; empty if they concern all.
        """
        asked = ", ".join(f"{count} x {event!r}" for event, count in releases)
        if self._planned is not None and not (whole_plan and self.is_untouched):
            raise BudgetExceededError(
                f"{asked} would exceed the cap {self.cap!r}: it is not in the rest of "
                "the plan that this ledger is committed to, and the plan does not "
                "cover releases that are chosen after seeing others. Nothing was "
                "recorded or drawn."
            )
        before = self._filtered((), partition)
        after = self._filtered(releases, partition)
        counted = f"counted by {after.method}"
        if not whole_plan:
            raise BudgetExceededError(
                f"{asked} would bring the spending from {before.unit}="
                f"{before.amount:.8g} to {after.amount:.8g}, past the cap "
                f"{self.cap!r} ({counted}). Nothing was recorded or drawn."
            )
        remedy = "ask for a smaller guarantee, or use a ledger with a larger cap."
        if math.isinf(after.amount):
            remedy = "its guarantee is of another kind, or has a larger delta."
            if isinstance(self.cap, ApproxDP):
                remedy = (
                    f"the ledger's filter {self.filter!r} cannot count such releases, "
                    "or too little of its delta is left for them. Create a ledger with "
                    "another filter= for releases of several kinds."
                )
        raise BudgetExceededError(
            f"The ledger has spent {before.unit}={before.amount:.8g} in "
            f"{self._num_charges} charge(s), this run would bring it to "
            f"{after.amount:.8g}, and its cap is {self.cap!r} ({counted}). Nothing was "
            f"recorded or drawn: {remedy}"
        )


def _composed(accountant: PrivacyAccountant, releases: Releases) -> PrivacyAccountant:
    for event, count in releases:
        accountant.compose(event, count)
    return accountant
