r"""Utility of the published releases: how far from the best they may end.

Theorems 2, 4, 6 and 8 of [Kusner2015dpbo]_, corrected where their proofs do not support
them; ``docs/theory/published_releases.md`` says how. In all of them
``failure_probability`` is the chance :math:`e^{-a}` that the mechanism does worse.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
"""

import math

from botorch_dp._validation import check_choice, check_positive, check_probability
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from botorch_dp.optimizers.release.kusner.sensitivity import (
    NoiseFreeValueSensitivity,
    PointSensitivity,
    ValueSensitivity,
)


def point_utility_bound(
    point: PointSensitivity,
    *,
    epsilon: float,
    failure_probability: float = 0.05,
    reference: str = "mean",
) -> float:
    r"""Bound how much worse than the best the released point is: Theorem 2.

    .. math::
        \max_\lambda \mu_T(\lambda) - \mu_T(\tilde\lambda)
        \le \frac{2 \Delta}{\epsilon} (\log |\Lambda| + a)

    with probability :math:`1 - e^{-a}`, which is ``reference="mean"``. And with
    probability :math:`1 - e^{-a} - \delta / 3` (``reference="optimum"``)

    .. math::
        f(\lambda^*) - f(\tilde\lambda)
        \le \frac{2 \Delta}{\epsilon} (\log |\Lambda| + a) + 2 s \sqrt\beta.

    Args:
        point: The sensitivity of the point.
        epsilon: The epsilon of the exponential mechanism.
        failure_probability: The chance that the mechanism does worse.
        reference: ``"mean"`` or ``"optimum"``.

    Example:
        >>> from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> point = PointSensitivity(setting)
        >>> round(point_utility_bound(point, epsilon=1.0), 1)  # the range is 4 to 6
        192.6
    """
    epsilon = check_positive("epsilon", epsilon)
    failure_probability = check_probability("failure_probability", failure_probability)
    check_choice("reference", reference, ("mean", "optimum"))
    log = math.log(point.setting.num_candidates) - math.log(failure_probability)
    bound = 2 * point.sensitivity / epsilon * log
    if reference == "optimum":
        bound += 2 * math.sqrt(point.setting.prior_variance * point.beta)
    return bound


def value_utility_bound(
    value: ValueSensitivity, *, epsilon: float, failure_probability: float = 0.05
) -> float:
    r"""Bound how far the released value is from the best there is: Theorem 4.

    .. math::
        |\tilde v - f(\lambda^*)| \le \sigma \sqrt{2 \log \frac{2 T}{\delta}}
        + \frac{\Omega}{T} + \frac{a \Delta}{\epsilon}

    with probability :math:`1 - (\delta + e^{-a})`.

    Args:
        value: The sensitivity of the value.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance that the Laplace noise is larger.

    Example:
        >>> from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> value = ValueSensitivity(setting, noise_variance=0.01, gamma=20.0)
        >>> round(value_utility_bound(value, epsilon=1.0), 1)
        25.0
    """
    log = math.log(2 * value.setting.num_steps) - math.log(value.setting.delta)
    noise = math.sqrt(2 * value.noise_variance * log)
    laplace = _laplace_quantile(value.sensitivity, epsilon, failure_probability)
    return noise + value.regret + laplace


def noise_free_utility_bound(
    value: NoiseFreeValueSensitivity,
    *,
    epsilon: float,
    failure_probability: float = 0.05,
) -> float:
    r"""Bound how far the released value is from the best there is: Theorem 6.

    .. math::
        |\tilde f - f(\lambda^*)| \le \Omega + \frac{a (\Omega + c)}{\epsilon}

    with probability :math:`1 - (\delta + e^{-a})`.

    Args:
        value: The sensitivity of the value.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance that the Laplace noise is larger.
    """
    laplace = _laplace_quantile(value.sensitivity, epsilon, failure_probability)
    return value.regret + laplace


def lipschitz_utility_bound(
    value: LipschitzValueSensitivity,
    *,
    epsilon: float,
    failure_probability: float = 0.05,
) -> float:
    r"""Bound how far the released score is from the best found: Theorem 8.

    It is :math:`a \Delta / \epsilon` with probability :math:`1 - e^{-a}`.

    Args:
        value: The sensitivity of the score.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance that the Laplace noise is larger.
    """
    return _laplace_quantile(value.sensitivity, epsilon, failure_probability)


def _laplace_quantile(
    sensitivity: float, epsilon: float, failure_probability: float
) -> float:
    """Return the absolute value that Laplace noise exceeds with this probability."""
    epsilon = check_positive("epsilon", epsilon)
    failure_probability = check_probability("failure_probability", failure_probability)
    return -math.log(failure_probability) * sensitivity / epsilon
