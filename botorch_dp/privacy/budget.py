"""Budgets: what a guarantee leaves for each release, and what one record can move."""

import math
import warnings
from collections.abc import Sequence

from botorch_dp._validation import check_positive
from botorch_dp.exceptions import (
    InvalidArgumentError,
    UnsupportedConversionError,
    WeakGuaranteeWarning,
)
from botorch_dp.privacy import curves
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.choice_curves import choice_mu
from botorch_dp.privacy.composition import spent_at
from botorch_dp.privacy.events import PrivacyEvent, PureEvent, ZCDPEvent
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee
from botorch_dp.privacy.ledger import Ledger
from botorch_dp.privacy.mechanisms import GaussianMechanism
from botorch_dp.privacy.noise import SecureNoise


def check_gaussian(guarantee: Guarantee, secure: bool | SecureNoise) -> Guarantee:
    """Return the guarantee if releases with Gaussian noise can meet it."""
    check_guarantee("guarantee", guarantee, expected="a GDP, an ApproxDP or an RDP")
    try:
        guarantee.to_gdp()
    except UnsupportedConversionError as error:
        raise InvalidArgumentError(
            f"guarantee must be one that Gaussian noise can meet: {error}"
        ) from error
    if secure and isinstance(guarantee, GDP):
        raise InvalidArgumentError(
            "guarantee must be an ApproxDP or an RDP with secure=True: discrete noise "
            f"is not proven to be Gaussian differentially private, got {guarantee!r}."
        )
    return guarantee


def share_of_a_step(
    guarantee: Guarantee,
    num_steps: int,
    *,
    sensitivity: float,
    size: int,
    secure: bool | SecureNoise,
) -> GDP:
    """Return the guarantee of each of T Gaussian releases that add up to the whole.

    Squares of mu add up, and so do the costs of discrete noise.

    Args:
        guarantee: The guarantee of all releases together.
        num_steps: The number T of releases.
        sensitivity: The sensitivity of each release.
        size: How many numbers each release has.
        secure: Whether noise is discrete, as for the mechanism; a coarse grid costs a
            little more.
    """
    whole = GaussianMechanism(guarantee, sensitivity=1.0, secure=secure)
    share = intended = GDP(1.0 / (whole.noise_std * math.sqrt(num_steps)))
    for _ in range(8 if secure else 0):
        mechanism = GaussianMechanism(share, sensitivity=sensitivity, secure=secure)
        rho = mechanism.event(size).zcdp_rho
        assert rho is not None
        if rho <= intended.mu**2 / 2:
            break
        share = GDP(share.mu * intended.mu / math.sqrt(2 * rho) * (1 - 1e-9))
    return share


def after_choice(guarantee: Guarantee, epsilon: float, *, secure: bool = False) -> GDP:
    """Return what Gaussian releases may cost in total beside a choice.

    A choice is any pure release, usually by
    :class:`~botorch_dp.privacy.PermuteAndFlipMechanism`. Both together meet
    ``guarantee``, in any order, even if later releases depend on earlier ones. For
    ``ApproxDP`` the result is exact, see ``docs/theory/choice_and_noise.md``.

    Args:
        guarantee: The guarantee of all releases together: a ``GDP``, ``ApproxDP`` or
            ``RDP``.
        epsilon: The pure epsilon of the choice.
        secure: Whether the noise of the releases is discrete. Only zero-concentrated
            privacy is proven for it, so that a little less is left of an ``ApproxDP``.

    Returns:
        The guarantee of all Gaussian releases together; of discrete ones, mu^2 / 2 is
        their zero-concentrated cost.

    Raises:
        InvalidArgumentError: If the choice leaves nothing for Gaussian releases.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> round(after_choice(ApproxDP(1.0, 1e-5), 0.5).mu, 4)
        0.1469
    """
    check_gaussian(guarantee, secure)
    epsilon = check_positive("epsilon", epsilon)
    if isinstance(guarantee, ApproxDP) and secure:
        mu = _discrete_mu_after_choice(guarantee, epsilon)
    elif isinstance(guarantee, ApproxDP):
        mu = choice_mu(epsilon, guarantee.epsilon, guarantee.delta)
    elif isinstance(guarantee, RDP):
        left = guarantee.epsilon - curves.pure_rdp(epsilon, guarantee.order)
        mu = math.sqrt(2 * max(0.0, left) / guarantee.order)
    else:
        assert isinstance(guarantee, GDP)
        used = curves.pure_gdp_mu(epsilon)
        mu = math.sqrt(max(0.0, guarantee.mu - used) * (guarantee.mu + used))
    if mu == 0:
        raise InvalidArgumentError(
            f"epsilon must be small enough that a choice of this epsilon leaves part "
            f"of {guarantee!r} for Gaussian releases, got {epsilon!r}."
        )
    return GDP(mu)


