"""Calibration: how much noise a guarantee needs, and what given noise guarantees.

A sensitivity is the largest distance between the values on two neighbouring data sets,
in the L2 norm for Gaussian noise and in the L1 norm for Laplace noise. All functions
are pure mathematics on public parameters.

References:
    .. [Balle2018analytic] B. Balle and Y.-X. Wang. Improving the Gaussian Mechanism
        for Differential Privacy. ICML 2018.
    .. [Dwork2014foundations] C. Dwork and A. Roth. The Algorithmic Foundations of
        Differential Privacy. 2014. Theorem A.1 (the classical Gaussian calibration)
        and Theorem 3.6 (Laplace).
"""

import math
import numbers
import warnings

from botorch_dp._validation import check_instance, check_positive, describe
from botorch_dp.exceptions import InvalidArgumentError, WeakGuaranteeWarning
from botorch_dp.privacy import curves
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee, PureDP

# The delta that errors suggest, if it is small enough for the number of records.
_USUAL_DELTA = 1e-6


def gaussian_noise_std(guarantee: Guarantee, *, sensitivity: float) -> float:
    """Return the least standard deviation of Gaussian noise that meets ``guarantee``.

    For (epsilon, delta) this is the analytic calibration of [Balle2018analytic]_, for
    Renyi privacy sensitivity * sqrt(order / (2 epsilon)); both are exact.

    Example:
        >>> round(gaussian_noise_std(ApproxDP(1.0, 1e-5), sensitivity=1.0), 6)
        3.730632
    """
    sensitivity = check_positive("sensitivity", sensitivity)
    return sensitivity / check_guarantee("guarantee", guarantee).to_gdp().mu


def gaussian_guarantee(*, noise_std: float, sensitivity: float) -> GDP:
    """Return the exact guarantee of Gaussian noise of this size."""
    noise_std = check_positive("noise_std", noise_std)
    return GDP(check_positive("sensitivity", sensitivity) / noise_std)


def classical_gaussian_noise_std(guarantee: ApproxDP, *, sensitivity: float) -> float:
    """Return the textbook sensitivity * sqrt(2 log(1.25/delta)) / epsilon.

    Use it only to reproduce papers that use it. It is proven for epsilon < 1
    ([Dwork2014foundations]_, Theorem A.1); elsewhere it protects too little or adds
    needless noise. The warning states what this noise really guarantees.

    Warns:
        WeakGuaranteeWarning: Always, with the true epsilon at the same delta.
    """
    check_instance(
        "guarantee", guarantee, ApproxDP, expected="an ApproxDP(epsilon, delta)"
    )
    sensitivity = check_positive("sensitivity", sensitivity)
    epsilon, delta = guarantee.epsilon, guarantee.delta
    noise_std = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    true_epsilon = GDP(sensitivity / noise_std).epsilon(delta)
    verdict = "under-protects" if true_epsilon > epsilon else "is more than needed"
    exact = gaussian_noise_std(guarantee, sensitivity=sensitivity)
    warnings.warn(
        f"Classical Gaussian noise for {guarantee!r} {verdict}: it really gives "
        f"epsilon={true_epsilon:.4g} at delta={delta:.4g}, and is "
        f"{noise_std / exact:.3g} times the noise of gaussian_noise_std.",
        WeakGuaranteeWarning,
        stacklevel=2,
    )
    return noise_std


def zcdp_noise_std(guarantee: Guarantee, *, sensitivity: float) -> float:
    """Return the standard deviation at which zCDP alone proves ``guarantee``.

    Only sensitivity^2 / (2 std^2)-zCDP is proven for discrete Gaussian noise. Under
    (epsilon, delta) the result is up to a few per cent above
    :func:`gaussian_noise_std`; under Renyi privacy it is the same. For ``GDP(mu)``,
    which zCDP never proves, the noise is that of the Gaussian and the release counts as
    mu^2/2-zCDP.
    """
    sensitivity = check_positive("sensitivity", sensitivity)
    guarantee = check_guarantee("guarantee", guarantee)
    if isinstance(guarantee, ApproxDP):
        return sensitivity / math.sqrt(
            2 * curves.zcdp_rho(guarantee.epsilon, guarantee.delta)
        )
    return sensitivity / guarantee.to_gdp().mu


def laplace_scale(guarantee: Guarantee, *, sensitivity: float) -> float:
    """Return the scale of Laplace noise that meets ``guarantee``.

    Example:
        >>> laplace_scale(PureDP(0.5), sensitivity=1.0)
        2.0
    """
    sensitivity = check_positive("sensitivity", sensitivity)
    return sensitivity / check_guarantee("guarantee", guarantee).to_pure().epsilon


def laplace_guarantee(*, scale: float, sensitivity: float) -> PureDP:
    """Return the guarantee of Laplace noise of this scale."""
    scale = check_positive("scale", scale)
    return PureDP(check_positive("sensitivity", sensitivity) / scale)


def gaussian_rdp(*, noise_std: float, sensitivity: float, order: float) -> RDP:
    """Return the exact Renyi guarantee of Gaussian noise at ``order``.

    Under replace-one adjacency, a mean of n values clipped to norm B has sensitivity
    2B/n, not B/n. The published Renyi variant of local private optimization loses this
    factor of four in epsilon.
    """
    guarantee = gaussian_guarantee(noise_std=noise_std, sensitivity=sensitivity)
    return guarantee.to_rdp(order)


def check_guarantee(
    name: str,
    guarantee: Guarantee,
    *,
    kind: type | tuple[type, ...] = Guarantee,
    expected: str = "a PureDP, ApproxDP, GDP or RDP",
    num_records: int | None = None,
) -> Guarantee:
    """Return ``guarantee`` if it is one.

    The error for a bare number, which is probably an epsilon, has the line to write.

    Args:
        name: The name of the argument.
        guarantee: The argument.
        kind: The types that it may have.
        expected: What the error says that it must be.
        num_records: The number of records, if it is known: delta must be far below one
            over it.

    Example:
        >>> check_guarantee("guarantee", 1.0, num_records=60_000_000)
        Traceback (most recent call last):
        botorch_dp.exceptions.InvalidArgumentError: ...(epsilon=1.0, delta=1e-09).
    """
    if isinstance(guarantee, kind):
        return guarantee
    line = ""
    if isinstance(guarantee, numbers.Real) and not isinstance(guarantee, bool):
        # The power of ten that is at least ten times below one over the number.
        delta = min(_USUAL_DELTA, 10.0 ** -(1 + len(str(num_records or 1))))
        line = f" Write {name}=ApproxDP(epsilon={float(guarantee)!r}, delta={delta:g})."
    raise InvalidArgumentError(
        f"{name} must be {expected}, got {describe(guarantee)}.{line}"
    )
