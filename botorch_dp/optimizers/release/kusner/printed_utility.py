r"""The utility theorems as the two versions of the paper print them.

For comparison with :mod:`botorch_dp.optimizers.release.kusner.utility`, which has the
versions that hold. The theorem is that of ICML or of the workshop, as the setting's
``constants`` say. A printed bound comes with the probability that the paper states.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
    .. [Kusner2015workshop] The same authors and title, workshop version of 2015.
"""

import math
from dataclasses import dataclass

from botorch_dp._validation import check_nonnegative, check_positive, check_probability
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from botorch_dp.optimizers.release.kusner.sensitivity import (
    NoiseFreeValueSensitivity,
    PointSensitivity,
    ValueSensitivity,
)


@dataclass(frozen=True)
class PrintedBound:
    """A bound, and the probability with which the paper says that it holds.

    Attributes:
        bound: How far from the best the release may end.
        probability: The stated probability, 0 if the stated one is negative.
    """

    bound: float
    probability: float


def printed_point_bound(
    point: PointSensitivity,
    *,
    epsilon: float,
    failure_probability: float = 0.05,
    noise_variance: float = 0.0,
) -> PrintedBound:
    r"""Return Theorem 2 as printed.

    [Kusner2015dpbo]_ has :math:`\max \mu_T - \mu_T(\tilde\lambda) \le
    \frac{2\Delta}{\epsilon} (\log|\Lambda| + a)`. [Kusner2015workshop]_ has
    :math:`f(x^*) - \mu_T(\tilde x) \le 2 \sqrt{\beta_T} + q + \frac{2\Delta}{\epsilon}
    (\log |\mathcal X| + a)`. Both state the probability :math:`1 - (\delta + e^{-a})`.

    Args:
        point: The sensitivity of the point, with printed constants.
        epsilon: The epsilon of the exponential mechanism.
        failure_probability: The chance :math:`e^{-a}` that the mechanism does worse.
        noise_variance: The variance of an observation; the workshop's q needs it.

    Example:
        >>> from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99,
        ...     constants="icml2015",
        ... )
        >>> printed = printed_point_bound(PointSensitivity(setting), epsilon=1.0)
        >>> round(printed.bound, 1), round(printed.probability, 2)
        (252.1, 0.85)
    """
    setting = point.setting
    constants = _printed(setting.constants)
    a = _exponent(failure_probability)
    log = math.log(setting.num_candidates) + a
    bound = 2 * point.sensitivity / check_positive("epsilon", epsilon) * log
    if constants == "workshop":
        variance = check_nonnegative("noise_variance", noise_variance)
        beta = setting.ucb_beta(setting.num_steps)
        bound += 2 * math.sqrt(setting.prior_variance * beta)
        bound += math.sqrt(4 * variance * math.log(3 / setting.delta))  # q
    return _bound(bound, setting.delta + failure_probability)


def printed_value_bound(
    value: ValueSensitivity, *, epsilon: float, failure_probability: float = 0.05
) -> PrintedBound:
    r"""Return Theorem 4 as printed.

    The error is at most :math:`\nu + \Omega/T + a \Delta / \epsilon` with probability
    :math:`1 - (\delta + e^{-a})`, where :math:`\nu = \sigma \sqrt{8 \log(1/\delta)}` in
    [Kusner2015dpbo]_ and :math:`\sqrt{2 \log (2 T / \delta)}` in
    [Kusner2015workshop]_.

    Args:
        value: The sensitivity of the value, with printed constants.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance :math:`e^{-a}` that the noise is larger.
    """
    setting = value.setting
    if _printed(setting.constants) == "workshop":
        noise = math.sqrt(2 * math.log(2 * setting.num_steps / setting.delta))
    else:
        noise = math.sqrt(8 * value.noise_variance * math.log(1 / setting.delta))
    laplace = _exponent(failure_probability) * value.sensitivity
    bound = noise + value.regret + laplace / check_positive("epsilon", epsilon)
    return _bound(bound, setting.delta + failure_probability)


def printed_noise_free_bound(
    value: NoiseFreeValueSensitivity,
    *,
    epsilon: float,
    failure_probability: float = 0.05,
) -> PrintedBound:
    r"""Return Theorem 6 as printed: :math:`\Omega + a (\Omega + c) / \epsilon`.

    Both versions state the probability :math:`1 - (\delta + e^{-a})`. The workshop's
    :math:`\Omega` has T = 2.

    Args:
        value: The sensitivity of the value, with printed constants.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance :math:`e^{-a}` that the noise is larger.
    """
    _printed(value.setting.constants)
    laplace = _exponent(failure_probability) * value.sensitivity
    bound = value.regret + laplace / check_positive("epsilon", epsilon)
    return _bound(bound, value.setting.delta + failure_probability)


def printed_lipschitz_bound(
    value: LipschitzValueSensitivity,
    *,
    epsilon: float,
    failure_probability: float = 0.05,
) -> PrintedBound:
    r"""Return Theorem 8 as printed, which only [Kusner2015dpbo]_ has.

    .. math:: \frac{a}{\epsilon} \Bigl(\frac1m \min\Bigl\{g^*, \frac{L}{\lambda_{\min}}
        \Bigr\} + \frac{(\lambda_{\max} - \lambda_{\min}) L}{\lambda_{\max}
        \lambda_{\min}}\Bigr)

    Args:
        value: The sensitivity of the score, with printed constants.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance :math:`e^{-a}` that the noise is larger.
    """
    _printed(value.constants)
    laplace = _exponent(failure_probability) * value.sensitivity
    return _bound(laplace / check_positive("epsilon", epsilon), failure_probability)


def _printed(constants: str) -> str:
    if constants == "repaired":
        raise InvalidArgumentError(
            "constants must be 'icml2015' or 'workshop' for a theorem as printed, got "
            "'repaired'; use botorch_dp.optimizers.release.kusner.utility for the "
            "versions that hold."
        )
    return constants


def _exponent(failure_probability: float) -> float:
    return -math.log(check_probability("failure_probability", failure_probability))


def _bound(bound: float, failure: float) -> PrintedBound:
    return PrintedBound(bound, max(0.0, 1 - failure))