def _discrete_mu_after_choice(guarantee: ApproxDP, epsilon: float) -> float:
    """Return the largest mu whose zero-concentrated cost fits, or zero."""

    def fits(log_mu: float) -> bool:
        cost = (ZCDPEvent(math.exp(2 * log_mu) / 2), 1)
        spent = spent_at(frozenset({(PureEvent(epsilon), 1), cost}), guarantee.delta)
        return spent.amount <= guarantee.epsilon

    # Continuous noise would leave more. A thousandth of that, and what costs less than
    # an event can state, counts as nothing.
    most = choice_mu(epsilon, guarantee.epsilon, guarantee.delta)
    least = max(most / 1000, 2e-5)
    if least >= most or not fits(math.log(least)):
        return 0.0
    lower, upper = math.log(least), math.log(most)
    while upper - lower > 1e-6:
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if fits(middle) else (lower, middle)
    return math.exp(lower)


def check_affordable(
    ledger: Ledger,
    plan: Sequence[tuple[PrivacyEvent, int]],
    adjacency: str,
    *,
    unit: str = "record",
    run: str = "",
) -> None:
    """Raise before hours of work if the ledger would refuse their release in the end.

    Args:
        ledger: The ledger that will be charged.
        plan: Pairs of an event and how many releases have that cost.
        adjacency: The neighbouring data sets for which the costs are stated.
        unit: Who is protected.
        run: The identity of the run that makes the plan.
    """
    if ledger.adjacency not in (None, adjacency):
        raise InvalidArgumentError(
            f"ledger must have charges for adjacency={adjacency!r}, got "
            f"{ledger.adjacency!r}: costs for different neighbours do not add up."
        )
    ledger.reserve(plan, adjacency=adjacency, unit=unit, run=run)


def mean_sensitivity(width: float, num_records: int) -> float:
    """Return how far one record can move a mean of values in a range.

    That is width / n, plus a share n 2^-44 of it for the rounding of a sum in double
    precision, whose order torch chooses. Measured on the CPU for a thousand to ten
    million records, along either dimension, the share is at most n 2^-53; it is not
    proven for every order.
    """
    return width / num_records * (1 + num_records * 2.0**-44)


def warn_of_large_delta(
    guarantee: Guarantee, num_records: int, *, stacklevel: int = 3
) -> None:
    """Warn of a delta so large that publishing a random record would satisfy it.

    Args:
        guarantee: The guarantee with the delta.
        num_records: The number n of records.
        stacklevel: 3 if the function that calls this one is called by the user.
    """
    if isinstance(guarantee, ApproxDP) and guarantee.delta * num_records > 1:
        warnings.warn(
            f"{guarantee!r} has a delta above one over the number of records "
            f"({num_records}): publishing a record at random would satisfy it. Choose "
            "a much smaller delta, as the second argument, after epsilon.",
            WeakGuaranteeWarning,
            stacklevel=stacklevel,
        )
