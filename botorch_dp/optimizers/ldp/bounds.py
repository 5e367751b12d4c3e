r"""The theorems of LDP-BO as numbers, from public assumptions.

A message at step t is :math:`m_t = \nabla f(\theta_{t-1}) + b_t + e_t` with a bias
:math:`\|b_t\| \le \beta` (compression, clipping) and an error :math:`e_t` of mean zero.
Clipping and noise give :math:`E \|m_t\|^2 \le G^2 = B^2 + p s^2`. The proofs are in
``docs/theory/ldp_bo.md``.

**What the paper prints** ([LDPBO2025]_, Theorems 4.4 and 4.5) goes to zero with t. Its
proofs set the mean of the compression error to zero, which it is not: the error is the
same for all users of a step. The bounds here keep it. Then the error does not fall
below :math:`\beta^2 / \lambda^2`, which is sharp.

**What cannot be computed.** Corollary B.6 bounds the error on the event that the
iterates converge to one of many minima, with constants from another paper that are not
printed, and with facts about the expected loss (how flat its saddle points are) that
nobody knows who has not seen the data. Near one minimum,
:func:`squared_error_bound` with the smallest curvature there says the same.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
    .. [Engel2004krls] Y. Engel, S. Mannor and R. Meir. The Kernel Recursive
        Least-Squares Algorithm. IEEE Transactions on Signal Processing, 2004.
"""

import math
from dataclasses import dataclass

from botorch_dp._validation import (
    check_clip_norm,
    check_count,
    check_instance,
    check_nonnegative,
    check_positive,
)
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule


def message_mean_square(*, clip_norm: float, noise_std: float, dim: int) -> float:
    r"""Return the bound :math:`B^2 + p s^2` on the mean square of a message.

    Args:
        clip_norm: The bound B on a user's gradient.
        noise_std: The standard deviation s of the noise on each number.
        dim: The number p of numbers in a message.

    Example:
        >>> message_mean_square(clip_norm=1.0, noise_std=2.0, dim=3)
        13.0
    """
    clip_norm = check_clip_norm("clip_norm", clip_norm)
    noise_std = check_nonnegative("noise_std", noise_std)
    return clip_norm**2 + check_count("dim", dim) * noise_std**2


def compression_bias(*, kappa: float, dim: int, rkhs_norm: float) -> float:
    r"""Return the largest bias :math:`\kappa \sqrt p\, \|f\|_H` of the trace rule.

    For a function of norm :math:`\|f\|_H` in the space of the kernel, the partial
    derivative from a dictionary is wrong by at most :math:`\|f\|_H
    \sqrt{\Sigma_{ii}}`, and the rule keeps :math:`\mathrm{tr}\, \Sigma \le p \kappa^2`.
    This is Lemma C.4 of the paper with its constant; the paper's :math:`L + p \kappa`
    bounds the square.

    Args:
        kappa: The compression budget.
        dim: The number p of parameters.
        rkhs_norm: The norm of the expected loss.

    Example:
        >>> compression_bias(kappa=0.1, dim=4, rkhs_norm=1.0)
        0.2
    """
    norm = check_nonnegative("rkhs_norm", rkhs_norm)
    return check_positive("kappa", kappa) * math.sqrt(check_count("dim", dim)) * norm


