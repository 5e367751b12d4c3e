"""What optimizers share that spend a budget: a ledger, and which charges are theirs."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
        self.guarantee = guarantee
        self._own_ledger = ledger is None
        self.ledger = Ledger(cap=guarantee) if ledger is None else ledger
        self._num_charged = 0

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

    @property
    def _label(self) -> str:
        return f"{self.name} {self.run_id}"

    def _keep_ledger_at(self, path: str) -> None:
        if self.ledger.path is not None:
            return
        if not self._own_ledger or self._num_charged:
            raise OptimizerStateError(
                "checkpoint needs a ledger that outlives the process: give the "
                "optimizer ledger=Ledger(path, cap=...), or start a new run."
            )
        self.ledger = Ledger(path, cap=self.ledger.cap)

    def _recharge(
        self, num_charged: int, mechanism: GaussianMechanism, size: int
    ) -> None:
        """Bring ledger and state to the larger of what either says was charged.

        Args:
            num_charged: What the state says.
            mechanism: What charged it.
            size: How many numbers each release has.
        """
        self._num_charged = sum(
            entry.count
            for entry in self.ledger.entries
            if entry.mechanism.endswith(self._label)
        )
        if num_charged > self._num_charged:
            RunLedger(self).charge(
                mechanism.event(size),
                count=num_charged - self._num_charged,
                mechanism=mechanism.name,
                adjacency=mechanism.adjacency,
                noise=mechanism.noise_source.name,
            )
        if isinstance(mechanism.noise_source, SeededNoise):
            # It starts over, and the noise of steps taken must not come again.
            zeros = torch.zeros(size, dtype=torch.float64, device=self.bounds.device)
            for _ in range(self._num_charged):
                mechanism.noise_source.add_gaussian(zeros, mechanism.noise_std)


class RunLedger:
    """Charges a ledger in the name of a run, so that its charges can be found again.

    Args:
        run: Whose ledger.
    """

    def __init__(self, run: ChargingOptimizer) -> None:
        self._run = run

    def charge(self, event: PrivacyEvent, *, count: int = 1, **labels: str) -> Any:
        """Record the cost, or raise and record nothing."""
        labels["mechanism"] = f"{labels.get('mechanism', '')}, {self._run._label}"
        entry = self._run.ledger.charge(event, count=count, **labels)
        # At once: a run interrupted before it draws has still paid.
        self._run._num_charged += count
        return entry


def share_of_a_step(
    guarantee: Guarantee, num_steps: int, secure: bool | SecureNoise
) -> GDP:
    """Return the guarantee of each of T Gaussian releases that add up to the whole.

    Squares of mu add up, and so do the costs of discrete noise, of which one release of
    everything says how much is needed.
    """
    whole = GaussianMechanism(guarantee, sensitivity=1.0, secure=secure)
    return GDP(1.0 / (whole.noise_std * math.sqrt(num_steps)))


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
