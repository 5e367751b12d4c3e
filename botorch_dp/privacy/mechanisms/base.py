"""The base of all mechanisms: a noise source, an adjacency, and one way to release."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.accountant import Chargeable
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.entries import UNITS
from botorch_dp.privacy.events import ADJACENCIES, PrivacyEvent
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.noise import SecureNoise, make_noise_source


class Mechanism(ABC):
    """The base class of all mechanisms.

    Subclasses implement :meth:`event`, ``_check`` and ``_draw``; :meth:`release` calls
    them in the only order that is private.

    Args:
        adjacency: The neighbouring data sets for which the sensitivity is stated:
            ``"replace_one"``, ``"zero_out"`` or ``"add_or_remove_one"``.
        generator: A seeded generator for the noise, for experiments only.
        secure: True, or a :class:`SecureNoise`, for exact discrete noise.
        unit: What neighbouring data sets differ in: one ``"record"``, ``"person"``,
            ``"user"`` or ``"agent"``.
    """

    name: ClassVar[str]
    # The number of trailing dimensions of one release. None: batch_dims decides.
    _release_dims: ClassVar[int | None] = None

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

    @final
    def release(
        self,
        private_value: Tensor | Iterable[Tensor],
        *,
        ledger: Chargeable,
        batch_dims: int | None = None,
    ) -> Tensor:
        """Charge the ledger, then draw and return what may be published.

        Args:
            private_value: The private tensor, of float32 or float64. The class says
                which shapes it takes.
            ledger: A ledger or an accountant, charged before any noise is drawn.
            batch_dims: The number of leading dimensions that index separate releases,
                each of which has the mechanism's sensitivity and is charged. By default
                zero where noise is added to a whole tensor, and otherwise all but the
                dimensions of one release.

        Returns:
            The release, on the device of ``private_value``.

        Raises:
            BudgetExceededError: If the cap of the ledger does not allow the release.
        """
        # Everything up to the charge may raise and looks at shapes, dtypes and devices
        # only. Nothing is drawn before the charge is recorded.
        value, example = self._check(private_value)
        count = self._num_releases(example.shape, batch_dims)
        event = self.event(example.numel() // count)
        self._charge(ledger, event, count, example.device)
        return self._draw(value)

    @abstractmethod
    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one release of ``size`` numbers."""

    @abstractmethod
    def _check(self, private_value: Any) -> tuple[Any, Tensor]:
        """Check the type, dtype and shape, never the values.

        Returns:
            What ``_draw`` takes, and a tensor that has its batch shape and device.
        """

    @abstractmethod
    def _draw(self, private_value: Any) -> Tensor:
        """Draw the release of what ``_check`` returned."""

    def _num_releases(self, shape: torch.Size, batch_dims: int | None) -> int:
        """Return the number of separate releases in a tensor of this shape."""
        most = len(shape) - (self._release_dims or 0)
        least = 0 if self._release_dims is None else most
        if batch_dims is None:
            batch_dims = least
        elif not least <= check_count("batch_dims", batch_dims, minimum=0) <= most:
            raise InvalidArgumentError(
                f"batch_dims must be at least {least} and at most {most} for a value "
                f"of shape {tuple(shape)}, got {batch_dims!r}."
            )
        return shape[:batch_dims].numel()

    def _charge(
        self, ledger: Chargeable, event: PrivacyEvent, count: int, device: torch.device
    ) -> None:
        """Record the cost. This is the last step that may raise before the draw."""
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
        guarantee: The guarantee that one release has to meet.
        sensitivity: The largest distance between neighbouring values.
        adjacency: The neighbouring data sets for which the sensitivity is stated.
        generator: A seeded generator for the noise, for experiments only.
        secure: Whether to draw exact discrete noise.
        unit: What neighbouring data sets differ in: one ``"record"``, ``"person"``,
            ``"user"`` or ``"agent"``.
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
