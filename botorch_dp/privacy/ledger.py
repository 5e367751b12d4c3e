"""The ledger: the append-only record of what was spent, and a cap on it.

The ledger is the truth and accountants are views of it. A mechanism charges it before
drawing any noise, so a crash between the two wastes budget but never under-reports it.

A cap holds for releases that are chosen after seeing earlier ones. Releases of a plan
that is fixed before the first charge are accounted for exactly; everything else goes
through a filter (:mod:`botorch_dp.privacy.filters`).
"""

import json
import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError, LedgerError
from botorch_dp.privacy.accountant import PrivacyAccountant
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.cap import CapCounter
from botorch_dp.privacy.entries import (
    UNITS,
    LedgerEntry,
    LedgerPlan,
    Releases,
    check_plan,
    check_releases,
    read_row,
)
from botorch_dp.privacy.events import PrivacyEvent
from botorch_dp.privacy.filters import FILTERS
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.stores.chain import Head, start
from botorch_dp.privacy.stores.memory import MemoryStore
from botorch_dp.privacy.stores.sqlite import SQLiteStore, SQLiteTransaction

DEFAULT_DELTA = 1e-5
_Item: TypeAlias = LedgerEntry | LedgerPlan

# One lock for all ledgers of a process: a fork waits for it, so that a child inherits
# neither a lock that nobody will release nor an open connection.
_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire,
        after_in_parent=_LOCK.release,
        after_in_child=_LOCK.release,
    )


class Chargeable(Protocol):
    """What a mechanism charges: a ledger, or an accountant by itself."""

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = "system",
        unit: str = "record",
    ) -> Any:
        """Record the cost, or raise and record nothing."""
        ...


