r"""Privacy curves: the mathematics behind guarantees, on plain floats.

Each notion of privacy is a statement about one pair of distributions: no two
neighbouring outputs are easier to tell apart than this pair. Its privacy curve gives,
for every epsilon, the smallest delta such that the pair is (epsilon, delta)-close.

References:
    .. [Balle2018analytic] B. Balle and Y.-X. Wang. Improving the Gaussian Mechanism
        for Differential Privacy. ICML 2018. Theorem 8 is the Gaussian curve.
    .. [Balle2018amplification] B. Balle, G. Barthe and M. Gaboardi. Privacy
        Amplification by Subsampling: Tight Analyses via Couplings and Divergences.
        NeurIPS 2018. Theorems 8 and 9.
    .. [Dong2022gdp] J. Dong, A. Roth and W. J. Su. Gaussian Differential Privacy.
        JRSS B, 2022. Definition 2.1 and Corollary 2.13.
    .. [Kairouz2015composition] P. Kairouz, S. Oh and P. Viswanath. The Composition
        Theorem for Differential Privacy. ICML 2015. Randomized response dominates
        every pure mechanism.
    .. [Canonne2020discrete] C. Canonne, G. Kamath and T. Steinke. The Discrete
        Gaussian for Differential Privacy. NeurIPS 2020. Proposition 12 (v4).
    .. [Mironov2017renyi] I. Mironov. Renyi Differential Privacy. CSF 2017.
    .. [Asoodeh2021variants] S. Asoodeh, J. Liao, F. Calmon, O. Kosut and L. Sankar.
        Three Variants of Differential Privacy: Lossless Conversion and Applications.
        IEEE JSAIT, 2021. The optimal conversion from one Renyi order.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx, erfinv, log_ndtr, ndtr, ndtri, ndtri_exp

FloatArray: TypeAlias = NDArray[np.float64]

_SQRT2 = math.sqrt(2.0)
_LOG2 = math.log(2.0)
# Roots are computed on logarithmic scales, where this is a relative accuracy.
_XTOL = 1e-14
# A smaller mu counts as this larger value, which is valid and avoids cancellation.
_LEAST_MU = 1e-10
# Above this value nothing is private, and exponents of mu^2 / 2 have lost their digits.
_MOST_MU = 1e5
# The same bound for rho, which is mu^2 / 2.
_LEAST_RHO = _LEAST_MU**2 / 2
# Below this value the logarithm of a moment is lost in the rounding of the moment.
_LEAST_MOMENT = 1e-6
_RTOL = 8.9e-16  # the smallest value that scipy's brentq takes: 4 machine epsilons


def gdp_log_delta(mu: float, epsilon: float) -> float:
    """Return log delta(epsilon; mu), the log of the Gaussian curve, for epsilon >= 0.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
    [Balle2018analytic]_. With Phi(-x) = exp(-x^2/2) erfcx(x/sqrt 2)/2, both terms have
    one exponential in common, so neither overflow nor cancellation can occur.
    """
    mu = max(mu, _LEAST_MU)
    upper = mu / 2 - epsilon / mu
    lower = -mu / 2 - epsilon / mu
    if upper > 0:
        return math.log(ndtr(upper) - math.exp(epsilon + log_ndtr(lower)))
    difference = erfcx(-upper / _SQRT2) - erfcx(-lower / _SQRT2)
    if difference <= 0:  # only when epsilon / mu is beyond about 1e8
        return -math.inf
    return -(upper**2) / 2 - _LOG2 + math.log(difference)


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta such that mu-GDP implies (epsilon, delta)-DP."""
    return math.exp(gdp_log_delta(mu, epsilon))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon such that mu-GDP implies (epsilon, delta)-DP."""
    log_delta = math.log(delta)
    if gdp_log_delta(mu, 0.0) <= log_delta:
        return 0.0
    if mu > _MOST_MU:  # delta is at most the first term of its curve
        return mu * mu / 2 - mu * float(ndtri(delta))
    upper = _double_until(
        lambda epsilon: gdp_log_delta(mu, epsilon) <= log_delta, start=mu
    )
    return brentq(
        lambda epsilon: max(gdp_log_delta(mu, epsilon), -1e300) - log_delta,
        0.0,
        upper,
        xtol=_XTOL * upper,
        rtol=_RTOL,
    )


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies (epsilon, delta)-DP."""
    log_delta = math.log(delta)

    def excess(log_mu: float) -> float:
        return max(gdp_log_delta(math.exp(log_mu), epsilon), -1e300) - log_delta

    # delta(epsilon; mu) <= delta(0; mu) < mu / sqrt(2 pi), so mu = delta always fits.
    # It tends to one as mu grows, so doubling ends.
    lower = math.log(delta)
    upper = math.log(
        _double_until(lambda mu: excess(math.log(mu)) > 0, start=2 * delta)
    )
    if upper < math.log(_LEAST_MU):
        return delta * math.sqrt(2 * math.pi)
    return math.exp(brentq(excess, lower, upper, xtol=_XTOL, rtol=_RTOL))


