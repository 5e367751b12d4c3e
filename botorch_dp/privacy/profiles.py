r"""Privacy profiles: the deltas of a release at all epsilons, and its trade-off curve.

For a release with the density p on one data set and p' on its neighbour, the profile is
:math:`\delta(\epsilon) = \int [p - e^\epsilon p']_+` for every real epsilon. It is a
convex function of :math:`e^\epsilon`, and with the profile of the other direction, in
which p and p' change places,

.. math:: \delta(-\epsilon) = 1 - e^{-\epsilon} (1 - \delta'(\epsilon)),

so that nonnegative epsilons in both directions say everything.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from botorch_dp.privacy import curves
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.loss_composition import LossComposition

# The number of points of the profile of a history. Half of them are below the epsilon
# at this delta.
_MOST_POINTS = 4096
_TYPICAL_DELTA = 1e-8
_LEAST_END = 1e-9
# The curve ends at this share above the probability of an infinite loss.
_ABOVE_INFINITE = 1e-5
_NEAR_LARGEST = 1e-2
# Deltas below this are not resolved any further.
SMALLEST_DELTA = 1e-30
# The exponential of a larger epsilon overflows.
LARGEST_EPSILON = 700.0


@dataclass(frozen=True, eq=False)
class Profile:
    """Bounds on the privacy profile of a release.

    Attributes:
        epsilons: Rising numbers, the first of which is zero.
        deltas: Bounds on the delta at each of them.
        reverse: The same with the two data sets in the other order.

    Example:
        >>> pure = Profile.of_pure(1.0)
        >>> pure.delta(np.array([-1.0, 0.0, 1.0])).round(4)
        array([0.6321, 0.4621, 0.    ])
    """

    epsilons: FloatArray
    deltas: FloatArray
    reverse: FloatArray

    @classmethod
    def of_losses(cls, losses: LossComposition, coarseness: int = 1) -> "Profile":
        """Return the profile of a history.

        Args:
            losses: The total privacy loss of the history.
            coarseness: How many times fewer points than usual the profile has.
        """
        most = min(losses.largest, LARGEST_EPSILON)
        least = losses.infinite * (1 + _ABOVE_INFINITE)
        ends = [
            min(losses.epsilon(least + delta), most)
            for delta in (_TYPICAL_DELTA, SMALLEST_DELTA)
        ]
        if ends[1] > most * (1 - _NEAR_LARGEST):  # the curve ends there
            ends[1] = most
        number = _MOST_POINTS // (2 * coarseness)
        parts = [np.linspace(0.0, max(end, _LEAST_END), number) for end in ends]
        epsilons = np.unique(np.concatenate(parts))
        ways = [np.minimum.accumulate(way) for way in losses.deltas(epsilons)]
        return cls(epsilons, ways[0], ways[-1])

    @classmethod
    def of_curve(cls, delta_at: Callable[[float], float], largest: float) -> "Profile":
        """Return the profile of a curve that bounds both directions.

        Args:
            delta_at: The delta at an epsilon.
            largest: The largest epsilon at which it is computed.
        """
        epsilons = np.linspace(0.0, min(largest, LARGEST_EPSILON), 257)
        deltas = np.array([min(1.0, delta_at(epsilon)) for epsilon in epsilons])
        deltas = np.minimum.accumulate(deltas)
        return cls(epsilons, deltas, deltas)

    @classmethod
    def of_gaussian(cls, mu: float) -> "Profile":
        """Return the profile of the Gaussian pair."""
        largest = min(mu * (mu / 2 + 9), LARGEST_EPSILON)
        epsilons = np.linspace(0.0, largest, 1025)
        deltas = curves.gdp_deltas(mu, epsilons)
        return cls(epsilons, deltas, deltas)

    @classmethod
    def of_pure(cls, epsilon: float) -> "Profile":
        """Return the profile of any epsilon-DP release."""
        deltas = np.array([math.tanh(epsilon / 2), 0.0])
        return cls(np.array([0.0, epsilon]), deltas, deltas)

    @property
    def is_symmetric(self) -> bool:
        """Whether both directions have the same bounds."""
        return self.reverse is self.deltas or np.array_equal(self.deltas, self.reverse)

    def reversed(self) -> "Profile":
        """Return the profile with the two data sets in the other order."""
        return Profile(self.epsilons, self.reverse, self.deltas)

    def delta(self, epsilon: FloatArray) -> FloatArray:
        """Return bounds on delta at any real epsilon, also at negative ones.

        Delta is a convex function of e^epsilon. A chord between two bounds is therefore
        a bound, and beyond the last point so is the last delta.
        """
        size = np.abs(epsilon)
        at = np.minimum(size, self.epsilons[-1])
        upper = np.searchsorted(self.epsilons[1:-1], at, side="right") + 1
        start = self.epsilons[upper - 1]
        share = np.expm1(at - start) / np.expm1(self.epsilons[upper] - start)
        ahead = self.deltas[upper - 1] * (1 - share) + self.deltas[upper] * share
        if np.min(epsilon) >= 0:
            return ahead
        behind = self.reverse[upper - 1] * (1 - share) + self.reverse[upper] * share
        return np.where(epsilon >= 0, ahead, 1 - np.exp(-size) * (1 - behind))

    def other_share(self, t: FloatArray, f: FloatArray) -> FloatArray:
        """Return the least value of f', for events of probabilities t = 1 - f.

        An event of probability t on the one data set has at most the probability
        t' = T(t) on the other: T is the trade-off curve, and f' = 1 - t'.

        Args:
            t: Probabilities.
            f: The same as ``1 - t``, with all digits where it is small.
        """
        # t' <= e^e t + delta'(e), and for the complement f <= e^e f' + delta(e), at all
        # e >= 0. Every such line is a bound: one that is not the best does no harm.
        steep, flat = self._knots
        last = len(self.epsilons) - 1
        line = last - np.searchsorted(steep, t)
        first = 1 - self.reverse[line] - np.exp(self.epsilons[line]) * t
        line = last - np.searchsorted(flat, f)
        second = np.exp(-self.epsilons[line]) * (f - self.deltas[line])
        return np.maximum(0.0, np.maximum(first, second))

    @cached_property
    def _knots(self) -> tuple[FloatArray, FloatArray]:
        """The rising t, and the rising f, at which neighbouring lines intersect."""
        widths = np.expm1(np.diff(self.epsilons))
        steep = -np.diff(self.reverse) / widths * np.exp(-self.epsilons[:-1])
        flat = self.deltas[:-1] - np.diff(self.deltas) / widths
        return np.maximum.accumulate(steep[::-1]), np.maximum.accumulate(flat[::-1])
