r"""The privacy curve of a pure release together with Gaussian releases.

No :math:`\epsilon'`-DP release is easier to tell apart than randomized response, and no
:math:`\mu`-GDP release than a Gaussian pair. Both together have the curve of the
product of the two pairs, a mixture of two values of the Gaussian curve:

.. math::
    \delta(\epsilon) = p\, \delta_\mu(\epsilon - \epsilon')
    + (1 - p)\, \delta_\mu(\epsilon + \epsilon'),
    \qquad p = \frac{e^{\epsilon'}}{1 + e^{\epsilon'}}.

``docs/theory/choice_and_noise.md`` has the proof. All functions take plain floats.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from botorch_dp.privacy import curves

# Roots are computed on logarithmic scales, where this is a relative accuracy.
_XTOL = 1e-14
_RTOL = 8.9e-16  # the smallest value that scipy's brentq takes: 4 machine epsilons
# A root is moved to the side that promises less privacy: by this relative amount, and
# by this much of mu, where the Gaussian curve loses digits if mu is small.
_SAFETY = 1e-12
_MU_SAFETY = 1e-14
# Above this value nothing is private, and the Gaussian curve has lost its digits.
_MOST_MU = 1e5
_LEAST_LOG = -1e300  # stands for the logarithm of zero in a search for a root


def choice_delta(pure_epsilon: float, mu: float, epsilon: float) -> float:
    """Return the smallest delta of a pure and a mu-GDP release, for epsilon >= 0.

    Args:
        pure_epsilon: The epsilon of the pure release; several ones count as one with
            the sum of their epsilons, which is an upper bound.
        mu: The mu of all Gaussian releases together; may be zero.
        epsilon: The epsilon at which delta is computed.
    """
    return math.exp(_log_delta(pure_epsilon, mu, epsilon))


def choice_epsilon(pure_epsilon: float, mu: float, delta: float) -> float:
    """Return the smallest epsilon at ``delta``: the inverse of the above."""
    if mu == 0:
        return curves.pure_epsilon_at(pure_epsilon, delta)
    # Basic composition, moved as a root is.
    upper = (pure_epsilon + curves.gdp_epsilon(mu, delta)) * (1 + _SAFETY)
    if mu > _MOST_MU:
        return upper
    excess = _excess(delta)
    if excess(_log_delta(pure_epsilon, mu, 0.0)) <= 0:
        return 0.0
    if excess(_log_delta(pure_epsilon, mu, upper)) >= 0:  # equal up to rounding
        return upper
    root = brentq(
        lambda epsilon: excess(_log_delta(pure_epsilon, mu, epsilon)),
        0.0,
        upper,
        xtol=_XTOL * upper,
        rtol=_RTOL,
    )
    return min(upper, root * (1 + _SAFETY))


def choice_mu(pure_epsilon: float, epsilon: float, delta: float) -> float:
    """Return the largest mu such that both together are (epsilon, delta)-DP.

    It is zero if the pure release alone leaves nothing.
    """
    excess = _excess(delta)

    def at(log_mu: float) -> float:
        return excess(_log_delta(pure_epsilon, math.exp(log_mu), epsilon))

    # Without the choice more would fit. Delta grows with mu.
    upper = math.log(curves.gdp_mu(epsilon, delta))
    lower, root = upper - 1.0, upper
    while at(lower) > 0:
        if lower < upper - 40.0:  # nothing is left, or it is lost in the rounding
            return 0.0
        lower -= 1.0
    if at(upper) > 0:  # otherwise the choice costs less than the rounding
        root = brentq(at, lower, upper, xtol=_XTOL, rtol=_RTOL)
    return max(0.0, math.exp(root) * (1 - _SAFETY) - _MU_SAFETY)


def _log_delta(pure_epsilon: float, mu: float, epsilon: float) -> float:
    """Return the logarithm of :func:`choice_delta`."""
    log_p = -math.log1p(math.exp(-pure_epsilon))
    return float(
        np.logaddexp(
            log_p + _gdp_log_delta(mu, epsilon - pure_epsilon),
            log_p - pure_epsilon + _gdp_log_delta(mu, epsilon + pure_epsilon),
        )
    )


def _gdp_log_delta(mu: float, epsilon: float) -> float:
    """Return log delta_mu(epsilon) also for negative epsilon and for mu = 0.

    The pair looks the same from both sides, so that delta(-epsilon) = 1 - e^-epsilon +
    e^-epsilon delta(epsilon).
    """
    if epsilon >= 0:
        return -math.inf if mu == 0 else curves.gdp_log_delta(mu, epsilon)
    mirrored = 0.0 if mu == 0 else math.exp(curves.gdp_log_delta(mu, -epsilon))
    return math.log(-math.expm1(epsilon) + math.exp(epsilon) * mirrored)


def _excess(delta: float) -> Callable[[float], float]:
    """Return how far a logarithm of delta is above that of ``delta``."""
    log_delta = math.log(delta)
    return lambda found: max(found, _LEAST_LOG) - log_delta
