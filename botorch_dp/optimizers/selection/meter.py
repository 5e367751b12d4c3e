"""The meter of one run: it refuses what exceeds the cost of a run."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.privacy.entries import check_releases, costs_the_same
from botorch_dp.privacy.events import PrivacyEvent, check_event
from botorch_dp.privacy.noise import SeededNoise


class RunMeter:
    """Stands for the ledger inside one run of a selection.

    A selection pays for all its runs before the first one begins, under the condition
    that no run costs more than its base. Mechanisms inside a run charge the meter
    instead of the ledger. It accepts the releases of the base, in any order, each as
    often as the base contains it: an adaptive order costs no more than a fixed one, by
    induction over what is left. Several threads may charge one meter. It cannot be
    copied to another process, where charges would not be seen here.

    Args:
        base: What one run may release: pairs of an event and how many of them.
        adjacency: The neighbouring data sets for which the selection states its cost.
        unit: Who is protected.
        seeded: Whether seeded noise is accepted, which is for experiments only.

    Example:
        >>> from botorch_dp.privacy import GaussianEvent
        >>> meter = RunMeter([(GaussianEvent(4.0), 2)], adjacency="zero_out")
        >>> meter.charge(GaussianEvent(4.0), adjacency="zero_out")
        >>> meter.charge(GaussianEvent(2.0), adjacency="zero_out")
        Traceback (most recent call last):
        botorch_dp.exceptions.BudgetExceededError: ...
    """

    def __init__(
        self,
        base: Sequence[tuple[PrivacyEvent, int]],
        *,
        adjacency: str,
        unit: str = "record",
        seeded: bool = False,
    ) -> None:
        self._base, self._adjacency, self._unit = tuple(base), adjacency, unit
        self._seeded = seeded
        self._left: Counter[PrivacyEvent] = Counter()
        for event, count in self._base:
            self._left[event] += count
        self._lock = threading.Lock()
        self._is_used, self._is_closed = False, False

    @property
    def is_used(self) -> bool:
        """Whether anything was charged."""
        return self._is_used

    def close(self) -> None:
        """Refuse all further charges: the run has ended."""
        with self._lock:
            self._is_closed = True

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = "system",
        unit: str = "record",
    ) -> None:
        """Accept ``count`` releases of this run, or refuse them.

        Args:
            event: What one release costs.
            count: How many releases there are.
            mechanism: The name of the mechanism.
            adjacency: The neighbouring data sets for which the cost is stated.
            noise: The name of the noise source.
            unit: Who is protected.

        Raises:
            BudgetExceededError: If the rest of the base does not contain the releases,
                or the run has ended.
        """
        del mechanism
        check_event(event, adjacency)
        count = check_releases("count", count)
        if (adjacency, unit) != (self._adjacency, self._unit):
            raise InvalidArgumentError(
                f"adjacency and unit must be {self._adjacency!r} and {self._unit!r}, "
                f"as in the selection, got {adjacency!r} and {unit!r}: give the same "
                "ones to the mechanisms of a run."
            )
        if noise == SeededNoise.name and not self._seeded:
            raise InvalidArgumentError(
                "noise must not be seeded in a run of a selection that is not: draw "
                "it from the system, or give the selection a generator as well, for "
                "experiments only."
            )
        with self._lock:
            if self._is_closed:
                raise BudgetExceededError(
                    f"{count} x {event!r} was charged to a run that has ended. "
                    "Nothing was drawn: use the account inside train_and_score only."
                )
            planned = self._planned(event)
            if self._left[planned] < count:
                raise BudgetExceededError(
                    f"{count} x {event!r} is more than what is left of the base of "
                    f"this run, {self._base!r}. Nothing was drawn: put all releases of "
                    "a run into base."
                )
            self._left[planned] -= count
            self._is_used = True

    def _planned(self, event: PrivacyEvent) -> PrivacyEvent:
        """Return the event of the base that costs the same, or the event itself."""
        alike = (other for other in self._left if costs_the_same(other, event))
        return event if event in self._left else next(alike, event)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidArgumentError(
            "The account of a run cannot be pickled or copied, because charges to the "
            "copy would not be seen: charge it where train_and_score runs."
        )
