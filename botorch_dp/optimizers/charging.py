"""What optimizers share that spend a budget: a ledger, and which charges are theirs."""

import math
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp._checks import check_count
from botorch_dp.exceptions import (
    InvalidArgumentError,
    OptimizerStateError,
    UnsupportedConversionError,
)
from botorch_dp.optimizers.base import PrivateOptimizer
from botorch_dp.privacy import (
    GDP,
    GaussianMechanism,
    Guarantee,
    Ledger,
    PrivacyEvent,
    SecureNoise,
    SeededNoise,
)
from botorch_dp.privacy.certificate import WORST_CASE

ASSUMPTIONS = (
    WORST_CASE,
    "what is told of a record depends on that record and the point alone, not on other "
    "private records",
    "all settings were chosen without the private data",
    "protects the records whose losses are told, not data that models were trained on",
)


class ChargingOptimizer(PrivateOptimizer):
    """An optimizer that charges a ledger.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number n of records.
        guarantee: What the whole run has to meet.
        num_steps: The number T of steps.
        transform: The search coordinates, see :class:`Coordinates`.
        ledger: What is charged; by default one with the guarantee as its cap.
    """

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
        hidden = ("bounds", "kernel", "guarantee", "transform")
        shown = {
            key: value for key, value in self.settings().items() if key not in hidden
        }
        return {**shown, "budget": repr(self.guarantee)}

    def _keep_ledger_at(self, path: str) -> None:
        if self.ledger.path is not None:
            return
        if not self._own_ledger or self._num_charged:
            raise OptimizerStateError(
                "checkpoint needs a ledger that outlives the process: give the "
                "optimizer ledger=Ledger(path, cap=...), or start a new run."
            )
        self.ledger = Ledger(path, cap=self.ledger.cap)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "labels": self._labels, "charges": self._charges}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        spent = 0
        for charge in state["charges"]:
            PrivacyEvent.from_dict(charge["event"])
            spent += check_count("count", charge["count"])
        if spent < self._num_due(len(state["history"])):
            raise OptimizerStateError(
                f"state_dict has {len(state['history'])} steps, but only {spent} "
                "charges: it is not a state of a run."
            )
        if not state["labels"] or not all(
            isinstance(label, str) for label in state["labels"]
        ):
            raise OptimizerStateError("state_dict has no labels of its charges.")

    def _num_due(self, num_steps: int) -> int:
        """Return how many charges so many steps must have made."""
        return num_steps

    def _settle(self, state: dict[str, Any]) -> None:
        """Make the charges of the state that the ledger does not have."""
        known: Counter[str] = Counter()
        for entry in self.ledger.entries:
            known[_key({**vars(entry), "event": entry.event.to_dict()})] += entry.count
        for charge in state["charges"]:
            here = min(known[_key(charge)], charge["count"])
            known[_key(charge)] -= here
            if charge["count"] > here:
                self.ledger.charge(
                    PrivacyEvent.from_dict(charge["event"]),
                    count=charge["count"] - here,
                    mechanism=charge["mechanism"],
                    adjacency=charge["adjacency"],
                    noise=charge["noise"],
                )

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._labels = [*state["labels"], *self._labels[-1:]]
        self._charges = state["charges"]
        # Those that the state lacks, after a crash, count as paid for.
        self._num_charged = sum(
            entry.count
            for entry in self.ledger.entries
            if any(entry.mechanism.endswith(label) for label in self._labels)
        )

    def _skip_noise(self, mechanism: GaussianMechanism, size: int) -> None:
        """Let a seeded source not repeat the noise of charges made before."""
        if isinstance(mechanism.noise_source, SeededNoise):
            zeros = torch.zeros(size, dtype=torch.float64, device=self.bounds.device)
            for _ in range(self._num_charged):
                mechanism.noise_source.add_gaussian(zeros, mechanism.noise_std)


def _key(charge: Mapping[str, Any]) -> str:
    names = ("event", "mechanism", "adjacency", "noise")
    return repr([charge[name] for name in names])


class RunLedger:
    """Charges a ledger in the name of a run, so that its charges can be found again.

    Args:
        run: Whose ledger.
    """

    def __init__(self, run: ChargingOptimizer) -> None:
        self._run = run

    def charge(self, event: PrivacyEvent, *, count: int = 1, **labels: str) -> Any:
        """Record the cost, or raise and record nothing."""
        labels["mechanism"] = f"{labels['mechanism']}, {self._run._labels[-1]}"
        entry = self._run.ledger.charge(event, count=count, **labels)
        # At once: a run interrupted before it draws has still paid.
        self._run._num_charged += count
        self._run._charges.append({"event": event.to_dict(), "count": count, **labels})
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
