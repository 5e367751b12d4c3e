r"""Filters: they count releases that are chosen after seeing earlier ones.

Exact accounting is valid for a plan that was fixed beforehand: the queries may depend
on earlier answers, but the noise and the number of releases may not. An adversary who
chooses the next *noise* after seeing an answer can steer towards the accounting that
happens to suit that answer, and so exceed a cap on the smallest of several bounds (see
``docs/theory/filters.md`` for a measured example and for the proofs). A filter counts
in one unit, fixed before the first release. In this unit the total bounds every
history, however its releases were chosen.

* ``"gdp"``: the squares of mu add up [Smith2022adaptive]_. It is exact for Gaussian
  releases.
* ``"renyi"``: Renyi divergences add up at every order [Feldman2021individual]_. The
  conversion to (epsilon, delta) uses a fixed mixture of orders, because the best order
  must not be chosen afterwards.
* ``"basic"``: epsilons and deltas add up [Rogers2016odometers]_.

References:
    .. [Feldman2021individual] V. Feldman and T. Zrnic. Individual Privacy Accounting
        via a Renyi Filter. NeurIPS 2021.
    .. [Rogers2016odometers] R. Rogers, A. Roth, J. Ullman and S. Vadhan. Privacy
        Odometers and Filters: Pay-as-you-Go Composition. NeurIPS 2016.
    .. [Smith2022adaptive] A. Smith and A. Thakurta. Fully Adaptive Composition for
        Gaussian Differential Privacy. 2022.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from botorch_dp.privacy import curves
from botorch_dp.privacy.accountant import Spending
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.events import (
    RDP_ORDERS,
    ApproxEvent,
    AssumedEvent,
    PrivacyEvent,
    PureEvent,
)
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee, PureDP

FILTERS = ("gdp", "renyi", "basic")

# The width, in log(order - 1), of the mixture of orders around the best order for a
# Gaussian history that just meets the cap. On Gaussian, Laplace and exponential
# histories with epsilon from 0.3 to 8 the result was 3 to 5 percent above that of the
# best single order; on rarely sampled histories it was up to 20 percent above.
_MIXTURE_WIDTH = 0.3
# The share of delta that the Renyi filter keeps for releases with their own delta.
_FAILURE_SHARE = 0.05


class Filter(ABC):
    """Adds up the costs of releases in one unit.

    Attributes:
        name: The name of the filter in a ledger.
    """

    name: str

    @abstractmethod
    def cost(self, event: PrivacyEvent) -> FloatArray:
        """Return the cost of one release; the costs of several add up."""

    @abstractmethod
    def spent(self, total: FloatArray) -> Spending:
        """Return a total in the unit of the cap."""

    def within(self, total: FloatArray, limit: float) -> bool:
        """Return whether a total is within a limit in the unit of the cap."""
        return self.spent(total).within(limit)

    def total(self, plan: Iterable[tuple[PrivacyEvent, int]]) -> FloatArray:
        """Return the cost of several releases, each with its multiplicity."""
        costs = [count * self.cost(event) for event, count in plan]
        return np.sum(costs, axis=0) if costs else np.zeros(1)


class GaussianFilter(Filter):
    """Adds up squares of mu, for a ``GDP`` or an ``ApproxDP`` cap."""

    name = "gdp"

    def __init__(self, cap: GDP | ApproxDP) -> None:
        self._delta = cap.delta if isinstance(cap, ApproxDP) else None

    def cost(self, event: PrivacyEvent) -> FloatArray:
        """Return the square of a mu that the event meets."""
        return np.array([_squared_mu(event)])

    def total(self, plan: Iterable[tuple[PrivacyEvent, int]]) -> FloatArray:
        """Return the sum of the squares of mu."""
        return np.array([math.fsum(n * _squared_mu(event) for event, n in plan)])

    def spent(self, total: FloatArray) -> Spending:
        """Return mu, or the epsilon that it implies at the cap's delta."""
        mu = math.sqrt(total[0])
        if self._delta is None:
            return Spending(mu, "mu", "Gaussian composition")
        epsilon = mu if mu in (0.0, math.inf) else curves.gdp_epsilon(mu, self._delta)
        return Spending(epsilon, "epsilon", "Gaussian filter")

    def within(self, total: FloatArray, limit: float) -> bool:
        """Return whether a total is within a limit; solve for epsilon only near it."""
        if self._delta is not None:
            clearly = (1 - 1e-6) * _largest_mu(limit, self._delta)
            if math.sqrt(total[0]) < clearly:
                return True
        return super().within(total, limit)


