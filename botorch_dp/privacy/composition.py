r"""Bounds on what a history of events costs, from cheap to expensive.

Histories of Gaussian releases compose exactly: the squares of mu add up. For other
histories there are several valid upper bounds: sums of pure epsilons, zero-concentrated
privacy, Renyi privacy at many orders, and dp-accounting's privacy loss distributions
(PLD), rounded up. One pure release together with Gaussian ones has a closed curve
(:mod:`botorch_dp.privacy.choice_curves`). Central-limit approximations, such as that of
Opacus's ``gdp`` accountant, are not upper bounds under sampling and are never used.

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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon

from botorch_dp.privacy import curves
from botorch_dp.privacy.choice_curves import choice_delta, choice_epsilon
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.events import (
    PLD,
    RDP_ORDERS,
    AssumedEvent,
    GaussianEvent,
    PermuteAndFlipEvent,
    PrivacyEvent,
    PureEvent,
)
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee, PureDP

Groups: TypeAlias = frozenset[tuple[PrivacyEvent, int]]

# Sums of squares that should reach a cap exactly exceed it by a few units in the last
# place. A cap counts as exceeded beyond this relative excess.
_ROUNDING = 1e-9
# The same for deltas that should add up to that of a cap.
_DELTA_ROUNDING = 1e-12
# The grid of a PLD is a fixed fraction of the epsilon that it will report. At 1/10,000,
# a thousand compositions are accurate to four digits and take well under a second. The
# usual grid of 1e-4 for every epsilon takes half a minute at epsilon = 278.
_PLD_POINTS = 10_000
_TYPICAL_DELTA = 1e-6
# Larger epsilons would need grids that fill the memory, and protect nothing.
_LARGEST_SCALE = 1e6
# Each different event costs a convolution. With more of them than this there is no PLD.
_MOST_PLD_GROUPS = 64
# A Fourier transform to the power n has rounding errors of about n 2^-53. Those of a
# delta were at most 1.2 times that, for seven training runs of 200 to 1,000,000 steps.
_TRANSFORM_ROUNDING = 2.0**-51


@dataclass(frozen=True)
class Spending:
    """The privacy spent, in the unit of the budget that it is compared with.

    Attributes:
        amount: An upper bound; infinite if this unit cannot express the cost.
        unit: ``"epsilon"``, ``"mu"`` or ``"Renyi epsilon"``.
        method: The accounting that gave the bound.
    """

    amount: float
    unit: str
    method: str

    def within(self, limit: float) -> bool:
        """Return whether the amount is within ``limit``, up to rounding."""
        return self.amount <= limit * (1 + _ROUNDING)

    def left(self, limit: float) -> float:
        """Return how much more fits under ``limit``; the squares of mu add up."""
        if self.unit == "mu":
            return math.sqrt(max(0.0, limit**2 - self.amount**2))
        return max(0.0, limit - self.amount)


def budget_limit(budget: Guarantee) -> float:
    """Return the number in a budget that spending is compared with."""
    if isinstance(budget, GDP):
        return budget.mu
    assert isinstance(budget, PureDP | ApproxDP | RDP)
    return budget.epsilon


@lru_cache(maxsize=1024)
def spent_at(groups: Groups, delta: float) -> Spending:
    """Return the smallest known epsilon of a history at ``delta``."""
    return min(epsilon_bounds(groups, delta), key=lambda bound: bound.amount)


@dataclass(frozen=True)
class _History:
    """A history split into reliable releases and their failures: see docs/theory.

    Attributes:
        groups: All releases except assumed ones. An (epsilon, delta)-DP release counts
            as a pure one: it can be simulated by a coin that reveals everything with
            probability delta, and otherwise by randomized response
            [Kairouz2015composition]_.
        coin_delta: The probability that at least one of those coins, which are
            independent of each other and of everything else, reveals everything.
        assumed: The sums of the epsilons and of the deltas of assumed releases. They
            may fail together or one after the other: no better bound is known.
    """

    groups: Groups
    coin_delta: float
    assumed: tuple[float, float]

    @classmethod
    def of(cls, groups: Groups) -> "_History":
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
        """Return the total delta, given that of the reliable releases."""
        delta = min(1.0, self.assumed[1] + delta)
        return self.coin_delta + (1 - self.coin_delta) * delta

    def delta_left(self, delta: float) -> float | None:
        """Return the delta left for reliable releases, None if failures exceed it."""
        if self.delta_with(0.0) > delta * (1 + _DELTA_ROUNDING):
            return None
        left = (delta - self.coin_delta) / (1 - self.coin_delta) - self.assumed[1]
        return max(0.0, left)

    @property
    def pure_epsilon(self) -> float | None:
        """The total epsilon unless something fails; None if it is not pure."""
        pure = _total(self.groups, "pure_epsilon")
        return None if pure is None else pure + self.assumed[0]


def epsilon_bounds(groups: Groups, delta: float) -> Iterator[Spending]:
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


def _reliable_bounds(groups: Groups, delta: float) -> Iterator[Spending]:
    """Yield upper bounds on the epsilon of releases that cannot fail."""
    mu = total_mu(groups)
    if mu is not None:
        epsilon = curves.gdp_epsilon(mu, delta) if mu > 0 else 0.0
        yield Spending(epsilon, "epsilon", "exact Gaussian composition")
        return
    single = _single(groups)
    closed = False
    for epsilon, method in () if single is None else single.bounds_at(delta):
        yield Spending(epsilon, "epsilon", method)
        closed = True
    if closed:  # no other bound is smaller
        return
    choice = _pure_and_mu(groups)
    if choice is not None and _has_tight_choice(groups):
        epsilon = choice_epsilon(*choice, delta)
        yield Spending(epsilon, "epsilon", "exact composition of a choice and noise")
        return
    yield from _cheap_bounds(groups, delta)
    pld = total_pld(groups)
    rounding = transform_rounding(groups)
    if pld is not None and delta > rounding:
        epsilon = pld.get_epsilon_for_delta(delta - rounding)
        yield Spending(float(epsilon), "epsilon", "PLD (dp-accounting)")
    elif len(groups) > 1 and _lacks_renyi(groups):
        parts = [spent_at(frozenset({group}), delta / len(groups)) for group in groups]
        epsilon = sum(part.amount for part in parts)
        yield Spending(epsilon, "epsilon", "basic composition of parts")


def _cheap_bounds(groups: Groups, delta: float) -> Iterator[Spending]:
    """Yield the bounds that need no convolution."""
    mixed = _pure_and_mu(groups)
    if mixed is not None:
        epsilon = choice_epsilon(*mixed, delta)
        yield Spending(epsilon, "epsilon", "composition of pure and Gaussian releases")
    rho = _total(groups, "zcdp_rho")
    if rho is not None:
        epsilon = curves.zcdp_epsilon(rho, delta)
        yield Spending(epsilon, "epsilon", "zCDP composition")
    renyi, _ = compute_epsilon(RDP_ORDERS, total_rdp(groups), delta)
    yield Spending(float(renyi), "epsilon", "RDP (dp-accounting)")


@lru_cache(maxsize=1024)
def delta_at(groups: Groups, epsilon: float) -> float:
    """Return the smallest known delta of a history at ``epsilon``."""
    history = _History.of(groups)
    assumed_epsilon, assumed_delta = history.assumed
    bounds = [1.0]
    if history.pure_epsilon is not None and assumed_delta < 1:
        pure = curves.pure_delta(history.pure_epsilon, epsilon)
        bounds.append((1 - assumed_delta) * pure)
    if epsilon >= assumed_epsilon:
        bounds.extend(_reliable_deltas(history.groups, epsilon - assumed_epsilon))
    return history.delta_with(min(bounds))


def _reliable_deltas(groups: Groups, epsilon: float) -> Iterator[float]:
    """Yield upper bounds on the delta of releases that cannot fail."""
    mu = total_mu(groups)
    if mu is not None:
        yield curves.gdp_delta(mu, epsilon) if mu > 0 else 0.0
        return
    single = _single(groups)
    closed = None if single is None else single.delta_at(epsilon)
    if closed is not None:
        yield closed
        return
    mixed = _pure_and_mu(groups)
    if mixed is not None:
        yield choice_delta(*mixed, epsilon)
        if _has_tight_choice(groups):
            return
    rho = _total(groups, "zcdp_rho")
    if rho is not None:
        yield curves.zcdp_delta(rho, epsilon)
    yield float(compute_delta(RDP_ORDERS, total_rdp(groups), epsilon)[0])
    pld = total_pld(groups)
    if pld is not None:
        yield float(pld.get_delta_for_epsilon(epsilon)) + transform_rounding(groups)
    elif len(groups) > 1 and _lacks_renyi(groups):  # in proportion to their cost
        costs = {
            group: spent_at(frozenset({group}), _TYPICAL_DELTA) for group in groups
        }
        scale = epsilon / max(1e-12, sum(cost.amount for cost in costs.values()))
        yield sum(
            delta_at(frozenset({group}), scale * cost.amount)
            for group, cost in costs.items()
        )


def _lacks_renyi(groups: Groups) -> bool:
    """Return whether some release has no Renyi bound, as selections with a floor."""
    return not np.isfinite(total_rdp(groups)).any()


def _single(groups: Groups) -> PrivacyEvent | None:
    """Return the event of a history of one release, otherwise None."""
    if len(groups) != 1:
        return None
    event, count = next(iter(groups))
    return event if count == 1 else None


def _pure_and_mu(groups: Groups) -> tuple[float, float] | None:
    """Return the sum of pure epsilons and the mu of Gaussian releases.

    The result is None if there are other releases.
    """
    gaussian = frozenset((e, n) for e, n in groups if e.gdp_mu is not None)
    pure = _total(groups - gaussian, "pure_epsilon")
    return None if pure is None else (pure, total_mu(gaussian) or 0.0)


def _has_tight_choice(groups: Groups) -> bool:
    """Return whether one pure release, known by its epsilon only, joins Gaussian ones.

    The closed form of such a history is exact: no other bound is smaller.
    """
    others = [(event, count) for event, count in groups if event.gdp_mu is None]
    return (
        len(others) == 1
        and others[0][1] == 1
        and type(others[0][0]) in (PureEvent, PermuteAndFlipEvent)
    )


def spent_of_budget(groups: Groups, budget: Guarantee) -> Spending:
    """Return the total of a history in the unit of ``budget``."""
    if isinstance(budget, ApproxDP):
        return spent_at(groups, budget.delta)
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


def _total(groups: Groups, cost: str) -> float | None:
    """Return the sum of one kind of cost, None if an event lacks it."""
    costs = [(getattr(event, cost), count) for event, count in groups]
    if any(value is None for value, _ in costs):
        return None
    return math.fsum(value * count for value, count in costs)


def total_mu(groups: Groups) -> float | None:
    """Return the exact mu of an all-Gaussian history, otherwise None."""
    squares = [(event.gdp_mu, count) for event, count in groups]
    if any(mu is None for mu, _ in squares):
        return None
    return math.sqrt(math.fsum(count * mu**2 for mu, count in squares if mu))


def total_rdp(groups: Groups) -> FloatArray:
    """Return the sums of the Renyi divergences at ``RDP_ORDERS``."""
    zero = np.zeros_like(RDP_ORDERS)
    return sum((count * event.rdp() for event, count in groups), start=zero)


def total_pld(groups: Groups, coarseness: int = 1) -> PLD | None:
    """Return the privacy loss distribution of a history, on a grid that suits it.

    Args:
        groups: The history.
        coarseness: How many times coarser than usual the grid is.
    """
    # A power of two, so that a whole range of histories shares one grid and its cache.
    scale = _scale(groups)
    if scale > _LARGEST_SCALE:
        return None
    finest = max(1e-5, min(scale, 1e4) * coarseness / _PLD_POINTS)
    interval = 2.0 ** math.floor(math.log2(finest))
    smallest = min(
        (event.approx[0] for event, _ in groups if event.approx), default=0.0
    )
    if smallest > interval:  # a two-point loss on the grid is not rounded at all
        interval = smallest / math.ceil(smallest / interval)
    return pld_on_grid(groups, interval)


def transform_rounding(groups: Groups) -> float:
    """Return a bound on the rounding errors of the deltas of :func:`total_pld`."""
    composed = sum(number for event, number in groups if event.gdp_mu is None)
    # All Gaussian releases together are one.
    composed += any(event.gdp_mu is not None for event, _ in groups)
    return _TRANSFORM_ROUNDING * composed if composed > 1 else 0.0


def pld_on_grid(groups: Groups, interval: float) -> PLD | None:
    """Return the privacy loss distribution of a history, on a given grid."""
    others = [(event, count) for event, count in groups if event.gdp_mu is None]
    mu = total_mu(groups - frozenset(others))
    if mu:  # all Gaussian releases together are one
        others.append((GaussianEvent(1.0 / mu), 1))
    if len(others) > _MOST_PLD_GROUPS:
        return None
    total = None
    for event, count in others:
        pld = event.pld(interval)
        if pld is None:
            return None
        pld = pld.self_compose(count) if count > 1 else pld
        total = pld if total is None else total.compose(pld)
    return total


def _scale(groups: Groups) -> float:
    """Return the rough size of the total epsilon, from cheap bounds."""
    scale = min(bound.amount for bound in _cheap_bounds(groups, _TYPICAL_DELTA))
    if scale == math.inf:  # some releases have no Renyi bound; they have curves
        epsilons = [
            (event.epsilon_at(_TYPICAL_DELTA), count) for event, count in groups
        ]
        scale = sum(count * (epsilon or 0.0) for epsilon, count in epsilons)
    return scale
