r"""Privacy loss distributions and Renyi divergences of events, from dp-accounting.

Privacy loss distributions (PLD) live on a grid of losses and are rounded up, so that
every epsilon and delta computed from them is an upper bound.

References:
    .. [Balle2018amplification] B. Balle, G. Barthe and M. Gaboardi. Privacy
        Amplification by Subsampling: Tight Analyses via Couplings and Divergences.
        NeurIPS 2018.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import dp_accounting
import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from botorch_dp.privacy import curves
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.hulls import upper_hull

PLD: TypeAlias = Any  # dp-accounting is untyped

# Only whole orders: dp-accounting's series for the sampled Gaussian does not always
# converge at fractional ones. The order 1024 helps small epsilons.
RDP_ORDERS: FloatArray = np.concatenate(
    [np.arange(2.0, 65.0), [80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0]]
)
# The probability of infinite loss in our PLDs; dp-accounting uses the same.
_TAIL_MASS = math.exp(-50)
# Smaller probabilities are below the rounding errors of their sum.
_SMALLEST_MASS = 1e-100
# Larger losses count as infinite, so that no grid fills the memory.
_MOST_LOSSES = 2**21
# The number of points at which the profile of a selection is computed for a PLD.
_MOST_DOTS = 2048
# dp-accounting computes the exponential of epsilon, which overflows at 709.
_LARGEST_EXPONENT = 700.0


@lru_cache(maxsize=4096)
def library_rdp(
    event: dp_accounting.DpEvent, relation: str, num_orders: int | None = None
) -> FloatArray:
    """Return dp-accounting's Renyi divergences at the first of ``RDP_ORDERS``."""
    accountant = RdpAccountant(
        RDP_ORDERS[:num_orders], dp_accounting.NeighboringRelation[relation.upper()]
    )
    accountant.compose(event)
    divergences: FloatArray = np.maximum(accountant.rdp, 0.0)
    divergences.flags.writeable = False
    return divergences


@lru_cache(maxsize=64)
def gaussian_pld(noise_multiplier: float, rate: float, interval: float) -> PLD:
    """Return the PLD of a Gaussian release of a Poisson sample."""
    mu = 1.0 / noise_multiplier
    if rate < 1 and _largest_loss(mu, rate) <= _LARGEST_EXPONENT:
        # The same dots as dp-accounting's, of closed forms: twenty times as fast.
        losses = _losses(mu, rate, interval)
        with_record = curves.sampled_gdp_deltas(mu, rate, losses)
        without = curves.unsampled_gdp_deltas(mu, rate, losses)
        return _pld_of_dots(interval, losses, with_record, without)
    # Add-or-remove adjacency is the one that leaves the pair as it is.
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


@lru_cache(maxsize=16)
def fixed_size_pld(noise_multiplier: float, rate: float, interval: float) -> PLD:
    """Return a PLD that dominates a Gaussian release of a subset of fixed size.

    It connects the dots of the curve of [Balle2018amplification]_, continued to
    negative epsilons by the symmetry of replace-one: see docs/theory.
    """
    mu = 1.0 / noise_multiplier
    if _largest_loss(mu, rate) > _LARGEST_EXPONENT:
        return gaussian_pld(noise_multiplier, 1.0, interval)
    losses = _losses(mu, rate, interval)
    deltas = curves.sampled_gdp_deltas(mu, rate, losses)
    return _pld_of_dots(interval, losses, deltas)


def _largest_loss(mu: float, rate: float) -> float:
    """Return the loss beyond which a sampled release has a negligible delta."""
    return curves.sampled_gdp_epsilon(mu, rate, _TAIL_MASS)


def _losses(mu: float, rate: float, interval: float) -> FloatArray:
    num_losses = min(math.ceil(_largest_loss(mu, rate) / interval), _MOST_LOSSES)
    return np.arange(num_losses + 1, dtype=np.float64) * interval


