"""The cost of one release, as accountants see it, and the checks of its numbers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_instance,
    check_positive,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import curves
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.loss_distributions import PLD, RDP_ORDERS

ADJACENCIES = ("replace_one", "zero_out", "add_or_remove_one")
# Costs outside this range cannot be computed with.
_RANGE = (1e-10, 1e10)
# The events of this package, by name.
_KINDS: dict[str, type["PrivacyEvent"]] = {}


@dataclass(frozen=True)
class PrivacyEvent:
    """The cost of one release.

    Every view is an upper bound on the same privacy loss; None (or infinity) means
    that this kind of event has no such bound.

    Attributes:
        adjacencies: The neighbouring data sets for which such a cost can be stated.
    """

    adjacencies: ClassVar[tuple[str, ...]] = ADJACENCIES

    def __init_subclass__(cls) -> None:
        """Remember the public events of this package; other processes know no more."""
        is_ours = cls.__module__.rpartition(".")[0] == __name__.rpartition(".")[0]
        if is_ours and cls.__name__[0] != "_":
            _KINDS[cls.__name__] = cls

    def __post_init__(self) -> None:
        for name, value in tuple(vars(self).items()):
            checked = _check_field(name, value)
            if checked is not value:
                object.__setattr__(self, name, checked)

    @property
    def gdp_mu(self) -> float | None:
        """The mu of the Gaussian pair, if the event is exactly that pair."""
        return None

    @property
    def zcdp_rho(self) -> float | None:
        """A zero-concentrated bound."""
        if self.pure_epsilon is None:
            return None
        return curves.pure_zcdp_rho(self.pure_epsilon)

    @property
    def pure_epsilon(self) -> float | None:
        """A pure bound."""
        return None

    @property
    def approx(self) -> tuple[float, float] | None:
        """An (epsilon, delta) bound that needs no accounting."""
        return None if self.pure_epsilon is None else (self.pure_epsilon, 0.0)

    @property
    def mu_bound(self) -> float:
        """A mu such that the event is mu-GDP; infinity if none is known."""
        bound = math.inf if self.gdp_mu is None else self.gdp_mu
        if self.pure_epsilon is not None:
            bound = min(bound, curves.pure_gdp_mu(self.pure_epsilon))
        return bound

    def rdp_at(self, order: float) -> float:
        """Return a bound on the Renyi divergence at any ``order`` above 1."""
        bound = math.inf if self.zcdp_rho is None else order * self.zcdp_rho
        if self.pure_epsilon is not None:
            bound = min(bound, curves.pure_rdp(self.pure_epsilon, order))
        return bound

    def epsilon_at(self, delta: float) -> float | None:
        """Return the epsilon of one release at ``delta``, if it has a closed form."""
        del delta
        return None

    def bounds_at(self, delta: float) -> Iterator[tuple[float, str]]:
        """Yield bounds on the epsilon of one release, with the names of their proofs.

        Cheap ones come first. If there are any, the last one is the smallest known.
        """
        epsilon = self.epsilon_at(delta)
        if epsilon is not None:
            yield epsilon, "closed form of one release"

    def delta_at(self, epsilon: float) -> float | None:
        """Return the delta of one release at ``epsilon``, if it has a closed form."""
        del epsilon
        return None

    def rdp(self) -> FloatArray:
        """Return bounds on the Renyi divergences at ``RDP_ORDERS``."""
        return np.array([self.rdp_at(order) for order in RDP_ORDERS])

    def pld(self, interval: float) -> PLD | None:
        """Return a privacy loss distribution on a grid, rounded up."""
        del interval
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain numbers, for JSON."""
        return {"type": type(self).__name__, **vars(self)}

    @staticmethod
    def from_dict(state: dict[str, Any]) -> "PrivacyEvent":
        """Return the event that ``to_dict`` described."""
        values = dict(state)
        kind = _KINDS.get(values.pop("type", ""))
        if kind is None or values.keys() != set(kind.__match_args__):
            raise InvalidArgumentError(
                f"state must describe one of {', '.join(_KINDS)}, got {state!r}."
            )
        return kind(**values)


def check_event(event: PrivacyEvent, adjacency: str) -> None:
    """Raise unless the event is one, and can be stated for this adjacency."""
    check_instance("event", event, PrivacyEvent)
    check_choice("adjacency", adjacency, ADJACENCIES)
    if adjacency not in event.adjacencies:
        raise InvalidArgumentError(
            f"adjacency must be one of {', '.join(map(repr, event.adjacencies))} for "
            f"{event!r}, got {adjacency!r}."
        )


def _check_field(name: str, value: Any) -> Any:
    """Return the number in a field of an event, by the name of the field."""
    if name == "delta":
        return check_probability(name, value)
    if name in ("sample_size", "num_records"):
        return check_count(name, value)
    if name == "sampling_rate":
        value = check_positive(name, value)
        if value > 1:
            raise InvalidArgumentError(f"{name} must be at most 1, got {value!r}.")
    elif name in ("noise_multiplier", "epsilon", "rho"):
        value = check_positive(name, value)
        low, high = _RANGE
        if not low <= value <= high:
            raise InvalidArgumentError(
                f"{name} must lie between {low:g} and {high:g}, got {value!r}: no cost "
                "beyond these can be computed."
            )
    return value
