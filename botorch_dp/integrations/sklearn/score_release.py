"""The release of a mean loss: charged to an account of its own, then drawn."""

import math
import uuid
from collections.abc import Mapping
from typing import Any

from torch import Generator, Tensor

from botorch_dp.privacy import (
    GaussianMechanism,
    Guarantee,
    LaplaceMechanism,
    Ledger,
    PrivacyEvent,
    PureDP,
)
from botorch_dp.privacy.account import RunAccount
from botorch_dp.privacy.budget import mean_sensitivity


class ScoreRelease:
    """Releases the mean loss of one model once.

    Noise is Laplace's under a ``PureDP`` and Gaussian otherwise.

    Args:
        guarantee: The guarantee of this release.
        ledger: The ledger to charge.
        loss_range: The range to which losses are clipped.
        num_records: The number n of private records, or of persons.
        adjacency: The neighbouring data sets.
        unit: Who is protected, and has one loss: ``"record"`` or ``"person"``.
        generator: A seeded generator for the noise, or None.
        secure: Whether to draw exact discrete noise.

    Attributes:
        account: The account that is charged.
        loss: The released mean loss; None until it is released.
    """

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        ledger: Ledger,
        loss_range: tuple[float, float],
        num_records: int,
        adjacency: str,
        unit: str = "record",
        generator: Generator | None,
        secure: bool = False,
    ) -> None:
        low, high = loss_range
        pure = isinstance(guarantee, PureDP)
        kind = LaplaceMechanism if pure else GaussianMechanism
        self._mechanism: LaplaceMechanism | GaussianMechanism = kind(
            guarantee,
            sensitivity=mean_sensitivity(high - low, num_records),
            adjacency=adjacency,
            generator=generator,
            secure=secure,
            unit=unit,
        )
        self._low, self._secure = low, secure
        self.account = RunAccount(
            ledger, f"score {uuid.uuid4().hex}", adjacency=adjacency, unit=unit
        )
        self.loss: float | None = None

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise."""
        if isinstance(self._mechanism, GaussianMechanism):
            return self._mechanism.noise_std
        return math.sqrt(2.0) * self._mechanism.scale

    @property
    def num_lost(self) -> int:
        """The number of releases that were paid for and never arrived, 0 or 1."""
        return self.account.num_charged if self.loss is None else 0

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the cost, unless it was paid."""
        if self.account.num_charged:
            return []
        return [(self._mechanism.event(1), 1)]

    def release(self, losses: Tensor) -> None:
        """Release the mean of the ``n x 1`` private losses of a model."""
        private_mean = (losses - self._low).mean(dim=0)
        released = self._mechanism.release(private_mean, ledger=self.account)
        self.loss = self._low + float(released)

    def state_dict(self) -> dict[str, Any]:
        """Return the public state."""
        return {**self.account.state_dict(), "loss": self.loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        plan, loss = self.planned_releases(), state["loss"]
        num_charged = self.account.check_state(state, plan, secure=self._secure)
        if loss is not None and (num_charged != 1 or not math.isfinite(loss)):
            raise ValueError(f"a score {loss!r} with {num_charged} charges")
        self.account.load_state_dict(state, plan)
        self.loss = loss
