"""The ledger: the append-only record of privacy spending, and a cap on it.

A mechanism charges the ledger before it draws any noise, so a crash between the two
wastes budget but never under-reports it. Accountants are views of the ledger.

A cap is valid for releases that are chosen after seeing earlier ones. Releases of a
plan that is fixed before the first charge are accounted for exactly; all others go
through a filter (:mod:`botorch_dp.privacy.filters`).
"""

import os
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from botorch_dp._validation import check_choice, check_instance
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
)
from botorch_dp.privacy.accountant import Chargeable as Chargeable
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.entries import (
    UNITS,
    LedgerEntry,
    LedgerHeader,
    LedgerPlan,
    Releases,
    check_plan,
    check_releases,
    releases_of,
)
from botorch_dp.privacy.events import PrivacyEvent
from botorch_dp.privacy.filters import FILTERS
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.ledger_book import Item, LedgerBook, LedgerView
from botorch_dp.privacy.ledger_parts import LedgerParts
from botorch_dp.privacy.ledger_reports import DEFAULT_DELTA as DEFAULT_DELTA
from botorch_dp.privacy.ledger_reports import LedgerReports
from botorch_dp.privacy.ledger_summary import accountant_of as accountant_of
from botorch_dp.privacy.partitions import WHOLE, Part
from botorch_dp.privacy.stores.chain import start
from botorch_dp.privacy.stores.opening import LOCK as LOCK
from botorch_dp.privacy.stores.opening import open_store, store_exists


