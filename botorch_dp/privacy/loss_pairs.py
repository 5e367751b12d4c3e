r"""Pairs of discrete distributions that are easier to tell apart than a release.

A release has a density p on one data set and p' on its neighbour. A
:class:`LossPair` has finitely many privacy losses and dominates it: from one draw of
the pair one can simulate the release, so that the pair has at least its delta at every
epsilon, alone and composed with anything else. It is made by connecting the dots of the
privacy profile [Doroshenko2022connect]_: the probability between two neighbouring
losses moves to these two, such that both totals, under p and under p', stay as they
are. ``docs/theory/accounting.md`` has the proof and says how little this costs.

The losses lie where the distribution needs them, about a thousand for each release,
and not on a grid. A pair is therefore computed once for each event, whatever it is
composed with.

References:
    .. [Doroshenko2022connect] V. Doroshenko, B. Ghazi, P. Kamath, R. Kumar and
        P. Manurangsi. Connect the Dots: Tighter Discrete Approximations of Privacy
        Loss Distributions. PoPETs 2022.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from botorch_dp.privacy import curves
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.hulls import upper_hull

Curve: TypeAlias = Callable[[FloatArray], FloatArray]

# Losses beyond those of outputs this many standard deviations away count as infinite.
# Their probability, 2e-33, is added to every delta.
_REACH = 12.0
_TAIL_MASS = 1e-33
# The distance between the outputs, in standard deviations, whose losses are dots. The
# variance of a loss grows by at most a fourth of its square, so by less than 4e-5.
SPACING = 0.0125
# The same for histories of few different releases, where time does not matter.
FINE_SPACING = 0.004
_MOST_DOTS = 8192
# The number of dots of curves that take long to compute.
_NUM_DOTS = 256
# Losses that differ by less than this share of the typical loss are one.
_LEAST_GAP = 1e-3
# The exponential of twice this number does not overflow.
_LARGEST_EXPONENT = 350.0
# Bounds on the relative rounding errors of the curves: in general, and those of
# Gaussian releases over mu, where they are differences. Deltas are raised by them. In
# high precision, errors were at most half as large.
_CURVE_ROUNDING = 1e-11
_DIFFERENCE_ROUNDING = 5e-14


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """The losses of a release on one of two neighbouring data sets.

    Attributes:
        losses: The finite losses, which rise.
        log_masses: The logarithms of their probabilities.
        infinite: The probability of an infinite loss.
    """

    losses: FloatArray
    log_masses: FloatArray
    infinite: float

    def cut(self, mass: float) -> "LossDistribution":
        """Return the distribution with large losses made infinite.

        Args:
            mass: The largest probability that they may have.
        """
        tails = np.cumsum(np.exp(self.log_masses[:0:-1]))
        number = int(np.searchsorted(tails, mass, side="right"))
        if number == 0:
            return self
        infinite = self.infinite + float(tails[number - 1])
        return LossDistribution(
            self.losses[:-number], self.log_masses[:-number], infinite
        )


@dataclass(frozen=True, eq=False)
class LossPair:
    """A pair of distributions that dominates a release.

    Attributes:
        ways: The losses with the two data sets in either order; one distribution if
            they are the same.

    Example:
        >>> pair = approx_pair(1.0, 0.0)
        >>> pair.ways[0].losses.tolist()
        [-1.0, 0.0, 1.0]
        >>> np.exp(pair.ways[0].log_masses).round(4)
        array([0.2689, 0.    , 0.7311])
    """

    ways: tuple[LossDistribution, ...]

    def way(self, index: int) -> LossDistribution:
        """Return the losses in the first or the second order."""
        return self.ways[min(index, len(self.ways) - 1)]


def connect_dots(
    ahead: FloatArray, deltas: FloatArray, behind: FloatArray, reverse: FloatArray
) -> LossPair:
    """Return the pair whose profile connects the dots of a profile.

    Args:
        ahead: Epsilons that rise from zero.
        deltas: The deltas at these epsilons.
        behind: Epsilons that rise from zero, for the other order.
        reverse: The deltas at these epsilons with the data sets in the other order.
    """
    # Both orders have the same delta at zero, or the dots would not fit together.
    deltas, reverse = deltas.copy(), reverse.copy()
    deltas[0] = reverse[0] = max(deltas[0], reverse[0])
    above, below = _masses(ahead, deltas), _masses(behind, reverse)
    # In the other order a loss has the other sign, and e^loss times its probability.
    above_reversed = above * np.exp(-ahead[1:])
    below_reversed = below * np.exp(-behind[1:])
    losses = np.concatenate([-behind[:0:-1], [0.0], ahead[1:]])
    ways = []
    for up, down, delta in (
        (above, below_reversed, deltas[-1]),
        (below, above_reversed, reverse[-1]),
    ):
        at_zero = max(0.0, 1.0 - math.fsum(up) - math.fsum(down) - delta)
        masses = np.concatenate([down[::-1], [at_zero], up])
        with np.errstate(divide="ignore"):
            ways.append(LossDistribution(losses, np.log(masses), float(delta)))
        losses = -losses[::-1]
    return LossPair(tuple(ways))


def symmetric_pair(ahead: FloatArray, deltas: FloatArray) -> LossPair:
    """Return the pair of a profile that is the same in both orders."""
    return LossPair(connect_dots(ahead, deltas, ahead, deltas).ways[:1])


def _masses(epsilons: FloatArray, deltas: FloatArray) -> FloatArray:
    """Return the probabilities of all losses but the first, which is zero.

    They are the changes of the slope of delta as a function of e^epsilon, times
    e^epsilon. No rounding error makes one of them negative.
    """
    gaps, falls = np.diff(epsilons), -np.diff(deltas)
    before = falls / -np.expm1(-gaps)
    after = np.append(falls[1:] / np.expm1(gaps[1:]), 0.0)
    return np.maximum(0.0, before - after)


def _raised(deltas: FloatArray, mu: float = 1.0) -> FloatArray:
    """Return deltas of a curve, raised by its rounding errors."""
    rounding = _CURVE_ROUNDING + _DIFFERENCE_ROUNDING / mu
    return np.minimum(1.0, deltas * (1 + rounding))


@lru_cache(maxsize=64)
def gaussian_pair(mu: float, spacing: float = SPACING) -> LossPair:
    """Return a pair that dominates a mu-GDP release."""
    losses = mu * _outputs(mu, spacing) - mu**2 / 2
    ahead = _dots(losses, mu)
    return symmetric_pair(ahead, _raised(curves.gdp_deltas(mu, ahead), mu))


def poisson_pair(mu: float, rate: float, spacing: float = SPACING) -> LossPair:
    """Return a pair that dominates a mu-GDP release of a Poisson sample.

    The data set with the record comes first.
    """
    cached = _many_poisson_pairs if spacing >= SPACING else _few_poisson_pairs
    return cached(mu, rate, spacing)


def _poisson_pair(mu: float, rate: float, spacing: float) -> LossPair:
    losses = _sampled_losses(mu, rate, spacing)
    ahead, behind = _dots(losses, rate * mu), _dots(-losses[::-1], rate * mu)
    # Without the record, no loss is larger than this one.
    behind = np.append(behind[behind < -math.log1p(-rate)], -math.log1p(-rate))
    deltas = _raised(curves.sampled_gdp_deltas(mu, rate, ahead), mu)
    reverse = _raised(curves.unsampled_gdp_deltas(mu, rate, behind[:-1]), mu)
    return connect_dots(ahead, deltas, behind, np.append(reverse, 0.0))


# A pair takes 60 kB, a fine one 200 kB.
_many_poisson_pairs = lru_cache(maxsize=1024)(_poisson_pair)
_few_poisson_pairs = lru_cache(maxsize=64)(_poisson_pair)


@lru_cache(maxsize=64)
def fixed_size_pair(mu: float, rate: float, spacing: float = SPACING) -> LossPair:
    """Return a pair that dominates a mu-GDP release of a subset of fixed size.

    Its profile is that of [Balle2018amplification]_, continued to negative epsilons by
    the symmetry of replace-one: see ``docs/theory/fixed_size_sampling.md``.

    References:
        .. [Balle2018amplification] B. Balle, G. Barthe and M. Gaboardi. Privacy
            Amplification by Subsampling: Tight Analyses via Couplings and Divergences.
            NeurIPS 2018.
    """
    ahead = _dots(_sampled_losses(mu, rate, spacing), rate * mu)
    return symmetric_pair(
        ahead, _raised(curves.sampled_gdp_deltas(mu, rate, ahead), mu)
    )


@lru_cache(maxsize=64)
def laplace_pair(epsilon: float, spacing: float = SPACING) -> LossPair:
    """Return a pair that dominates Laplace noise: delta = 1 - e^((e - epsilon) / 2)."""
    ahead = np.linspace(0.0, epsilon, math.ceil(_REACH / spacing))
    return symmetric_pair(ahead, _raised(-np.expm1((ahead - epsilon) / 2)))


def approx_pair(epsilon: float, delta: float) -> LossPair:
    """Return the pair that dominates every (epsilon, delta)-DP release.

    It is randomized response, except that it reveals everything with probability delta.
    """
    deltas = delta + (1 - delta) * np.array([math.tanh(epsilon / 2), 0.0])
    return symmetric_pair(np.array([0.0, epsilon]), _raised(deltas))


@lru_cache(maxsize=64)
def zcdp_pair(rho: float) -> LossPair:
    """Return a pair that dominates every rho-zCDP release."""
    largest = curves.zcdp_epsilon(rho, _TAIL_MASS)

    def deltas(epsilons: FloatArray) -> FloatArray:
        return np.array([curves.zcdp_delta(rho, epsilon) for epsilon in epsilons])

    return pair_of_bounds((deltas,), largest, _NUM_DOTS)


def pair_of_bounds(
    bounds: tuple[Curve, ...], largest: float, num_dots: int = 8 * _NUM_DOTS
) -> LossPair:
    """Return a pair that dominates every release with such deltas.

    Args:
        bounds: Bounds on the deltas at given epsilons from zero, one for each order of
            the two data sets; one if they are the same.
        largest: The largest epsilon that matters.
        num_dots: The number of dots.
    """
    dots = np.linspace(0.0, min(largest, _LARGEST_EXPONENT), num_dots)
    heights = [np.minimum.accumulate(_raised(bound(dots))) for bound in bounds]
    deltas, reverse = heights[0], heights[-1]
    # The true profile is a convex function of e^epsilon, and so it is nowhere above the
    # largest convex function below the dots.
    mirrored = 1 - np.exp(-dots) * (1 - reverse)
    odds = np.concatenate([[0.0], np.exp(-dots[:0:-1]), np.exp(dots)])
    y = np.concatenate([[1.0], mirrored[:0:-1], deltas])
    hull = np.array(upper_hull(odds, -y))
    at_zero = np.interp(1.0, odds[hull], y[hull])
    ahead, behind = hull - num_dots, num_dots - hull[1:][::-1]
    ahead, behind = ahead[ahead > 0], behind[behind > 0]
    ways = [
        (np.append(0.0, dots[chosen]), np.append(at_zero, curve[chosen]))
        for chosen, curve in ((ahead, deltas), (behind, reverse))
    ]
    return (
        symmetric_pair(*ways[0])
        if len(bounds) == 1
        else connect_dots(*ways[0], *ways[1])
    )


def _outputs(mu: float, spacing: float) -> FloatArray:
    """Return outputs of a Gaussian release, in standard deviations."""
    num_outputs = min(math.ceil((mu + 2 * _REACH) / spacing), _MOST_DOTS)
    return np.linspace(-_REACH, mu + _REACH, num_outputs)


def _sampled_losses(mu: float, rate: float, spacing: float) -> FloatArray:
    """Return the losses of outputs of a Gaussian release of a sample."""
    log_odds = mu * _outputs(mu, spacing) - mu**2 / 2
    return np.logaddexp(np.log1p(-rate), math.log(rate) + log_odds)


def _dots(losses: FloatArray, scale: float) -> FloatArray:
    """Return zero and the positive losses, of which at most one is in each bin."""
    positive = np.append(0.0, losses[losses > 0])
    bins = np.floor(positive / (_LEAST_GAP * scale) + 0.5)
    return positive[np.append(True, np.diff(bins) > 0)]
