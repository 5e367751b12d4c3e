"""A ledger as text: what was spent, on what, when, and what is left."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from botorch_dp.privacy.accountant import PrivacyAccountant, Spending
from botorch_dp.privacy.cap import CapCounter
from botorch_dp.privacy.entries import LedgerEntry, LedgerPlan
from botorch_dp.privacy.events import PrivacyEvent
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.ledger_book import BudgetView

# How often each event was charged to each partition, or to all ("").
_Charged: TypeAlias = dict[str, Counter[PrivacyEvent]]


def accountant_of(entries: Iterable[LedgerEntry]) -> PrivacyAccountant:
    """Return a new accountant that has composed these charges."""
    accountant = PrivacyAccountant()
    for entry in entries:
        accountant.charge(
            entry.event,
            count=entry.count,
            adjacency=entry.adjacency,
            unit=entry.unit,
        )
    return accountant


def spent_by_any(
    entries: Iterable[LedgerEntry], measure: float | Guarantee
) -> Spending:
    """Return the most that these charges cost a record, of whatever partition.

    Args:
        entries: The charges.
        measure: The delta at which to report epsilon, or a cap in whose unit to report.
    """
    charged: _Charged = {"": Counter()}
    for entry in entries:
        charged.setdefault(entry.partition, Counter())[entry.event] += entry.count
    return _largest(charged, measure)


def spending_over_time(
    entries: Sequence[LedgerEntry], measure: float | Guarantee, *, most_points: int
) -> Iterator[tuple[int, Spending]]:
    """Yield what :func:`spent_by_any` returns after some of the charges, and all.

    Args:
        entries: The charges.
        measure: See :func:`spent_by_any`.
        most_points: The largest number of points: accounting takes a while.
    """
    step = max(1, -(-len(entries) // most_points))
    charged: _Charged = {"": Counter()}
    for number, entry in enumerate(entries, start=1):
        charged.setdefault(entry.partition, Counter())[entry.event] += entry.count
        if number % step == 0 or number == len(entries):
            yield number, _largest(charged, measure)


def _largest(charged: _Charged, measure: float | Guarantee) -> Spending:
    common = charged[""]
    # Many partitions have paid the same.
    distinct = {frozenset(own.items()): own for name, own in charged.items() if name}
    found = []
    for own in distinct.values() or [Counter()]:
        accountant = PrivacyAccountant()
        for event, count in (common + own).items():
            accountant.compose(event, count)
        if isinstance(measure, Guarantee):
            found.append(accountant.spent_of(measure))
        else:
            found.append(accountant.spent(measure))
    return max(found, key=lambda spending: spending.amount)


def summarize(
    entries: Sequence[LedgerEntry],
    *,
    place: str,
    delta: float,
    counter: CapCounter | None,
    plan: LedgerPlan | None,
    budgets: Sequence[BudgetView] = (),
) -> str:
    """Return the summary of a ledger.

    Args:
        entries: All charges.
        place: Where the ledger is kept.
        delta: The delta at which to report epsilon.
        counter: The counter of the cap, if there is one.
        plan: The plan of the ledger, if there is one.
        budgets: The named budgets.
    """
    spent = spent_by_any(entries, delta)
    lines = [
        f"Privacy ledger ({place}): {len(entries)} charge(s)",
        f"  spent  epsilon={spent.amount:.6g} at delta={delta:.6g}, by {spent.method}",
    ]
    num_partitions = len({entry.partition for entry in entries} - {""})
    if num_partitions > 1:
        lines[-1] += f" (the most that a record of {num_partitions} partitions spent)"
    if counter is not None:
        used, limit = counter.counted(), counter.limit
        left = used.left(limit)
        lines += [
            f"  cap    {counter.cap!r}, counted by {used.method}",
            f"  left   {used.unit}={left:.6g} of {limit:.6g} ({left / limit:.1%})",
        ]
    lines += [
        f"  team   {one.name}: {one.cap!r}, {one.spent.unit}="
        f"{one.spent.left(one.limit):.6g} of {one.limit:.6g} is left"
        for one in budgets
    ]
    if plan is not None and plan.committed:
        planned = ", ".join(f"{count} x {event!r}" for event, count in plan.releases)
        lines.append(f"  plan   {planned}; nothing else is accepted")
    groups: dict[tuple[str, PrivacyEvent, str], list[LedgerEntry]] = {}
    for entry in entries:
        key = (entry.mechanism, entry.event, entry.noise)
        groups.setdefault(key, []).append(entry)
    for (mechanism, event, noise), charged in groups.items():
        count = sum(entry.count for entry in charged)
        when = charged[0].time
        if len(charged) > 1:
            when += f" to {charged[-1].time}"
        name = mechanism or "unnamed"
        lines.append(f"  {count:>6} x {name}: {event!r}, {noise} noise, {when}")
    return "\n".join(lines)