def _pld_of_dots(interval: float, losses: FloatArray, *curves: FloatArray) -> PLD:
    """Return the PLD that connects the dots of profiles at all losses from zero.

    Args:
        interval: The interval between losses.
        losses: The losses, the first of which is zero.
        curves: The deltas at the losses, one for each order of the two data sets; one
            if they are the same.
    """
    above = []
    for deltas in curves:
        falls = -np.diff(deltas)
        gains = math.exp(interval) * falls - np.append(falls[1:], 0.0)
        gains[gains < _SMALLEST_MASS] = 0.0  # dp-accounting's bounds would overflow
        above.append(gains / math.expm1(interval))
    pmfs = []
    for deltas, own, other in zip(curves, above, above[::-1], strict=True):
        # In the other order the loss has the other sign, and e^loss times its mass.
        below = other * np.exp(-losses[1:])
        at_zero = max(0.0, 1.0 - own.sum() - below.sum() - deltas[-1])
        pmf = pld_pmf.DensePLDPmf(
            discretization=interval,
            lower_loss=1 - len(losses),
            probs=np.concatenate([below[::-1], [at_zero], own]),
            infinity_mass=deltas[-1],
            pessimistic_estimate=True,
        )
        pmfs.append(pmf)
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def pld_of_curves(
    curves_at: Sequence[Callable[[FloatArray], FloatArray]],
    largest: float,
    interval: float,
) -> PLD:
    """Return a PLD that dominates every release with this privacy profile.

    Args:
        curves_at: Bounds on the deltas at given epsilons from zero, one for each order
            of the two data sets; one curve if they are the same.
        largest: The largest epsilon that matters.
        interval: The interval between losses.
    """
    num_losses = math.ceil(min(largest, _LARGEST_EXPONENT / 2) / interval)
    num_losses = max(1, min(num_losses, _MOST_LOSSES))
    dots = np.unique(np.linspace(0, num_losses, _MOST_DOTS).round().astype(int))
    curves = [np.minimum.accumulate(at(dots * interval)) for at in curves_at]
    pairs = zip(curves, curves[::-1], strict=True)
    pmfs = [_connect_dots(dots, interval, *pair) for pair in pairs]
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def _connect_dots(
    dots: NDArray[np.int_], interval: float, deltas: FloatArray, reverse: FloatArray
) -> PLD:
    """Return the PLD of one direction from both profiles at multiples of the interval.

    The true profile is a convex function of e^epsilon, and so it is nowhere above the
    largest convex function below the dots. The kinks of that function are losses.
    """
    losses = np.concatenate([-dots[:0:-1], dots])
    mirrored = 1 - np.exp(-dots * interval) * (1 - reverse)
    odds = np.append(0.0, np.exp(losses * interval))  # at -infinity delta is one
    heights = np.concatenate([[1.0], mirrored[:0:-1], deltas])
    hull = upper_hull(odds, -heights)
    x, y = odds[hull], heights[hull]
    slopes = np.append(np.diff(y) / np.diff(x), 0.0)
    masses = x[1:] * np.maximum(0.0, np.diff(slopes))
    probs = np.zeros(2 * dots[-1] + 1)
    probs[losses[np.array(hull[1:]) - 1] + dots[-1]] = masses
    return pld_pmf.DensePLDPmf(
        discretization=interval,
        lower_loss=-int(dots[-1]),
        probs=probs,
        infinity_mass=float(y[-1]),
        pessimistic_estimate=True,
    )


@lru_cache(maxsize=64)
def laplace_pld(noise_multiplier: float, interval: float) -> PLD | None:
    """Return the PLD of Laplace noise, or None if its epsilon would overflow."""
    if 1 / noise_multiplier > _LARGEST_EXPONENT:
        return None
    return privacy_loss_distribution.from_laplace_mechanism(
        parameter=noise_multiplier, value_discretization_interval=interval
    )


@lru_cache(maxsize=64)
def parameter_pld(epsilon: float, delta: float, interval: float) -> PLD | None:
    """Return the PLD of any (epsilon, delta)-DP release, or None on overflow."""
    if epsilon > _LARGEST_EXPONENT:
        return None
    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta),
        value_discretization_interval=interval,
    )
