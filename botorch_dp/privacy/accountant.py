r"""The accountant: composes any history of events into one guarantee.

Histories of Gaussian releases compose exactly: mu^2 adds up. For the rest the smallest
of several valid upper bounds is reported, with its name: adding up pure epsilons,
zero-concentrated privacy, Renyi privacy at many orders, and dp-accounting's privacy
loss distributions (PLD), rounded up. Central-limit approximations such as that of
Opacus's ``gdp`` accountant are not upper bounds under sampling and never reported.

References:
    .. [Koskela2020computing] A. Koskela, J. Jalko and A. Honkela. Computing Tight
        Differential Privacy Guarantees Using FFT. AISTATS 2020.
    .. [Doroshenko2022connect] V. Doroshenko, B. Ghazi, P. Kamath, R. Kumar and
        P. Manurangsi. Connect the Dots: Tighter Discrete Approximations of Privacy
        Loss Distributions. PoPETs 2022.
    .. [Kairouz2015composition] P. Kairouz, S. Oh and P. Viswanath. The Composition
        Theorem for Differential Privacy. ICML 2015.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from opacus.accountants import IAccountant, register_accountant

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_nonnegative,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import curves
from botorch_dp.privacy.events import (
    PLD,
    RDP_ORDERS,
    AssumedEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
    PureEvent,
    check_event,
)
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee, PureDP

_Groups: TypeAlias = frozenset[tuple[PrivacyEvent, int]]

# Sums of squares that should reach a cap exactly pass it by a few units in the last
# place; a cap counts as passed beyond this relative excess.
_ROUNDING = 1e-9
# Deltas that should add up to that of a cap pass it by a few units in the last place.
_DELTA_ROUNDING = 1e-12
# The grid of a PLD is a fixed fraction of the epsilon it will report: at 1/10,000 a
# thousand compositions are good to four digits, in well under a second; the usual grid
# of 1e-4 for every epsilon takes half a minute at epsilon = 278.
_PLD_POINTS = 10_000
_TYPICAL_DELTA = 1e-6
# Each different event costs a convolution: beyond this many, Renyi orders only.
_MOST_PLD_GROUPS = 64


@dataclass(frozen=True)
class Spending:
    """How much was spent, in the unit of the budget it is compared with.

    Attributes:
        amount: The amount, an upper bound; infinite if this unit cannot express it.
        unit: ``"epsilon"``, ``"mu"`` or ``"Renyi epsilon"``.
        method: The accounting that gave the bound.
    """

    amount: float
    unit: str
    method: str

    def within(self, limit: float) -> bool:
        """Return whether the amount stays within ``limit``, but for rounding."""
        return self.amount <= limit * (1 + _ROUNDING)

    def left(self, limit: float) -> float:
        """Return how much more fits under ``limit``; of mu, the squares add up."""
        if self.unit == "mu":
            return math.sqrt(max(0.0, limit**2 - self.amount**2))
        return max(0.0, limit - self.amount)


class PrivacyAccountant(IAccountant):
    """Composes privacy events; also an Opacus accountant named ``"botorch_dp"``.

    Opacus keeps its own training steps in ``history``; everything else is composed with
    :meth:`compose`, or by handing the accountant to a mechanism in place of a ledger.
    All events must be stated for one adjacency.

    Example:
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

    def __len__(self) -> int:
        """Return how many releases were composed."""
        return sum(count for _, count in self.groups())

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Compose one optimization step of Opacus (a Poisson-sampled Gaussian)."""
        event = PoissonGaussianEvent(noise_multiplier, sample_rate)  # checks first
        if self._adjacency == "replace_one":
            raise InvalidArgumentError(
                "noise_multiplier and sample_rate describe a step for neighbours of "
                "which one lacks a record, but the releases before are stated for "
                "adjacency='replace_one'."
            )
        step = (event.noise_multiplier, event.sampling_rate)
        if self.history and tuple(self.history[-1][:2]) == step:
            self.history[-1] = (*step, self.history[-1][2] + 1)
        else:
            self.history.append((*step, 1))

    def compose(self, event: PrivacyEvent, count: int = 1) -> None:
        """Compose ``count`` releases that each cost ``event``."""
        if not isinstance(event, PrivacyEvent):
            raise InvalidArgumentError(f"event must be a PrivacyEvent, got {event!r}.")
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
        """Compose, as :meth:`Ledger.charge` does; other labels are not kept.

        Raises:
            InvalidArgumentError: If the charges before, or Opacus's steps (in which a
                record is absent on one side), are stated for another adjacency or unit.
        """
        del labels
        check_event(event, adjacency)
        possible = PoissonGaussianEvent.adjacencies if self.history else (adjacency,)
        if self._adjacency is not None:
            possible = (self._adjacency,)
        if adjacency not in possible:
            raise InvalidArgumentError(
                f"adjacency must be {' or '.join(map(repr, possible))}, as of the "
                f"releases before, got {adjacency!r}: guarantees for different "
                "neighbours do not compose."
            )
        units = ("record",) if self.history else (unit,)
        check_choice("unit", unit, units if self._unit is None else (self._unit,))
        self.compose(event, count)
        self._adjacency, self._unit = adjacency, unit

    def groups(self) -> _Groups:
        """Return every different event with its multiplicity."""
        groups = Counter(self._events)
        for noise_multiplier, sample_rate, steps in self.history:
            event = PoissonGaussianEvent(noise_multiplier, sample_rate)
            groups[event] += check_count("steps", steps)
        return frozenset(groups.items())

    def plus(self, event: PrivacyEvent, count: int = 1) -> "PrivacyAccountant":
        """Return a new accountant that has composed ``event`` as well."""
        other = PrivacyAccountant()
        other.history = list(self.history)
        other._events = Counter(self._events)
        other.compose(event, count)
        return other

    def spent(self, delta: float) -> Spending:
        """Return the smallest epsilon known at ``delta``, and how it is known."""
        return _spent(self.groups(), check_probability("delta", delta))

    def get_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon known at ``delta``."""
        return self.spent(delta).amount

    def get_delta(self, epsilon: float) -> float:
        """Return the smallest delta known at ``epsilon``."""
        return _delta(self.groups(), check_nonnegative("epsilon", epsilon))

    def to_gdp(self) -> GDP | None:
        """Return the exact total of an all-Gaussian history, else None."""
        groups = self.groups()
        mu = _total_mu(groups)
        return GDP(mu) if mu is not None and groups else None

    def spent_of(self, budget: Guarantee) -> Spending:
        """Return what was spent in the unit of ``budget``."""
        groups = self.groups()
        if isinstance(budget, ApproxDP):
            return _spent(groups, budget.delta)
        return _spent_of(groups, budget)

    def within(self, budget: Guarantee) -> bool:
        """Return whether everything composed so far, as a fixed plan, meets ``budget``.

        For releases whose noise was chosen after seeing earlier ones, ask a ledger.

        Bounds are tried from cheap to expensive, and the first that suffices ends it.
        """
        groups = self.groups()
        if isinstance(budget, ApproxDP):
            bounds: Iterator[Spending] = _epsilon_bounds(groups, budget.delta)
            return any(bound.within(budget.epsilon) for bound in bounds)
        return _spent_of(groups, budget).within(budget_limit(budget))

    def state_dict(self, destination: Any = None) -> Any:
        """Return the state: Opacus's history, and all other events."""
        destination = super().state_dict(destination)
        destination["adjacency"] = self._adjacency
        destination["unit"] = self._unit
        destination["events"] = [
            {**event.to_dict(), "count": count} for event, count in self._events.items()
        ]
        return destination

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Replace the state by a saved one, after checking all of it."""
        other = PrivacyAccountant()
        super(PrivacyAccountant, other).load_state_dict(state_dict)
        other.history = list(other.history)
        for state in state_dict.get("events", ()):
            event = {key: value for key, value in state.items() if key != "count"}
            other.compose(PrivacyEvent.from_dict(event), state.get("count"))
        other.groups()  # checks the history
        self.history, self._events = other.history, other._events
        self._adjacency = state_dict.get("adjacency")
        self._unit = state_dict.get("unit")


def budget_limit(budget: Guarantee) -> float:
    """Return the number in a budget that spending is compared with."""
    if isinstance(budget, GDP):
        return budget.mu
    assert isinstance(budget, PureDP | ApproxDP | RDP)
    return budget.epsilon


@lru_cache(maxsize=1024)
def _spent(groups: _Groups, delta: float) -> Spending:
    return min(_epsilon_bounds(groups, delta), key=lambda bound: bound.amount)


@dataclass(frozen=True)
class _History:
    """A history without failures, and how likely those are: docs/theory.

    Attributes:
        groups: All releases but assumed ones. One that is (epsilon, delta)-DP counts
            as a pure release: it can be simulated by a coin that reveals everything
            with probability delta, else randomized response [Kairouz2015composition]_.
        coin_delta: The probability that one of those coins, which are independent of
            each other and of all else, reveals everything.
        assumed: The epsilons and deltas of assumed releases, each added up. They may
            fail together or one after the other: nothing better is known.
    """

    groups: _Groups
    coin_delta: float
    assumed: tuple[float, float]

    @classmethod
    def of(cls, groups: _Groups) -> "_History":
        """Split a history."""
        reliable: Counter[PrivacyEvent] = Counter()
        assumed: list[tuple[float, float]] = []
        log_silent: list[float] = []
        for event, count in groups:
            if event.approx is None or event.pure_epsilon is not None:
                reliable[event] += count
                continue
            epsilon, delta = event.approx
            if isinstance(event, AssumedEvent):
                assumed.append((count * epsilon, count * delta))
            else:
                reliable[PureEvent(epsilon)] += count
                log_silent.append(count * math.log1p(-delta))
        return cls(
            groups=frozenset(reliable.items()),
            coin_delta=-math.expm1(math.fsum(log_silent)),
            assumed=(
                math.fsum(epsilon for epsilon, _ in assumed),
                math.fsum(delta for _, delta in assumed),
            ),
        )

    def delta_with(self, delta: float) -> float:
        """Return the delta of everything, given that of the reliable releases."""
        delta = min(1.0, self.assumed[1] + delta)
        return self.coin_delta + (1 - self.coin_delta) * delta

    def delta_left(self, delta: float) -> float | None:
        """Return the delta of reliable releases, None if failures need more."""
        if self.delta_with(0.0) > delta * (1 + _DELTA_ROUNDING):
            return None
        left = (delta - self.coin_delta) / (1 - self.coin_delta) - self.assumed[1]
        return max(0.0, left)

    @property
    def pure_epsilon(self) -> float | None:
        """The epsilon of everything, failures apart; None if it is not pure."""
        pure = _total(self.groups, "pure_epsilon")
        return None if pure is None else pure + self.assumed[0]


def _epsilon_bounds(groups: _Groups, delta: float) -> Iterator[Spending]:
    """Yield valid upper bounds on epsilon, cheap ones first."""
    history = _History.of(groups)
    left, pure = history.delta_left(delta), history.pure_epsilon
    assumed_epsilon, assumed_delta = history.assumed
    if left is None or (left == 0 and pure is None):
        yield Spending(math.inf, "epsilon", "basic composition")
        return
    if groups and pure is not None:
        epsilon = curves.pure_epsilon_at(pure, left / (1 - assumed_delta))
        yield Spending(epsilon, "epsilon", "basic composition")
    if left == 0:
        return
    for bound in _reliable_bounds(history.groups, left):
        if assumed_epsilon == 0:
            yield bound
        else:
            yield replace(
                bound,
                amount=bound.amount + assumed_epsilon,
                method=f"{bound.method}, assumed epsilons added",
            )


def _reliable_bounds(groups: _Groups, delta: float) -> Iterator[Spending]:
    """Yield upper bounds on the epsilon of releases that cannot fail."""
    mu = _total_mu(groups)
    if mu is not None:
        epsilon = curves.gdp_epsilon(mu, delta) if mu > 0 else 0.0
        yield Spending(epsilon, "epsilon", "exact Gaussian composition")
        return
    single = _single(groups)
    closed = None if single is None else single.epsilon_at(delta)
    if closed is not None:  # the tight curve: no other bound is below
        yield Spending(closed, "epsilon", "closed form of one release")
        return
    yield from _cheap_bounds(groups, delta)
    pld = _total_pld(groups)
    if pld is not None:
        epsilon = pld.get_epsilon_for_delta(delta)
        yield Spending(float(epsilon), "epsilon", "PLD (dp-accounting)")


def _cheap_bounds(groups: _Groups, delta: float) -> Iterator[Spending]:
    """Yield the bounds that take no convolution."""
    mixed = _pure_and_mu(groups)
    if mixed is not None:
        pure, mu = mixed
        epsilon = pure + (curves.gdp_epsilon(mu, delta) if mu > 0 else 0.0)
        yield Spending(epsilon, "epsilon", "basic composition")
    rho = _total(groups, "zcdp_rho")
    if rho is not None:
        epsilon = curves.zcdp_epsilon(rho, delta)
        yield Spending(epsilon, "epsilon", "zCDP composition")
    renyi, _ = compute_epsilon(RDP_ORDERS, _total_rdp(groups), delta)
    yield Spending(float(renyi), "epsilon", "RDP (dp-accounting)")


@lru_cache(maxsize=1024)
def _delta(groups: _Groups, epsilon: float) -> float:
    history = _History.of(groups)
    assumed_epsilon, assumed_delta = history.assumed
    bounds = [1.0]
    if history.pure_epsilon is not None and assumed_delta < 1:
        pure = curves.pure_delta(history.pure_epsilon, epsilon)
        bounds.append((1 - assumed_delta) * pure)
    if epsilon >= assumed_epsilon:
        bounds.extend(_reliable_deltas(history.groups, epsilon - assumed_epsilon))
    return history.delta_with(min(bounds))


def _reliable_deltas(groups: _Groups, epsilon: float) -> Iterator[float]:
    """Yield upper bounds on the delta of releases that cannot fail."""
    mu = _total_mu(groups)
    if mu is not None:
        yield curves.gdp_delta(mu, epsilon) if mu > 0 else 0.0
        return
    single = _single(groups)
    closed = None if single is None else single.delta_at(epsilon)
    if closed is not None:
        yield closed
        return
    mixed = _pure_and_mu(groups)
    if mixed is not None and mixed[1] > 0 and epsilon >= mixed[0]:
        yield curves.gdp_delta(mixed[1], epsilon - mixed[0])
    rho = _total(groups, "zcdp_rho")
    if rho is not None:
        yield curves.zcdp_delta(rho, epsilon)
    yield float(compute_delta(RDP_ORDERS, _total_rdp(groups), epsilon)[0])
    pld = _total_pld(groups)
    if pld is not None:
        yield float(pld.get_delta_for_epsilon(epsilon))


def _single(groups: _Groups) -> PrivacyEvent | None:
    """Return the event of a history of one release, else None."""
    if len(groups) != 1:
        return None
    event, count = next(iter(groups))
    return event if count == 1 else None


def _pure_and_mu(groups: _Groups) -> tuple[float, float] | None:
    """Add up pure epsilons, and Gaussian releases apart; None if there are others."""
    gaussian = frozenset((e, n) for e, n in groups if e.gdp_mu is not None)
    pure = _total(groups - gaussian, "pure_epsilon")
    return None if pure is None else (pure, _total_mu(gaussian) or 0.0)


def _spent_of(groups: _Groups, budget: Guarantee) -> Spending:
    """Return the total in the unit of a budget other than (epsilon, delta)."""
    if isinstance(budget, GDP):
        mus = [(event.mu_bound, count) for event, count in groups]
        total = math.sqrt(sum(count * mu**2 for mu, count in mus))
        return Spending(total, "mu", "Gaussian composition")
    if isinstance(budget, RDP):
        costs = [(event.rdp_at(budget.order), count) for event, count in groups]
        total = sum(count * cost for cost, count in costs)
        return Spending(total, "Renyi epsilon", "RDP composition")
    pure = _total(groups, "pure_epsilon")
    total = math.inf if pure is None else pure
    return Spending(total, "epsilon", "pure composition")


def _total(groups: _Groups, cost: str) -> float | None:
    """Return the sum of one kind of cost, None if an event does not have it."""
    costs = [(getattr(event, cost), count) for event, count in groups]
    if any(value is None for value, _ in costs):
        return None
    return math.fsum(value * count for value, count in costs)


def _total_mu(groups: _Groups) -> float | None:
    squares = [(event.gdp_mu, count) for event, count in groups]
    if any(mu is None for mu, _ in squares):
        return None
    return math.sqrt(math.fsum(count * mu**2 for mu, count in squares if mu))


def _total_rdp(groups: _Groups) -> Any:
    zero = np.zeros_like(RDP_ORDERS)
    return sum((count * event.rdp() for event, count in groups), start=zero)


def _total_pld(groups: _Groups) -> PLD | None:
    """Return the privacy loss of everything, on a grid that suits its size."""
    others = [(event, count) for event, count in groups if event.gdp_mu is None]
    mu = _total_mu(groups - frozenset(others))
    if mu:  # all of them are one Gaussian release
        others.append((GaussianEvent(1.0 / mu), 1))
    if len(others) > _MOST_PLD_GROUPS:
        return None
    # A power of two, so that one grid, and its cache, serves a whole range.
    finest = max(1e-5, min(_scale(groups), 1e4) / _PLD_POINTS)
    interval = 2.0 ** math.floor(math.log2(finest))
    smallest = min(
        (event.approx[0] for event, _ in others if event.approx), default=0.0
    )
    if smallest > interval:  # a two-point loss on the grid is not rounded at all
        interval = smallest / math.ceil(smallest / interval)
    total = None
    for event, count in others:
        pld = event.pld(interval)
        if pld is None:
            return None
        pld = pld.self_compose(count) if count > 1 else pld
        total = pld if total is None else total.compose(pld)
    return total


def _scale(groups: _Groups) -> float:
    """Return about how large the epsilon of everything is, from cheap bounds."""
    return min(bound.amount for bound in _cheap_bounds(groups, _TYPICAL_DELTA))


register_accountant(PrivacyAccountant.mechanism(), PrivacyAccountant, force=True)
