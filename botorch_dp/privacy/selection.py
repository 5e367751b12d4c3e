r"""The cost of a private selection: the best of a random number of runs.

A selection draws a number K, makes K independent runs on the same private data, and
releases the run with the highest score; K and the other runs stay hidden. It costs
little more than one run, and far less than the composition of all of them
[Liu2019selection]_, [Papernot2022tuning]_. :mod:`botorch_dp.privacy.selection_bounds`
has the sharper of the bounds that are used here, docs/theory/selection.md its proof.

References:
    .. [Liu2019selection] J. Liu and K. Talwar. Private Selection from Private
        Candidates. STOC 2019.
    .. [Papernot2022tuning] N. Papernot and T. Steinke. Hyperparameter Tuning with
        Renyi Differential Privacy. ICLR 2022.
    .. [Wang2023dphypo] H. Wang, S. Gao, H. Zhang, W. J. Su and M. Shen. DP-HyPO: An
        Adaptive Private Hyperparameter Optimization Framework. NeurIPS 2023.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon

from botorch_dp._validation import check_count, check_instance, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import composition, curves
from botorch_dp.privacy.counts import Count, Poisson, TruncatedNegativeBinomial
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.events import AssumedEvent
from botorch_dp.privacy.history import Groups, total_losses, total_rdp
from botorch_dp.privacy.loss_pairs import SPACING, LossPair, pair_of_bounds
from botorch_dp.privacy.privacy_event import ADJACENCIES, PrivacyEvent
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.renyi import RDP_ORDERS, interpolated_rdp
from botorch_dp.privacy.selection_bounds import (
    SelectionBound,
    largest_log_ratio,
    selection_bound,
)

Base = tuple[tuple[PrivacyEvent, int], ...]

TRADE_OFF = "trade-off bound of a selection"
RENYI = "RDP bound of a selection"
PURE = "pure bound of a selection"

# How many times coarser the first grid of losses is. In training runs epsilon was 0.2
# to 0.4 % larger on it, and took a quarter of the time.
_COARSE = 4


@dataclass(frozen=True)
class SelectionEvent(PrivacyEvent):
    """The release of the best of a random number of independent runs.

    Args:
        base: What one run costs, its noisy score included: events, each with the number
            of its releases. One event alone is a run with one release.
        count: The distribution of the number of runs.
        proposal_ratios: Numbers c <= 1 <= C. Every run draws its candidate from a
            distribution whose density, relative to a distribution that was fixed
            beforehand, lies between c and C, whatever the earlier runs returned. The
            default (1, 1) means that candidates do not depend on earlier runs.

    Example:
        >>> from botorch_dp.privacy import GaussianEvent, PrivacyAccountant
        >>> run = GaussianEvent(noise_multiplier=2.0)
        >>> accountant = PrivacyAccountant()
        >>> accountant.compose(SelectionEvent(((run, 1),), Poisson(10.0)))
        >>> round(accountant.get_epsilon(delta=1e-5), 2)
        3.85
    """

    base: Base
    count: Count
    proposal_ratios: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", _check_base(self.base))
        count = self.count
        if isinstance(count, dict):  # as ``to_dict`` wrote it
            count = Count.from_dict(count)
        object.__setattr__(self, "count", check_instance("count", count, Count))
        object.__setattr__(self, "proposal_ratios", _check_ratios(self.proposal_ratios))

    @property
    def adjacencies(self) -> tuple[str, ...]:  # type: ignore[override]
        """The adjacencies for which every release of a run can be stated."""
        return tuple(
            adjacency
            for adjacency in ADJACENCIES
            if all(adjacency in event.adjacencies for event, _ in self.base)
        )

    @property
    def pure_epsilon(self) -> float | None:
        """A pure bound, if the releases of a run have one."""
        return _pure_epsilon(self)

    def epsilon_at(self, delta: float) -> float:
        """Return the smallest known epsilon at ``delta``."""
        return self._bound_at(delta)[0]

    def bounds_at(self, delta: float) -> Iterator[tuple[float, str]]:
        """Yield bounds on epsilon at ``delta``, with their names.

        The first one comes from a coarse grid and takes a fraction of the time.
        """
        yield self._bound(_COARSE).epsilon(delta), TRADE_OFF
        yield self._bound_at(delta)

    def delta_at(self, epsilon: float) -> float:
        """Return the smallest known delta at ``epsilon``."""
        deltas = [
            self.bound.delta(epsilon),
            float(compute_delta(RDP_ORDERS, self.rdp(), epsilon)[0]),
        ]
        if self.pure_epsilon is not None:
            deltas.append(curves.pure_delta(self.pure_epsilon, epsilon))
        return min(deltas)

    def rdp(self) -> FloatArray:
        """Return bounds on the Renyi divergences at ``RDP_ORDERS``."""
        return _rdp(self)

    def rdp_at(self, order: float) -> float:
        """Return a bound on the Renyi divergence at any ``order`` above 1."""
        return min(super().rdp_at(order), interpolated_rdp(self.rdp(), order))

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        del spacing
        return _loss_pair(self)

    @property
    def bound(self) -> SelectionBound:
        """The trade-off bound."""
        return self._bound()

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain numbers, for JSON."""
        return {
            "type": type(self).__name__,
            "base": [[event.to_dict(), count] for event, count in self.base],
            "count": self.count.to_dict(),
            "proposal_ratios": list(self.proposal_ratios),
        }

    def _bound(self, coarseness: int = 1) -> SelectionBound:
        profile = base_profile(frozenset(self.base), coarseness)
        return _bound(profile, self.count, self.proposal_ratios)

    def _bound_at(self, delta: float) -> tuple[float, str]:
        renyi, _ = compute_epsilon(RDP_ORDERS, self.rdp(), delta)
        bounds = [(self.bound.epsilon(delta), TRADE_OFF), (float(renyi), RENYI)]
        if self.pure_epsilon is not None:
            pure = curves.pure_epsilon_at(self.pure_epsilon, delta)
            bounds.append((pure, PURE))
        return min(bounds)


