r"""Branch and bound for Algorithm 2, whose regret follows from public numbers.

Algorithm 2 of [Kusner2015dpbo]_ observes without noise and searches with the method of
[deFreitas2012exponential]_: cover the space, drop what cannot be the best, cover the
rest more densely. Its theorem bounds the regret by :math:`A e^{-\tau T/(\log
T)^{d/4}}`, but A and :math:`\tau` depend on the curvature of the unknown function at
its maximum: they exist and cannot be computed.

What can be computed is the regret after the first cover. It does not depend on the
function, because a posterior variance depends on points only:

.. math:: \Omega = 2 \sqrt{\beta_T} \max_\lambda \sigma_m(\lambda)

for m points that cover all candidates. The later points can only lower the variances.
``docs/theory/published_releases.md`` has the proof.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015. Algorithm 2.
    .. [deFreitas2012exponential] N. de Freitas, A. Smola and M. Zoghi. Exponential
        Regret Bounds for Gaussian Process Bandits with Deterministic Observations.
        ICML 2012.
"""

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_count, check_nonnegative
from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.release.kusner.sensitivity import _Bound
from botorch_dp.optimizers.release.kusner.setting import two_sided_tail

# Values are exact, and rounding needs this much noise. Nothing is learned from a point
# whose variance is below the second number: the kernel matrix would be singular.
_JITTER, _FLOOR = 1e-12, 1e-8


@dataclass(frozen=True)
class Cover:
    """Points that cover all candidates, chosen by their variances: public.

    Attributes:
        indices: The indices of the points, in order.
        deviation: The largest posterior standard deviation of a candidate given exact
            values at these points.
    """

    indices: tuple[int, ...]
    deviation: float


def cover(kernel: Kernel, candidates: Tensor, *, num_points: int) -> Cover:
    """Return the candidates with the largest variances, one after the other.

    Args:
        kernel: The covariance function.
        candidates: An ``N x d`` tensor.
        num_points: The number of points.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> candidates = torch.linspace(0, 3, 101, dtype=torch.float64).unsqueeze(-1)
        >>> for count in (2, 4, 8):
        ...     found = cover(RBFKernel(), candidates, num_points=count)
        ...     print(f"{found.deviation:.5f}")
        0.99071
        0.60889
        0.01988
    """
    check_count("num_points", num_points)
    posterior = exact_posterior(kernel, candidates, num_points)
    indices = []
    for _ in range(num_points):
        index = int(posterior.variance.argmax())
        indices.append(index)
        observe_exactly(posterior, index, 0.0)
    return Cover(tuple(indices), math.sqrt(_largest(posterior.variance)))


def exact_posterior(
    kernel: Kernel, candidates: Tensor, num_points: int
) -> CandidatePosterior:
    """Return a posterior for exact values."""
    return CandidatePosterior(
        kernel, candidates, noise_variance=_JITTER, max_observations=num_points
    )


def observe_exactly(posterior: CandidatePosterior, index: int, value: float) -> None:
    """Condition on an exact value, unless it is known already up to rounding."""
    if float(posterior.variance[index]) > _FLOOR:
        posterior.observe(index, value)


class RelevantSet:
    """The candidates that can still be the best: private, as values decide.

    Args:
        num_candidates: The number of candidates.
        device: The device of the posterior's tensors.
    """

    def __init__(self, num_candidates: int, device: torch.device | str) -> None:
        self.mask = torch.ones(num_candidates, dtype=torch.bool, device=device)

    def shrink(self, posterior: CandidatePosterior, beta: float) -> None:
        """Drop candidates whose upper bound is below the largest lower bound."""
        width = (beta * posterior.variance.clamp(min=_FLOOR)).sqrt()
        least = (posterior.mean - width).max()
        self.mask &= posterior.mean + width >= least

    def most_uncertain(self, posterior: CandidatePosterior) -> int:
        """Return the relevant candidate with the largest variance."""
        return self._best(posterior.variance)

    def most_promising(self, posterior: CandidatePosterior, beta: float) -> int:
        """Return the relevant candidate with the largest upper bound."""
        width = (beta * posterior.variance.clamp(min=_FLOOR)).sqrt()
        return self._best(posterior.mean + width)

    def _best(self, scores: Tensor) -> int:
        # Rounding may leave nothing: then every candidate is relevant.
        if self.mask.any():
            scores = scores.masked_fill(~self.mask, -math.inf)
        return int(scores.argmax())


@dataclass(frozen=True, kw_only=True)
class DerivedValueSensitivity(_Bound):
    r"""How much the best value of branch and bound changes with one record.

    .. math::
        \bigl|\max_{t \le T} f'(\lambda'_t) - \max_{t \le T} f(\lambda_t)\bigr| \le
        2 \sqrt{\beta_T} \max_\lambda \sigma_m(\lambda) + c

    with probability :math:`1 - \delta`, if the search covers all candidates with m
    points first and ends at the largest upper confidence bound. In contrast to
    :class:`~botorch_dp.optimizers.release.kusner.sensitivity.NoiseFreeValueSensitivity`
    the user asserts nothing about the regret.

    Args:
        setting: The setting, with at least 2 steps.
        deviation: The largest posterior standard deviation after the cover.

    Example:
        >>> from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> value = DerivedValueSensitivity(setting, deviation=0.01)
        >>> round(value.regret, 3), round(value.sensitivity, 3)
        (0.122, 0.751)
        >>> sum(value.failure_probabilities.values()) <= setting.delta
        True
    """

    deviation: float

    shares = 2
    terms = ("deviation", "beta", "c", "regret")

    def __post_init__(self) -> None:
        check_count("num_steps", self.setting.num_steps, minimum=2)
        check_nonnegative("deviation", self.deviation)

    @property
    def beta(self) -> float:
        r"""The weight of the variance at the last step, :math:`\beta_T`."""
        return self.setting.ucb_beta(self.setting.num_steps)

    @property
    def regret(self) -> float:
        r""":math:`\Omega`, how far the best value found may be below the best."""
        return 2 * math.sqrt(self.beta) * self.deviation

    @property
    def sensitivity(self) -> float:
        """How much the best value found may change."""
        return self.regret + self.c

    @property
    def failure_probabilities(self) -> dict[str, float]:
        """Bounds on the probability of each kind of event that breaks the bound.

        ``"regret"``: a function leaves the confidence bounds at some step, for V or for
        V'; ``"shift"``: the function changes by more than c.
        """
        setting = self.setting
        betas = map(setting.ucb_beta, range(1, setting.num_steps + 1))
        tails = math.fsum(two_sided_tail(math.sqrt(beta)) for beta in betas)
        return {
            "regret": 2 * setting.num_candidates * tails,
            "shift": setting.shift_failure(shares=self.shares),
        }


def _largest(variance: Tensor) -> float:
    """Return the largest variance; below the floor nothing was learned."""
    return max(float(variance.max()), _FLOOR)
