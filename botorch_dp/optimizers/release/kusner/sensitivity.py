r"""What is proven about releasing the end of a Bayesian optimization, in numbers.

[Kusner2015dpbo]_ runs Bayesian optimization on the private function :math:`f_V` of a
data set V and releases only how it ended: a point, by the exponential mechanism, or a
value, by the Laplace mechanism. The noise follows from how much the end can change with
one record. Here are these sensitivities and what they cost in utility, as functions of
public numbers:

* :func:`kusner_point_release`, the point of Algorithm 1 (Theorems 1 and 2);
* :func:`kusner_value_release`, its value (Theorems 3 and 4);
* :func:`noise_free_value_release`, the value of Algorithm 2 (Theorems 5 and 6);
* :func:`lipschitz_value_release`, the value of Algorithm 3 (Theorems 7 and 8).

**What it protects.** Algorithms 1 and 2 assume that the functions of all data sets are
one draw of a known Gaussian process, with correlation :math:`k_1(V, V')` between data
sets (:mod:`botorch_dp.models.kernels.dataset_kernel`). Their delta is the probability,
over that prior and the observation noise, that the sensitivity is larger than computed,
for one pair of neighbours: privacy under a GP assumption, not differential privacy for
every data set. ``correlation`` is the least :math:`k_1` of any two neighbours, and
theirs to assert who know the data. Algorithm 3 is differentially private as usual.
Neighbours differ in the value of one record. Releasing point and value doubles both
epsilon and delta.

**What it costs.** For 1,000 to 100,000 candidates the sensitivity of the point is about
10 prior standard deviations or more, while the function's whole range is 4 to 6: for
epsilon up to 10 the released point is hardly better than a random one.

**Constants.** ``constants`` is ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` for
what [Kusner2015dpbo]_ and [Kusner2015workshop]_ print. The repaired ones let the
probabilities of all that may go wrong add up to delta, which the printed ones do not.
Both papers bound a normal variable by :math:`P(|Z| > x) \le e^{-x^2/2}` and give each
of three kinds of events :math:`\delta / 3`. Theorem 3 has four: the regret for V, the
regret for V', the change of the function, the noise. Still the shares suffice, because

.. math::
    P(|Z| > x) \le \sqrt{\frac{2}{\pi}} \frac{1}{x} e^{-x^2 / 2}
    \le \tfrac34 e^{-x^2 / 2} \quad \text{for } x \ge 1.07,

which every x here is: a share of :math:`\delta / 3` costs :math:`\delta / 4` at most.
``failure_probabilities`` of a release lists what each kind of event costs.

**Units.** The papers have :math:`k_2(\lambda, \lambda) = 1`. With a larger or smaller
``prior_variance`` :math:`s^2` (its greatest value, if it varies) every bound is s times
that of f / s, whose noise variance is :math:`\sigma^2 / s^2`.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
    .. [Kusner2015workshop] The same authors and title, workshop version of 2015.
    .. [Srinivas2010gpucb] N. Srinivas, A. Krause, S. Kakade and M. Seeger. Gaussian
        Process Optimization in the Bandit Setting: No Regret and Experimental Design.
        ICML 2010. Lemma 5.1 to 5.4 and Theorem 1.
    .. [deFreitas2012exponential] N. de Freitas, A. Smola and M. Zoghi. Exponential
        Regret Bounds for Gaussian Process Bandits with Deterministic Observations.
        ICML 2012. Theorem 2.
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
from botorch_dp.acquisition.private_ucb import CONSTANTS, ucb_beta
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.kernels.dataset_kernel import check_correlation

__all__ = [
    "CONSTANTS",
    "LipschitzValueRelease",
    "NoiseFreeValueRelease",
    "PointRelease",
    "ValueRelease",
    "dataset_shift",
    "kusner_point_release",
    "kusner_value_release",
    "lipschitz_value_release",
    "max_noise",
    "noise_free_value_release",
    "regret_constant",
    "release_beta",
    "ucb_beta",
]


def release_beta(
    *, num_steps: int, num_candidates: int, delta: float, constants: str = "repaired"
) -> float:
    r"""Return the weight of the variance in the sensitivity of the posterior mean.

    .. math:: \beta = 2 \log \frac{3 |\Lambda|}{\delta}

    **Repaired.** Theorem 1 needs :math:`|f - \mu_T| \le \sqrt\beta \sigma_T` at all
    candidates at the one time T, which fails with probability
    :math:`|\Lambda| e^{-\beta/2} = \delta / 3` at most; likewise for V', and the change
    of the function has the third share. The papers take :math:`\beta_{T+1}` of
    :func:`~botorch_dp.acquisition.private_ucb.ucb_beta`, which holds for all times and
    is larger than needed: valid, with more noise.

    Args:
        num_steps: The number T of steps, which does not matter to the repaired one.
        num_candidates: The number of candidates, :math:`|\Lambda|`.
        delta: The probability that the bounds of the release may fail.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.

    Example:
        >>> setting = dict(num_steps=50, num_candidates=1000, delta=0.1)
        >>> round(release_beta(**setting), 3)
        20.618
        >>> round(release_beta(**setting, constants="icml2015"), 3)
        36.53
    """
    num_steps = check_count("num_steps", num_steps)
    num_candidates = check_count("num_candidates", num_candidates)
    delta = check_probability("delta", delta)
    if check_choice("constants", constants, CONSTANTS) == "repaired":
        return 2 * _log_ratio(3 * num_candidates, delta)
    return ucb_beta(
        step=num_steps + 1,
        num_candidates=num_candidates,
        delta=delta,
        constants=constants,
    )


def dataset_shift(
    *,
    correlation: float,
    num_candidates: int,
    delta: float,
    prior_variance: float = 1.0,
    shares: int = 3,
) -> float:
    r"""Return c, how much the function may change with one record.

    .. math:: c = 2 s \sqrt{(1 - k_1(V, V')) \log \frac{3 |\Lambda|}{\delta}}

    line 9 of Algorithm 1, with a 2 for the 3 (``shares``) in Algorithm 2. At each
    candidate :math:`f - f'` is normal with variance :math:`2 s^2 (1 - k_1)`, so some
    :math:`|f - f'|` passes c with probability :math:`\delta / 3` at most.

    Args:
        correlation: The least :math:`k_1(V, V')` of any two neighbours.
        num_candidates: The number of candidates, :math:`|\Lambda|`.
        delta: The probability that the bounds of the release may fail.
        prior_variance: The greatest prior variance :math:`s^2` of a candidate.
        shares: Into how many shares delta is divided, one of which is for this: 3 in
            Algorithm 1, 2 in Algorithm 2.

    Example:
        >>> setting = dict(num_candidates=1000, delta=0.1)
        >>> round(dataset_shift(correlation=0.99, **setting), 3)
        0.642
        >>> round(dataset_shift(correlation=0.99, **setting, shares=2), 3)
        0.629
    """
    correlation = check_correlation("correlation", correlation)
    num_candidates = check_count("num_candidates", num_candidates)
    delta = check_probability("delta", delta)
    prior_variance = check_positive("prior_variance", prior_variance)
    shares = check_count("shares", shares)
    log = _log_ratio(shares * num_candidates, delta)
    return 2 * math.sqrt(prior_variance * (1 - correlation) * log)


def max_noise(
    *,
    noise_variance: float,
    num_steps: int,
    delta: float,
    constants: str = "repaired",
) -> float:
    r"""Return q, what observation noise adds to the change of the best value.

    .. math:: q = \sigma \sqrt{8 \log \frac{6 T}{\delta}}

    **Repaired.** The greatest observation is off the greatest value by no more than the
    greatest noise, for V and for V'. There are 2 T noises, and one of them passes
    :math:`q / 2` with probability :math:`2 T e^{-q^2 / (8 \sigma^2)} = \delta / 3` at
    most. Line 10 of Algorithm 1 has :math:`\sigma \sqrt{8 \log(3 / \delta)}`, because
    its proof takes the noise at the best of T observations for a single normal
    variable; the workshop version has a 4 for the 8 too.

    Args:
        noise_variance: The variance :math:`\sigma^2` of an observation.
        num_steps: The number T of steps.
        delta: The probability that the bounds of the release may fail.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.

    Example:
        >>> setting = dict(noise_variance=0.01, num_steps=50, delta=0.1)
        >>> for constants in CONSTANTS:
        ...     print(constants, round(max_noise(**setting, constants=constants), 3))
        repaired 0.8
        icml2015 0.522
        workshop 0.369
    """
    noise_variance = check_positive("noise_variance", noise_variance)
    num_steps = check_count("num_steps", num_steps)
    delta = check_probability("delta", delta)
    constants = check_choice("constants", constants, CONSTANTS)
    count = 6 * num_steps if constants == "repaired" else 3
    factor = 4 if constants == "workshop" else 8
    return math.sqrt(noise_variance * factor * _log_ratio(count, delta))


def regret_constant(*, noise_variance: float, prior_variance: float = 1.0) -> float:
    r"""Return C1, line 11 of Algorithm 1.

    .. math:: C_1 = \frac{8 s^2}{\log(1 + s^2 / \sigma^2)}

    with which the mean regret of T steps is at most
    :math:`\sqrt{C_1 \beta_T \gamma_T / T}` ([Srinivas2010gpucb]_, Lemma 5.4: the regret
    of a step is at most :math:`2 \sqrt{\beta_T} \sigma_{t-1}(\lambda_t)`, and
    :math:`x / \log(1 + x / \sigma^2)` grows with x up to :math:`s^2`).

    Args:
        noise_variance: The variance :math:`\sigma^2` of an observation.
        prior_variance: The greatest prior variance :math:`s^2` of a candidate.

    Example:
        >>> round(regret_constant(noise_variance=0.01), 3)
        1.733
    """
    noise_variance = check_positive("noise_variance", noise_variance)
    prior_variance = check_positive("prior_variance", prior_variance)
    return 8 * prior_variance / math.log1p(prior_variance / noise_variance)


@dataclass(frozen=True, kw_only=True)
class PointRelease:
    r"""What the release of a point rests on: Theorem 1.

    Attributes:
        num_steps: The number T of steps.
        num_candidates: The number of candidates.
        delta: The probability that the sensitivity may be larger.
        correlation: The least correlation of neighbours.
        prior_variance: The greatest prior variance of a candidate.
        constants: Which constants.
        beta: The weight of the variance.
        c: How much the function may change with one record.
        sensitivity: How much the posterior mean may, at any candidate.
    """

    num_steps: int
    num_candidates: int
    delta: float
    correlation: float
    prior_variance: float
    constants: str
    beta: float
    c: float
    sensitivity: float

    @property
    def failure_probabilities(self) -> dict[str, float]:
        """What each kind of event that breaks the bound has for probability, at most.

        ``"means"``: that a function leaves the confidence bounds, for V or for V';
        ``"shift"``: that it changes by more than c.
        """
        count = self.num_candidates
        return {
            "means": 2 * count * _two_sided_tail(math.sqrt(self.beta)),
            "shift": _shift_failure(count, self.delta, shares=3),
        }


def kusner_point_release(
    *,
    num_steps: int,
    num_candidates: int,
    delta: float,
    correlation: float,
    prior_variance: float = 1.0,
    constants: str = "repaired",
) -> PointRelease:
    r"""Bound how much the posterior mean changes with one record: Theorem 1.

    .. math::
        |\mu'_T(\lambda) - \mu_T(\lambda)| \le 2 s \sqrt{\beta} + c
        \quad \text{for all } \lambda \in \Lambda

    with probability :math:`1 - \delta`, whatever the points were and with observation
    noise or without; :math:`\beta` is :func:`release_beta`, c :func:`dataset_shift`.
    The exponential mechanism with scores :math:`\mu_T` and this sensitivity releases a
    candidate (Corollary 1, line 12 of Algorithm 1).

    Args:
        num_steps: The number T of steps.
        num_candidates: The number of candidates, :math:`|\Lambda|`.
        delta: The probability that the bound may fail.
        correlation: The least :math:`k_1(V, V')` of any two neighbours.
        prior_variance: The greatest prior variance :math:`s^2` of a candidate.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.

    Example:
        >>> release = kusner_point_release(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> round(release.sensitivity, 3)
        9.724
        >>> sum(release.failure_probabilities.values()) <= release.delta
        True
    """
    prior_variance = check_positive("prior_variance", prior_variance)
    beta = release_beta(
        num_steps=num_steps,
        num_candidates=num_candidates,
        delta=delta,
        constants=constants,
    )
    c = dataset_shift(
        correlation=correlation,
        num_candidates=num_candidates,
        delta=delta,
        prior_variance=prior_variance,
    )
    return PointRelease(
        num_steps=num_steps,
        num_candidates=num_candidates,
        delta=delta,
        correlation=correlation,
        prior_variance=prior_variance,
        constants=constants,
        beta=beta,
        c=c,
        sensitivity=2 * math.sqrt(prior_variance * beta) + c,
    )


@dataclass(frozen=True, kw_only=True)
class ValueRelease:
    r"""What the release of the best value rests on: Theorem 3.

    Attributes:
        num_steps: The number T of steps.
        num_candidates: The number of candidates.
        delta: The probability that the sensitivity may be larger.
        correlation: The least correlation of neighbours.
        noise_variance: The variance of an observation.
        prior_variance: The greatest prior variance of a candidate.
        constants: Which constants.
        beta: The weight of the variance at the last step, :math:`\beta_T`.
        c: How much the function may change with one record.
        q: What observation noise adds.
        C1: The constant of the regret.
        gamma: A bound on the information gain of T observations.
        regret: :math:`\Omega / T = \sqrt{C_1 \beta_T \gamma_T / T}`, how far the best
            value found may be below the best there is.
        sensitivity: How much the greatest observation may change.
    """

    num_steps: int
    num_candidates: int
    delta: float
    correlation: float
    noise_variance: float
    prior_variance: float
    constants: str
    beta: float
    c: float
    q: float
    C1: float
    gamma: float
    regret: float
    sensitivity: float

    @property
    def failure_probabilities(self) -> dict[str, float]:
        """What each kind of event that breaks the bound has for probability, at most.

        ``"regret"``: that a function leaves the confidence bounds at some step, for V
        or for V'; ``"shift"``: that it changes by more than c; ``"noise"``: that a
        noise is above q / 2, for V or for V'.
        """
        count = self.num_candidates
        betas = (
            ucb_beta(
                step=step,
                num_candidates=count,
                delta=self.delta,
                constants=self.constants,
            )
            for step in range(1, self.num_steps + 1)
        )
        tails = math.fsum(_two_sided_tail(math.sqrt(beta)) for beta in betas)
        noise = _two_sided_tail(self.q / (2 * math.sqrt(self.noise_variance)))
        return {
            "regret": 2 * count * tails,
            "shift": _shift_failure(count, self.delta, shares=3),
            "noise": 2 * self.num_steps * noise,
        }


def kusner_value_release(
    *,
    gamma: float,
    num_steps: int,
    num_candidates: int,
    delta: float,
    correlation: float,
    noise_variance: float,
    prior_variance: float = 1.0,
    constants: str = "repaired",
) -> ValueRelease:
    r"""Bound how much the greatest observation changes with one record: Theorem 3.

    .. math::
        \bigl|\max_{t \le T} v'_t - \max_{t \le T} v_t\bigr| \le
        \sqrt{\frac{C_1 \beta_T \gamma_T}{T}} + c + q

    with probability :math:`1 - \delta`, if every point maximized the upper confidence
    bound with the weight of :func:`~botorch_dp.acquisition.private_ucb.ucb_beta` and
    the same ``constants``. The Laplace mechanism with this sensitivity releases the
    value (Corollary 2, line 14 of Algorithm 1).

    **Repaired**: :math:`\beta_t` and q, see there and :func:`max_noise`; the four kinds
    of events then cost at most :math:`\delta / 4` each (see the module). As printed,
    q covers one noise of 2 T.

    Args:
        gamma: A bound on the information gain of T observations:
            :func:`botorch_dp.optimizers.release.kusner.information_gain.information_gain_bound`.
        num_steps: The number T of steps.
        num_candidates: The number of candidates, :math:`|\Lambda|`.
        delta: The probability that the bound may fail.
        correlation: The least :math:`k_1(V, V')` of any two neighbours.
        noise_variance: The variance :math:`\sigma^2` of an observation.
        prior_variance: The greatest prior variance :math:`s^2` of a candidate.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.

    Example:
        >>> setting = dict(num_steps=50, num_candidates=1000, delta=0.1, gamma=20.0)
        >>> release = kusner_value_release(
        ...     **setting, correlation=0.99, noise_variance=0.01
        ... )
        >>> round(release.regret, 3), round(release.c, 3), round(release.q, 3)
        (5.083, 0.642, 0.8)
        >>> round(release.sensitivity, 3)
        6.525
        >>> sum(release.failure_probabilities.values()) <= release.delta
        True
    """
    gamma = check_nonnegative("gamma", gamma)
    beta = ucb_beta(
        step=check_count("num_steps", num_steps),
        num_candidates=num_candidates,
        delta=delta,
        constants=constants,
    )
    c = dataset_shift(
        correlation=correlation,
        num_candidates=num_candidates,
        delta=delta,
        prior_variance=prior_variance,
    )
    q = max_noise(
        noise_variance=noise_variance,
        num_steps=num_steps,
        delta=delta,
        constants=constants,
    )
    C1 = regret_constant(noise_variance=noise_variance, prior_variance=prior_variance)
    regret = math.sqrt(C1 * beta * gamma / num_steps)
    return ValueRelease(
        num_steps=num_steps,
        num_candidates=num_candidates,
        delta=delta,
        correlation=correlation,
        noise_variance=noise_variance,
        prior_variance=prior_variance,
        constants=constants,
        beta=beta,
        c=c,
        q=q,
        C1=C1,
        gamma=gamma,
        regret=regret,
        sensitivity=regret + c + q,
    )


@dataclass(frozen=True, kw_only=True)
class NoiseFreeValueRelease:
    r"""What the release of a value observed without noise rests on: Theorem 5.

    Attributes:
        num_steps: The number T of steps.
        num_dims: The dimension d of the points.
        num_candidates: The number of candidates.
        delta: The probability that the sensitivity may be larger.
        correlation: The least correlation of neighbours.
        prior_variance: The greatest prior variance of a candidate.
        constants: Which constants.
        c: How much the function may change with one record.
        regret: :math:`\Omega`, how far the best value found may be below the best.
        sensitivity: How much the best value found may change.
    """

    num_steps: int
    num_dims: int
    num_candidates: int
    delta: float
    correlation: float
    prior_variance: float
    constants: str
    c: float
    regret: float
    sensitivity: float

    @property
    def failure_probabilities(self) -> dict[str, float]:
        """What each kind of event that breaks the bound has for probability, at most.

        ``"regret"``: that the regret is larger, for V or for V', as the user asserts;
        ``"shift"``: that the function changes by more than c.
        """
        return {
            "regret": self.delta / 2,
            "shift": _shift_failure(self.num_candidates, self.delta, shares=2),
        }


def noise_free_value_release(
    *,
    num_steps: int,
    num_dims: int,
    num_candidates: int,
    delta: float,
    correlation: float,
    regret_scale: float,
    regret_rate: float,
    prior_variance: float = 1.0,
    constants: str = "repaired",
) -> NoiseFreeValueRelease:
    r"""Bound how much the best value changes, observed without noise: Theorem 5.

    .. math::
        \bigl|\max_{t \le T} f'(\lambda'_t) - \max_{t \le T} f(\lambda_t)\bigr| \le
        A \exp\Bigl(-\frac{\tau T}{(\log T)^{d/4}}\Bigr) + c

    with probability :math:`1 - \delta`, if the search is that of
    [deFreitas2012exponential]_ and c is :func:`dataset_shift` with two shares.

    **A and tau are the user's to assert**: of each of the two functions, the regret
    must pass the first term with probability :math:`\delta / 4` at most. The theorem
    that they come from says that they exist, for large T, and that they depend on the
    function near its maximum; it does not compute them, and they must not be estimated
    from the private function.

    **Repaired**: the best value of all is released, for which it is enough that the
    regret is as small as that at one of the steps; [Kusner2015dpbo]_ releases the last
    value. The exponent is not monotone in T (d = 10 and tau = 1: 5.0 at T = 2, 1.65 at
    T = 50), so whoever can assert the bound for every T may pass the number of steps up
    to T with the largest. The workshop version has T = 2 whatever T is.

    Args:
        num_steps: The number T of steps, at least 2; or fewer, see above.
        num_dims: The dimension d of the points.
        num_candidates: The number of candidates, :math:`|\Lambda|`.
        delta: The probability that the bound may fail.
        correlation: The least :math:`k_1(V, V')` of any two neighbours.
        regret_scale: The constant A.
        regret_rate: The constant tau.
        prior_variance: The greatest prior variance :math:`s^2` of a candidate.
        constants: ``"repaired"`` or ``"icml2015"``, which are the same here, or
            ``"workshop"``.

    Example:
        >>> release = noise_free_value_release(
        ...     num_steps=50,
        ...     num_dims=2,
        ...     num_candidates=1000,
        ...     delta=0.1,
        ...     correlation=0.99,
        ...     regret_scale=4.0,
        ...     regret_rate=0.1,
        ... )
        >>> round(release.regret, 3), round(release.sensitivity, 3)
        (0.319, 0.949)
    """
    num_steps = check_count("num_steps", num_steps, minimum=2)
    num_dims = check_count("num_dims", num_dims)
    regret_scale = check_nonnegative("regret_scale", regret_scale)
    regret_rate = check_positive("regret_rate", regret_rate)
    constants = check_choice("constants", constants, CONSTANTS)
    c = dataset_shift(
        correlation=correlation,
        num_candidates=num_candidates,
        delta=delta,
        prior_variance=prior_variance,
        shares=2,
    )
    steps = 2 if constants == "workshop" else num_steps
    exponent = regret_rate * steps / math.log(steps) ** (num_dims / 4)
    regret = regret_scale * math.exp(-exponent)
    return NoiseFreeValueRelease(
        num_steps=num_steps,
        num_dims=num_dims,
        num_candidates=num_candidates,
        delta=delta,
        correlation=correlation,
        prior_variance=prior_variance,
        constants=constants,
        c=c,
        regret=regret,
        sensitivity=regret + c,
    )


@dataclass(frozen=True, kw_only=True)
class LipschitzValueRelease:
    r"""What the release of a validation score rests on: Theorem 7.

    Attributes:
        num_records: The number m of validation records.
        constants: Which constants.
        search_term: How much the score may change because another regularization was
            tried; the number of records does not matter to it.
        record_term: How much the score of one model may change with one record.
        range: The range of the score, if it is known: no change is larger.
        sensitivity: How much the best score may change with one record.
    """

    num_records: int
    constants: str
    search_term: float
    record_term: float
    range: float | None
    sensitivity: float

    @property
    def is_trivial(self) -> bool:
        """Whether the theorem says no more than the range of the score does."""
        return self.range is not None and self.sensitivity >= self.range


def lipschitz_value_release(
    *,
    lipschitz: float,
    min_regularization: float,
    max_regularization: float,
    num_records: int,
    loss_bound: float | None = None,
    zero_spread: float | None = None,
    constants: str = "repaired",
) -> LipschitzValueRelease:
    r"""Bound how much a validation score changes with one record: Theorem 7.

    The score of a regularization :math:`\lambda` is minus the mean of
    :math:`g(w_\lambda, z)` over m private validation records z, and :math:`w_\lambda`
    minimizes :math:`\frac{\lambda}{2} \|w\|^2` plus the mean of convex, 1-Lipschitz
    losses of public training records. With g L-Lipschitz in w, for any two neighbours
    and any two regularizations the scores differ by at most

    .. math::
        \frac{(\lambda_{\max} - \lambda_{\min}) L}{\lambda_{\max} \lambda_{\min}}
        + \frac1m \min\Bigl\{g^*, \; \frac{2 L}{\lambda_{\min}} + g_0\Bigr\}
        \quad \text{and at most } g^*,

    whatever was searched and how. This is no assumption about priors: the Laplace
    mechanism with this sensitivity is differentially private (Corollary 4, line 5 of
    Algorithm 3). The first term does not shrink with m: at [0.1, 1] and L = 1 it is 9.

    **Repaired.** If a record z becomes z', the score of one model changes by
    :math:`|g(w, z) - g(w, z')| / m`. As :math:`\|w_\lambda\| \le 1 / \lambda`, each of
    the two is within :math:`L / \lambda_{\min}` of its value at w = 0, and these are at
    most :math:`g_0` (``zero_spread``) apart. The paper has
    :math:`L / \lambda_{\min}` for the sum: half of what a loss that is linear in w
    attains. With :math:`0 \le g \le g^*` scores lie in :math:`[-g^*, 0]`, so that no
    two are further apart than :math:`g^*`.

    Args:
        lipschitz: The Lipschitz constant L of the validation loss g in w.
        min_regularization: The least regularization that may be tried.
        max_regularization: The largest.
        num_records: The number m of validation records.
        loss_bound: The bound :math:`g^*` of g, which is not negative; None if there is
            none.
        zero_spread: The most that :math:`g(0, z)` differs between records: 0 for losses
            of a margin, such as ramp, hinge, logistic and sigmoid. None if it is not
            known: then only ``loss_bound`` is used.
        constants: ``"repaired"``, or ``"icml2015"`` as printed; the workshop version
            has no Algorithm 3.

    Raises:
        InvalidArgumentError: If both ``loss_bound`` and ``zero_spread`` are None, among
            others.

    Example:
        >>> release = lipschitz_value_release(
        ...     lipschitz=1.0,
        ...     min_regularization=1.0,
        ...     max_regularization=1.25,
        ...     num_records=100,
        ...     loss_bound=1.0,
        ... )
        >>> round(release.search_term, 3), round(release.record_term, 3)
        (0.2, 0.01)
        >>> release.is_trivial
        False
    """
    L = check_positive("lipschitz", lipschitz)
    least = check_positive("min_regularization", min_regularization)
    largest = check_positive("max_regularization", max_regularization)
    m = check_count("num_records", num_records)
    if largest < least:
        raise InvalidArgumentError(
            "max_regularization must not be below min_regularization, got "
            f"{max_regularization!r} and {min_regularization!r}."
        )
    if loss_bound is not None:
        loss_bound = check_positive("loss_bound", loss_bound)
    if zero_spread is not None:
        zero_spread = check_nonnegative("zero_spread", zero_spread)
    if check_choice("constants", constants, CONSTANTS) == "workshop":
        raise InvalidArgumentError(
            "constants must be 'repaired' or 'icml2015', got 'workshop': the workshop "
            "version has no Algorithm 3."
        )
    changes = [] if loss_bound is None else [loss_bound]
    if constants == "icml2015":
        changes.append(L / least)
    elif zero_spread is not None:
        changes.append(2 * L / least + zero_spread)
    if not changes:
        raise InvalidArgumentError(
            "loss_bound or zero_spread must be given, both are None: nothing bounds "
            "how much the loss of one record may change."
        )
    search_term = L * (1 / least - 1 / largest)
    record_term = min(changes) / m
    sensitivity = search_term + record_term
    if loss_bound is not None and constants == "repaired":
        sensitivity = min(sensitivity, loss_bound)
    return LipschitzValueRelease(
        num_records=m,
        constants=constants,
        search_term=search_term,
        record_term=record_term,
        range=loss_bound,
        sensitivity=sensitivity,
    )


def _log_ratio(count: int, probability: float) -> float:
    """Return log(count / probability), which does not overflow."""
    return math.log(count) - math.log(probability)


def _two_sided_tail(x: float) -> float:
    """Return P(|Z| > x) of a standard normal variable."""
    return math.erfc(x / math.sqrt(2))


def _shift_failure(num_candidates: int, delta: float, *, shares: int) -> float:
    """Return a bound on the probability that some candidate changes by more than c."""
    x = math.sqrt(2 * _log_ratio(shares * num_candidates, delta))
    return num_candidates * _two_sided_tail(x)