def squared_error_bound(
    num_steps: int,
    *,
    step_sizes: StepSchedule,
    radius: float,
    strong_convexity: float,
    mean_square: float,
    bias: float = 0.0,
) -> float:
    r"""Return a bound on :math:`E \|\theta_T - \theta^*\|^2`: Theorem 4.4, repaired.

    With :math:`e_0 = R^2` it is the last term of

    .. math:: e_t = (1 - 2 \lambda \eta_t)_+\, e_{t-1}
        + 2 \eta_t \beta \sqrt{e_{t-1}} + \eta_t^2 G^2,

    which has no hidden constant. It needs an expected loss that is strongly convex on a
    convex set which contains all iterates, for example a box into which they are
    clamped. (No loss has bounded gradients and is strongly convex everywhere, as the
    paper's Assumptions 4.1 and 4.3 together demand.)

    Args:
        num_steps: The number T of users.
        step_sizes: The step sizes.
        radius: A bound R on the distance of the start from the minimum.
        strong_convexity: The smallest curvature :math:`\lambda` of the expected loss.
        mean_square: The bound :math:`G^2` on messages, see :func:`message_mean_square`.
        bias: The bound :math:`\beta` on their bias, see :func:`compression_bias`.

    Example:
        >>> facts = {"step_sizes": StepSchedule(1.0, power=1.0), "radius": 1.0}
        >>> facts |= {"strong_convexity": 0.5, "mean_square": 4.0}
        >>> squared_error_bound(1000, **facts)
        0.0299...
        >>> squared_error_bound(1000, bias=0.5, **facts) > 1.0  # (bias / curvature)^2
        True
    """
    check_instance("step_sizes", step_sizes, StepSchedule)
    error = check_nonnegative("radius", radius) ** 2
    curvature = check_positive("strong_convexity", strong_convexity)
    square = check_nonnegative("mean_square", mean_square)
    bias = check_nonnegative("bias", bias)
    for step in range(1, 1 + check_count("num_steps", num_steps)):
        eta = step_sizes(step)
        kept = max(0.0, 1.0 - 2.0 * curvature * eta) * error
        error = kept + 2.0 * eta * bias * math.sqrt(error) + eta**2 * square
    return error


def squared_gradient_bound(
    num_steps: int,
    *,
    step_sizes: StepSchedule,
    gap: float,
    smoothness: float,
    mean_square: float,
    bias: float = 0.0,
) -> float:
    r"""Return a bound on :math:`\min_t E\|\nabla f\|^2`: Theorem 4.5, repaired.

    .. math:: \min_{0 \le t < T} E \|\nabla f(\theta_t)\|^2
        \le \frac{2 (f(\theta_0) - \min f) + \zeta G^2 \sum \eta_t^2}{\sum \eta_t}
        + \beta^2

    for a :math:`\zeta`-smooth loss, convex or not, and for any step sizes.

    Args:
        num_steps: The number T of users.
        step_sizes: The step sizes.
        gap: A bound on the difference of the expected loss at the start and its
            minimum.
        smoothness: A Lipschitz constant :math:`\zeta` of its gradient.
        mean_square: The bound :math:`G^2` on messages, see :func:`message_mean_square`.
        bias: The bound :math:`\beta` on their bias, see :func:`compression_bias`.

    Example:
        >>> facts = {"step_sizes": StepSchedule(0.1, power=0.0), "gap": 1.0}
        >>> squared_gradient_bound(1000, smoothness=1.0, mean_square=0.5, **facts)
        0.07...
    """
    check_instance("step_sizes", step_sizes, StepSchedule)
    gap = check_nonnegative("gap", gap)
    smoothness = check_positive("smoothness", smoothness)
    square = check_nonnegative("mean_square", mean_square)
    bias = check_nonnegative("bias", bias)
    etas = [step_sizes(t) for t in range(1, 1 + check_count("num_steps", num_steps))]
    spread = smoothness * square * math.fsum(eta**2 for eta in etas)
    return (2.0 * gap + spread) / math.fsum(etas) + bias**2


@dataclass(frozen=True)
class PublishedTerms:
    """The three terms of Theorem 4.4 as it is printed, without its hidden factor.

    Args:
        noise: The term of the noise.
        compression: The term of the compression and of the users' spread.
        start: The term of the start.
    """

    noise: float
    compression: float
    start: float


