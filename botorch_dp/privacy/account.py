"""The account of one run: its charges in a ledger that other runs may share."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.privacy.budget import check_affordable
from botorch_dp.privacy.entries import LedgerEntry, costs_the_same
from botorch_dp.privacy.events import AssumedEvent, PrivacyEvent
from botorch_dp.privacy.ledger import LOCK, Ledger
from botorch_dp.privacy.mechanisms import GaussianMechanism
from botorch_dp.privacy.noise import SecureNoise, SeededNoise

Plan = Sequence[tuple[PrivacyEvent, int]]
_Charge = dict[str, Any]


class RunAccount:
    """Charges a ledger for one run, and knows which of its entries are the run's.

    Pass it to a mechanism instead of the ledger. The spending of the run is always read
    from the entries of the ledger, so a run that is interrupted between a charge and
    its draw has still paid.

    Args:
        ledger: The ledger to charge.
        run: The unique identity of the run.
        adjacency: The neighbouring data sets for which the run states its costs.
        unit: Who is protected: ``"record"``, ``"person"``, ``"user"`` or ``"agent"``.
        condition: What the costs rest on, in words, if they do not hold in the worst
            case.
        failure: The probability that a bound fails although the condition holds. Each
            release is then charged as an :class:`AssumedEvent` with this delta.

    Attributes:
        runs: The identities under which the run was charged. A run that resumes from a
            state keeps the identities of the state and charges under its own, so copies
            of one state can be distinguished.

    Example:
        >>> from botorch_dp.privacy import GDP, GaussianMechanism, Ledger
        >>> account = RunAccount(Ledger(), "search 1")
        >>> mechanism = GaussianMechanism(GDP(mu=1.0), sensitivity=1.0)
        >>> released = mechanism.release(torch.zeros(3), ledger=account)
        >>> account.num_charged, account.entries[0].run
        (1, 'search 1')
    """

    def __init__(
        self,
        ledger: Ledger,
        run: str,
        *,
        adjacency: str = "replace_one",
        unit: str = "record",
        condition: str | None = None,
        failure: float = 0.0,
    ) -> None:
        self.runs = [run]
        self.ledger = ledger
        self.adjacency, self.unit = adjacency, unit
        self.condition, self.failure = condition, failure

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run charges."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        with LOCK:
            self._ledger = check_ledger("ledger", ledger)
            self._start_reading()

    def _start_reading(self) -> None:
        self._read = 0  # how many of the ledger's entries have been read
        self._own: dict[int, LedgerEntry] = {}  # by their numbers

    @property
    def run(self) -> str:
        """The identity under which charges are made now."""
        return self.runs[-1]

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The entries of the ledger that belong to this run."""
        with LOCK:  # another thread may ask whether the run is done
            new = self.ledger.entries_since(self._read)
            self._own |= {e.number: e for e in new if e.run in self.runs}
            # Last: if this is interrupted, the same entries are read once more.
            self._read += len(new)
            return tuple(self._own.values())

    @property
    def num_charged(self) -> int:
        """How many releases of this run the ledger was charged for."""
        return sum(entry.count for entry in self.entries)

    @property
    def num_known(self) -> int:
        """The same, without reading the ledger, which may fail.

        After a charge, use this one: nothing may fail once a release was paid for.
        """
        return sum(entry.count for entry in self._own.values())

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = "system",
        unit: str = "record",
    ) -> LedgerEntry:
        """Record the cost of ``count`` releases of this run, or refuse it.

        Args:
            event: What one release costs, before :meth:`cost`.
            count: How many releases there are.
            mechanism: The name of the mechanism.
            adjacency: The neighbouring data sets for which the cost is stated.
            noise: The name of the noise source.
            unit: Who is protected.

        Raises:
            InvalidArgumentError: If the mechanism protects others than the run says.
        """
        if (adjacency, unit) != (self.adjacency, self.unit):
            raise InvalidArgumentError(
                f"adjacency and unit must be {self.adjacency!r} and {self.unit!r}, as "
                f"in the account of the run, got {adjacency!r} and {unit!r}. Give the "
                "same ones to the mechanism. Nothing was recorded or drawn."
            )
        entry = self.ledger.charge(
            self.cost(event),
            count=count,
            mechanism=mechanism,
            adjacency=adjacency,
            noise=noise,
            unit=unit,
            run=self.run,
            condition=self.condition,
        )
        self._own[entry.number] = entry
        return entry

    def cost(self, event: PrivacyEvent) -> PrivacyEvent:
        """Return what a release costs, with the probability that its bound fails."""
        if not self.failure:
            return event
        if event.pure_epsilon is None:
            raise InvalidArgumentError(
                f"event must have a pure epsilon to be charged with failure="
                f"{self.failure}, got {event!r}."
            )
        return AssumedEvent(event.pure_epsilon, self.failure)

    def reserve(self, plan: Plan) -> None:
        """Raise unless the ledger can pay for a whole plan of fixed releases.

        Call it before the first evaluation, so that a long run is not refused at its
        end.

        Args:
            plan: Pairs of an event and how many releases have that cost.
        """
        check_affordable(
            self.ledger, plan, self.adjacency, unit=self.unit, run=self.run
        )

    def skip_noise(
        self, mechanism: GaussianMechanism, *, size: int, device: torch.device
    ) -> None:
        """Draw the noise of all charges so far from a seeded source, and discard it.

        A run that resumes from a state would otherwise draw the same noise again.

        Args:
            mechanism: The mechanism of the run.
            size: The number of values in one release.
            device: The device on which it draws.
        """
        if isinstance(mechanism.noise_source, SeededNoise):
            zeros = torch.zeros(size, dtype=torch.float64, device=device)
            for _ in range(self.num_charged):
                mechanism.noise_source.add_gaussian(zeros, mechanism.noise_std)

    def state_dict(self) -> dict[str, Any]:
        """Return the identities of the run and its charges, as plain values."""
        return {"runs": list(self.runs), "charges": _charges_of(self.entries)}

    def check_state(self, state: Mapping[str, Any], plan: Plan, *, secure: bool) -> int:
        """Return how many releases a state has paid for.

        Args:
            state: What :meth:`state_dict` returned.
            plan: The plan of this run, which must contain the charges of the state.
            secure: Whether this run draws secure noise.

        Raises:
            ValueError: If it is not a state of such a run.
        """
        num_charged, runs = 0, state["runs"]
        named = isinstance(runs, list) and all(isinstance(run, str) for run in runs)
        if not named or not runs:
            raise ValueError(f"runs {runs!r}")
        for charge in state["charges"]:
            entry = _entry_of(charge)
            if entry.unit != self.unit:
                raise ValueError(f"a charge that protects every {entry.unit}")
            if entry.condition != self.condition:
                raise ValueError(
                    f"a charge under another condition, {entry.condition!r}"
                )
            if (entry.noise == SecureNoise.name) != secure:
                raise ValueError(
                    f"a charge with {entry.noise} noise, but secure={secure}"
                )
            if entry.run not in runs:
                raise ValueError(f"a charge of another run, {entry.run!r}")
            num_charged += entry.count
        self.left_of(plan, state["charges"])
        return num_charged

    def left_of(
        self, plan: Plan, charges: Sequence[_Charge]
    ) -> list[tuple[PrivacyEvent, int]]:
        """Return the releases of a plan that these charges do not pay for.

        Raises:
            ValueError: If one of the charges is not in the plan.
        """
        left = list(plan)
        for charge in charges:
            event, count = PrivacyEvent.from_dict(charge["event"]), charge["count"]
            for index, (planned, available) in enumerate(left):
                if costs_the_same(planned, event):
                    paid = min(count, available)
                    left[index] = (planned, available - paid)
                    count -= paid
            if count or charge["adjacency"] != self.adjacency:
                raise ValueError(
                    f"a charge of {charge['count']} x {event!r} for "
                    f"{charge['adjacency']!r} is not in the plan of this run, "
                    f"{plan!r} for {self.adjacency!r}"
                )
        return [(planned, count) for planned, count in left if count]

    def load_state_dict(self, state: Mapping[str, Any], plan: Plan) -> None:
        """Resume from a checked state: charge what the ledger lacks, all or nothing.

        Args:
            state: A state that :meth:`check_state` accepted.
            plan: The plan of this run.

        Raises:
            BudgetExceededError: If what the state has spent does not fit under the
                ledger's cap; nothing was recorded.
        """
        missing = _difference(state["charges"], _charges_of(self.ledger.entries))
        if missing:
            self._charge_missing(missing, plan)
        with LOCK:
            self._start_reading()
            self.runs = [*state["runs"], self.run]
            _ = self.entries  # so that num_known knows them

    def _charge_missing(self, missing: list[_Charge], plan: Plan) -> None:
        if self.ledger.adjacency not in (None, self.adjacency):
            raise OptimizerStateError(
                f"state_dict was charged for adjacency {self.adjacency!r}, the ledger "
                f"is for {self.ledger.adjacency!r}."
            )
        try:
            if not len(self.ledger):
                # It accounts for the whole plan, of which the state has used a part.
                self.ledger.reserve(plan, adjacency=self.adjacency, unit=self.unit)
            self.ledger.record(_entry_of(charge) for charge in missing)
        except BudgetExceededError as error:
            raise BudgetExceededError(
                "What the state has spent does not fit under the ledger's cap "
                f"{self.ledger.cap!r}. Nothing was recorded, nothing loaded."
            ) from error