@lru_cache(maxsize=256)
def base_profile(groups: Groups, coarseness: int = 1) -> Profile:
    """Return the privacy profile of one run.

    Args:
        groups: The releases of a run.
        coarseness: How many times coarser than usual the grid of losses is.
    """
    losses = total_losses(groups)
    if losses is not None:
        return Profile.of_losses(losses, coarseness)
    if coarseness > 1:
        return base_profile(groups)
    largest = composition.spent_at(groups, 1e-15).amount
    return Profile.of_curve(lambda e: composition.delta_at(groups, e), largest)


@lru_cache(maxsize=256)
def _bound(
    profile: Profile, count: Count, ratios: tuple[float, float]
) -> SelectionBound:
    return selection_bound(profile, count, ratios)


@lru_cache(maxsize=256)
def _pure_epsilon(event: SelectionEvent) -> float | None:
    """Return the epsilon of a run and the largest loss that the selection adds."""
    costs = [(one.pure_epsilon, number) for one, number in event.base]
    if any(epsilon is None for epsilon, _ in costs):
        return None
    base = math.fsum(epsilon * number for epsilon, number in costs if epsilon)
    total = base + largest_log_ratio(base, event.count, event.proposal_ratios)
    return total if math.isfinite(total) else None


@lru_cache(maxsize=256)
def _rdp(event: SelectionEvent) -> FloatArray:
    """Return the least of the known bounds at each order."""
    groups = frozenset(event.base)
    base = total_rdp(groups)
    bound = event.bound.rdp(RDP_ORDERS, base)
    if event.proposal_ratios == (1.0, 1.0):
        bound = np.minimum(bound, _published_rdp(event, base))
    if event.pure_epsilon is not None:
        pure = [curves.pure_rdp(event.pure_epsilon, order) for order in RDP_ORDERS]
        bound = np.minimum(bound, pure)
    # Renyi divergences rise with the order.
    bound = np.minimum.accumulate(bound[::-1])[::-1]
    bound.flags.writeable = False
    return bound


def _published_rdp(event: SelectionEvent, base: FloatArray) -> FloatArray:
    """Return the bounds of [Papernot2022tuning]_, where there are any."""
    count, orders = event.count, RDP_ORDERS
    bound = base + math.log(count.mean) / (orders - 1)
    if isinstance(count, TruncatedNegativeBinomial):  # Theorem 2
        added = (1 - 1 / orders) * base - math.log(count.gamma) / orders
        return bound + (1 + count.shape) * max(0.0, float(added.min()))
    if isinstance(count, Poisson) and count.mean >= 1:  # Theorem 6, delta from the PLD
        epsilons = np.log1p(1 / (orders - 1))
        ways = [way.profile.delta(epsilons) for way in event.bound.ways]
        return bound + count.mean * np.max(ways, axis=0)
    return np.full_like(orders, np.inf)


@lru_cache(maxsize=64)
def _loss_pair(event: SelectionEvent) -> LossPair:
    bound = event.bound
    # A little further, where the curve has reached its end.
    largest = 1.02 * bound.epsilon(bound.resolution)
    return pair_of_bounds(tuple(way.deltas for way in bound.ways), largest)


def _check_base(base: Any) -> Base:
    """Return the releases of one run, in a fixed order and without repetitions."""
    if isinstance(base, PrivacyEvent):
        base = ((base, 1),)
    if isinstance(base, str | bytes) or not isinstance(base, Iterable):
        raise InvalidArgumentError(
            f"base must be pairs of an event and a number of releases, got {base!r}."
        )
    total: Counter[PrivacyEvent] = Counter()
    for pair in base:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgumentError(
                "base must be pairs of an event and a number of releases, got the "
                f"element {pair!r}."
            )
        event, number = pair
        if isinstance(event, dict):  # as ``to_dict`` wrote it
            event = PrivacyEvent.from_dict(event)
        check_instance("base", event, PrivacyEvent)
        if isinstance(event, AssumedEvent):
            raise InvalidArgumentError(
                f"base contains {event!r}. Its assumption may fail in all runs at "
                "once, but the runs of a selection must be independent: no bound is "
                "known."
            )
        total[event] += check_count("base", number)
    if not total:
        raise InvalidArgumentError("base must contain at least one release, got none.")
    return tuple(sorted(total.items(), key=lambda item: repr(item[0])))


def _check_ratios(ratios: Any) -> tuple[float, float]:
    if not isinstance(ratios, tuple | list) or len(ratios) != 2:
        raise InvalidArgumentError(
            f"proposal_ratios must be two numbers, got {ratios!r}."
        )
    low, high = (check_positive("proposal_ratios", ratio) for ratio in ratios)
    if not low <= 1 <= high:
        raise InvalidArgumentError(
            f"proposal_ratios must be numbers c <= 1 <= C, got {ratios!r}."
        )
    if (low == 1) != (high == 1):
        low = high = 1.0  # a density that is nowhere below 1 is 1 everywhere
    return low, high
