"""What all release strategies have in common."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from torch import Tensor

from botorch_dp._deprecated import warn_deprecated
from botorch_dp._validation import check_count
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.optimizers.release.problem import ReleaseProblem
from botorch_dp.privacy import Guarantee, PrivacyEvent, SecureNoise
from botorch_dp.privacy.account import RunAccount
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.certificate import WORST_CASE


@dataclass(frozen=True)
class ReleasedCandidate:
    """What was released.

    Attributes:
        index: The index of the candidate, None if no candidate was released.
        value: The estimate of its loss, None if no value was released.
        details: Public quantities that go with it.
    """

    index: int | None
    value: float | None
    details: dict[str, Any] = field(default_factory=dict)

    def check(self, output: str, num_candidates: int) -> None:
        """Raise unless this can be the release of a run.

        Args:
            output: What the run releases: ``"both"``, ``"point"`` or ``"value"``.
            num_candidates: The number of candidates.
        """
        hidden = (self.index is None, self.value is None)
        if hidden != (output == "value", output == "point"):
            raise ValueError(f"another release than output={output!r}: {self!r}")
        index = 0 if self.index is None else check_count("index", self.index, minimum=0)
        if index >= num_candidates:
            raise ValueError(f"no candidate {index}")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a value {self.value!r}")
        if not isinstance(self.details, dict):
            raise ValueError(f"details {self.details!r}")


class ReleaseStrategy(ABC):
    """Chooses points, observes private losses, and releases something at the end.

    Args:
        problem: The public facts about the run.
        account: The account that is charged for every release.
    """

    # The guarantees that the strategy can meet, and how an error names them.
    guarantees: ClassVar[tuple[type[Guarantee], ...]] = ()
    needs: ClassVar[str] = ""
    # What can be released; the first is the default.
    outputs: ClassVar[tuple[str, ...]] = ("both", "point", "value")
    # What the certificate says about the guarantee.
    assumption: ClassVar[str] = WORST_CASE
    points_are_public: ClassVar[bool] = True
    # What the costs rest on, in words, if they do not hold in the worst case.
    condition: ClassVar[str | None] = None
    # Whether a step may have several points, which do not depend on each other.
    takes_batches: ClassVar[bool] = False
    # Whether a run starts at a given point, on a box the centre by default.
    has_start: ClassVar[bool] = False
    # Whether a state before the end contains everything that is needed to continue.
    can_resume: ClassVar[bool] = False

    def __init__(self, problem: ReleaseProblem, account: RunAccount) -> None:
        self.problem, self.account = problem, account
        self.details: dict[str, Any] = {}

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OptimizerStateError(
            "A strategy may hold private values, so it cannot be pickled or copied."
        )

    @classmethod
    def check_guarantee(cls, guarantee: Guarantee, secure: bool | SecureNoise) -> None:
        """Raise unless the strategy can meet the guarantee."""
        del secure
        check_guarantee("guarantee", guarantee, kind=cls.guarantees, expected=cls.needs)

    @classmethod
    def default_evaluations(
        cls, guarantee: Guarantee, output: str, num_records: int
    ) -> int | None:
        """Return how many points to evaluate by default, None if there is no rule."""
        del guarantee, output, num_records
        return None

    @staticmethod
    def failure(guarantee: Guarantee, output: str) -> float:
        """Return the probability that a bound fails although the condition holds."""
        return 0.0

    @abstractmethod
    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return all charges of the run, from public settings alone."""

    def last_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the charges of :meth:`finish`."""
        return self.plan()

    @abstractmethod
    def next(self, step: int) -> list[int]:
        """Return the indices of the candidates to evaluate after ``step`` steps."""

    @abstractmethod
    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Learn from losses, and return the noise of what was released about them.

        Args:
            indices: The indices of the candidates.
            private_losses: An ``n x b`` tensor of doubles, counted from the lower end
                of the range and clipped to its width.
        """

    @abstractmethod
    def finish(self) -> ReleasedCandidate:
        """Charge the account, draw noise, and return what is released."""

    def forget(self) -> None:  # noqa: B027
        """Drop all private values."""

    @property
    def is_spent(self) -> bool:
        """Whether the budget does not allow another step.

        For a single release at the end: whether any part of it was charged.
        """
        return self.account.num_known > 0

    def so_far(self) -> ReleasedCandidate | None:
        """Return the best of what was released before the end, if anything was."""
        return None

    def num_due(self, num_steps: int) -> int:
        """Return how many releases ``num_steps`` steps must have been charged for."""
        if num_steps < self.problem.num_steps:
            return 0
        return sum(count for _, count in self.plan())

    def warn_if_useless(self, *, stacklevel: int) -> None:
        """Warn, from public numbers, if the noise is larger than what it hides."""
        del stacklevel

    def state(self) -> dict[str, Any]:
        """Return the public state that is needed to continue."""
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

    def restore(self, state: dict[str, Any]) -> ReleasedCandidate | None:
        """Continue from a state; return what is released, if that ends the run."""
        del state
        return None


_RENAMED = {"Release": ReleaseStrategy, "Released": ReleasedCandidate}


def __getattr__(name: str) -> Any:
    """Return what an earlier name stands for, and warn."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_deprecated(f"{__name__}.{name}", _RENAMED[name].__name__)
    return _RENAMED[name]
