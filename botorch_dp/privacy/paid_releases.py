"""Releases that are paid for before the first of them is drawn."""

import os
import threading
from typing import NoReturn

from botorch_dp._validation import check_count, check_instance
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError, LedgerError
from botorch_dp.privacy.accountant import Chargeable
from botorch_dp.privacy.entries import check_releases
from botorch_dp.privacy.events import PrivacyEvent
from botorch_dp.privacy.mechanisms import Mechanism


class PaidReleases:
    """Charges a ledger for a number of releases at once, and hands them out.

    A charge to a ledger in a file waits for the disk. In a stream of releases that all
    cost the same, one charge can pay for the next thousand of them. It is recorded in
    the ledger when this object exists, before anything is drawn. Pass the object to the
    mechanism in place of the ledger.

    Releases that are not used are lost: nothing is ever returned to the ledger, because
    after a crash nobody knows what was drawn. So the ledger and its certificates count
    all releases that were paid for.

    Args:
        ledger: The ledger, or the account of a run.
        mechanism: The mechanism that will draw the releases.
        num_releases: The number of releases to pay for.
        size: The number of values in one release.

    Raises:
        BudgetExceededError: If the cap does not allow so many; nothing is recorded.

    Example:
        >>> from botorch_dp.privacy import GDP, GaussianMechanism, Ledger
        >>> ledger = Ledger(cap=GDP(mu=1.0))
        >>> mechanism = GaussianMechanism(GDP(mu=0.01), sensitivity=1.0)
        >>> paid = PaidReleases(ledger, mechanism, num_releases=1000)
        >>> released = mechanism.release(torch.zeros(1), ledger=paid)
        >>> paid.num_left, len(ledger), ledger.entries[0].count
        (999, 1, 1000)
    """

    def __init__(
        self,
        ledger: Chargeable,
        mechanism: Mechanism,
        *,
        num_releases: int,
        size: int = 1,
    ) -> None:
        check_instance("mechanism", mechanism, Mechanism)
        count = check_releases("num_releases", num_releases)
        self._event = mechanism.event(check_count("size", size))
        self._labels = {
            "mechanism": mechanism.name,
            "adjacency": mechanism.adjacency,
            "noise": mechanism.noise_source.name,
            "unit": mechanism.unit,
        }
        self._pid, self._lock = os.getpid(), threading.Lock()
        ledger.charge(self._event, count=count, **self._labels)
        self._num_left = count

    @property
    def num_left(self) -> int:
        """The number of releases that were paid for and not yet handed out."""
        return self._num_left

    def charge(self, event: PrivacyEvent, *, count: int = 1, **labels: str) -> None:
        """Take ``count`` of the releases, or raise and take none.

        Args:
            event: The cost of one release.
            count: The number of releases.
            labels: The mechanism, adjacency, noise source and unit.

        Raises:
            BudgetExceededError: If fewer are left.
        """
        count = check_releases("count", count)
        if (event, labels) != (self._event, self._labels):
            raise InvalidArgumentError(
                f"event must be {self._event!r} with {self._labels!r}, for which these "
                f"releases were paid, got {event!r} with {labels!r}."
            )
        if self._pid != os.getpid():  # which would hand out the same releases again
            raise LedgerError(
                "These releases were paid for in another process, which draws them: "
                "pay for those of this process here."
            )
        with self._lock:
            if count > self._num_left:
                raise BudgetExceededError(
                    f"{count} release(s) asked for, but {self._num_left} are left of "
                    "those that were paid for. Nothing was drawn: pay for more."
                )
            self._num_left -= count

    def __reduce__(self) -> NoReturn:
        raise LedgerError(
            "Releases that were paid for cannot be copied or pickled, because they "
            "would be drawn twice."
        )
