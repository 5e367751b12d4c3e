r"""Privacy losses of federated Thompson sampling, as published.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
    .. [Mironov2019sampled] I. Mironov, K. Talwar and L. Zhang. Renyi Differential
        Privacy of the Sampled Gaussian Mechanism. 2019. Section 3.3, integer orders.
"""

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from botorch_dp._validation import check_count, check_positive, check_probability

_ORDERS = range(2, 34)


def published_privacy_loss(
    *, sampling_rate: float, noise_multiplier: float, num_rounds: int, delta: float
) -> float:
    r"""Return the epsilon of [Dai2021dpfts]_, a loose upper bound.

    It uses the moments of the sampled Gaussian at integer orders 2 to 33, and
    :math:`\epsilon = \min_\alpha T \rho(\alpha) - \log(\delta) / (\alpha - 1)`. It is
    here to reproduce the paper. The accountant of this library is exact, and its
    epsilon is a third lower.

    Args:
        sampling_rate: The probability that an agent is in the sample of a round.
        noise_multiplier: The ratio of noise to sensitivity.
        num_rounds: The number of broadcasts.
        delta: The delta of the guarantee.

    Example:
        >>> round(published_privacy_loss(
        ...     sampling_rate=0.25, noise_multiplier=1.0, num_rounds=40,
        ...     delta=200**-1.1,
        ... ), 2)
        9.91
    """
    rate = check_probability("sampling_rate", sampling_rate)
    z = check_positive("noise_multiplier", noise_multiplier)
    rounds = check_count("num_rounds", num_rounds)
    log_delta = math.log(check_probability("delta", delta))
    bounds = []
    for order in _ORDERS:
        k = np.arange(order + 1)
        log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms = log_binomial + k * math.log(rate) + (order - k) * math.log1p(-rate)
        moment = float(logsumexp(terms + k * (k - 1) / (2 * z**2)))
        bounds.append((rounds * moment - log_delta) / (order - 1))
    return min(bounds)
