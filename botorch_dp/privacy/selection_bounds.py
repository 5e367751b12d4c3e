r"""Bounds on the privacy of a selection: the best of a random number of runs.

Let one run have the density q on one data set and q' on a neighbouring one, and let
t(y) and t'(y) be the probabilities that a run ranks above y. With phi the generating
function of the number of runs, the release has the density :math:`g(t(y)) q(y)` with
:math:`g(t) = \phi'(1 - t)`, a falling function. The privacy profile of a run bounds t'
by a trade-off curve, :math:`t' \le T(t)`. Hence

.. math:: \delta(\epsilon) \le \int \max_t \left[g(t) q - e^\epsilon g(T(t)) q'\right]_+

The maximum is q times a convex function of q'/q, which is a mixture of hockey sticks:
:math:`\delta(\epsilon) \le \sum_j w_j \delta_Q(\epsilon - s_j)`, where weights and
shifts do not depend on epsilon, and :math:`\delta_Q` is the profile of one run.
docs/theory/selection.md has the proof, and shows that every rounding here is upwards.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from botorch_dp.privacy.counts import Count
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.hulls import upper_hull
from botorch_dp.privacy.profiles import LARGEST_EPSILON, SMALLEST_DELTA, Profile

# The bins of t: half of their number before refinement, and the least t and 1 - t.
_NUM_BINS = 300
_SMALLEST_TAIL = 1e-16
# A bin in which log g(t) and log g(T(t)) change by more than this is divided, into at
# most so many parts; but not where g(t) is below e^-30 of its largest value. With steps
# of 0.01 epsilon was 0.1 to 0.2 % above its limit for small steps.
_STEP = 0.01
_PURE_STEP = 5e-4
_MOST_PARTS = 64
_NEGLIGIBLE = 30.0
# Shifted profiles with less than this share of all weights count as delta = 1.
_SMALLEST_SHARE = 2.0**-70
# The number of shifted profiles that are evaluated at a time.
_CHUNK = 2**20


@dataclass(frozen=True, eq=False)
class OneWayBound:
    """A bound on the profile of a selection for one order of the two data sets.

    Attributes:
        profile: The profile of one run.
        weights: The weight of each shifted profile; they sum to the expected number of
            runs.
        shifts: By how much epsilon is reduced in each of them; infinity counts the
            whole weight.
        log_slopes: Bounds on log g(t) and log g(T(t)) in many bins of t.
    """

    profile: Profile
    weights: FloatArray
    shifts: FloatArray
    log_slopes: tuple[FloatArray, FloatArray]

    def delta(self, epsilon: float) -> float:
        """Return the delta at ``epsilon``."""
        deltas = self.profile.delta(epsilon - self.shifts)
        return min(1.0, float(self.weights @ deltas))

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Return the delta at each of many epsilons."""
        rows = max(1, _CHUNK // len(self.shifts))
        parts = [
            self.profile.delta(epsilons[i : i + rows, None] - self.shifts)
            @ self.weights
            for i in range(0, len(epsilons), rows)
        ]
        return np.minimum(1.0, np.concatenate(parts))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta``, rounded up; infinity if there is none."""
        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while self.delta(high) > delta:
            high *= 2
            if high > 2 * LARGEST_EPSILON:
                return math.inf
        low = 0.0 if high == 1.0 else high / 2
        root: float = brentq(lambda x: self.delta(x) - delta, low, high, xtol=1e-9)
        while self.delta(root) > delta:
            root += 1e-9 * max(1.0, root)
        return root

    def log_factors(self, orders: FloatArray) -> FloatArray:
        """Return the largest log of g(t)^a g(T(t))^(1-a) at each order a."""
        own, other = self.log_slopes
        with np.errstate(invalid="ignore"):
            largest = [np.max(own + (a - 1) * (own - other)) for a in orders]
        return _nan_to_inf(np.array(largest))


@dataclass(frozen=True, eq=False)
class SelectionBound:
    """A bound on the privacy profile of a selection.

    Attributes:
        ways: The bounds for both orders of the data sets; one if they are the same.
        silent: The probability that there is no run.
    """

    ways: tuple[OneWayBound, ...]
    silent: float

    @property
    def resolution(self) -> float:
        """A delta below which the bound says no more."""
        ends = [way.delta(2 * LARGEST_EPSILON) for way in self.ways]
        return 2 * max(SMALLEST_DELTA, *ends, SMALLEST_DELTA)

    def delta(self, epsilon: float) -> float:
        """Return the delta at ``epsilon``."""
        return max(way.delta(epsilon) for way in self.ways)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta``, rounded up; infinity if there is none."""
        return max(way.epsilon(delta) for way in self.ways)

    def rdp(self, orders: FloatArray, base: FloatArray) -> FloatArray:
        """Return bounds on Renyi divergences, given those of one run.

        The moment of order a is at most P(K = 0) plus the largest
        :math:`g(t)^a g(T(t))^{1-a}` times the moment of one run.
        """
        factors = np.max([way.log_factors(orders) for way in self.ways], axis=0)
        with np.errstate(divide="ignore"):
            log_silent = np.log(self.silent)
        return np.logaddexp(log_silent, factors + (orders - 1) * base) / (orders - 1)


def selection_bound(
    profile: Profile, count: Count, ratios: tuple[float, float] = (1.0, 1.0)
) -> SelectionBound:
    """Return the bound for a profile of one run and a distribution of their number.

    Args:
        profile: The profile of one run.
        count: The distribution of the number of runs.
        ratios: The bounds c and C on every proposal's density, relative to a fixed one.

    Example:
        >>> from botorch_dp.privacy.counts import Poisson
        >>> bound = selection_bound(Profile.of_pure(1.0), Poisson(8.0))
        >>> round(bound.epsilon(1e-6), 1)
        4.7
    """
    profiles = [profile] if profile.is_symmetric else [profile, profile.reversed()]
    ways = tuple(_one_way_bound(one, count, ratios) for one in profiles)
    return SelectionBound(ways, float(count.probabilities(0)[0]))


def largest_log_ratio(
    epsilon: float, count: Count, ratios: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Return the largest loss that a selection adds to that of epsilon-DP runs.

    Args:
        epsilon: The pure cost of one run.
        count: The distribution of the number of runs.
        ratios: The bounds c and C on every proposal's density, relative to a fixed one.
    """
    own, other = _log_slopes(Profile.of_pure(epsilon), count, ratios, _PURE_STEP)
    # In the last bin f = 1 - t reaches zero, and there f' >= e^-epsilon f. The loss
    # rises with f, because z phi''(z) / phi'(z) does, so that its upper end is enough.
    low, high = ratios
    ends = np.array([high, low * math.exp(-epsilon)]) * _SMALLEST_TAIL
    last = count.log_slope(np.minimum(ends, 1.0))
    with np.errstate(invalid="ignore"):
        end = last[0] - last[1] + math.log(high / low)
        losses = np.append(own[:-1] - other[:-1], end)
    return float(_nan_to_inf(losses).max())


def _nan_to_inf(values: FloatArray) -> FloatArray:
    """Return infinity for the ratio of two slopes that both underflow."""
    return np.where(np.isnan(values), np.inf, values)


def _one_way_bound(
    profile: Profile, count: Count, ratios: tuple[float, float]
) -> OneWayBound:
    log_slopes = _log_slopes(profile, count, ratios)
    own, other = (np.exp(log) for log in log_slopes)
    # h(x) = max_t [g(t) - x g(T(t))]_+ is convex and piecewise linear. The edge between
    # two neighbours on the hull of the points (g(T), g) is a kink of h: it adds the
    # hockey stick (g2 - g1) [1 - x / e^shift]_+ with e^shift the slope of the edge.
    x, y = np.append(0.0, other[::-1]), np.append(0.0, own[::-1])
    hull = upper_hull(x, y)
    widths, weights = np.diff(x[hull]), np.diff(y[hull])
    shifts = np.log(weights) - np.log(widths)
    large = weights >= _SMALLEST_SHARE * own[0]
    # Where g(T(t)) = 0, and where it does not matter, delta = 1 is assumed.
    certain = y[hull[0]] + weights[~large].sum()
    return OneWayBound(
        profile,
        np.append(certain, weights[large]),
        np.append(np.inf, shifts[large]),
        log_slopes,
    )


def _log_slopes(
    profile: Profile,
    count: Count,
    ratios: tuple[float, float],
    step: float = _STEP,
) -> tuple[FloatArray, FloatArray]:
    """Return the largest log g(t) and the least log g(T(t)) of each of many bins."""
    low, high = ratios

    def slopes(t: FloatArray, f: FloatArray) -> tuple[FloatArray, FloatArray]:
        other = profile.other_share(t, f)
        up = np.minimum(high * f, 1 - low + low * f)
        down = np.maximum(low * other, 1 - high + high * other)
        return (
            math.log(high) + count.log_slope(np.minimum(up, 1.0)),
            math.log(low) + count.log_slope(np.clip(down, 0.0, 1.0)),
        )

    small = np.append(0.0, np.geomspace(_SMALLEST_TAIL, 0.5, _NUM_BINS))
    t = np.append(small, 1 - small[-2::-1])
    f = np.append(1 - small, small[-2::-1])
    own, other = slopes(t, f)
    most_parts = _MOST_PARTS * _STEP / step
    with np.errstate(invalid="ignore"):
        change = np.abs(np.diff(own)) + np.abs(np.diff(other))
    change = np.nan_to_num(change, nan=0.0, posinf=math.inf)
    change[own[:-1] < own[0] - _NEGLIGIBLE] = 0.0
    parts = np.clip(np.ceil(change / step), 1, most_parts).astype(int)
    t, f = _divide(t, parts), _divide(f, parts)
    own, other = slopes(t, f)
    # g falls and T rises: the largest g is at the lower end, the least at the upper.
    return own[:-1], np.minimum(other[1:], own[:-1])


def _divide(ends: FloatArray, parts: NDArray[np.int_]) -> FloatArray:
    """Return the ends of bins after each was divided into a number of parts."""
    within = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    widths = np.repeat(np.diff(ends) / parts, parts)
    return np.append(np.repeat(ends[:-1], parts) + within * widths, ends[-1])
