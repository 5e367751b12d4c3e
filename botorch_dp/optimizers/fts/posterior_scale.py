r"""How far local Thompson sampling strays from the posterior mean: :math:`\beta_t`.

In [Dai2021dpfts]_, Algorithm 2, line 6, an agent draws its function from
:math:`GP(\mu, \beta_t^2 \sigma^2)`, with

.. math:: \beta_t = B + \sigma \sqrt{2 (\gamma_{t-1} + 1 + \log(4 / \delta))},

where B bounds the norm of the function, :math:`\sigma` is the standard deviation of the
noise and :math:`\gamma` the maximum information gain. (Line 6 prints
:math:`\mu_t, \sigma_t` and :math:`\beta_{t+1}`, which would need the score of round t
before its point is chosen; section 3.1 has the right indices.)

**What is proven.** The paper takes the regularization :math:`\lambda = 1 + 2/T`. Agents
of this library, like those of the authors' scripts, use the noise variance for
:math:`\lambda`. For a function :math:`\phi(x)^T w` with :math:`\|w\| \le B` and
sub-Gaussian noise, Theorem 2 of [Abbasi2011linear]_ states that with probability
:math:`1 - \delta`, at all points and times,

.. math::
    |f(x) - \mu(x)| \le \sigma_t(x) \Big(B + \frac{\sigma}{\sqrt\lambda}
    \sqrt{2 (\gamma_t + \log(1 / \delta))}\Big).

The published scale is therefore large enough for :math:`\lambda \ge 1`, and too small
for the noise variance as :math:`\lambda` if that is below 1. ``"paper"`` is the scale
as published, and ``"confidence"`` has the factor :math:`\sigma / \sqrt\lambda`, which
is 1 here.

All arguments are public. Needs torch and numpy only.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
    .. [Abbasi2011linear] Y. Abbasi-Yadkori, D. Pal and C. Szepesvari. Improved
        Algorithms for Linear Stochastic Bandits. NeurIPS 2011.
"""

import math
from dataclasses import dataclass

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_nonnegative,
    check_positive,
    check_probability,
)
from botorch_dp.models.fourier import FourierFeatures

SCALES = ("paper", "confidence")


def feature_information_gain(
    num_observations: int,
    *,
    num_features: int,
    noise_variance: float,
    outputscale: float = 1.0,
) -> float:
    r"""Return an upper bound on the information gain of observations, in nats.

    For features with :math:`\|\phi(x)\|^2 \le \kappa`, any t observations have

    .. math::
        \gamma_t = \max_X \tfrac12 \log\det(I + \Phi \Phi^T / \lambda)
        \le \frac r2 \log\Big(1 + \frac{t \kappa}{r \lambda}\Big),
        \qquad r = \min(t, M).

    Proof: the matrix has at most r eigenvalues other than 1, the sum of which is at
    most :math:`r + t \kappa / \lambda`. The logarithm is concave, so their product is
    largest if they are equal. Orthogonal features attain it.

    Args:
        num_observations: The number t of observations.
        num_features: The number M of features.
        noise_variance: The variance :math:`\lambda` of an observation.
        outputscale: The squared length :math:`\kappa` of the features. (For features
            that are not normalized, twice the variance of the kernel.)

    Example:
        >>> round(feature_information_gain(10, num_features=50, noise_variance=0.01), 2)
        23.08
    """
    t = check_count("num_observations", num_observations, minimum=0)
    rank = min(t, check_count("num_features", num_features))
    kappa = check_positive("outputscale", outputscale)
    noise = check_positive("noise_variance", noise_variance)
    return rank / 2 * math.log1p(t * kappa / (rank * noise)) if t else 0.0


def confidence_scale(
    information_gain: float,
    *,
    rkhs_bound: float,
    noise_std: float,
    delta: float,
    regularization: float = 1.0,
) -> float:
    r"""Return the scale of a posterior within which a function stays.

    It is :math:`B + \sigma \sqrt{2 (\gamma + 1 + \log(4 / \delta)) / \lambda}`.
    With the default regularization it is the scale of [Dai2021dpfts]_, as published.

    Args:
        information_gain: The maximum information gain :math:`\gamma` of the
            observations so far.
        rkhs_bound: The bound B on the norm of the function.
        noise_std: The standard deviation :math:`\sigma` of the noise.
        delta: The probability :math:`\delta` with which the theorem may fail.
        regularization: The regularization :math:`\lambda` of the posterior, or 1.

    Example:
        >>> round(confidence_scale(23.0, rkhs_bound=1.0, noise_std=0.1, delta=0.1), 3)
        1.744
    """
    gamma = check_nonnegative("information_gain", information_gain)
    bound = check_nonnegative("rkhs_bound", rkhs_bound)
    noise = check_nonnegative("noise_std", noise_std)
    log_delta = math.log(4 / check_probability("delta", delta))
    factor = noise / math.sqrt(check_positive("regularization", regularization))
    return bound + factor * math.sqrt(2 * (gamma + 1 + log_delta))


@dataclass(frozen=True)
class PosteriorScale:
    r"""The factor :math:`\beta_t` of the posterior's standard deviation.

    The default is 1, as in the authors' scripts. Others were compared with it on some
    functions and judged on others (the benchmark ``dp_fts_figures``): with privacy none
    is clearly better, and both schedules are worse in the first ten rounds.

    Args:
        scale: A number; or ``"paper"`` or ``"confidence"``, see this module.
        rkhs_bound: The bound B on the norm of an agent's function in these schedules.
        delta: The probability with which the bound of these schedules may fail.

    Example:
        >>> features = FourierFeatures.draw(
        ...     torch.tensor([0.2], dtype=torch.float64), num_features=50, seed=0
        ... )
        >>> schedule = PosteriorScale("paper")
        >>> round(schedule(10, features, noise_variance=0.01), 3)
        1.745
        >>> PosteriorScale(0.5)(10, features, noise_variance=0.01)
        0.5
    """

    scale: float | str = 1.0
    rkhs_bound: float = 1.0
    delta: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            check_choice("scale", self.scale, SCALES)
        else:
            check_nonnegative("scale", self.scale)
        check_nonnegative("rkhs_bound", self.rkhs_bound)
        check_probability("scale_delta", self.delta)

    def __call__(
        self, num_observations: int, features: FourierFeatures, noise_variance: float
    ) -> float:
        """Return the scale after some observations, or an upper bound of their number.

        Args:
            num_observations: The number of observations.
            features: The features of the model.
            noise_variance: The variance of an observation in the model.
        """
        if not isinstance(self.scale, str):
            return float(self.scale)
        gain = feature_information_gain(
            num_observations,
            num_features=features.num_features,
            noise_variance=noise_variance,
            outputscale=features.outputscale * (1 if features.normalize else 2),
        )
        return confidence_scale(
            gain,
            rkhs_bound=self.rkhs_bound,
            noise_std=math.sqrt(noise_variance),
            delta=self.delta,
            regularization=1.0 if self.scale == "paper" else noise_variance,
        )
