"""What every mechanism shares: a noise source, an adjacency, and how it charges."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from botorch_dp._validation import check_choice, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.entries import UNITS
from botorch_dp.privacy.events import ADJACENCIES, PrivacyEvent
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.ledger import Chargeable
from botorch_dp.privacy.noise import SecureNoise, make_noise_source


class Mechanism(ABC):
    """What all mechanisms share: a noise source, an adjacency, and how they charge.

    Args:
        adjacency: For which neighbouring data sets the sensitivity is stated:
            ``"replace_one"``, ``"zero_out"`` or ``"add_or_remove_one"``.
        generator: Seeds the noise: for experiments only.
        secure: True, or a :class:`SecureNoise`, for exact discrete noise.
        unit: Whose data neighbouring data sets differ in: ``"record"``, ``"user"`` or
            ``"agent"``.
    """

    name: ClassVar[str]

    def __init__(
        self,
        *,
        adjacency: str = "replace_one",
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        unit: str = "record",
    ) -> None:
        self.adjacency = check_choice("adjacency", adjacency, ADJACENCIES)
        self.unit = check_choice("unit", unit, UNITS)
        self.noise_source = make_noise_source(generator, secure)

    def _charge(
        self, ledger: Chargeable, event: PrivacyEvent, count: int, device: torch.device
    ) -> None:
        """Record the cost. The last step that may raise before noise is drawn."""
        if not callable(getattr(ledger, "charge", None)):
            raise InvalidArgumentError(
                f"ledger must be a Ledger or a PrivacyAccountant, got {ledger!r}."
            )
        self.noise_source.check_device(device)
        ledger.charge(
            event,
            count=count,
            mechanism=self.name,
            adjacency=self.adjacency,
            noise=self.noise_source.name,
            unit=self.unit,
        )


class CalibratedMechanism(Mechanism):
    """A mechanism whose noise follows from a guarantee and a sensitivity.

    Args:
        guarantee: What one release has to meet.
        sensitivity: How far apart neighbouring values can be.
        adjacency: For which neighbours the sensitivity is stated.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.
        unit: Whose data neighbouring data sets differ in: ``"record"``, ``"user"`` or
            ``"agent"``.
    """

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        sensitivity: float,
        adjacency: str = "replace_one",
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        unit: str = "record",
    ) -> None:
        super().__init__(
            adjacency=adjacency, generator=generator, secure=secure, unit=unit
        )
        self.sensitivity = check_positive("sensitivity", sensitivity)
        self.guarantee = check_guarantee("guarantee", guarantee)
        self._calibrate()

    @abstractmethod
    def _calibrate(self) -> None:
        """Set the size of the noise."""
