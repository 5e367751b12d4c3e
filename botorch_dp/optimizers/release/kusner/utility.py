r"""What the published releases are worth: how far from the best they may end.

Theorems 2, 4, 6 and 8 of [Kusner2015dpbo]_, corrected where their proofs do not support
them.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
    .. [Kusner2015workshop] The same authors and title, workshop version of 2015.
"""

import math

from botorch_dp._validation import check_choice, check_positive, check_probability
from botorch_dp.optimizers.release.kusner.sensitivity import (
    LipschitzValueRelease,
    NoiseFreeValueRelease,
    PointRelease,
    ValueRelease,
)


def point_utility_bound(
    release: PointRelease,
    *,
    epsilon: float,
    failure_probability: float = 0.05,
    reference: str = "mean",
) -> float:
    r"""Bound how much worse than the best the released point is: Theorem 2.

    With :math:`e^{-a}` the ``failure_probability``,

    .. math::
        \max_\lambda \mu_T(\lambda) - \mu_T(\tilde\lambda)
        \le \frac{2 \Delta}{\epsilon} (\log |\Lambda| + a)

    with probability :math:`1 - e^{-a}`, which is ``reference="mean"``. And with
    probability :math:`1 - e^{-a} - \delta / 3` (``reference="optimum"``), because f is
    within :math:`s \sqrt\beta` of :math:`\mu_T` at :math:`\tilde\lambda` and at
    :math:`\lambda^*`,

    .. math::
        f(\lambda^*) - f(\tilde\lambda)
        \le \frac{2 \Delta}{\epsilon} (\log |\Lambda| + a) + 2 s \sqrt\beta.

    **Corrected**: [Kusner2015dpbo]_ subtracts delta from the first probability, which
    is not needed: the mechanism's own randomness is all there is. The workshop version
    has :math:`f(\lambda^*) - \mu_T(\tilde\lambda)` on the left of the second, and adds
    q, although no noisy observation is compared.

    Args:
        release: What :func:`kusner_point_release` returned.
        epsilon: The epsilon of the exponential mechanism.
        failure_probability: The chance that the mechanism does worse.
        reference: ``"mean"`` or ``"optimum"``.

    Example:
        >>> from botorch_dp.optimizers.release.kusner import sensitivity
        >>> release = sensitivity.kusner_point_release(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> round(point_utility_bound(release, epsilon=1.0), 1)  # the range is 4 to 6
        192.6
    """
    epsilon = check_positive("epsilon", epsilon)
    failure_probability = check_probability("failure_probability", failure_probability)
    check_choice("reference", reference, ("mean", "optimum"))
    log = math.log(release.num_candidates) - math.log(failure_probability)
    bound = 2 * release.sensitivity / epsilon * log
    if reference == "optimum":
        bound += 2 * math.sqrt(release.prior_variance * release.beta)
    return bound


def value_utility_bound(
    release: ValueRelease, *, epsilon: float, failure_probability: float = 0.05
) -> float:
    r"""Bound how far the released value is from the best there is: Theorem 4.

    With :math:`e^{-a}` the ``failure_probability`` and :math:`\Delta` the sensitivity,

    .. math::
        |\tilde v - f(\lambda^*)| \le \sigma \sqrt{2 \log \frac{2 T}{\delta}}
        + \frac{\Omega}{T} + \frac{a \Delta}{\epsilon}

    with probability :math:`1 - (\delta + e^{-a})`: the T noises of V cost
    :math:`\delta / 2`, its regret :math:`\delta / 3` (:math:`\delta / 2` as printed).

    **Corrected**: [Kusner2015dpbo]_ has :math:`\sigma \sqrt{8 \log(1 / \delta)}` for
    the first term. Its proof takes the noise at the best of T observations for one
    normal variable, and the term vanishes as delta goes to 1; for large T it is too
    small. The workshop version has our term without :math:`\sigma`.

    Args:
        release: What :func:`kusner_value_release` returned.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance that the Laplace noise is larger.

    Example:
        >>> from botorch_dp.optimizers.release.kusner import sensitivity
        >>> setting = dict(num_steps=50, num_candidates=1000, delta=0.1, gamma=20.0)
        >>> release = sensitivity.kusner_value_release(
        ...     **setting, correlation=0.99, noise_variance=0.01
        ... )
        >>> round(value_utility_bound(release, epsilon=1.0), 1)
        25.0
    """
    log = math.log(2 * release.num_steps) - math.log(release.delta)
    noise = math.sqrt(2 * release.noise_variance * log)
    laplace = _laplace_quantile(release.sensitivity, epsilon, failure_probability)
    return noise + release.regret + laplace


def noise_free_utility_bound(
    release: NoiseFreeValueRelease, *, epsilon: float, failure_probability: float = 0.05
) -> float:
    r"""Bound how far the released value is from the best there is: Theorem 6.

    With :math:`e^{-a}` the ``failure_probability``,

    .. math::
        |\tilde f - f(\lambda^*)| \le \Omega + \frac{a (\Omega + c)}{\epsilon}

    with probability :math:`1 - (\delta + e^{-a})`, as printed; :math:`\delta / 4` for
    :math:`\delta` would do, as only the regret for V matters.

    Args:
        release: What :func:`noise_free_value_release` returned.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance that the Laplace noise is larger.
    """
    laplace = _laplace_quantile(release.sensitivity, epsilon, failure_probability)
    return release.regret + laplace


def lipschitz_utility_bound(
    release: LipschitzValueRelease, *, epsilon: float, failure_probability: float = 0.05
) -> float:
    r"""Bound how far the released score is from the best found: Theorem 8.

    It is :math:`a \Delta / \epsilon` with probability :math:`1 - e^{-a}`, with
    :math:`e^{-a}` the ``failure_probability``: as printed but for :math:`\Delta`.

    Args:
        release: What :func:`lipschitz_value_release` returned.
        epsilon: The epsilon of the Laplace mechanism.
        failure_probability: The chance that the Laplace noise is larger.
    """
    return _laplace_quantile(release.sensitivity, epsilon, failure_probability)


def _laplace_quantile(
    sensitivity: float, epsilon: float, failure_probability: float
) -> float:
    """Return what Laplace noise passes in absolute value with this probability."""
    epsilon = check_positive("epsilon", epsilon)
    failure_probability = check_probability("failure_probability", failure_probability)
    return -math.log(failure_probability) * sensitivity / epsilon
