r"""What Algorithms 1 and 2 of Kusner et al. (2015) assume, in one object.

Both algorithms assume that the functions of all data sets are one draw of a known
Gaussian process, with correlation :math:`k_1(V, V')` between data sets
(:mod:`botorch_dp.models.kernels.dataset_kernel`). The proofs are in
``docs/theory/published_releases.md``.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
    .. [Kusner2015workshop] The same authors and title, workshop version of 2015.
"""

import math
from dataclasses import dataclass

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_positive,
    check_probability,
)
from botorch_dp.acquisition.private_ucb import CONSTANTS, ucb_beta
from botorch_dp.models.kernels.dataset_kernel import check_correlation


@dataclass(frozen=True, kw_only=True)
class KusnerSetting:
    r"""The public numbers on which the bounds of Algorithms 1 and 2 depend.

    The papers have :math:`k_2(\lambda, \lambda) = 1`. With another ``prior_variance``
    :math:`s^2` every bound is s times that of f / s, whose noise variance is
    :math:`\sigma^2 / s^2`.

    Args:
        num_steps: The number T of steps.
        num_candidates: The number of candidates, :math:`|\Lambda|`.
        delta: The probability with which a bound may fail.
        correlation: The smallest correlation :math:`k_1(V, V')` of two neighbours. Only
            someone who knows the data can assert it.
        prior_variance: The largest prior variance :math:`s^2` of a candidate.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` for the constants
            that [Kusner2015dpbo]_ and [Kusner2015workshop]_ print, whose failure
            probabilities can exceed delta.

    Example:
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> round(setting.shift(), 3), round(setting.shift(shares=2), 3)
        (0.642, 0.629)
    """

    num_steps: int
    num_candidates: int
    delta: float
    correlation: float
    prior_variance: float = 1.0
    constants: str = "repaired"

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        check_count("num_candidates", self.num_candidates)
        check_probability("delta", self.delta)
        check_correlation("correlation", self.correlation)
        check_positive("prior_variance", self.prior_variance)
        check_choice("constants", self.constants, CONSTANTS)

    @property
    def is_repaired(self) -> bool:
        """Whether the constants are those whose proof is complete."""
        return self.constants == "repaired"

    def ucb_beta(self, step: int) -> float:
        r"""Return :math:`\beta_t`, the weight of the variance at step t."""
        return ucb_beta(
            step=step,
            num_candidates=self.num_candidates,
            delta=self.delta,
            constants=self.constants,
        )

    def shift(self, *, shares: int = 3) -> float:
        r"""Return c, how much the function may change with one record.

        .. math:: c = 2 s \sqrt{(1 - k_1(V, V')) \log \frac{3 |\Lambda|}{\delta}}

        This is line 9 of Algorithm 1 in [Kusner2015dpbo]_. Algorithm 2 has a 2 in place
        of the 3.

        Args:
            shares: The number of equal shares of delta, one of which covers the change:
                3 in Algorithm 1, 2 in Algorithm 2.
        """
        check_count("shares", shares)
        log = log_ratio(shares * self.num_candidates, self.delta)
        return 2 * math.sqrt(self.prior_variance * (1 - self.correlation) * log)

    def shift_failure(self, *, shares: int = 3) -> float:
        """Return the probability that a candidate changes by more than c, at most."""
        x = math.sqrt(2 * log_ratio(shares * self.num_candidates, self.delta))
        return self.num_candidates * two_sided_tail(x)


def log_ratio(count: int, probability: float) -> float:
    """Return log(count / probability) without overflow."""
    return math.log(count) - math.log(probability)


def two_sided_tail(x: float) -> float:
    """Return the probability that a normal variable is beyond x or -x."""
    return math.erfc(x / math.sqrt(2))
