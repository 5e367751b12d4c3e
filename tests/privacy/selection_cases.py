"""Counts, finite problems and true divergences for the tests of selections."""

import itertools
import math

import numpy as np
from scipy.integrate import trapezoid
from scipy.stats import norm

from botorch_dp.privacy import (
    AtLeast,
    AtMost,
    Binomial,
    Poisson,
    TruncatedNegativeBinomial,
)
from botorch_dp.privacy.profiles import Profile

GEOMETRIC = TruncatedNegativeBinomial(8.0, 1.0)
COUNTS = [
    Poisson(0.5),
    Poisson(8.0),
    TruncatedNegativeBinomial(1.0, 0.0),
    TruncatedNegativeBinomial(8.0, -0.5),
    TruncatedNegativeBinomial(8.0, 0.0),
    TruncatedNegativeBinomial(8.0, 0.5),
    GEOMETRIC,
    TruncatedNegativeBinomial(8.0, 5.0),
    Binomial(10, 0.4),
    Binomial(3, 1.0),
    AtLeast(TruncatedNegativeBinomial(7.0, 1.0), 2),
    AtLeast(Poisson(4.0), 3),
    AtMost(Poisson(8.0), 10),
    AtMost(GEOMETRIC, 4),
    AtMost(AtLeast(Poisson(4.0), 2), 7),
]


def hockey_stick(p, q, epsilon):
    """The divergence of two vectors of probabilities."""
    return np.maximum(0.0, p - math.exp(epsilon) * q).sum()


def exact_profile(p, q):
    """The profile of two vectors of probabilities, exact at all epsilons."""
    epsilons = np.unique(np.append(0.0, np.abs(np.log(p / q))))
    ways = [[hockey_stick(a, b, e) for e in epsilons] for a, b in ((p, q), (q, p))]
    return Profile(epsilons, *map(np.array, ways))


def selected(p, count, pieces=1):
    """The probabilities of the best run, for outcomes in the order of their scores.

    Args:
        p: The probabilities of the outcomes of a run, the worst first.
        count: The distribution of the number of runs.
        pieces: Into how many pieces each outcome is divided: with many, the number that
            breaks ties is part of the release.
    """
    ends = np.append(0.0, np.cumsum(np.repeat(p / pieces, pieces)))
    generating = np.exp(count.log_generating(np.minimum(ends, 1.0)))
    return np.diff(generating)


def gaussian_delta(mu, count, epsilon):
    """The true delta if a run returns a Gaussian score, in the worse direction."""
    y = np.linspace(-12.0, 12.0 + mu, 400_001)

    def density(shift):
        slope = count.log_slope(norm.cdf(y - shift))
        return np.exp(slope + norm.logpdf(y - shift))

    one, other = density(0.0), density(mu)
    gaps = (one - math.exp(epsilon) * other, other - math.exp(epsilon) * one)
    return max(trapezoid(np.maximum(0.0, gap), y) for gap in gaps)


def adaptive_selected(p, rule, probabilities):
    """The probabilities of the best run if proposals depend on earlier runs.

    Args:
        p: The probabilities of the outcomes of a run, the worst first, if it draws its
            candidate from the fixed distribution.
        rule: The density of the next run's outcomes, relative to ``p``, given the
            outcomes of earlier ones: a function of a tuple.
        probabilities: Those of the numbers of runs.
    """
    best = np.zeros(len(p))
    for size, weight in enumerate(probabilities):
        if size == 0 or weight == 0:
            continue
        for history in itertools.product(range(len(p)), repeat=size):
            chance = weight
            for i, outcome in enumerate(history):
                chance *= p[outcome] * rule(history[:i])[outcome]
            best[max(history)] += chance
    return best
