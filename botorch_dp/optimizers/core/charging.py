"""What optimizers share that spend a budget: a ledger, and which charges are theirs."""

import math
import uuid
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
    UnsupportedConversionError,
    WeakGuaranteeWarning,
)
from botorch_dp.optimizers.core.optimizer import PrivateOptimizer
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    GaussianMechanism,
    Guarantee,
    Ledger,
    LedgerEntry,
    PrivacyEvent,
    SecureNoise,
    SeededNoise,
)
from botorch_dp.privacy.certificate import WORST_CASE
from botorch_dp.privacy.entries import costs_the_same

ASSUMPTIONS = (
    WORST_CASE,
    "what is told of a record depends on that record and the point alone, not on other "
    "private records",
    "row i is the same record in every tell (record_ids= puts rows in order)",
    "all settings were chosen without the private data",
    "protects the records whose losses are told, not data that models were trained on",
)


class ChargingOptimizer(PrivateOptimizer):
    """An optimizer that charges a ledger.

    The releases of a run, and what each costs, follow from its public settings alone
    (:meth:`planned_releases`).

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number n of records.
        guarantee: What the whole run has to meet.
        num_steps: The number T of steps.
        transform: The search coordinates, see :class:`Coordinates`.
        ledger: What is charged; by default one with the guarantee as its cap.
    """

    adjacency: str = "replace_one"
    secure: bool | SecureNoise = False

    def __init__(
        self,
        *,
        bounds: Tensor,
        num_records: int,
        guarantee: Guarantee,
        num_steps: int,
        transform: str | Sequence[str],
        ledger: Ledger | None,
    ) -> None:
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            num_steps=num_steps,
            transform=transform,
        )
        if not isinstance(ledger, Ledger | None):
            raise InvalidArgumentError(
                f"ledger must be a botorch_dp.Ledger or None, got {ledger!r}."
            )
        self.guarantee = guarantee
        self._own_ledger = ledger is None
        self.ledger = Ledger(cap=guarantee) if ledger is None else ledger
        self._num_charged = 0
        # Under which names this run was charged, and with what: a state that is loaded
        # goes on under a new name, so that copies of it can be told apart.
        self._labels = [f"{self.name} {uuid.uuid4().hex}"]
        self._charges: list[dict[str, Any]] = []

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "guarantee": self.guarantee.to_dict()}

    def _to_certify(self) -> dict[str, Any]:
        """Return the settings that a reader of the certificate wants to see."""
        hidden = ("bounds", "kernel", "guarantee", "transform", "candidates")
        shown = {
            key: value for key, value in self.settings().items() if key not in hidden
        }
        return {**shown, "budget": repr(self.guarantee)}

    def _keep_ledger_at(self, path: str) -> None:
        if self.ledger.path is not None:
            return
        if not self._own_ledger or len(self.ledger):
            raise OptimizerStateError(
                "checkpoint needs a ledger that outlives the process: give the "
                "optimizer ledger=Ledger(path, cap=...), or start a new run."
            )
        self.ledger = Ledger(path, cap=self.ledger.cap)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "labels": self._labels, "charges": self._charges}

    @abstractmethod
    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, from public settings alone.

        Returns:
            Pairs of an event and how many releases of that cost the run makes.
        """

    def _left_of_plan(
        self, charges: list[dict[str, Any]]
    ) -> list[tuple[PrivacyEvent, int]]:
        """Return the releases of the plan that these charges do not pay for.

        Raises:
            ValueError: If one of the charges is not in the plan.
        """
        left = self.planned_releases()
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
                    f"{self.planned_releases()!r} for {self.adjacency!r}"
                )
        return [(planned, count) for planned, count in left if count]

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        spent = 0
        for charge in state["charges"]:
            event = PrivacyEvent.from_dict(charge["event"])
            entry = LedgerEntry(number=1, time="", **{**charge, "event": event})
            if entry.unit != "record":
                raise ValueError(f"a charge that protects every {entry.unit}")
            if (charge["noise"] == SecureNoise.name) != bool(self.secure):
                raise ValueError(
                    f"a charge with {charge['noise']} noise, where secure="
                    f"{bool(self.secure)}"
                )
            spent += entry.count
            if charge["run"] not in state["labels"]:
                raise ValueError(f"a charge of another run, {charge['run']!r}")
        self._left_of_plan(state["charges"])
        if not state["labels"] or not all(
            label.startswith(f"{self.name} ") for label in state["labels"]
        ):
            raise ValueError(f"labels {state['labels']!r}")
        if spent < self._num_due(len(state["history"])):
            raise ValueError(f"{len(state['history'])} steps, but only {spent} charges")

    def _num_due(self, num_steps: int) -> int:
        """Return how many charges so many steps must have made."""
        return num_steps

    def _settle(self, state: dict[str, Any]) -> None:
        """Make the charges of the state that the ledger does not have: all or none."""
        missing = _difference(state["charges"], _charges_of(self.ledger.entries))
        if not missing:
            return
        if self.ledger.adjacency not in (None, self.adjacency):
            raise OptimizerStateError(
                f"state_dict was charged for adjacency {self.adjacency!r}, the ledger "
                f"is for {self.ledger.adjacency!r}."
            )
        releases = [(PrivacyEvent.from_dict(c["event"]), c["count"]) for c in missing]
        try:
            # In a new ledger the whole plan, of which the state has made a part.
            whole = releases if len(self.ledger) else self.planned_releases()
            self.ledger.reserve(whole, adjacency=self.adjacency)
        except BudgetExceededError as error:
            raise BudgetExceededError(
                "What the state has spent does not fit under the ledger's cap "
                f"{self.ledger.cap!r}. Nothing was recorded, nothing loaded."
            ) from error
        for charge in missing:
            self.ledger.charge(
                PrivacyEvent.from_dict(charge["event"]),
                count=charge["count"],
                mechanism=charge["mechanism"],
                adjacency=charge["adjacency"],
                noise=charge["noise"],
                run=charge["run"],
                condition=charge["condition"],
            )

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._labels = [*state["labels"], *self._labels[-1:]]
        # Those that the state lacks, after a crash or a step back, are paid for, too.
        ours = [entry for entry in self.ledger.entries if entry.run in self._labels]
        self._charges = state["charges"]
        self._charges += _difference(_charges_of(ours), state["charges"])
        self._num_charged = sum(charge["count"] for charge in self._charges)

    def _skip_noise(self, mechanism: GaussianMechanism, size: int) -> None:
        """Let a seeded source not repeat the noise of charges made before."""
        if isinstance(mechanism.noise_source, SeededNoise):
            zeros = torch.zeros(size, dtype=torch.float64, device=self.bounds.device)
            for _ in range(self._num_charged):
                mechanism.noise_source.add_gaussian(zeros, mechanism.noise_std)


def check_affordable(
    ledger: Ledger, costs: Sequence[tuple[PrivacyEvent, int]], adjacency: str
) -> None:
    """Raise before hours of work, if the ledger would refuse in the end.

    Args:
        ledger: What is going to be charged.
        costs: Events, and how often.
        adjacency: For which neighbours they are stated.
    """
    if ledger.adjacency not in (None, adjacency):
        raise InvalidArgumentError(
            f"ledger must have charges for adjacency={adjacency!r}, got "
            f"{ledger.adjacency!r}: costs for different neighbours do not add up."
        )
    ledger.reserve(costs, adjacency=adjacency)


def warn_of_large_delta(
    guarantee: Guarantee, num_records: int, *, stacklevel: int = 3
) -> None:
    """Warn of a delta that the publication of a random record would meet.

    Args:
        guarantee: With the delta.
        num_records: The number n of records.
        stacklevel: Of the warning: 3 where a user's call calls this.
    """
    if isinstance(guarantee, ApproxDP) and guarantee.delta * num_records > 1:
        warnings.warn(
            f"{guarantee!r} has a delta above one over the number of records "
            f"({num_records}): to publish a record at random would meet it, too. "
            "Choose a delta far below; it comes after epsilon.",
            WeakGuaranteeWarning,
            stacklevel=stacklevel,
        )


def mean_sensitivity(width: float, num_records: int) -> float:
    """Return what one record can change of a mean of values in a range.

    That is width / n, and a share n 2^-44 of it for the rounding of a sum in double
    precision, whose order torch chooses. Measured on the CPU for a thousand to ten
    million records, along either dimension: at most n 2^-53. Not proven for any order.
    """
    return width / num_records * (1 + num_records * 2.0**-44)


def _charges_of(entries: Iterable[LedgerEntry]) -> list[dict[str, Any]]:
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


def _difference(
    charges: list[dict[str, Any]], known: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the charges that are not among the known ones, counts considered."""

    def key(charge: dict[str, Any]) -> str:
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