def gdp_deltas(mu: float, epsilons: FloatArray) -> FloatArray:
    """Return :func:`gdp_delta` at many epsilons."""
    mu = max(mu, _LEAST_MU)
    upper = mu / 2 - epsilons / mu
    lower = upper - mu
    near = ndtr(upper) - np.exp(epsilons + log_ndtr(lower))
    upper = np.minimum(upper, 0.0)
    far = erfcx(-upper / _SQRT2) - erfcx(-np.minimum(lower, -mu) / _SQRT2)
    far *= np.exp(-(upper**2) / 2) / 2
    return np.maximum(0.0, np.where(upper < 0, far, near))


def sampled_gdp_deltas(mu: float, rate: float, epsilons: FloatArray) -> FloatArray:
    """Return the smallest deltas of a mu-GDP release of a sample, for epsilons >= 0.

    delta'(log(1 + rate (e^epsilon - 1))) = rate delta(epsilon), for Poisson samples and
    for subsets of fixed size [Balle2018amplification]_.
    """
    small = np.log1p(np.expm1(np.minimum(epsilons, 1.0)) / rate)
    large = epsilons - math.log(rate) + np.log1p((rate - 1) * np.exp(-epsilons))
    return rate * gdp_deltas(mu, np.where(epsilons > 1, large, small))


def unsampled_gdp_deltas(mu: float, rate: float, epsilons: FloatArray) -> FloatArray:
    """Return :func:`sampled_gdp_deltas` of Poisson samples in the other direction.

    The data set without the record comes first. Then delta(epsilon) is a times the
    delta of the release of all records at log(e^epsilon rate / a), with
    a = 1 - e^epsilon (1 - rate), and zero where a is not positive.
    """
    share = rate - (1 - rate) * np.expm1(epsilons)
    safe = np.maximum(share, 1e-300)
    deltas = safe * gdp_deltas(mu, epsilons + math.log(rate) - np.log(safe))
    return np.where(share > 0, deltas, 0.0)


def sampled_gdp_delta(mu: float, rate: float, epsilon: float) -> float:
    """Return :func:`sampled_gdp_deltas` at one epsilon."""
    return float(sampled_gdp_deltas(mu, rate, np.array([epsilon]))[0])


def sampled_gdp_epsilon(mu: float, rate: float, delta: float) -> float:
    """Return the smallest epsilon at ``delta``: the inverse of the above."""
    if delta >= rate:
        return 0.0
    unsampled = gdp_epsilon(mu, delta / rate)
    if unsampled > 1.0:  # the last line without overflow
        share = rate + (1 - rate) * math.exp(-unsampled)
        return max(0.0, unsampled + math.log(share))
    return math.log1p(rate * math.expm1(unsampled))


def gdp_tradeoff(mu: float, type_one: float) -> float:
    """Return the least type II error of a test of this level: [Dong2022gdp]_, (6)."""
    if type_one <= 0.0:
        return 1.0
    if type_one >= 1.0:
        return 0.0
    return float(ndtr(-ndtri(type_one) - mu))


def gdp_pure_epsilon(mu: float) -> float:
    """Return the largest epsilon such that epsilon-DP implies mu-GDP.

    Both tradeoff functions meet the diagonal at the same type I error,
    1/(1 + e^epsilon) = Phi(-mu/2). Elsewhere that of mu-GDP is lower, as it is convex.
    """
    return float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))


def pure_gdp_mu(epsilon: float) -> float:
    """Return the smallest mu such that epsilon-DP implies mu-GDP."""
    if epsilon < 1.0:  # Phi(mu/2) - 1/2 = tanh(epsilon/2)/2, exact for small epsilon
        return float(2 * _SQRT2 * erfinv(math.tanh(epsilon / 2)))
    return float(-2 * ndtri_exp(-(epsilon + math.log1p(math.exp(-epsilon)))))


def pure_delta(pure_epsilon: float, epsilon: float) -> float:
    """Return the smallest delta such that pure_epsilon-DP implies (epsilon, delta)-DP.

    Randomized response attains it: (e^E - e^epsilon) / (1 + e^E)
    [Kairouz2015composition]_, here without overflow.
    """
    if epsilon >= pure_epsilon:
        return 0.0
    return -math.expm1(epsilon - pure_epsilon) / (1.0 + math.exp(-pure_epsilon))