def check_ledger(name: str, value: Ledger | None, *, optional: bool = False) -> Any:
    """Return ``value`` if it is a ledger, or None where that is allowed."""
    if isinstance(value, Ledger) or (optional and value is None):
        return value
    raise InvalidArgumentError(
        f"{name} must be a botorch_dp.Ledger{' or None' if optional else ''}, got "
        f"{value!r}."
    )


def _charges_of(entries: Iterable[LedgerEntry]) -> list[_Charge]:
    return [
        {
            "event": entry.event.to_dict(),
            "count": entry.count,
            "mechanism": entry.mechanism,
            "adjacency": entry.adjacency,
            "noise": entry.noise,
            "unit": entry.unit,
            "run": entry.run,
            "condition": entry.condition,
        }
        for entry in entries
    ]


def _entry_of(charge: _Charge) -> LedgerEntry:
    event = PrivacyEvent.from_dict(charge["event"])
    return LedgerEntry(number=1, time="", **{**charge, "event": event})


def _difference(charges: list[_Charge], known: list[_Charge]) -> list[_Charge]:
    """Return the charges that are not among the known ones, with their counts."""

    def key(charge: _Charge) -> str:
        return repr(sorted((k, v) for k, v in charge.items() if k != "count"))

    counts: Counter[str] = Counter()
    for charge in known:
        counts[key(charge)] += charge["count"]
    missing = []
    for charge in charges:
        here = min(counts[key(charge)], charge["count"])
        counts[key(charge)] -= here
        if charge["count"] > here:
            missing.append({**charge, "count": charge["count"] - here})
    return missing
