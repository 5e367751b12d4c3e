"""The ledger: the append-only record of what was spent, and a cap on it.

The ledger is the truth and accountants are views of it. A mechanism charges it before
drawing any noise, so a crash between the two wastes budget but never under-reports it.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from botorch_dp._checks import check_count
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
)
from botorch_dp.privacy._sqlite import SQLiteStore
from botorch_dp.privacy.accountant import PrivacyAccountant, budget_limit
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.events import PrivacyEvent, check_event
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee

DEFAULT_DELTA = 1e-5


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
    ) -> Any:
        """Record the cost, or raise and record nothing."""
        ...


@dataclass(frozen=True)
class LedgerEntry:
    """One charge.

    Attributes:
        number: Its position in the ledger, from 1.
        time: When it was charged (UTC, ISO 8601).
        event: What one release cost.
        count: How many releases.
        mechanism: Which mechanism charged it.
        adjacency: For which neighbouring data sets the cost is stated.
        noise: The name of the noise source.
    """

    number: int
    time: str
    event: PrivacyEvent
    count: int
    mechanism: str
    adjacency: str
    noise: str


class Ledger:
    """An append-only record of privacy spending, in memory or in an SQLite file.

    Args:
        path: A file that keeps the ledger, created if it does not exist; several
            processes may share it. None keeps it in memory.
        cap: The budget that must not be passed. A file remembers its cap: when opened
            again, leave it out or give the same one.

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
        self, path: str | os.PathLike[str] | None = None, cap: Guarantee | None = None
    ) -> None:
        if not isinstance(path, str | os.PathLike | None):
            raise InvalidArgumentError(
                f"path must name a file, or be None, got {path!r}; the budget is cap=."
            )
        if cap is not None:
            check_guarantee("cap", cap)
        self._cap = cap
        self._store: _MemoryStore | SQLiteStore
        if path is None:
            self._store = _MemoryStore()
        else:
            self._store = SQLiteStore(path, _to_json(cap))
            self._cap = self._stored_cap(cap)
        self._lock = threading.RLock()
        self._forget()
        self._refresh()

    @property
    def path(self) -> str | None:
        """The file, or None in memory."""
        return str(self._store.path) if isinstance(self._store, SQLiteStore) else None

    @property
    def cap(self) -> Guarantee | None:
        """The budget that must not be passed."""
        return self._cap

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every charge so far, those of other processes included."""
        with self._lock:  # a charge refused in another thread starts the list over
            self._refresh()
            return tuple(self._entries)

    @property
    def adjacency(self) -> str | None:
        """The adjacency of all charges, None while there are none."""
        entries = self.entries
        return entries[0].adjacency if entries else None

    def __len__(self) -> int:
        return len(self.entries)

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = "system",
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
            noise: The name of the noise source to record.

        Raises:
            BudgetExceededError: If the cap would be passed; nothing is recorded.
        """
        check_event(event, adjacency)
        charge = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event.to_dict(),
            "count": check_count("count", count),
            "mechanism": mechanism,
            "adjacency": adjacency,
            "noise": noise,
        }
        with self._lock:
            try:
                with self._store.transaction() as transaction:
                    self._compose(transaction.read_after(len(self._entries)))
                    self._refuse_other_adjacency(adjacency)
                    self._refuse_overspending(event, count)
                    number = transaction.append(charge)
                # Only what is committed is composed: a failed commit leaves no trace.
                self._compose(self._store.read_after(len(self._entries)))
            except BaseException:
                self._forget()
                raise
            return self._entries[number - 1]

    def allows(self, event: PrivacyEvent, count: int = 1) -> bool:
        """Return whether :meth:`charge` would accept this now, without charging it."""
        if self._cap is None:
            return True
        return self.accountant().plus(event, count).within(self._cap)

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
        accountant = accountant_of(entries)
        spent = accountant.spent(delta)
        lines = [
            f"Privacy ledger ({self.path or 'in memory'}): {len(entries)} charge(s)",
            f"  spent  epsilon={spent.amount:.6g} at delta={delta:.6g}, "
            f"by {spent.method}",
        ]
        if self._cap is not None:
            used = accountant.spent_of(self._cap)
            limit = budget_limit(self._cap)
            left = used.left(limit)
            lines.append(f"  cap    {self._cap!r}")
            lines.append(
                f"  left   {used.unit}={left:.6g} of {limit:.6g} ({left / limit:.1%})"
            )
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
        return (_reopen, (self.path,))

    def __sklearn_clone__(self) -> "Ledger":
        return self  # clones of an estimator spend from the same budget

    def _refuse_overspending(self, event: PrivacyEvent, count: int) -> None:
        if self._cap is None or self._accountant.plus(event, count).within(self._cap):
            return
        before = self._accountant.spent_of(self._cap)
        after = self._accountant.plus(event, count).spent_of(self._cap)
        raise BudgetExceededError(
            f"{count} x {event!r} would bring the spending from {before.unit}="
            f"{before.amount:.8g} to {after.amount:.8g}, past the cap {self._cap!r}. "
            "Nothing was recorded and nothing drawn."
        )

    def _refuse_other_adjacency(self, adjacency: str) -> None:
        if self._entries and self._entries[0].adjacency != adjacency:
            raise InvalidArgumentError(
                f"adjacency must be {self._entries[0].adjacency!r}, as of the charges "
                f"before, got {adjacency!r}: guarantees for different neighbours do "
                "not compose."
            )

    def _refresh(self) -> None:
        """Compose what this process has not yet seen."""
        with self._lock:
            try:
                self._compose(self._store.read_after(len(self._entries)))
            except BaseException:
                self._forget()
                raise

    def _compose(self, rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
        for number, charge in rows:
            try:
                event = PrivacyEvent.from_dict(charge["event"])
                entry = LedgerEntry(number=number, **{**charge, "event": event})
            except (KeyError, TypeError, InvalidArgumentError) as error:
                raise LedgerError(
                    f"Row {number} of the ledger is damaged: {error!r}."
                ) from error
            if number != len(self._entries) + 1:
                raise LedgerError(f"Row {number - 1} of the ledger is lost.")
            self._accountant.compose(entry.event, entry.count)
            self._entries.append(entry)

    def _forget(self) -> None:
        """Start over with what the store holds, which is the truth."""
        self._entries: list[LedgerEntry] = []
        self._accountant = PrivacyAccountant()

    def _stored_cap(self, cap: Guarantee | None) -> Guarantee | None:
        assert isinstance(self._store, SQLiteStore)
        stored = self._store.cap
        stored_cap = None if stored is None else Guarantee.from_dict(json.loads(stored))
        if cap is not None and cap != stored_cap:
            raise LedgerError(
                f"The ledger {self._store.path} has the cap {stored_cap!r}, which is "
                f"final; got cap={cap!r}. Open it without cap, or give another path."
            )
        return stored_cap

    def _delta_or_default(self, delta: float | None) -> float:
        if delta is not None:
            return delta
        return self._cap.delta if isinstance(self._cap, ApproxDP) else DEFAULT_DELTA


class _MemoryStore:
    """The same rows as :class:`SQLiteStore`, in a list."""

    def __init__(self) -> None:
        self._charges: list[dict[str, Any]] = []
        self._pid = os.getpid()

    @contextlib.contextmanager
    def transaction(self) -> Iterator["_MemoryStore"]:
        if self._pid != os.getpid():
            raise LedgerError(
                "A ledger in memory was carried into another process, where its parent "
                "would not see what is charged: give it a path."
            )
        yield self

    def append(self, charge: dict[str, Any]) -> int:
        self._charges.append(charge)
        return len(self._charges)

    def read_after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        return list(enumerate(self._charges[number:], start=number + 1))


def accountant_of(entries: Iterable[LedgerEntry]) -> PrivacyAccountant:
    """Return a new accountant that has composed these charges."""
    accountant = PrivacyAccountant()
    for entry in entries:
        accountant.compose(entry.event, entry.count)
    return accountant


def _reopen(path: str) -> Ledger:
    """Unpickle: never a new, empty ledger in place of one that has moved."""
    if not os.path.exists(path):
        raise LedgerError(f"The ledger {path} is not there any more.")
    return Ledger(path)


def _to_json(cap: Guarantee | None) -> str | None:
    return None if cap is None else json.dumps(cap.to_dict())