class Ledger(LedgerParts, LedgerReports):
    """An append-only record of privacy spending: in memory, a file, or a database.

    Args:
        path: The file of the ledger (SQLite), created if it does not exist; several
            processes may share it. ``"postgresql://host/database?ledger=name"`` keeps
            it on a server that a company shares. None keeps the ledger in memory.
        cap: The budget that must not be exceeded. A file stores its cap: when you open
            it again, omit the cap or give the same one.
        filter: How an ``ApproxDP`` cap counts releases that were chosen after seeing
            earlier ones: ``"gdp"``, ``"renyi"`` or ``"basic"``. By default the first
            charge or plan decides: ``"gdp"`` if it is Gaussian, ``"basic"`` if it has
            its own deltas, otherwise ``"renyi"``. Other caps have one filter each.
        create: Whether to create a ledger on a server although no cap is given. Without
            it, a misspelled name in a URL raises; it would be a new ledger otherwise.

    Raises:
        LedgerError: If the file is not a valid ledger, or has another cap.

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
        create: bool = False,
    ) -> None:
        expected = "a file name or None (the budget is cap=)"
        check_instance("path", path, (str, os.PathLike, type(None)), expected=expected)
        if cap is not None:
            check_guarantee("cap", cap)
        if filter is not None:
            check_choice("filter", filter, FILTERS)
            if not isinstance(cap, ApproxDP) and path is None:
                raise InvalidArgumentError(
                    f"filter must be None unless cap is an ApproxDP, got {filter!r} "
                    f"with cap={cap!r}."
                )
        header = LedgerHeader(id=uuid.uuid4().hex, cap=cap, filter=filter).to_row()
        self._part = WHOLE
        with LOCK:
            self._store = open_store(path, header, create=create or cap is not None)
            try:
                self._book = LedgerBook(self._store.header)
            except (KeyError, TypeError, ValueError) as error:
                raise LedgerError(
                    f"The ledger {self.path} is damaged: its header cannot be read."
                ) from error
            self._book.header.refuse_other(cap, filter, path=self.path)
            self._refresh()

    @property
    def path(self) -> str | None:
        """The file or the URL; None for a ledger in memory."""
        return None if self._store.path is None else str(self._store.path)

    @property
    def id(self) -> str:
        """A random name that identifies this ledger."""
        return self._book.header.id

    @property
    def cap(self) -> Guarantee | None:
        """The budget that must not be exceeded."""
        return self._book.header.cap

    @property
    def filter(self) -> str | None:
        """The name of the cap's filter; None while that is undecided."""
        with LOCK:
            self._refresh()
            return None if self._book.counter is None else self._book.counter.filter

    @property
    def digest(self) -> str:
        """The hexadecimal digest of the header and of all rows so far."""
        with LOCK:
            self._refresh()
            return self._book.head.digest

    def has_had(self, digest: str) -> bool:
        """Return whether this was ever the :attr:`digest`, now or some charges ago.

        A digest that was noted elsewhere shows later that no row up to then was
        changed, and that the file is no older copy.

        Args:
            digest: What :attr:`digest` returned before.
        """
        first = start(self._store.header)
        with LOCK:
            rows, _ = self._store.read_after(first)
        return digest in (first.digest, *first.digests(rows))

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every charge so far, including those of other processes.

        Those of a partition are its own and the common ones.
        """
        return self.entries_since(0)

    def entries_since(self, number: int) -> tuple[LedgerEntry, ...]:
        """Return every charge after the first ``number`` ones."""
        with LOCK:
            self._refresh()
            return tuple(self._book.entries_of(self._part)[number:])

    @property
    def plan(self) -> LedgerPlan | None:
        """The plan that was made before the first charge, if there is one."""
        with LOCK:
            self._refresh()
            return self._book.plan

    @property
    def adjacency(self) -> str | None:
        """The adjacency of all charges; None while there are none."""
        return self._of_first_charge("adjacency")

    @property
    def unit(self) -> str | None:
        """The unit that all charges protect; None while there are none."""
        return self._of_first_charge("unit")

    def __len__(self) -> int:
        with LOCK:
            self._refresh()
            return len(self._book.entries_of(self._part))

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

        Checking the cap and appending are one transaction, so processes that share a
        file cannot exceed the cap together.

        Args:
            event: The cost of one release.
            count: The number of releases.
            mechanism: The name of the mechanism.
            adjacency: One of ``"replace_one"``, ``"zero_out"``,
                ``"add_or_remove_one"``; the same for all charges.
            noise: The noise source: ``"system"``, ``"secure"`` or ``"seeded"``.
            unit: Who is protected, ``"record"``, ``"person"``, ``"user"`` or
                ``"agent"``; the same
                for all charges.
            run: The name of the run that the charge belongs to.
            condition: The assumption, in words, under which the cost is valid; None if
                it is valid in the worst case.

        Raises:
            BudgetExceededError: If the cap would be exceeded; nothing is recorded.
        """
        [entry] = self.charge_many(
            [(event, count)],
            mechanism=mechanism,
            adjacency=adjacency,
            noise=noise,
            unit=unit,
            run=run,
            condition=condition,
        )
        return entry

    def charge_many(
        self,
        releases: Iterable[tuple[PrivacyEvent, int]],
        *,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = "system",
        unit: str = "record",
        run: str = "",
        condition: str | None = None,
    ) -> tuple[LedgerEntry, ...]:
        """Record the costs of several releases in one transaction, or refuse them all.

        A transaction waits for the disk, so one for many charges is much faster than
        many for one each. All charges are on the disk when this returns; draw after it.

        Args:
            releases: The cost of each release, and the number of releases.
            mechanism: See :meth:`charge`. This and what follows is true of all of them.
            adjacency: The neighbouring data sets for which the costs are stated.
            noise: The noise source.
            unit: Who is protected.
            run: The name of the run that the charges belong to.
            condition: The assumption under which the costs are valid.

        Returns:
            An entry for each pair in ``releases``.

        Raises:
            BudgetExceededError: If the cap would be exceeded; nothing is recorded.

        Example:
            >>> from botorch_dp.privacy import GaussianEvent, PureEvent
            >>> ledger = Ledger(cap=ApproxDP(epsilon=1.0, delta=1e-5))
            >>> releases = [(GaussianEvent(9.0), 2), (PureEvent(0.1), 1)]
            >>> [entry.number for entry in ledger.charge_many(releases)]
            [1, 2]
        """
        return self.record(
            LedgerEntry(  # checks every field, so that the row can be read again
                number=1,
                time="",
                event=event,
                count=count,
                mechanism=mechanism,
                adjacency=adjacency,
                noise=noise,
                unit=unit,
                run=run,
                condition=condition,
            )
            for event, count in releases
        )

    def record(self, charges: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """Record charges that are stated as entries, as :meth:`charge_many` does.

        Args:
            charges: The charges, for one adjacency and one unit. They get new numbers
                and the time of now.
        """
        time = _now()
        charges = [
            check_instance("charges", charge, LedgerEntry).with_checked(
                time=time, **self._part._asdict()
            )
            for charge in charges
        ]
        if not charges:
            return ()
        recorded = self._record(charges, releases_of(charges))
        return tuple(item for item in recorded if isinstance(item, LedgerEntry))

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
        a ledger without charges the plan is accounted for exactly. If only exact
        accounting shows that it fits, the ledger is committed to the plan and accepts
        no other charges. In all other cases nothing is set aside, and each charge goes
        through the filter.

        Args:
            releases: The cost of each release, and the number of releases.
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
        self._record([plan], releases)

    def allows(self, event: PrivacyEvent, count: int = 1) -> bool:
        """Return whether :meth:`charge` would accept this now, without charging it."""
        releases = ((event, check_releases("count", count)),)
        with LOCK:
            self._refresh()
            if self._book.admits(releases, self._part):
                return True
            if not self._book.has_budget(releases, self._part):
                return False
            if self._book.plan is not None and self._book.plan.committed:
                return False
        return self._fits_exactly(releases)

    def view(self) -> LedgerView:
        """Return everything charged so far, as a value that does not change."""
        with LOCK:
            self._refresh()
            return self._book.view(self._part)

    def verify(self, num_rows: int | None = None) -> LedgerView:
        """Read the ledger again from its first row, and check every digest.

        This finds rows that were changed, removed or reordered since they were written,
        or since this process read them. Somebody who rewrites the whole file, with all
        digests, is found by who knows an earlier digest: by a process that has the
        ledger open, and by a certificate (:meth:`Certificate.verify`).

        Args:
            num_rows: How many rows to return; by default all.

        Returns:
            The ledger as it was after these rows.

        Raises:
            LedgerError: If the ledger was changed, or has fewer rows.

        Example:
            >>> from botorch_dp.privacy import GaussianEvent
            >>> ledger = Ledger()
            >>> entry = ledger.charge(GaussianEvent(noise_multiplier=5.0))
            >>> ledger.verify().head.digest == ledger.digest
            True
        """
        with LOCK:
            self._refresh()
            known = self._book.head
            rows, _ = self._store.read_after(start(self._store.header))
        book = LedgerBook(self._store.header)
        if book.head.then(*rows[: known.number]) != known:
            raise LedgerError(
                f"The first {known.number} rows of the ledger are not those that this "
                "process has read: they were changed. The privacy spent is unknown."
            )
        num_rows = len(rows) if num_rows is None else num_rows
        if num_rows > len(rows):
            raise LedgerError(
                f"The ledger has {len(rows)} rows, and {num_rows} are expected: rows "
                "were removed. The privacy spent is unknown."
            )
        book.read(rows[:num_rows], book.head.then(*rows[:num_rows]))
        return book.view(self._part)

    def to_html(self) -> str:
        """Return a page that shows what was spent, on what, when, and what is left."""
        from botorch_dp.privacy.report import ledger_page

        return ledger_page(self)

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        from botorch_dp.privacy.report import ledger_card

        return ledger_card(self)

    def __reduce__(self) -> Any:
        if self.path is None:
            raise LedgerError(
                "A ledger in memory cannot be sent to another process, because charges "
                "there would not be seen here: give it a path."
            )
        return (_reopen, (self.path, self.id, *self._part))

    def __sklearn_clone__(self) -> "Ledger":
        return self  # clones of an estimator spend from the same budget

    def _fits_exactly(self, releases: Releases) -> bool:
        """Return whether a plan fits by exact accounting, if that may decide.

        Exact accounting takes seconds, so it runs outside the lock. It depends on the
        plan alone; the transaction checks again whether it may decide.
        """
        counter = self._book.counter
        if counter is None:
            return True
        with LOCK:
            self._refresh()
            if not counter.is_untouched or counter.admits(releases):
                return False
        return counter.fits_exactly(releases)

    def _of_first_charge(self, name: str) -> str | None:
        with LOCK:
            self._refresh()
            entries = self._book.entries
            return str(getattr(entries[0], name)) if entries else None

    def _refresh(self) -> None:
        """Read the rows that this process has not yet seen."""
        self._book.read(*self._store.read_after(self._book.head))

    def _record(
        self, items: Sequence[LedgerEntry | LedgerPlan], releases: Releases
    ) -> list[Item]:
        """Append charges or the plan of a reservation, or refuse all of it.

        Returns:
            What was appended: a plan or nothing, and then the charges.
        """
        try:
            return self._append(items, releases, exactly=False)
        except BudgetExceededError:
            if not self._fits_exactly(releases):
                raise
        return self._append(items, releases, exactly=True)

    def _append(
        self,
        items: Sequence[LedgerEntry | LedgerPlan],
        releases: Releases,
        *,
        exactly: bool,
    ) -> list[Item]:
        with LOCK:
            with self._store.transaction() as transaction:
                self._book.read(*transaction.read_after(self._book.head))
                admitted = self._book.admit(
                    items, releases, exactly=exactly, part=self._part
                )
                rows = [item.to_row() for item in admitted]
                head = transaction.append(rows, self._book.head)
            # The book follows the commit: a failed commit leaves no trace.
            self._book.add(admitted, head)
        return admitted


def _reopen(path: str, identity: str, partition: str = "", budget: str = "") -> Ledger:
    """Unpickle a ledger; never open another one, or a new one, in its place."""
    if not store_exists(path):
        raise LedgerError(f"The ledger {path} is not there any more.")
    ledger = Ledger(path)
    if ledger.id != identity:
        raise LedgerError(f"The ledger {path} was replaced by another one.")
    return ledger._with(Part(partition, budget))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
