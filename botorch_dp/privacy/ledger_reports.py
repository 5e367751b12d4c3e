"""What a ledger says about its charges: totals, a summary, and a page."""

from collections.abc import Callable

from botorch_dp.privacy.accountant import PrivacyAccountant
from botorch_dp.privacy.entries import LedgerEntry
from botorch_dp.privacy.guarantees import ApproxDP
from botorch_dp.privacy.ledger_book import LedgerBook
from botorch_dp.privacy.ledger_summary import accountant_of, spent_by_any, summarize
from botorch_dp.privacy.partitions import Part
from botorch_dp.privacy.stores.opening import Store

DEFAULT_DELTA = 1e-5


class LedgerReports:
    """What a ledger offers to whoever reads it."""

    _book: LedgerBook
    _part: Part
    _store: Store
    entries_since: Callable[[int], tuple[LedgerEntry, ...]]

    def accountant(self) -> PrivacyAccountant:
        """Return a new accountant that has composed every charge.

        That of a whole ledger with partitions composes the charges to all of them,
        which is more than any record has to pay for; :meth:`spent` is the most that one
        has.
        """
        return accountant_of(self.entries_since(0))

    def spent(self, delta: float | None = None) -> float:
        """Return the epsilon spent at ``delta`` (by default the cap's, or 1e-5).

        With partitions, it is that of a record of the partition that spent most.
        """
        return spent_by_any(self.entries_since(0), self._delta_or_default(delta)).amount

    def summary(self, delta: float | None = None) -> str:
        """Return what was spent, on what, when, and what is left, as text.

        Args:
            delta: The delta at which to report epsilon; by default the cap's, or 1e-5.
        """
        part = self._part._asdict()
        return summarize(
            self.entries_since(0),
            place=", ".join(
                [
                    str(self._store.path or "in memory"),
                    *(f"{name} {text!r}" for name, text in part.items() if text),
                ]
            ),
            delta=self._delta_or_default(delta),
            counter=self._book.counter,
            plan=self._book.plan,
            budgets=self._book.view(self._part).budgets,
        )

    @property
    def report_delta(self) -> float:
        """The delta at which reports state epsilon: the cap's, or 1e-5."""
        return self._delta_or_default(None)

    def __str__(self) -> str:
        return self.summary()

    def _delta_or_default(self, delta: float | None) -> float:
        if delta is not None:
            return delta
        cap = self._book.header.cap
        return cap.delta if isinstance(cap, ApproxDP) else DEFAULT_DELTA
