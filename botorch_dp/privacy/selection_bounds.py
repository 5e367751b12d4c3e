r"""Bounds on the privacy of a selection: the best of a random number of runs.

Let one run have the density q on one data set and q' on a neighbouring one, and let
t(y) and t'(y) be the probabilities that a run ranks above y. With phi the generating
function of the number of runs, the release has the density :math:`g(t(y)) q(y)` with
:math:`g(t) = \phi'(1 - t)`, a falling function. A run's privacy profile bounds t' by a
trade-off curve, :math:`t' \le T(t)`. Hence

.. math:: \delta(\epsilon) \le \int \max_t \left[g(t) q - e^\epsilon g(T(t)) q'\right]_+

The maximum is a convex function of q'/q, which is a mixture of hockey sticks, so that
:math:`\delta(\epsilon) \le \sum_j w_j \delta_Q(\epsilon - s_j)` with weights and shifts
that depend neither on epsilon nor on more than the profile :math:`\delta_Q` of a run.
docs/theory/selection.md has the proof, and shows that every rounding here is upwards.

References:
    .. [Papernot2022tuning] N. Papernot and T. Steinke. Hyperparameter Tuning with
        Renyi Differential Privacy. ICLR 2022.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from botorch_dp.privacy.counts import Count
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.hulls import upper_hull
from botorch_dp.privacy.loss_distributions import PLD

# The number of points that a profile keeps of a privacy loss distribution. The chords
# between them are above the curve.
_MOST_POINTS = 4096
# Deltas below this are not resolved any further.
_SMALLEST_DELTA = 1e-30
# The bins of t: their number before refinement, and the ends of the logarithmic grids.
_NUM_BINS = 400
_SMALLEST_TAIL = 1e-16
# A bin in which log g(t) and log g(T(t)) change by more than this is divided, into at
# most so many parts; but not where g(t) is negligible.
_STEP = 0.02
_MOST_PARTS = 64
_NEGLIGIBLE = 45.0
_LARGEST_EPSILON = 700.0


@dataclass(frozen=True, eq=False)
class Profile:
    """The privacy profile of one run, the same in both directions.

    Attributes:
        epsilons: Rising numbers, the first of which is zero.
        deltas: Bounds on the delta at each of them.
    """

    epsilons: FloatArray
    deltas: FloatArray

    @classmethod
    def of_pld(cls, pld: PLD) -> "Profile":
        """Return the profile of a privacy loss distribution."""
        pmfs = [pld._pmf_remove.to_dense_pmf(), pld._pmf_add.to_dense_pmf()]
        interval = pmfs[0]._discretization
        size = max(1, *(pmf._lower_loss + len(pmf._probs) for pmf in pmfs))
        size = min(size, math.ceil(_LARGEST_EPSILON / interval))
        epsilons = interval * np.arange(size)
        deltas = np.maximum(*(_dense_deltas(pmf, epsilons) for pmf in pmfs))
        floor = max(_SMALLEST_DELTA, deltas[-1] * (1 + 1e-6))
        last = int(np.searchsorted(-deltas, -floor, side="left"))
        chosen = np.arange(0, last + 1, max(1, math.ceil(last / _MOST_POINTS)))
        chosen = np.minimum(np.append(chosen, last), size - 1)
        chosen = np.unique(chosen)
        return cls(epsilons[chosen], deltas[chosen])

    @classmethod
    def of_curve(cls, delta_at: Callable[[float], float], largest: float) -> "Profile":
        """Return the profile of a curve, up to some epsilon."""
        epsilons = np.linspace(0.0, min(largest, _LARGEST_EPSILON), 257)
        deltas = np.array([min(1.0, delta_at(epsilon)) for epsilon in epsilons])
        return cls(epsilons, np.minimum.accumulate(deltas))

    def delta(self, epsilon: FloatArray) -> FloatArray:
        """Return bounds on delta at any real epsilon, also at negative ones.

        Delta is a convex function of e^epsilon. A chord between two bounds is therefore
        a bound, and beyond the last point so is the last delta.
        """
        size = np.abs(epsilon)
        at = np.minimum(size, self.epsilons[-1])
        upper = np.searchsorted(self.epsilons, at, side="left").clip(1)
        upper = np.minimum(upper, len(self.epsilons) - 1)
        lower = np.maximum(upper - 1, 0)
        start, width = (
            self.epsilons[lower],
            (self.epsilons[upper] - self.epsilons[lower]),
        )
        with np.errstate(invalid="ignore"):
            share = np.where(width > 0, np.expm1(at - start) / np.expm1(width), 1.0)
        delta = self.deltas[lower] + share * (self.deltas[upper] - self.deltas[lower])
        return np.where(epsilon >= 0, delta, 1 - np.exp(-size) * (1 - delta))

    def trade_off(self, t: FloatArray, f: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the largest probability T(t) of an event of probability t, and 1 - T.

        Args:
            t: The probabilities.
            f: The same as ``1 - t``, with all digits where t is close to one.
        """
        # T(t) is the least of the lines e^e t + delta(e), and 1 - T(t) the largest of
        # their mirror images e^-e (f - delta(e)). Every line is a bound, so that a line
        # that is not quite the best one is harmless.
        steep, flat = self._knots
        last = len(self.epsilons) - 1
        line = last - np.searchsorted(steep, t)
        high = np.minimum(1.0, np.exp(self.epsilons[line]) * t + self.deltas[line])
        line = last - np.searchsorted(flat, f)
        low = np.exp(-self.epsilons[line]) * np.maximum(0.0, f - self.deltas[line])
        return np.minimum(high, 1 - low), np.maximum(low, 1 - high)

    @cached_property
    def _knots(self) -> tuple[FloatArray, FloatArray]:
        """Where the best line changes: rising t of the lines, f of the mirror images.

        Neighbouring lines intersect there.
        """
        falls = -np.diff(self.deltas)
        widths = np.expm1(np.diff(self.epsilons))
        steep = falls / widths * np.exp(-self.epsilons[:-1])
        flat = self.deltas[:-1] + falls / widths
        return np.maximum.accumulate(steep[::-1]), np.maximum.accumulate(flat[::-1])


