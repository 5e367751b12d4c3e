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
from botorch_dp.privacy.loss_distributions import PLD

# The number of points that are kept of a privacy loss distribution.
_MOST_POINTS = 4096
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
    def of_pld(cls, pld: PLD, rounding: float = 0.0) -> "Profile":
        """Return the profile of a privacy loss distribution.

        Args:
            pld: The distribution.
            rounding: A bound on the rounding errors of its deltas, which is added.
        """
        pmfs = [pld._pmf_remove.to_dense_pmf()]
        if not pld._symmetric:
            pmfs.append(pld._pmf_add.to_dense_pmf())
        interval = pmfs[0]._discretization
        size = max(2, *(pmf._lower_loss + len(pmf._probs) for pmf in pmfs), 2)
        size = min(size, math.ceil(LARGEST_EPSILON / interval))
        epsilons = interval * np.arange(size)
        ways = [np.minimum(1.0, _deltas_of(p, epsilons) + rounding) for p in pmfs]
        # Where both ways have reached their ends, more points say nothing.
        used = [
            np.searchsorted(-way, -max(SMALLEST_DELTA, way[-1] * (1 + 1e-6)))
            for way in ways
        ]
        last = min(max(1, *used, 1), size - 1)
        chosen = np.arange(0, last + 1, math.ceil(last / _MOST_POINTS))
        chosen = np.unique(np.append(chosen, last))
        return cls(epsilons[chosen], ways[0][chosen], ways[-1][chosen])

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


def _deltas_of(pmf: PLD, epsilons: FloatArray) -> FloatArray:
    """Return the deltas of one direction at the nonnegative points of its grid."""
    size, lower = len(epsilons), pmf._lower_loss
    first, start = max(0, -lower), min(max(0, lower), size)
    inside = pmf._probs[first : first + size - start]
    probs = np.zeros(size)
    probs[start : start + len(inside)] = inside
    infinite = pmf._infinity_mass + pmf._probs[first + size - start :].sum()
    # delta = P(loss > e) - e^e P'(loss > e), with sums that start at the small end.
    above = np.append(np.cumsum(probs[:0:-1])[::-1], 0.0)
    below = np.append(np.cumsum((probs * np.exp(-epsilons))[:0:-1])[::-1], 0.0)
    deltas = infinite + np.maximum(0.0, above - np.exp(epsilons) * below)
    return np.minimum(1.0, np.maximum.accumulate(deltas[::-1])[::-1])
