"""What every way to release has in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from botorch_dp.privacy import Guarantee, PrivacyEvent, SecureNoise
from botorch_dp.privacy.certificate import WORST_CASE

if TYPE_CHECKING:
    from botorch_dp.optimizers.release.private_bo import PrivateBO


@dataclass(frozen=True)
class Released:
    """What was released.

    Attributes:
        index: Which candidate, None if none.
        value: The estimate of its loss, None if none.
        details: Public quantities that go with it.
    """

    index: int | None
    value: float | None
    details: dict[str, Any] = field(default_factory=dict)


class Release(ABC):
    """Chooses points, sees private losses, and releases something in the end.

    Args:
        run: The optimizer, of which the public settings are read.
    """

    releases: ClassVar[tuple[str, ...]] = ("both", "point", "value")
    assumptions: ClassVar[tuple[str, ...]] = (WORST_CASE,)
    points_are_public: ClassVar[bool] = True
    # What the ledger says the release rests on, without a comma; "" for nothing.
    condition: ClassVar[str] = ""
    # Whether a state before the end holds all that is needed to go on.
    can_go_on: ClassVar[bool] = False

    def __init__(self, run: "PrivateBO") -> None:
        self.run = run
        self.details: dict[str, Any] = {}

    @staticmethod
    @abstractmethod
    def check_guarantee(guarantee: Guarantee, secure: bool | SecureNoise) -> Guarantee:
        """Return the guarantee if this release can meet it."""

    @abstractmethod
    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return what will be charged in all, from public settings alone."""

    @abstractmethod
    def next(self, step: int) -> list[int]:
        """Return which candidates to evaluate after so many steps."""

    @abstractmethod
    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Take losses in, and return the noise of what was released of them.

        Args:
            indices: Which candidates.
            private_losses: An ``n x b`` tensor of doubles, counted from the lower end
                of the range and clipped to its width.
        """

    @abstractmethod
    def finish(self) -> Released:
        """Charge, draw, release."""

    @property
    def is_spent(self) -> bool:
        """Whether the budget does not allow another step.

        Of a single release in the end, once anything of it has been charged.
        """
        return self.run.account.num_charged > 0

    def so_far(self) -> Released | None:
        """Return what can be said from what was released, before the end."""
        return None

    def num_due(self, num_steps: int) -> int:
        """Return how many charges so many steps must have made."""
        if num_steps < self.run.num_steps:
            return 0
        return sum(count for _, count in self.plan())

    def state(self) -> dict[str, Any]:
        """Return what is public and needed to go on."""
        return {}

    def check_state(self, state: dict[str, Any], num_charged: int) -> None:
        """Raise unless the state can be restored.

        Args:
            state: What :meth:`state` returned.
            num_charged: How many releases were charged by then.
        """
        del num_charged
        if set(state) != set(self.state()):
            raise ValueError(f"unexpected parts {sorted(state)}")

    def restore(self, state: dict[str, Any]) -> Released | None:
        """Go on from a state; return what is released, if that ends the run."""
        del state
        return None

    @property
    def noise(self) -> dict[str, Any]:
        """Where randomness comes from, as arguments of a mechanism."""
        return {"generator": self.run.generator, "secure": self.run.secure}

    @property
    def loss_width(self) -> float:
        """The width R of the range of losses."""
        low, high = self.run.loss_range
        return high - low

    def to_gain(self, loss: float | Tensor) -> Any:
        """Return a mean loss, above the lower end, as a gain with prior N(0, 1)."""
        return (self.loss_width / 2 - loss) / self.run.prior_std

    def to_loss(self, gain: float) -> float:
        """Return the mean loss of a gain, in the user's range."""
        return sum(self.run.loss_range) / 2 - self.run.prior_std * gain