@dataclass(frozen=True, eq=False)
class SelectionCurve:
    """A bound on the privacy profile of a selection, a mixture of shifted profiles.

    Attributes:
        profile: The profile of one run.
        weights: The weight of each shifted profile; they sum to the expected number of
            runs.
        shifts: By how much epsilon is reduced in each of them; infinity counts the
            whole weight.
        log_slopes: Bounds on log g(t) and log g(T(t)) in many bins of t.
        log_silent: The logarithm of the probability that there is no run.
    """

    profile: Profile
    weights: FloatArray
    shifts: FloatArray
    log_slopes: tuple[FloatArray, FloatArray]
    log_silent: float

    @property
    def resolution(self) -> float:
        """A delta beyond which the curve says no more."""
        return 2 * max(_SMALLEST_DELTA, self.delta(2 * _LARGEST_EPSILON))

    def delta(self, epsilon: float) -> float:
        """Return the delta at ``epsilon``."""
        deltas = self.profile.delta(epsilon - self.shifts)
        return min(1.0, float(self.weights @ deltas))

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Return the delta at each of many epsilons."""
        return np.array([self.delta(epsilon) for epsilon in epsilons])

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta``, rounded up; infinity if there is none."""
        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while self.delta(high) > delta:
            high *= 2
            if high > 2 * _LARGEST_EPSILON:
                return math.inf
        low = 0.0 if high == 1.0 else high / 2
        root: float = brentq(lambda x: self.delta(x) - delta, low, high, xtol=1e-9)
        while self.delta(root) > delta:
            root += 1e-9 * max(1.0, root)
        return root

    def rdp(self, orders: FloatArray, base: FloatArray) -> FloatArray:
        """Return bounds on Renyi divergences, given those of one run.

        The moment of order a is at most P(K = 0) plus the largest
        :math:`g(t)^a g(T(t))^{1-a}` times the moment of one run.
        """
        own, other = self.log_slopes
        with np.errstate(invalid="ignore"):
            factors = [np.max(own + (order - 1) * (own - other)) for order in orders]
        log_moments = np.array(factors) + (orders - 1) * base
        return np.logaddexp(self.log_silent, log_moments) / (orders - 1)