class RenyiOrderFilter(Filter):
    """Adds up Renyi divergences at the order of an ``RDP`` cap."""

    name = "renyi"

    def __init__(self, cap: RDP) -> None:
        self._order = cap.order

    def cost(self, event: PrivacyEvent) -> FloatArray:
        """Return the Renyi divergence at the cap's order."""
        return np.array([event.rdp_at(self._order)])

    def spent(self, total: FloatArray) -> Spending:
        """Return the total divergence."""
        return Spending(float(total[0]), "Renyi epsilon", "RDP composition")


class RenyiMixtureFilter(Filter):
    r"""Adds up Renyi divergences at many orders, for an ``ApproxDP`` cap.

    With weights :math:`w_a` that sum to one, fixed by the cap, and totals
    :math:`\rho_a`, every history is (epsilon, delta)-DP if for all losses L

    .. math:: 1 - e^{\epsilon - L} \le \delta \sum_a w_a e^{(a - 1)(L - \rho_a)},

    because the right side has expectation at most delta, however the releases were
    chosen. With one order this is the usual conversion. A pure total also bounds L.
    Releases with their own delta take it from a fixed share of the cap's delta, and
    releases under an assumption add their epsilon to the result.
    """

    name = "renyi"

    def __init__(self, cap: ApproxDP) -> None:
        self._delta = (1 - _FAILURE_SHARE) * cap.delta
        self._failures = _FAILURE_SHARE * cap.delta
        self._log_weights = _mixture_log_weights(cap)

    def cost(self, event: PrivacyEvent) -> FloatArray:
        """Return divergences, a pure bound, an epsilon to add, and a delta."""
        return _renyi_cost(event)

    def spent(self, total: FloatArray) -> Spending:
        """Return the smallest epsilon that satisfies the condition."""
        return Spending(self._epsilon(total), "epsilon", "Renyi filter")

    def _epsilon(self, total: FloatArray) -> float:
        *_, pure, added, failures = total.tolist() if total.size > 1 else (0.0,) * 3
        if failures > self._failures * (1 + 1e-9):
            return math.inf
        return added + (self._epsilon_of(total[:-3], pure) if pure else 0.0)

    def _epsilon_of(self, totals: FloatArray, pure: float) -> float:
        finite = np.isfinite(totals)
        if not finite.any():
            return pure
        excess = RDP_ORDERS[finite] - 1
        divergences, log_weights = totals[finite], self._log_weights[finite]
        log_delta = math.log(self._delta)

        # epsilon = max over L of L + log(1 - delta D(L)) with D the mixture above. The
        # derivative vanishes where delta sum_a w_a a e^((a - 1)(L - rho_a)) = 1.
        def surplus(loss: float) -> float:
            terms = log_weights + np.log1p(excess) + excess * (loss - divergences)
            return _logsumexp(terms) + log_delta

        # At the upper end one term alone reaches zero. At the lower end each of n terms
        # is at most 1/n, because excess is at least one.
        ends = divergences - (log_delta + log_weights + np.log1p(excess)) / excess
        upper = float(ends.min())
        margin = 1e-9 * (1 + abs(upper))  # for rounding
        loss = brentq(surplus, upper - math.log(len(ends)) - margin, upper + margin)
        loss = min(loss, pure)
        mixture = _logsumexp(log_weights + excess * (loss - divergences))
        return max(0.0, loss + math.log1p(-math.exp(log_delta + mixture)))


