"""The privacy spending of users who answer once each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from botorch_dp._deprecated import renamed_names
from botorch_dp._validation import check_choice, check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.certificate import Certificate
from botorch_dp.privacy.entries import NOISE_NAMES
from botorch_dp.privacy.events import (
    GaussianEvent,
    LaplaceEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
    check_event,
)
from botorch_dp.privacy.ledger import Ledger
from botorch_dp.privacy.noise import SystemNoise

# Orders the events of one kind by cost. The order is the same for every delta.
_COSTS: dict[type[PrivacyEvent], Callable[[Any], float]] = {
    GaussianEvent: lambda event: -event.noise_multiplier,
    LaplaceEvent: lambda event: -event.noise_multiplier,
    ZCDPEvent: lambda event: event.rho,
    PureEvent: lambda event: event.epsilon,
}


class UserAccount:
    """Accepts the charges of a stream of users, in constant memory.

    Every charge belongs to another user. Charges of different users do not compose, so
    the guarantee of the costliest answer holds for all users. The account keeps the
    costliest answer of each kind of noise, because no order of kinds is valid for every
    delta.

    Example:
        >>> from botorch_dp.privacy import GaussianEvent
        >>> spent = UserAccount()
        >>> for multiplier in (3.0, 2.0, 4.0):
        ...     spent.charge(GaussianEvent(noise_multiplier=multiplier))
        >>> spent.num_users, spent.certificate().guarantee
        (3, GDP(mu=0.5))
    """

    def __init__(self) -> None:
        self.num_users = 0
        self._worst: dict[type[PrivacyEvent], PrivacyEvent] = {}
        self._noise: set[str] = set()
        self._last: tuple[Any, ...] | None = None

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = SystemNoise.name,
        unit: str = "user",
    ) -> None:
        """Record an answer. ``count`` is the number of replications, not of users."""
        del count, mechanism
        check_choice("unit", unit, ("user",))
        if self._last != (event, adjacency, noise):  # usually the same as before
            check_event(event, check_choice("adjacency", adjacency, ("replace_one",)))
            check_choice("noise", noise, NOISE_NAMES)
            self._take(event)
            self._noise.add(noise)
            self._last = (event, adjacency, noise)
        self.num_users += 1

    def _take(self, event: PrivacyEvent) -> None:
        cost, worst = _COSTS[type(event)], self._worst.get(type(event))
        if worst is None or cost(worst) < cost(event):
            self._worst[type(event)] = event

    def certificate(
        self,
        *,
        deltas: Sequence[float] | None = None,
        assumptions: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Certificate:
        """Certify what is guaranteed to every user: the largest epsilon at each delta.

        Args:
            deltas: The values of delta at which to state epsilon; None for a few.
            assumptions: The assumptions of the guarantee.
            parameters: Public parameters to state.
        """
        certificates = []
        for event in self._worst.values() or [None]:
            ledger = Ledger()
            if event is not None:
                ledger.charge(event, unit="user")
            certificates.append(
                Certificate.from_ledger(
                    ledger,
                    unit="user",
                    deltas=deltas,
                    assumptions=assumptions,
                    parameters=parameters,
                )
            )
        return replace(
            Certificate.larger(certificates),
            num_releases=1,  # to each user
            noise=tuple(sorted(self._noise)),
        )

    def merge(self, other: "UserAccount") -> None:
        """Add what another account recorded about the same users."""
        for event in other._worst.values():
            self._take(event)
        self._noise |= other._noise
        self._last = None
        self.num_users = max(self.num_users, other.num_users)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, for :meth:`from_state_dict`."""
        return {
            "num_users": self.num_users,
            "worst": [event.to_dict() for event in self._worst.values()],
            "noise": sorted(self._noise),
        }

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any]) -> "UserAccount":
        """Return the account that :meth:`state_dict` described.

        Raises:
            InvalidArgumentError: If it is not such a state.
        """
        spent = cls()
        try:
            for state in state_dict["worst"]:
                event = PrivacyEvent.from_dict(state)
                check_event(event, "replace_one")
                spent._take(event)
            for name in state_dict["noise"]:
                spent._noise.add(check_choice("noise", name, NOISE_NAMES))
            num_users = state_dict["num_users"]
            spent.num_users = check_count("num_users", num_users, minimum=0)
            if len({bool(spent.num_users), bool(spent._worst), bool(spent._noise)}) > 1:
                raise ValueError(f"{num_users} users do not fit the other entries")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"state_dict is not a state of a UserAccount: {error!r}."
            ) from error
        return spent


if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"OneAnswerEach": "UserAccount"})