def selection_curve(
    profile: Profile, count: Count, ratios: tuple[float, float] = (1.0, 1.0)
) -> SelectionCurve:
    """Return the bound for a profile of one run and a distribution of their number.

    Args:
        profile: The profile of one run.
        count: The distribution of the number of runs.
        ratios: The bounds c and C on every proposal's density, relative to a fixed one.
    """
    log_slopes = _log_slopes(profile, count, ratios)
    own, other = (np.exp(log) for log in log_slopes)
    # h(x) = max_t [g(t) - x g(T(t))]_+ is convex and piecewise linear. The edge between
    # two neighbours on the hull of the points (g(T), g) is a kink of h: it adds the
    # hockey stick (g2 - g1) [1 - x / e^shift]_+ with e^shift the slope of the edge.
    x, y = np.append(0.0, other[::-1]), np.append(0.0, own[::-1])
    hull = upper_hull(x, y)
    widths, weights = np.diff(x[hull]), np.diff(y[hull])
    certain = y[hull[0]]  # where g(T(t)) = 0: the worst is assumed
    return SelectionCurve(
        profile,
        np.append(certain, weights),
        np.append(np.inf, np.log(weights) - np.log(widths)),
        log_slopes,
        float(count.log_generating(np.zeros(1))[0]),
    )


def largest_log_ratio(
    epsilon: float, count: Count, ratios: tuple[float, float] = (1.0, 1.0)
) -> float:
    """Return the largest loss that a selection adds to epsilon-DP runs.

    Args:
        epsilon: The pure cost of one run.
        count: The distribution of the number of runs.
        ratios: The bounds c and C on every proposal's density, relative to a fixed one.
    """
    profile = Profile(np.array([0.0, epsilon]), np.array([math.tanh(epsilon / 2), 0.0]))
    own, other = _log_slopes(profile, count, ratios)
    # In the last bin f = 1 - t reaches zero, and there f' >= e^-epsilon f. The loss
    # rises with f, because z phi''(z) / phi'(z) does, so that its upper end is enough.
    low, high = ratios
    ends = np.array([high, low * math.exp(-epsilon)]) * _SMALLEST_TAIL
    last = count.log_slope(np.minimum(ends, 1.0))
    largest = np.max(own[:-1] - other[:-1])
    return max(float(largest), float(last[0] - last[1]) + math.log(high / low))


def _log_slopes(
    profile: Profile, count: Count, ratios: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Return the largest log g(t) and the least log g(T(t)) of each of many bins."""
    low, high = ratios

    def slopes(t: FloatArray, f: FloatArray) -> tuple[FloatArray, FloatArray]:
        _, other = profile.trade_off(t, f)
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
    with np.errstate(invalid="ignore"):
        change = np.abs(np.diff(own)) + np.abs(np.diff(other))
    change = np.nan_to_num(change, nan=0.0, posinf=_STEP * _MOST_PARTS)
    change[own[:-1] < own[0] - _NEGLIGIBLE] = 0.0
    parts = np.clip(np.ceil(change / _STEP), 1, _MOST_PARTS).astype(int)
    share = _shares(parts)
    t, f = (
        np.append(
            np.repeat(x[:-1], parts) + share * np.repeat(np.diff(x), parts), x[-1]
        )
        for x in (t, f)
    )
    own, other = slopes(t, f)
    # g falls and T rises: the largest g is at the lower end, the least at the upper.
    return own[:-1], np.minimum(other[1:], own[:-1])


def _shares(parts: NDArray[np.intp]) -> FloatArray:
    """Return 0, 1/n, ..., (n-1)/n for each n in ``parts``, one after the other."""
    starts = np.repeat(np.cumsum(parts) - parts, parts)
    return (np.arange(parts.sum()) - starts) / np.repeat(parts, parts)


def _dense_deltas(pmf: PLD, epsilons: FloatArray) -> FloatArray:
    """Return the deltas of one direction at the points of its own grid."""
    size, lower = len(epsilons), pmf._lower_loss
    probs = np.zeros(size)
    first = max(0, -lower)
    inside = pmf._probs[first : first + size - max(0, lower)]
    start = max(0, lower)
    probs[start : start + len(inside)] = inside
    infinite = pmf._infinity_mass + pmf._probs[first + size - start :].sum()
    # delta = P(loss > e) - e^e P'(loss > e), with sums that start at the small end.
    above = np.append(np.cumsum(probs[:0:-1])[::-1], 0.0)
    below = np.append(np.cumsum((probs * np.exp(-epsilons))[:0:-1])[::-1], 0.0)
    deltas = infinite + np.maximum(0.0, above - np.exp(epsilons) * below)
    return np.minimum(1.0, np.maximum.accumulate(deltas[::-1])[::-1])
