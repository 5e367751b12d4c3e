"""A ledger as text: what was spent, on what, when, and what is left."""

from collections.abc import Iterable, Sequence

from botorch_dp.privacy.accountant import PrivacyAccountant
from botorch_dp.privacy.cap import CapCounter
from botorch_dp.privacy.entries import LedgerEntry, LedgerPlan, releases_of
from botorch_dp.privacy.events import PrivacyEvent


def accountant_of(entries: Iterable[LedgerEntry]) -> PrivacyAccountant:
    """Return a new accountant that has composed these charges."""
    accountant = PrivacyAccountant()
    for event, count in releases_of(entries):
        accountant.compose(event, count)
    return accountant


def summarize(
    entries: Sequence[LedgerEntry],
    *,
    place: str,
    delta: float,
    counter: CapCounter | None,
    plan: LedgerPlan | None,
) -> str:
    """Return the summary of a ledger.

    Args:
        entries: All charges.
        place: Where the ledger is kept.
        delta: The delta at which to report epsilon.
        counter: The counter of the cap, if there is one.
        plan: The plan of the ledger, if there is one.
    """
    spent = accountant_of(entries).spent(delta)
    lines = [
        f"Privacy ledger ({place}): {len(entries)} charge(s)",
        f"  spent  epsilon={spent.amount:.6g} at delta={delta:.6g}, by {spent.method}",
    ]
    if counter is not None:
        used, limit = counter.counted(), counter.limit
        left = used.left(limit)
        lines += [
            f"  cap    {counter.cap!r}, counted by {used.method}",
            f"  left   {used.unit}={left:.6g} of {limit:.6g} ({left / limit:.1%})",
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