def published_terms(
    num_steps: int,
    *,
    epsilon: float,
    delta: float,
    clip_norm: float,
    dim: int,
    kappa: float,
    radius: float,
    strong_convexity: float,
    initial: float = 0.2,
    power: float = 0.505,
    design_error: float = 0.0,
) -> PublishedTerms:
    r"""Return the terms of Theorem 4.4 as printed, to compare; they bound nothing.

    .. math:: E \|\theta_t - \theta^*\|^2 \lesssim t^{-\alpha} \Big(
        \frac{\eta c_p B^2 \log(1.25 / \delta)}{\lambda \epsilon^2}
        + \frac{\eta (L + p \kappa + 2 B^2)}{\lambda} + \|\theta_0 - \theta^*\|^2 \Big)

    The factor of :math:`\lesssim` and :math:`c_p` are not given; here
    :math:`c_p = 8 p`, from the variance of the noise. Even up to a factor the theorem
    fails: its error goes to zero with t for every :math:`\kappa`, and that of a biased
    gradient does not. In its proof, Lemma C.5 bounds the squared difference of two
    vectors of length B by :math:`2 B^2`; it can be :math:`4 B^2`.

    Args:
        num_steps: The number t of users.
        epsilon: The privacy parameter epsilon.
        delta: The privacy parameter delta.
        clip_norm: The bound B on a user's gradient.
        dim: The number p of parameters.
        kappa: The compression budget.
        radius: The distance of the start from the minimum.
        strong_convexity: The smallest curvature of the expected loss.
        initial: The factor of the step sizes.
        power: The power of their decay, between 1/2 and 1.
        design_error: The bound L on the trace of the uncompressed dictionary.

    Example:
        >>> facts = {"epsilon": 2.0, "delta": 0.2, "clip_norm": 1.0, "dim": 2}
        >>> facts |= {"kappa": 0.1, "radius": 1.0, "strong_convexity": 0.5}
        >>> published_terms(10_000, **facts).start
        0.0095...
    """
    shrink = check_count("num_steps", num_steps) ** -check_positive("power", power)
    ratio = check_positive("initial", initial) / check_positive(
        "strong_convexity", strong_convexity
    )
    square = check_clip_norm("clip_norm", clip_norm) ** 2
    noise = 8 * check_count("dim", dim) * square * math.log(1.25 / delta) / epsilon**2
    rest = check_nonnegative("design_error", design_error) + dim * kappa + 2 * square
    return PublishedTerms(
        noise=shrink * ratio * noise,
        compression=shrink * ratio * rest,
        start=shrink * check_nonnegative("radius", radius) ** 2,
    )


def dictionary_size_bound(
    *, width: float, dim: int, lengthscale: float, distance: float
) -> float:
    r"""Return how many points a box holds that are pairwise this far apart in features.

    Theorem 3.3 says :math:`M_t \le O(1 / \kappa)^p` and refers to the covering argument
    of [Engel2004krls]_: a point joins a dictionary only if its feature
    :math:`k(x, \cdot)` has a distance of more than c from the span of the others. Then
    points of an RBF kernel of variance 1 are at least :math:`r = c\, l` apart, since
    :math:`\|k(x, \cdot) - k(x', \cdot)\| \le \|x - x'\| / l`, and a box of width w
    holds at most :math:`(w + r)^p / V_p(r / 2)` of them, with :math:`V_p` the volume of
    a ball.

    The paper says only that some c belongs to every :math:`\kappa`, so its constant is
    not computable. The bound is also far from the truth: p + 1 points close to x
    determine a gradient for every :math:`\kappa`, and about p + 1 is what
    ``mode="swc"`` keeps (never more than 4 p + 4).

    Args:
        width: The width w of the box.
        dim: The number p of its dimensions.
        lengthscale: The length scale l of the kernel.
        distance: The distance c in features.

    Example:
        >>> facts = {"width": 4.0, "dim": 2, "lengthscale": 2.0}
        >>> round(dictionary_size_bound(**facts, distance=0.1))
        561
    """
    dim = check_count("dim", dim)
    apart = check_positive("distance", distance)
    apart *= check_positive("lengthscale", lengthscale)
    width = check_positive("width", width)
    log_ball = (
        dim / 2 * math.log(math.pi)
        - math.lgamma(dim / 2 + 1)
        + dim * math.log(apart / 2)
    )
    return math.exp(dim * math.log(width + apart) - log_ball)
