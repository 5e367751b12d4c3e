"""The accountant: composes any history of events into one guarantee.

It reports the smallest of several valid upper bounds, with the name of the accounting
that gave it: :mod:`botorch_dp.privacy.composition`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from opacus.accountants import IAccountant, create_accountant, register_accountant

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_instance,
    check_nonnegative,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedConversionError
from botorch_dp.privacy.composition import (
    delta_at,
    epsilon_bounds,
    spent_at,
    spent_of_budget,
)
from botorch_dp.privacy.events import (
    RDP_ORDERS,
    GaussianEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
    check_event,
)
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee
from botorch_dp.privacy.history import Groups, total_mu
from botorch_dp.privacy.spending import Spending, budget_limit

__all__ = ["Chargeable", "PrivacyAccountant", "Spending", "budget_limit"]

# A guarantee has a positive epsilon: that of nothing is this one.
_SMALLEST_EPSILON = 1e-12


class Chargeable(Protocol):
    """What a mechanism charges: a ledger, or an accountant without a ledger."""

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        mechanism: str = "",
        adjacency: str = "replace_one",
        noise: str = "system",
        unit: str = "record",
    ) -> Any:
        """Record the cost, or raise and record nothing."""


class PrivacyAccountant(IAccountant):
    """Composes privacy events; also an Opacus accountant named ``"botorch_dp"``.

    Opacus keeps its training steps in ``history``. Compose everything else with
    :meth:`compose`, or pass the accountant to a mechanism in place of a ledger. All
    events must be stated for one adjacency.

    Example:
        >>> from botorch_dp.privacy import GaussianEvent
        >>> accountant = PrivacyAccountant()
        >>> accountant.compose(GaussianEvent(noise_multiplier=5.0), count=25)
        >>> round(accountant.get_epsilon(delta=1e-5), 6)
        4.377178
        >>> accountant.spent(delta=1e-5).method
        'exact Gaussian composition'
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[float, float, int]] = []
        self._events: Counter[PrivacyEvent] = Counter()
        self._adjacency: str | None = None
        self._unit: str | None = None

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus knows this accountant."""
        return "botorch_dp"

    @classmethod
    def from_opacus(cls, accountant: IAccountant) -> "PrivacyAccountant":
        """Return an accountant with the training steps of one of Opacus's.

        Args:
            accountant: An accountant of Opacus of any kind, such as that of a
                ``PrivacyEngine``.

        Example:
            >>> from opacus.accountants import RDPAccountant
            >>> theirs = RDPAccountant()
            >>> theirs.history = [(1.0, 0.01, 1000)]
            >>> ours = PrivacyAccountant.from_opacus(theirs)
            >>> round(theirs.get_epsilon(1e-5), 2), round(ours.get_epsilon(1e-5), 2)
            (2.1, 1.83)
        """
        check_instance("accountant", accountant, IAccountant)
        other = cls()
        other.history = [(*step,) for step in accountant.history]
        other.groups()  # checks the history
        return other

    def to_opacus(self, mechanism: str = "prv") -> IAccountant:
        """Return one of Opacus's accountants with everything composed so far.

        Args:
            mechanism: The name of the accountant in Opacus: ``"prv"`` or ``"rdp"``.

        Raises:
            UnsupportedConversionError: For ``"gdp"``, which approximates and knows the
                last kind of release only, and so reports less than was spent. Also if
                there are releases other than Gaussian ones, of all records or of
                Poisson samples, or if they are stated for the adjacency
                ``"replace_one"``. Opacus knows no others.

        Example:
            >>> from botorch_dp.privacy import PoissonGaussianEvent
            >>> accountant = PrivacyAccountant()
            >>> accountant.compose(PoissonGaussianEvent(1.0, 0.01), count=1000)
            >>> accountant.to_opacus("rdp").history
            [(1.0, 0.01, 1000)]
        """
        if mechanism == "gdp":
            raise UnsupportedConversionError(
                "Opacus's 'gdp' accountant reports less than what was spent. Use 'prv' "
                "or 'rdp'."
            )
        if self._adjacency == "replace_one":
            raise UnsupportedConversionError(
                "These releases are stated for adjacency='replace_one', but those of "
                "Opacus for data sets of which one lacks a record."
            )
        history = list(self.history)
        for event, count in self._events.items():
            if not isinstance(event, GaussianEvent | PoissonGaussianEvent):
                raise UnsupportedConversionError(
                    f"Opacus cannot compose {event!r}, only Gaussian releases of all "
                    "records or of Poisson samples."
                )
            rate = getattr(event, "sampling_rate", 1.0)
            history.append((event.noise_multiplier, rate, count))
        accountant = create_accountant(mechanism)
        accountant.history = history
        return accountant

    def __len__(self) -> int:
        """Return the number of releases composed so far."""
        return sum(count for _, count in self.groups())

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Compose one optimization step of Opacus (a Poisson-sampled Gaussian)."""
        event = PoissonGaussianEvent(noise_multiplier, sample_rate)  # checks first
        if self._adjacency == "replace_one":
            raise InvalidArgumentError(
                "noise_multiplier and sample_rate describe a step for data sets of "
                "which one lacks a record, but earlier releases are stated for "
                "adjacency='replace_one'."
            )
        step = (event.noise_multiplier, event.sampling_rate)
        if self.history and tuple(self.history[-1][:2]) == step:
            self.history[-1] = (*step, self.history[-1][2] + 1)
        else:
            self.history.append((*step, 1))

    def compose(self, event: PrivacyEvent, count: int = 1) -> None:
        """Compose ``count`` releases that each cost ``event``."""
        check_instance("event", event, PrivacyEvent)
        self._events[event] += check_count("count", count)

    def charge(
        self,
        event: PrivacyEvent,
        *,
        count: int = 1,
        adjacency: str = "replace_one",
        unit: str = "record",
        **labels: str,
    ) -> None:
        """Compose the cost as :meth:`Ledger.charge` does; other labels are ignored.

        Raises:
            InvalidArgumentError: If earlier charges, or Opacus's steps (in which a
                record is absent on one side), are stated for another adjacency or unit.
        """
        del labels
        check_event(event, adjacency)
        possible = PoissonGaussianEvent.adjacencies if self.history else (adjacency,)
        if self._adjacency is not None:
            possible = (self._adjacency,)
        if adjacency not in possible:
            raise InvalidArgumentError(
                f"adjacency must be {' or '.join(map(repr, possible))}, as in earlier "
                f"releases, got {adjacency!r}: guarantees for different adjacencies "
                "do not compose."
            )
        units = ("record",) if self.history else (unit,)
        check_choice("unit", unit, units if self._unit is None else (self._unit,))
        self.compose(event, count)
        self._adjacency, self._unit = adjacency, unit

    def groups(self) -> Groups:
        """Return each distinct event with its multiplicity."""
        groups = Counter(self._events)
        for noise_multiplier, sample_rate, steps in self.history:
            event = PoissonGaussianEvent(noise_multiplier, sample_rate)
            groups[event] += check_count("steps", steps)
        return frozenset(groups.items())

    def plus(self, event: PrivacyEvent, count: int = 1) -> "PrivacyAccountant":
        """Return a copy of this accountant that has also composed ``event``."""
        other = PrivacyAccountant()
        other.history = list(self.history)
        other._events = Counter(self._events)
        other.compose(event, count)
        return other

    def spent(self, delta: float) -> Spending:
        """Return the smallest known epsilon at ``delta``, and its accounting."""
        return spent_at(self.groups(), check_probability("delta", delta))

    def get_epsilon(self, delta: float) -> float:
        """Return the smallest known epsilon at ``delta``."""
        return self.spent(delta).amount

    def get_delta(self, epsilon: float) -> float:
        """Return the smallest known delta at ``epsilon``."""
        return delta_at(self.groups(), check_nonnegative("epsilon", epsilon))

    def to_gdp(self) -> GDP | None:
        """Return the exact total of an all-Gaussian history, otherwise None."""
        groups = self.groups()
        mu = total_mu(groups)
        return GDP(mu) if mu is not None and groups else None

    def to_rdp(self, orders: Iterable[float] | None = None) -> tuple[RDP, ...]:
        """Return the Renyi curve of everything composed so far.

        Divergences add up at every order, also for releases whose noise was chosen
        after seeing earlier ones.

        Args:
            orders: The orders, each above 1. By default many from 2 to 1024.

        Returns:
            A Renyi guarantee for each order.

        Raises:
            UnsupportedConversionError: If some releases have no Renyi bound at an
                order. Releases that can fail, with their own delta, have none.

        Example:
            >>> from botorch_dp.privacy import GaussianEvent, LaplaceEvent
            >>> accountant = PrivacyAccountant()
            >>> accountant.compose(GaussianEvent(noise_multiplier=5.0), count=25)
            >>> accountant.compose(LaplaceEvent(noise_multiplier=10.0))
            >>> for guarantee in accountant.to_rdp([2.0, 8.0]):
            ...     print(guarantee)
            RDP(order=2, epsilon=1.009644)
            RDP(order=8, epsilon=4.035677)
        """
        chosen = RDP_ORDERS.tolist() if orders is None else orders
        return tuple(self._rdp(RDP(order, _SMALLEST_EPSILON)) for order in chosen)

    def _rdp(self, least: RDP) -> RDP:
        """Return the guarantee at the order of ``least``, which is met by nothing."""
        total = 0.0
        for event, count in self.groups():
            cost = event.rdp_at(least.order)
            if math.isinf(cost):
                raise UnsupportedConversionError(
                    f"{event!r} has no bound on its Renyi divergence of order "
                    f"{least.order:g}. Use get_epsilon or get_delta."
                )
            total += count * cost
        return RDP(least.order, max(total, least.epsilon))

    def spent_of(self, budget: Guarantee) -> Spending:
        """Return what was spent in the unit of ``budget``."""
        return spent_of_budget(self.groups(), budget)

    def within(self, budget: Guarantee) -> bool:
        """Return whether everything composed so far, as a fixed plan, meets ``budget``.

        For releases whose noise was chosen after seeing earlier ones, use a ledger.
        """
        groups = self.groups()
        if isinstance(budget, ApproxDP):  # from cheap to expensive, until one fits
            bounds = epsilon_bounds(groups, budget.delta)
            return any(bound.within(budget.epsilon) for bound in bounds)
        return spent_of_budget(groups, budget).within(budget_limit(budget))

    def state_dict(self, destination: Any = None) -> Any:
        """Return the state: Opacus's history and all other events."""
        destination = super().state_dict(destination)
        destination["adjacency"] = self._adjacency
        destination["unit"] = self._unit
        destination["events"] = [
            {"event": event.to_dict(), "count": count}
            for event, count in self._events.items()
        ]
        return destination

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace the state by a saved one after checking all of it."""
        other = PrivacyAccountant()
        super(PrivacyAccountant, other).load_state_dict(state_dict)
        other.history = list(other.history)
        for state in state_dict.get("events", ()):
            # Until 0.1.0 the fields of the event stood beside its count.
            flat = {key: value for key, value in state.items() if key != "count"}
            event = PrivacyEvent.from_dict(state.get("event", flat))
            other.compose(event, state.get("count"))
        other.groups()  # checks the history
        self.history, self._events = other.history, other._events
        self._adjacency = state_dict.get("adjacency")
        self._unit = state_dict.get("unit")


register_accountant(PrivacyAccountant.mechanism(), PrivacyAccountant, force=True)
