r"""Renyi divergences of sampled releases, and curves between known orders.

References:
    .. [Mironov2019sampled] I. Mironov, K. Talwar and L. Zhang. Renyi Differential
        Privacy of the Sampled Gaussian Mechanism. 2019. Theorems 4 and 5, Section 3.3.
"""

import math
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln

from botorch_dp.privacy.curves import FloatArray

# Whole orders, at which the moments of a sampled Gaussian release are finite sums. The
# order 1024 helps small epsilons.
RDP_ORDERS: FloatArray = np.concatenate(
    [np.arange(2.0, 65.0), [80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0]]
)


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


@lru_cache(maxsize=4096)
def poisson_rdp(mu: float, rate: float) -> FloatArray:
    """Return the divergences of a mu-GDP release of a Poisson sample.

    Args:
        mu: The mu of the release of all records.
        rate: The probability that a record is in the sample, below one.

    Returns:
        The divergences at ``RDP_ORDERS``, in the direction in which they are larger:
        [Mironov2019sampled]_, Theorem 5.
    """
    divergences = _log_moments(mu, rate, RDP_ORDERS) / (RDP_ORDERS - 1)
    divergences.flags.writeable = False
    return divergences


def interpolated_rdp(divergences: FloatArray, order: float) -> float:
    """Return a bound on a divergence from those at ``RDP_ORDERS``.

    The logarithm of the moment, (order - 1) times the divergence, is convex in the
    order and zero at 1: a line between two bounds on it is a bound. Beyond the largest
    order there is none.
    """
    if order > RDP_ORDERS[-1]:
        return math.inf
    log_moments = np.append(0.0, (RDP_ORDERS - 1) * divergences)
    orders = np.append(1.0, RDP_ORDERS)
    upper = int(np.searchsorted(orders, order))
    share = (order - orders[upper - 1]) / (orders[upper] - orders[upper - 1])
    log_moment = share * log_moments[upper]
    if share < 1:
        log_moment += (1 - share) * log_moments[upper - 1]
    return float(log_moment) / (order - 1)


def _log_moments(mu: float, rate: float, orders: FloatArray) -> FloatArray:
    """Return logarithms of moments at whole orders: [Mironov2019sampled]_, (3.3).

    A moment of order a is the mean of e^(k (k - 1) mu^2 / 2) over a binomial number k
    of a trials. The terms of k < 2 are one, so that the others are its excess over one.
    """
    sizes = orders.astype(int) - 1
    starts = np.cumsum(sizes) - sizes
    a = np.repeat(orders, sizes)
    k = np.arange(len(a)) - np.repeat(starts, sizes) + 2.0
    log_choose = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
    exponents = k * (k - 1) * mu**2 / 2
    logs = log_choose + k * math.log(rate) + (a - k) * math.log1p(-rate)
    logs += exponents + np.log(-np.expm1(-exponents))
    largest = np.maximum.reduceat(logs, starts)
    sums = np.add.reduceat(np.exp(logs - np.repeat(largest, sizes)), starts)
    return np.logaddexp(0.0, largest + np.log(sums))