class RunLedger:
    """Charges a ledger in the name of a run, so that its charges can be found again.

    Args:
        run: Whose ledger.
    """

    def __init__(self, run: ChargingOptimizer) -> None:
        self._run = run

    def charge(self, event: PrivacyEvent, *, count: int = 1, **labels: str) -> Any:
        """Record the cost, or raise and record nothing."""
        entry = self._run.ledger.charge(
            event, count=count, run=self._run._labels[-1], **labels
        )
        # At once: a run interrupted before it draws has still paid.
        self._run._num_charged += count
        self._run._charges += _charges_of([entry])
        return entry


def share_of_a_step(
    guarantee: Guarantee,
    num_steps: int,
    *,
    sensitivity: float,
    size: int,
    secure: bool | SecureNoise,
) -> GDP:
    """Return the guarantee of each of T Gaussian releases that add up to the whole.

    Squares of mu add up, and so do the costs of discrete noise, of which one release of
    everything says how much is needed.

    Args:
        guarantee: The whole.
        num_steps: The number T of releases.
        sensitivity: Of each release.
        size: How many numbers each has.
        secure: As for the mechanism; a coarse grid costs a little more.
    """
    whole = GaussianMechanism(guarantee, sensitivity=1.0, secure=secure)
    share = intended = GDP(1.0 / (whole.noise_std * math.sqrt(num_steps)))
    for _ in range(8 if secure else 0):
        mechanism = GaussianMechanism(share, sensitivity=sensitivity, secure=secure)
        rho = mechanism.event(size).zcdp_rho
        assert rho is not None
        if rho <= intended.mu**2 / 2:
            break
        share = GDP(share.mu * intended.mu / math.sqrt(2 * rho) * (1 - 1e-9))
    return share


def check_gaussian(guarantee: Guarantee, secure: bool | SecureNoise) -> Guarantee:
    """Return the guarantee if releases with Gaussian noise can meet it."""
    if not isinstance(guarantee, Guarantee):
        raise InvalidArgumentError(
            f"guarantee must be a GDP, an ApproxDP or an RDP, got {guarantee!r}."
        )
    try:
        guarantee.to_gdp()
    except UnsupportedConversionError as error:
        raise InvalidArgumentError(
            f"guarantee must be one that Gaussian noise can meet: {error}"
        ) from error
    if secure and isinstance(guarantee, GDP):
        raise InvalidArgumentError(
            "guarantee must be an ApproxDP or an RDP with secure=True: discrete noise "
            f"is not proven to be Gaussian differentially private, got {guarantee!r}."
        )
    return guarantee