def pure_epsilon_at(pure_epsilon: float, delta: float) -> float:
    """Return the smallest epsilon that pure_epsilon-DP implies at ``delta``."""
    shrink = -delta * (1.0 + math.exp(-pure_epsilon))
    if shrink <= -1.0:
        return 0.0
    return max(0.0, pure_epsilon + math.log1p(shrink))


def pure_epsilon_within(epsilon: float, delta: float) -> float:
    """Return the largest E such that E-DP implies (epsilon, delta)-DP."""
    return epsilon + math.log1p(delta * math.exp(-epsilon)) - math.log1p(-delta)


def pure_rdp(pure_epsilon: float, order: float) -> float:
    """Return the smallest Renyi divergence of ``order`` that pure_epsilon-DP implies.

    It is that of randomized response, log(cosh((a - 1/2) epsilon) / cosh(epsilon/2)) /
    (a - 1), here without overflow and, near order 1, without cancellation.
    """
    exponent = (order - 1) * pure_epsilon
    share = -math.expm1(-order * pure_epsilon) / (1 + math.exp(-pure_epsilon))
    if exponent > 1.0:
        above = exponent + math.log(share + (1 - share) * math.exp(-exponent))
    else:
        above = math.log1p(share * math.expm1(exponent))
    return above / (order - 1)


def pure_zcdp_rho(epsilon: float) -> float:
    """Return the smallest rho such that epsilon-DP implies rho-zCDP.

    The divergence of order a is at most a rho, where rho is the divergence of order 1,
    epsilon tanh(epsilon/2): with u = (a - 1/2)^2, :func:`pure_rdp` over a is the slope
    of log cosh(epsilon sqrt(u)) between 1/4 and u, and this function is concave in u.
    """
    return epsilon * math.tanh(epsilon / 2)


def laplace_rdp(epsilon: float, order: float) -> float:
    """Return the Renyi divergence of Laplace(0, 1/epsilon) and its shift by 1.

    [Mironov2017renyi]_, Proposition 6: the logarithm of (a e^((a - 1) epsilon) + (a -
    1) e^(-a epsilon)) / (2a - 1), over a - 1. The exponents cancel to first order.
    """
    up, down = (order - 1) * epsilon, -order * epsilon
    if up > 1.0:
        rest = math.log1p((order - 1) / order * math.exp(down - up))
        return (up + math.log(order / (2 * order - 1)) + rest) / (order - 1)
    moment = order * _exp_above_tangent(up) + (order - 1) * _exp_above_tangent(down)
    return math.log1p(moment / (2 * order - 1)) / (order - 1)