class Ledger:
    """An append-only record of privacy spending, in memory or in an SQLite file.

    Args:
        path: A file that keeps the ledger, created if it does not exist; several
            processes may share it. None keeps it in memory.
        cap: The budget that must not be passed. A file remembers its cap: when opened
            again, leave it out or give the same one.
        filter: How an ``ApproxDP`` cap counts releases that were chosen after seeing
            earlier ones: ``"gdp"``, ``"renyi"`` or ``"basic"``. By default the first
            charge or plan decides: ``"gdp"`` if it is Gaussian, ``"basic"`` if it has
            deltas of its own, otherwise ``"renyi"``. Other caps have one filter each.

    Raises:
        LedgerError: If the file is not a sound ledger, or has another cap.

    Example:
        >>> from botorch_dp.privacy import GaussianEvent
        >>> ledger = Ledger(cap=ApproxDP(epsilon=1.0, delta=1e-5))
        >>> entry = ledger.charge(GaussianEvent(noise_multiplier=5.0))
        >>> ledger.accountant().get_epsilon(delta=1e-5) < 1.0
        True
        >>> ledger.charge(GaussianEvent(noise_multiplier=5.0))
        Traceback (most recent call last):
        botorch_dp.exceptions.BudgetExceededError: ...
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        cap: Guarantee | None = None,
        *,
        filter: str | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike | None):
            raise InvalidArgumentError(
                f"path must name a file, or be None, got {path!r}; the budget is cap=."
            )
        if cap is not None:
            check_guarantee("cap", cap)
        if filter is not None:
            check_choice("filter", filter, FILTERS)
            if not isinstance(cap, ApproxDP) and path is None:
                raise InvalidArgumentError(
                    f"filter must be None unless cap is an ApproxDP, got {filter!r} "
                    f"with cap={cap!r}."
                )
        header = {
            "ledger": 2,
            "id": uuid.uuid4().hex,
            "cap": None if cap is None else cap.to_dict(),
            "filter": filter,
        }
        self._store: MemoryStore | SQLiteStore
        with _LOCK:
            if path is None:
                self._store = MemoryStore(json.dumps(header))
            else:
                self._store = SQLiteStore(path, json.dumps(header))
            self._read_header(cap, filter)
            self._head = start(self._store.header)
            self._entries: list[LedgerEntry] = []
            self._plan: LedgerPlan | None = None
            self._refresh()

    @property
    def path(self) -> str | None:
        """The file, or None in memory."""
        return None if self._store.path is None else str(self._store.path)

    @property
    def id(self) -> str:
        """A random name that tells this ledger from all others."""
        return self._id

    @property
    def cap(self) -> Guarantee | None:
        """The budget that must not be passed."""
        return self._cap

    @property
    def filter(self) -> str | None:
        """How charges are counted under the cap; None while that is undecided."""
        with _LOCK:
            self._refresh()
            return None if self._counter is None else self._counter.filter

    @property
    def digest(self) -> str:
        """The digest of the header and of all rows so far, in hexadecimal."""
        with _LOCK:
            self._refresh()
            return self._head.digest

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every charge so far, those of other processes included."""
        with _LOCK:
            self._refresh()
            return tuple(self._entries)

    def entries_since(self, number: int) -> tuple[LedgerEntry, ...]:
        """Return every charge after the first ``number`` ones."""
        with _LOCK:
            self._refresh()
            return tuple(self._entries[number:])

    @property
    def plan(self) -> LedgerPlan | None:
        """The plan that was made before the first charge, if there is one."""
        with _LOCK:
            self._refresh()
            return self._plan

    @property
    def adjacency(self) -> str | None:
        """The adjacency of all charges, None while there are none."""
        return self._of_first_charge("adjacency")

    @property
    def unit(self) -> str | None:
        """Who all charges protect, None while there are none."""
        return self._of_first_charge("unit")

    def __len__(self) -> int:
        with _LOCK:
            self._refresh()
            return len(self._entries)

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = "system",
        unit: str = "record",
        run: str = "",
        condition: str | None = None,
    ) -> LedgerEntry:
        """Record the cost of ``count`` releases, or refuse it.

        Checking the cap and appending are one transaction: processes that share a file
        cannot overspend it together.

        Args:
            event: What one release costs.
            count: How many releases.
            mechanism: The name to record.
            adjacency: One of ``"replace_one"``, ``"zero_out"``,
                ``"add_or_remove_one"``; the same for all charges.
            noise: The noise source: ``"system"``, ``"secure"`` or ``"seeded"``.
            unit: Who is protected: ``"record"``, ``"user"`` or ``"agent"``; the same
                for all charges.
            run: The name of the run that the charge belongs to.
            condition: What the cost holds under, in words, if not in the worst case.

        Raises:
            BudgetExceededError: If the cap would be passed; nothing is recorded.
        """
        entry = LedgerEntry(  # checks all of it: what is appended can be read again
            number=1,
            time=_now(),
            event=event,
            count=count,
            mechanism=mechanism,
            adjacency=adjacency,
            noise=noise,
            unit=unit,
            run=run,
            condition=condition,
        )
        releases = ((event, entry.count),)
        fits_exactly = self._fits_exactly(releases)
        with _LOCK:
            with self._store.transaction() as transaction:
                self._compose(transaction.read_after(self._head))
                self._refuse_other_neighbours(entry)
                items = [
                    *self._plan_needed(releases, entry, fits_exactly),
                    replace(entry, number=len(self._entries) + 1),
                ]
                heads = self._append(transaction, items)
            # Only what is committed is taken in: a failed commit leaves no trace.
            self._take(items, heads)
            return self._entries[-1]

    def reserve(
        self,
        releases: Iterable[tuple[PrivacyEvent, int]],
        *,
        adjacency: str = "replace_one",
        unit: str = "record",
        run: str = "",
    ) -> None:
        """Raise unless a whole plan of releases fits under the cap.

        Call it before the first release of a plan whose events and counts are fixed. On
        a ledger without charges the plan is accounted for exactly. If it fits only so,
        the ledger is committed to it: it takes the plan's charges and no others. In all
        other cases nothing is set aside, and each charge passes the filter.

        Args:
            releases: What each release costs, and how many there are of it.
            adjacency: The neighbouring data sets for which the costs are stated.
            unit: Who is protected.
            run: The name of the run that makes the plan.

        Raises:
            BudgetExceededError: If the plan does not fit; nothing is recorded.

        Example:
            >>> from botorch_dp.privacy import GaussianEvent, PureEvent
            >>> ledger = Ledger(cap=ApproxDP(epsilon=1.0, delta=1e-5))
            >>> ledger.reserve([(GaussianEvent(6.0), 1), (PureEvent(0.3), 1)])
            >>> ledger.plan.committed
            False
        """
        releases = check_plan(releases, adjacency)
        if not releases:
            return
        plan = LedgerPlan(
            time=_now(),
            releases=releases,
            adjacency=adjacency,
            unit=check_choice("unit", unit, UNITS),
            run=run,
            filter="",
            committed=False,
        )
        fits_exactly = self._fits_exactly(releases)
        with _LOCK:
            with self._store.transaction() as transaction:
                self._compose(transaction.read_after(self._head))
                self._refuse_other_neighbours(plan)
                items = self._plan_needed(releases, plan, fits_exactly)
                heads = self._append(transaction, items)
            self._take(items, heads)

    def allows(self, event: PrivacyEvent, count: int = 1) -> bool:
        """Return whether :meth:`charge` would accept this now, without charging it."""
        releases = ((event, check_releases("count", count)),)
        with _LOCK:
            self._refresh()
            if self._counter is None or self._counter.admits(releases):
                return True
            if self._plan is not None and self._plan.committed:
                return False
        return self._fits_exactly(releases)

    def accountant(self) -> PrivacyAccountant:
        """Return a new accountant that has composed every charge."""
        return accountant_of(self.entries)

    def spent(self, delta: float | None = None) -> float:
        """Return the epsilon spent at ``delta`` (by default the cap's, or 1e-5)."""
        return self.accountant().get_epsilon(self._delta_or_default(delta))

    def summary(self, delta: float | None = None) -> str:
        """Return what was spent, on what, when, and what is left, as text.

        Args:
            delta: At which to report epsilon; by default the cap's, or 1e-5.
        """
        entries, delta = self.entries, self._delta_or_default(delta)
        spent = accountant_of(entries).spent(delta)
        lines = [
            f"Privacy ledger ({self.path or 'in memory'}): {len(entries)} charge(s)",
            f"  spent  epsilon={spent.amount:.6g} at delta={delta:.6g}, "
            f"by {spent.method}",
        ]
        if self._counter is not None:
            used, limit = self._counter.counted(), self._counter.limit
            left = used.left(limit)
            lines.append(f"  cap    {self._cap!r}, counted by {used.method}")
            lines.append(
                f"  left   {used.unit}={left:.6g} of {limit:.6g} ({left / limit:.1%})"
            )
        if self._plan is not None and self._plan.committed:
            planned = ", ".join(f"{n} x {event!r}" for event, n in self._plan.releases)
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
            lines.append(
                f"  {count:>6} x {mechanism or 'unnamed'}: {event!r}, "
                f"{noise} noise, {when}"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def __reduce__(self) -> Any:
        if self.path is None:
            raise LedgerError(
                "A ledger in memory cannot be sent to another process, where it would "
                "be charged unseen: give it a path."
            )
        return (_reopen, (self.path, self._id))

    def __sklearn_clone__(self) -> "Ledger":
        return self  # clones of an estimator spend from the same budget

    def _fits_exactly(self, releases: Releases) -> bool:
        """Return whether a plan fits by exact accounting, if that may decide.

        Exact accounting takes seconds, so nobody may wait for it: it depends on the
        plan alone, and whether it decides is looked at again in the transaction.
        """
        counter = self._counter
        if counter is None:
            return True
        with _LOCK:
            self._refresh()
            if not counter.is_untouched or counter.admits(releases):
                return False
        return counter.fits_exactly(releases)

    def _plan_needed(
        self, releases: Releases, source: _Item, exactly: bool
    ) -> list[_Item]:
        """Return the plan, if one has to be recorded, or refuse."""
        if self._counter is None:
            return []
        neighbours = (source.adjacency, source.unit)
        plan = self._counter.plan_needed(
            releases,
            source,
            exactly=exactly,
            other_neighbours=self._plan is not None
            and (self._plan.adjacency, self._plan.unit) != neighbours,
        )
        return [] if plan is None else [plan]

    def _refuse_other_neighbours(self, item: _Item) -> None:
        """Raise if a charge or plan is about other neighbours than those before."""
        first: _Item
        if self._entries:
            first = self._entries[0]
        elif isinstance(item, LedgerEntry) and self._plan and self._plan.committed:
            first = self._plan
        else:
            return
        adjacency, unit = item.adjacency, item.unit
        if first.adjacency != adjacency:
            raise InvalidArgumentError(
                f"adjacency must be {first.adjacency!r}, as of the charges "
                f"before, got {adjacency!r}: guarantees for different neighbours do "
                "not compose."
            )
        if first.unit != unit:
            raise InvalidArgumentError(
                f"unit must be {first.unit!r}, as of the charges before, got {unit!r}: "
                "what protects one of them says little about the other. Give each its "
                "own ledger."
            )

    def _of_first_charge(self, name: str) -> str | None:
        with _LOCK:
            self._refresh()
            return str(getattr(self._entries[0], name)) if self._entries else None

    def _refresh(self) -> None:
        """Compose what this process has not yet seen."""
        self._compose(self._store.read_after(self._head))

    def _compose(self, rows: Iterable[str]) -> None:
        """Take in rows that are in the store."""
        for row in rows:
            try:
                item = read_row(row, number=len(self._entries) + 1)
            except (KeyError, TypeError, ValueError) as error:
                raise LedgerError(
                    f"Row {self._head.number + 1} of the ledger is damaged: {error!r}."
                ) from error
            self._take([item], [self._head.then(row)])

    def _append(
        self, transaction: MemoryStore | SQLiteTransaction, items: Sequence[_Item]
    ) -> list[Head]:
        """Append rows and return the heads of the chain after each."""
        heads: list[Head] = []
        for item in items:
            row = item.to_row()
            heads.append((heads[-1] if heads else self._head).then(row))
            transaction.append(row, heads[-1])
        return heads

    def _take(self, items: Iterable[_Item], heads: Iterable[Head]) -> None:
        """Take in charges and plans, with the heads of the chain after each."""
        for item, head in zip(items, heads, strict=True):
            if isinstance(item, LedgerPlan):
                self._plan = item
                if self._counter is not None:
                    self._counter.take_plan(item)
            else:
                self._entries.append(item)
                if self._counter is not None:
                    self._counter.take_charge(item)
            self._head = head

    def _read_header(self, cap: Guarantee | None, filter: str | None) -> None:
        try:
            header = json.loads(self._store.header)
            state, stored_filter = header["cap"], header["filter"]
            self._id = str(header["id"])
            self._cap = None if state is None else Guarantee.from_dict(state)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(
                f"The ledger {self.path} is damaged: its header cannot be read."
            ) from error
        if cap is not None and cap != self._cap:
            raise LedgerError(
                f"The ledger {self.path} has the cap {self._cap!r}, which is final; "
                f"got cap={cap!r}. Open it without cap, or give another path."
            )
        if filter is not None and filter != stored_filter:
            raise LedgerError(
                f"The ledger {self.path} was made with filter={stored_filter!r}, which "
                f"is final; got {filter!r}. Open it without filter."
            )
        self._counter = None
        if self._cap is not None:
            self._counter = CapCounter(self._cap, stored_filter)

    def _delta_or_default(self, delta: float | None) -> float:
        if delta is not None:
            return delta
        return self._cap.delta if isinstance(self._cap, ApproxDP) else DEFAULT_DELTA


def accountant_of(entries: Iterable[LedgerEntry]) -> PrivacyAccountant:
    """Return a new accountant that has composed these charges."""
    accountant = PrivacyAccountant()
    for entry in entries:
        accountant.compose(entry.event, entry.count)
    return accountant


def _reopen(path: str, identity: str) -> Ledger:
    """Unpickle: never another ledger, or a new one, in place of one that has moved."""
    if not os.path.exists(path):
        raise LedgerError(f"The ledger {path} is not there any more.")
    ledger = Ledger(path)
    if ledger.id != identity:
        raise LedgerError(f"The ledger {path} was replaced by another one.")
    return ledger


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
