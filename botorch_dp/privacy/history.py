r"""Histories: events with their multiplicities, and what adds up over them.

References:
    .. [Kairouz2015composition] P. Kairouz, S. Oh and P. Viswanath. The Composition
        Theorem for Differential Privacy. ICML 2015.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.events import (
    AssumedEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
)
from botorch_dp.privacy.loss_composition import LossComposition
from botorch_dp.privacy.loss_pairs import (
    FINE_SPACING,
    SPACING,
    LossPair,
    gaussian_pair,
    zcdp_pair,
)
from botorch_dp.privacy.renyi import RDP_ORDERS

Groups: TypeAlias = frozenset[tuple[PrivacyEvent, int]]

# Deltas that should add up to that of a cap may exceed it by this relative rounding.
_DELTA_ROUNDING = 1e-12
# Releases that may lose more than this protect nothing, and cannot be computed with.
_LARGEST_RHO = 1e6
# Histories of at most so many different releases are computed with finer losses.
_FEW_GROUPS = 32


@dataclass(frozen=True)
class History:
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
    def of(cls, groups: Groups) -> "History":
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
        pure = total_cost(self.groups, "pure_epsilon")
        return None if pure is None else pure + self.assumed[0]


def total_cost(groups: Groups, cost: str) -> float | None:
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


def single_event(groups: Groups) -> PrivacyEvent | None:
    """Return the event of a history of one release, otherwise None."""
    if len(groups) != 1:
        return None
    event, count = next(iter(groups))
    return event if count == 1 else None


def pure_and_mu(groups: Groups) -> tuple[float, float] | None:
    """Return the sum of pure epsilons and the mu of Gaussian releases.

    The result is None if there are other releases.
    """
    gaussian = frozenset((e, n) for e, n in groups if e.gdp_mu is not None)
    pure = total_cost(groups - gaussian, "pure_epsilon")
    return None if pure is None else (pure, total_mu(gaussian) or 0.0)


@lru_cache(maxsize=2)  # a thousand different releases take 60 MB
def total_losses(groups: Groups) -> LossComposition | None:
    """Return the total privacy loss of a history.

    The result is None if the losses of some releases are not known, or too large.
    """
    spacing = FINE_SPACING if len(groups) <= _FEW_GROUPS else SPACING
    mu, rho = total_mu(frozenset(g for g in groups if g[0].gdp_mu is not None)), 0.0
    pairs: list[tuple[LossPair | None, int]] = []
    # In a fixed order, so that rounding does not depend on the order of charges.
    for event, count in sorted(groups, key=repr):
        if isinstance(event, ZCDPEvent):
            rho += count * event.rho
        elif (event.zcdp_rho or 0.0) > _LARGEST_RHO:
            return None
        elif event.gdp_mu is None:
            pairs.append((event.loss_pair(spacing), count))
    if max(rho, (mu or 0.0) ** 2 / 2) > _LARGEST_RHO:
        return None
    if mu:  # all Gaussian releases together are one
        pairs.append((gaussian_pair(mu, spacing), 1))
    if rho:  # and so are these
        pairs.append((zcdp_pair(rho), 1))
    known = [(pair, count) for pair, count in pairs if pair is not None]
    return LossComposition(known) if len(known) == len(pairs) else None