def pure_epsilon_for_rdp(order: float, divergence: float) -> float:
    """Return the largest epsilon such that epsilon-DP implies this Renyi bound."""
    upper = _double_until(
        lambda epsilon: pure_rdp(epsilon, order) > divergence, start=divergence
    )
    return brentq(
        lambda epsilon: pure_rdp(epsilon, order) - divergence,
        divergence / 2,
        upper,
        xtol=_XTOL * upper,
        rtol=_RTOL,
    )


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the smallest known epsilon for which rho-zCDP gives (epsilon, delta)-DP.

    This is [Canonne2020discrete]_, Proposition 12, at the best of all orders: a zCDP
    mechanism is (a, rho a)-RDP for every a > 1. The derivative in a vanishes where
    rho (a - 1)^2 + log a = log(1/delta), whose left side grows with a.
    """
    rho = max(rho, _LEAST_RHO)
    target = -math.log(delta)

    def surplus(log_excess: float) -> float:
        excess = math.exp(log_excess)  # order - 1
        return rho * excess**2 + math.log1p(excess) - target

    # At the lower end each term is at most half of the target. At the upper end the
    # first term is all of it.
    upper = math.log(target / rho) / 2
    lower = min(upper - _LOG2 / 2, math.log(math.expm1(min(target, 100.0) / 2)))
    excess = math.exp(_root_between(surplus, lower, upper))
    epsilon = rho * (1 + excess) - math.log1p(1 / excess)
    return max(0.0, epsilon + (target - math.log1p(excess)) / excess)


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Return the smallest known delta for which rho-zCDP gives (epsilon, delta)-DP.

    It is the inverse of :func:`zcdp_epsilon`, also at the best of all orders: the
    derivative vanishes where (2a - 1) rho + log(1 - 1/a) = epsilon, whose left side
    grows with a.
    """
    rho = max(rho, _LEAST_RHO)

    def surplus(log_excess: float) -> float:
        excess = math.exp(log_excess)  # order - 1; log(1 - 1/order) below
        return (2 * excess + 1) * rho - np.logaddexp(0.0, -log_excess) - epsilon

    # log(1 + 1/x) is at most 1/x, which leaves a quadratic with a larger root, and at
    # least -log x, which leaves a smaller one.
    gap = epsilon - rho
    root = math.sqrt(gap**2 + 8 * rho)
    larger = (root + gap) / (4 * rho) if gap > 0 else 2 / (root - gap)
    log_excess = _root_between(surplus, min(0.0, gap - 2 * rho), math.log(larger))
    excess = math.exp(log_excess)
    log_delta = excess * (
        rho * (1 + excess) - epsilon - np.logaddexp(0.0, -log_excess)
    ) - math.log1p(excess)
    return math.exp(min(0.0, log_delta))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho with ``zcdp_epsilon(rho, delta)`` at most ``epsilon``."""

    def excess(log_rho: float) -> float:
        return zcdp_epsilon(math.exp(log_rho), delta) - epsilon

    lower, upper = -1.0, 0.0
    while excess(lower) > 0:
        lower *= 2
    while excess(upper) < 0:
        upper += 1
    # One part in 1e10 below the root: the inner minimum is not exact.
    return math.exp(brentq(excess, lower, upper, xtol=1e-12)) * (1 - 1e-10)


def _root_between(
    growing: Callable[[float], float], lower: float, upper: float
) -> float:
    """Return the root of a growing function, with room of one at both ends."""
    return brentq(growing, lower - 1, upper + 1, xtol=_XTOL, rtol=_RTOL)


def rdp_epsilon(order: float, divergence: float, delta: float) -> float:
    """Return the smallest known epsilon of (order, divergence)-RDP at ``delta``.

    It is the optimal conversion of [Asoodeh2021variants]_, or the closed form of
    [Canonne2020discrete]_, which is never smaller, where double precision cannot
    resolve the former.
    """
    closed = divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    closed = max(0.0, closed)
    if (order - 1) * divergence < _LEAST_MOMENT or closed == 0.0:
        return closed
    if _least_divergence(order, 0.0, delta) >= divergence:
        return 0.0
    if _least_divergence(order, closed, delta) < divergence:
        return closed
    return min(
        closed,
        brentq(
            lambda epsilon: _least_divergence(order, epsilon, delta) - divergence,
            0.0,
            closed,
            xtol=1e-12 * closed,
        )
        # The inner minimum is not exact: round up to keep an upper bound.
        * (1 + 1e-4),
    )


def _least_divergence(order: float, epsilon: float, delta: float) -> float:
    """Return the least Renyi divergence of a pair that is not (epsilon, delta)-close.

    Merging outputs to the event where one density exceeds e^epsilon times the other
    keeps delta and lowers the divergence, so two-point distributions suffice: (p, 1-p)
    against (q, 1-q) with p - e^epsilon q = delta, convex in the one free number.
    """

    def divergence(log_excess: float) -> float:
        excess = math.exp(log_excess)  # p - delta
        p, q = delta + excess, excess * math.exp(-epsilon)
        if p >= 1.0 or q >= 1.0:
            return math.inf
        ratio = (order - 1) * (math.log(p) - log_excess + epsilon)
        rest = order * math.log1p(-p) - (order - 1) * math.log1p(-q)
        if ratio > 700:
            return (math.log(p) + ratio) / (order - 1)
        return math.log1p(p * math.exp(ratio) + math.expm1(rest)) / (order - 1)

    upper = math.log1p(-delta)
    best = minimize_scalar(
        divergence,
        bounds=(math.log(delta) - 40.0, upper),
        method="bounded",
        options={"xatol": 1e-10, "maxiter": 500},
    )
    # p = 1 is the end of the interval, where only the first term remains.
    at_end = -(math.log1p(-delta) - epsilon)
    return float(min(best.fun, at_end))


def _exp_above_tangent(x: float) -> float:
    """Return e^x - 1 - x, also for small x where the difference cancels."""
    if abs(x) > 0.1:
        return math.expm1(x) - x
    total = 0.0
    for n in range(10, 1, -1):  # x^2/2 (1 + x/3 (1 + ...)), to 1e-17
        total = x / n * (1 + total)
    return x * total


def _double_until(holds: Callable[[float], bool], *, start: float) -> float:
    value = start
    while not holds(value):
        value *= 2
    return value