class BasicFilter(Filter):
    """Adds up epsilons and deltas, for a ``PureDP`` or an ``ApproxDP`` cap."""

    name = "basic"

    def __init__(self, cap: PureDP | ApproxDP) -> None:
        self._delta = cap.delta if isinstance(cap, ApproxDP) else 0.0

    def cost(self, event: PrivacyEvent) -> FloatArray:
        """Return epsilon and delta; infinity and one if none are known."""
        return np.array((math.inf, 1.0) if event.approx is None else event.approx)

    def spent(self, total: FloatArray) -> Spending:
        """Return the total epsilon; infinity if the deltas do not fit."""
        epsilon, delta = total.tolist() if total.size == 2 else (0.0, 0.0)
        if delta > self._delta * (1 + 1e-9):
            epsilon = math.inf
        return Spending(epsilon, "epsilon", "basic composition")


def make_filter(cap: Guarantee, name: str) -> Filter:
    """Return the named filter for an ``ApproxDP`` cap, else the only one of the cap."""
    if isinstance(cap, GDP):
        return GaussianFilter(cap)
    if isinstance(cap, RDP):
        return RenyiOrderFilter(cap)
    if isinstance(cap, PureDP):
        return BasicFilter(cap)
    assert isinstance(cap, ApproxDP)
    kinds = {kind.name: kind for kind in (GaussianFilter, BasicFilter)}
    return kinds[name](cap) if name in kinds else RenyiMixtureFilter(cap)


def suitable_filter(plan: Iterable[tuple[PrivacyEvent, int]]) -> str:
    """Return the name of the best filter for a ledger that starts with this plan."""
    events = [event for event, _ in plan]
    if all(event.gdp_mu is not None for event in events):
        return "gdp"
    bounds = [event.approx for event in events]
    if all(bounds) and any(bound[1] > 0 for bound in bounds if bound):
        return "basic"
    return "renyi"


def _squared_mu(event: PrivacyEvent) -> float:
    return event.mu_bound**2


@lru_cache(maxsize=1024)
def _largest_mu(epsilon: float, delta: float) -> float:
    return curves.gdp_mu(epsilon, delta)


@lru_cache(maxsize=1024)
def _renyi_cost(event: PrivacyEvent) -> FloatArray:
    """Return the cost in the unit of :class:`RenyiMixtureFilter`."""
    if isinstance(event, AssumedEvent):
        cost = np.concatenate([0 * RDP_ORDERS, [0.0, *event.approx]])
    elif isinstance(event, ApproxEvent):  # pure, except with probability delta
        pure = PureEvent(event.epsilon)
        cost = np.concatenate([pure.rdp(), [event.epsilon, 0.0, event.delta]])
    else:
        epsilon = math.inf if event.pure_epsilon is None else event.pure_epsilon
        cost = np.concatenate([event.rdp(), [epsilon, 0.0, 0.0]])
    cost.flags.writeable = False  # all filters share it
    return cost


def _mixture_log_weights(cap: ApproxDP) -> FloatArray:
    """Return the log-weights of the orders, which depend on the cap alone."""
    rho = curves.gdp_mu(cap.epsilon, cap.delta) ** 2 / 2
    converted = (
        rho * RDP_ORDERS
        + np.log1p(-1 / RDP_ORDERS)
        - np.log(cap.delta * RDP_ORDERS) / (RDP_ORDERS - 1)
    )
    position = np.log(RDP_ORDERS - 1)
    distance = position - position[converted.argmin()]
    log_weights = np.log(np.gradient(position)) - np.log(
        _MIXTURE_WIDTH**2 + distance**2
    )
    return log_weights - _logsumexp(log_weights)


def _logsumexp(terms: FloatArray) -> float:
    # SciPy's function takes ten times as long for so few terms.
    largest = terms.max()
    return float(largest + np.log(np.exp(terms - largest).sum()))
