r"""What is proven about DP-GIBO, as functions of public numbers, and a planner.

DP-GIBO takes T steps against a gradient that is averaged over n records, each clipped
to norm B, and made private by noise of standard deviation
:math:`\sigma = 2 B \sqrt T / (n \mu)` in each of d coordinates. [Sopa2025dpgibo]_
bounds, with probability :math:`1 - \delta` (the ``failure_probability``, no relation to
a privacy delta) and step sizes :math:`\eta \le 1/L`,

* Theorem 3.2, the mean of the squared gradient norms along the way:
  :func:`gradient_norm_bound`;
* Theorem 3.3, how far the last value is above the least one:
  :func:`suboptimality_bound`;
* Corollary 3.4, how far the last point is from the best one: :func:`distance_bound`;
* Corollary 3.6, the same for Algorithm 2: pass its tolerance as ``traces``.

What the bounds assume, wherever the iterates go: the loss of every record is L-smooth
(2.8), its gradient is at most B long (2.9), its norm in the kernel's space is at most
``rkhs_norm`` (2.7), and for 3.3 and 3.4 the average loss is strongly convex (2.10).
Strong convexity and bounded gradients hold together on a bounded region only. Losses
are observed without noise; jitter is allowed, if ``traces`` are those of the model with
jitter. Privacy needs none of this.

**In expectation.** With ``failure_probability=None`` the functions bound means over the
noise instead. The noise is independent of the past, so that what is linear in it, most
of the theorems' :math:`\mathcal V`, vanishes from the proof's step (Lemma B.1):

.. math::
    E[F_{t+1}] \le E[F_t] - \frac{\eta}{2} E\|\nabla f\|^2 + \frac{\eta}{2} \|b_t\|^2
    + \frac{L \eta^2}{2} \sigma^2 d.

As :math:`L \eta \le 1` this is the lemma with :math:`\mathcal V = d \sigma^2 / 2`, and
the theorems follow from it word for word. Theorem 3.3 and Corollary 3.4 then hold with
equality for an isotropic quadratic and :math:`\eta = 1/L`.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Section 3.2,
        proofs in appendices A and B.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from botorch_dp._validation import (
    check_count,
    check_nonnegative,
    check_positive,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.guarantees import Guarantee

# step_size = 1 / smoothness, rounded, is no step above 1 / smoothness.
_ROUNDING = 1e-12


def noise_term(
    *,
    num_records: int,
    num_dims: int,
    num_steps: int,
    mu: float,
    clip_norm: float,
    failure_probability: float | None = 0.05,
) -> float:
    r"""Return what privacy adds to the bounds, the V of Theorem 3.2.

    .. math::
        \mathcal V = M \Bigl(2 + \frac{M}{2 B^2}\Bigr), \qquad
        M = \frac{2 B^2 \sqrt T}{n \mu}
            \Bigl(4 \sqrt d + 2 \sqrt{2 \log \tfrac{T}{\delta}}\Bigr)

    as the theorem and the proof of Lemma B.1 have it; the statement of that lemma has a
    larger one. In expectation it is :math:`2 d B^2 T / (n \mu)^2` (see the module).

    Args:
        num_records: The number n of records.
        num_dims: The number d of parameters.
        num_steps: The number T of steps.
        mu: The mu of the guarantee for all steps together.
        clip_norm: The norm B to which gradients of records are clipped.
        failure_probability: The chance that the bound fails, or None for expectations.

    Example:
        >>> setting = dict(num_records=1000, num_dims=5, num_steps=10, mu=1.0)
        >>> round(noise_term(**setting, clip_norm=1.0), 4)
        0.2003
        >>> round(noise_term(**setting, clip_norm=1.0, failure_probability=None), 6)
        0.0001
    """
    num_dims = check_count("num_dims", num_dims)
    noise_std = _noise_std(
        num_records=num_records, num_steps=num_steps, mu=mu, clip_norm=clip_norm
    )
    if failure_probability is None:
        return num_dims * noise_std * noise_std / 2
    failure_probability = check_probability("failure_probability", failure_probability)
    # Lemma A.3: with this probability no draw of N(0, I) in T steps is longer.
    longest = 4 * math.sqrt(num_dims) + 2 * math.sqrt(
        2 * (math.log(num_steps) - math.log(failure_probability))
    )
    noise = noise_std * longest  # M is clip_norm * noise
    return 2 * clip_norm * noise + noise * noise / 2


def gradient_norm_bound(
    *,
    num_records: int,
    num_dims: int,
    num_steps: int,
    mu: float,
    clip_norm: float,
    smoothness: float,
    initial_gap: float,
    step_size: float | None = None,
    rkhs_norm: float = 0.0,
    traces: float | Sequence[float] = 0.0,
    failure_probability: float | None = 0.05,
) -> float:
    r"""Bound the mean squared gradient norm over the steps: Theorem 3.2.

    .. math::
        \frac1T \sum_{t < T} \|\nabla f(\theta^{(t)})\|^2 \le \frac{2 F_0}{\eta T}
        + \frac{C_{\mathcal X}^2}{T} \sum_{t < T} \mathrm{Tr}_t + 2 \mathcal V

    **Corrected**: the theorem prints :math:`2 F_0 L / T` for every
    :math:`\eta \le 1/L`. Its proof gives :math:`2 F_0 / (\eta T)`, which is that for
    :math:`\eta = 1/L` only, and is larger for smaller steps; so too in Corollary 3.6.

    Args:
        num_records: The number n of records.
        num_dims: The number d of parameters.
        num_steps: The number T of steps.
        mu: The mu of the guarantee for all steps together.
        clip_norm: The norm B to which gradients of records are clipped, and a bound on
            their true gradients.
        smoothness: The Lipschitz constant L of the gradients.
        initial_gap: A bound on F_0, how far the loss starts above its least value.
        step_size: The step size eta, at most ``1 / smoothness``, which is the default.
        rkhs_norm: The bound C_X on the norms of the losses in the kernel's space; 0
            with no traces stands for exact gradients.
        traces: The traces of the gradient's posterior covariance, which are public: one
            a step, or one number that none of them exceeds (Algorithm 2's tolerance).
            In expectation: bounds on their means.
        failure_probability: The chance that the bound fails, or None to bound the
            expectation.

    Example:
        >>> setting = dict(num_records=1000, num_dims=5, num_steps=10, mu=1.0)
        >>> problem = dict(clip_norm=1.0, smoothness=1.0, initial_gap=1.0)
        >>> round(gradient_norm_bound(**setting, **problem), 4)
        0.6005
    """
    num_steps = check_count("num_steps", num_steps)
    initial_gap = check_nonnegative("initial_gap", initial_gap)
    step_size = _check_step_size(step_size, smoothness)
    traces = _check_traces(traces, num_steps, rkhs_norm)
    mean_trace = math.fsum(traces) / num_steps if isinstance(traces, list) else traces
    noise = noise_term(
        num_records=num_records,
        num_dims=num_dims,
        num_steps=num_steps,
        mu=mu,
        clip_norm=clip_norm,
        failure_probability=failure_probability,
    )
    descent = 2 * initial_gap / (step_size * num_steps)
    return descent + rkhs_norm * rkhs_norm * mean_trace + 2 * noise


def suboptimality_bound(
    *,
    num_records: int,
    num_dims: int,
    num_steps: int,
    mu: float,
    clip_norm: float,
    smoothness: float,
    strong_convexity: float,
    initial_gap: float,
    step_size: float | None = None,
    rkhs_norm: float = 0.0,
    traces: float | Sequence[float] = 0.0,
    failure_probability: float | None = 0.05,
) -> float:
    r"""Bound how far the last loss is above the least: Theorem 3.3.

    .. math::
        F_T \le (1 - \eta \tau)^T F_0 + \frac{C_{\mathcal X}^2 \eta}{2}
        \sum_{t < T} (1 - \eta \tau)^{T - 1 - t} \, \mathrm{Tr}_t
        + \frac{\mathcal V}{\tau}

    or with :math:`C_{\mathcal X}^2 \varepsilon / (2 \tau)` for the middle term if
    ``traces`` is one tolerance :math:`\varepsilon` (Corollary 3.6). As printed: the
    proof bears out every constant.

    The arguments are those of :func:`gradient_norm_bound` and ``strong_convexity``, the
    constant tau of strong convexity, at most ``smoothness``.

    Example:
        >>> setting = dict(num_records=1000, num_dims=5, num_steps=10, mu=1.0)
        >>> problem = dict(clip_norm=1.0, smoothness=1.0, initial_gap=1.0)
        >>> round(suboptimality_bound(**setting, **problem, strong_convexity=0.5), 4)
        0.4015
    """
    num_steps = check_count("num_steps", num_steps)
    initial_gap = check_nonnegative("initial_gap", initial_gap)
    step_size = _check_step_size(step_size, smoothness)
    tau = _check_strong_convexity(strong_convexity, smoothness)
    traces = _check_traces(traces, num_steps, rkhs_norm)
    kept = max(0.0, 1 - step_size * tau)  # what a step leaves of the gap
    if isinstance(traces, list):
        total = 0.0
        for trace in traces:
            total = kept * total + trace
        bias = step_size * total / 2
    else:
        bias = traces / (2 * tau)
    noise = noise_term(
        num_records=num_records,
        num_dims=num_dims,
        num_steps=num_steps,
        mu=mu,
        clip_norm=clip_norm,
        failure_probability=failure_probability,
    )
    return kept**num_steps * initial_gap + rkhs_norm * rkhs_norm * bias + noise / tau


def distance_bound(
    *,
    num_records: int,
    num_dims: int,
    num_steps: int,
    mu: float,
    clip_norm: float,
    smoothness: float,
    strong_convexity: float,
    initial_gap: float,
    step_size: float | None = None,
    rkhs_norm: float = 0.0,
    traces: float | Sequence[float] = 0.0,
    failure_probability: float | None = 0.05,
) -> float:
    r"""Bound how far the last point is from the best: Corollary 3.4.

    .. math::
        \|\theta^{(T)} - \theta^*\| \le \sqrt{\frac{2}{\tau} F_T}

    with the bound of :func:`suboptimality_bound` for :math:`F_T`.

    **Corrected**: the corollary divides by :math:`\tau` where strong convexity gives
    :math:`2 / \tau`. Assumption 2.10 at :math:`\theta^*`, integrated along the segment
    to :math:`\theta`, is :math:`F \ge \tau \|\theta - \theta^*\|^2 / 2`, with equality
    for a quadratic, which breaks the printed bound: ours is larger by
    :math:`\sqrt 2`. In expectation it bounds the root mean square distance.

    The arguments are those of :func:`suboptimality_bound`.

    Example:
        >>> setting = dict(num_records=1000, num_dims=5, num_steps=10, mu=1.0)
        >>> problem = dict(clip_norm=1.0, smoothness=1.0, initial_gap=1.0)
        >>> round(distance_bound(**setting, **problem, strong_convexity=0.5), 4)
        1.2673
    """
    gap = suboptimality_bound(
        num_records=num_records,
        num_dims=num_dims,
        num_steps=num_steps,
        mu=mu,
        clip_norm=clip_norm,
        smoothness=smoothness,
        strong_convexity=strong_convexity,
        initial_gap=initial_gap,
        step_size=step_size,
        rkhs_norm=rkhs_norm,
        traces=traces,
        failure_probability=failure_probability,
    )
    return math.sqrt(2 * gap / strong_convexity)


@dataclass(frozen=True, kw_only=True)
class StepsOption:
    """A number of steps, and what comes with it.

    Attributes:
        num_steps: The number T of steps.
        noise_std: The standard deviation of the noise in each coordinate of a step.
        noise_norm: The root mean square norm of that noise, sqrt(d) noise_std.
        signal_to_noise: The longest possible mean gradient, the clip norm, over
            ``noise_norm``.
        bound: The theorem's bound.
        expected_bound: The bound on the expectation.
    """

    num_steps: int
    noise_std: float
    noise_norm: float
    signal_to_noise: float
    bound: float
    expected_bound: float


@dataclass(frozen=True, kw_only=True)
class GIBOPlan(StepsOption):
    """How many steps to take, chosen without data; print it to see what else there was.

    Attributes:
        clip_norm: The norm B to which gradients of records are clipped.
        mu: The mu of the guarantee for all steps together.
        step_size: The step size that the bounds are for.
        failure_probability: The chance that ``bound`` fails; None if the plan is the
            best in expectation.
        strongly_convex: Whether the bounds are Theorem 3.3's, of the last loss above
            the least, or 3.2's, of the mean squared gradient norm.
        known_bound: What the same quantity is at most if no step is taken: a bound
            above this says nothing.
        alternatives: Other numbers of steps and this one, in order.
    """

    clip_norm: float
    mu: float
    step_size: float
    failure_probability: float | None
    strongly_convex: bool
    known_bound: float
    alternatives: tuple[StepsOption, ...]

    def __str__(self) -> str:
        lines = [
            f"DP-GIBO in {self.num_steps} step{'s' if self.num_steps > 1 else ''} of "
            f"size {self.step_size:.3g}, gradients clipped to {self.clip_norm:.3g}, "
            f"for mu={self.mu:.4g}",
            "",
            "   steps  noise std  noise norm  clip/noise      bound   expected",
        ]
        for option in self.alternatives:
            mark = ">" if option.num_steps == self.num_steps else " "
            lines.append(
                f"{mark} {option.num_steps:6d}  {option.noise_std:9.3g}"
                f"  {option.noise_norm:10.3g}  {option.signal_to_noise:10.3g}"
                f"  {option.bound:9.3g}  {option.expected_bound:9.3g}"
            )
        return "\n".join([*lines, "", textwrap.fill(self._caveats(), width=72)])

    def _caveats(self) -> str:
        what, losses = "the mean squared gradient norm (Theorem 3.2)", "smooth losses"
        if self.strongly_convex:
            what = "the last loss above the least (Theorem 3.3)"
            losses = "smooth losses, strongly convex on average,"
        best = min(self.alternatives, key=lambda option: option.expected_bound)
        chance = "in expectation"
        if self.failure_probability is not None:
            chance = (
                f"with probability {1 - self.failure_probability:.4g}; the expected "
                f"one, on its mean, is least at {best.num_steps} steps"
            )
        verdict = "a bound above that says nothing"
        if self.bound >= self.known_bound:
            verdict = "no number of steps is proven to do better"
        return (
            f"The bound is on {what}, {chance}. With no step it is at most "
            f"{self.known_bound:.3g}: {verdict}. Bounds need {losses} in the kernel's "
            f"space, with gradients of at most {self.clip_norm:.3g} for each record. "
            "They are worst cases: judge by clip/noise too. The plan uses no data."
        )


def plan(
    *,
    num_records: int,
    num_dims: int,
    guarantee: Guarantee,
    gradient_bound: float = 1.0,
    smoothness: float = 1.0,
    initial_gap: float = 1.0,
    strong_convexity: float | None = None,
    rkhs_norm: float = 0.0,
    tolerance: float = 0.0,
    failure_probability: float | None = 0.05,
    max_steps: int = 1000,
) -> GIBOPlan:
    """Return how many steps to take and where to clip, from public numbers alone.

    The number of steps is the one up to ``max_steps`` with the least bound: of Theorem
    3.3 if ``strong_convexity`` is given, of Theorem 3.2 otherwise. More steps descend
    further, but share one budget, so that the noise of each grows with their square
    root. The theorems are worst cases and recommend few steps; with
    ``failure_probability=None`` the expectation is bounded instead, which recommends
    more. Either plan's table shows both bounds.

    The clip norm is ``gradient_bound``: the noise grows with it, so a larger one only
    costs; and below it records are clipped, which biases the gradient in a way that no
    bound here accounts for (it is as private, and may well be worth a try). The step
    size is ``1 / smoothness``, which is best for every bound.

    Args:
        num_records: The number n of records.
        num_dims: The number d of parameters.
        guarantee: The privacy of the whole run; a GDP, ApproxDP or RDP.
        gradient_bound: A bound B on the gradient of every record's loss.
        smoothness: The Lipschitz constant L of the gradients.
        initial_gap: A bound on how far the loss starts above its least value.
        strong_convexity: The constant tau of strong convexity, or None if there is
            none.
        rkhs_norm: A bound on the norms of the losses in the kernel's space; 0 with no
            tolerance stands for exact gradients.
        tolerance: What the trace of the gradient's covariance is at most at every step.
            It adds the same to the bounds for every number of steps.
        failure_probability: The chance that the bound may fail, or None to choose by
            the expectation.
        max_steps: The most steps that may be taken.

    Raises:
        UnsupportedConversionError: If Gaussian noise cannot meet ``guarantee``.

    Example:
        >>> from botorch_dp.privacy import GDP
        >>> print(plan(num_records=1000, num_dims=5, guarantee=GDP(1.0)))
        DP-GIBO in 9 steps of size 1, gradients clipped to 1, for mu=1
        <BLANKLINE>
           steps  noise std  noise norm  clip/noise      bound   expected
               1      0.002     0.00447         224       2.11          2
               3    0.00346     0.00775         129      0.872      0.667
        >      9      0.006      0.0134        74.5        0.6      0.222
              10    0.00632      0.0141        70.7      0.601        0.2
              30      0.011      0.0245        40.8      0.803     0.0673
             100       0.02      0.0447        22.4       1.47      0.022
             300     0.0346      0.0775        12.9       2.76     0.0127
             316     0.0356      0.0795        12.6       2.85     0.0126
            1000     0.0632       0.141        7.07       5.79      0.022
        <BLANKLINE>
        The bound is on the mean squared gradient norm (Theorem 3.2), with
        probability 0.95; the expected one, on its mean, is least at 316 steps.
        With no step it is at most 1: a bound above that says nothing. Bounds
        need smooth losses in the kernel's space, with gradients of at most 1
        for each record. They are worst cases: judge by clip/noise too. The plan
        uses no data.
    """
    num_dims = check_count("num_dims", num_dims)
    max_steps = check_count("max_steps", max_steps)
    clip_norm = check_positive("gradient_bound", gradient_bound)
    smoothness = check_positive("smoothness", smoothness)
    tolerance = check_nonnegative("tolerance", tolerance)
    mu = check_guarantee("guarantee", guarantee).to_gdp().mu

    def bound(num_steps: int, failure_probability: float | None) -> float:
        if strong_convexity is None:
            return gradient_norm_bound(
                num_records=num_records,
                num_dims=num_dims,
                num_steps=num_steps,
                mu=mu,
                clip_norm=clip_norm,
                smoothness=smoothness,
                initial_gap=initial_gap,
                rkhs_norm=rkhs_norm,
                traces=tolerance,
                failure_probability=failure_probability,
            )
        return suboptimality_bound(
            num_records=num_records,
            num_dims=num_dims,
            num_steps=num_steps,
            mu=mu,
            clip_norm=clip_norm,
            smoothness=smoothness,
            strong_convexity=strong_convexity,
            initial_gap=initial_gap,
            rkhs_norm=rkhs_norm,
            traces=tolerance,
            failure_probability=failure_probability,
        )

    def option(num_steps: int) -> StepsOption:
        noise_std = _noise_std(
            num_records=num_records, num_steps=num_steps, mu=mu, clip_norm=clip_norm
        )
        noise_norm = math.sqrt(num_dims) * noise_std
        return StepsOption(
            num_steps=num_steps,
            noise_std=noise_std,
            noise_norm=noise_norm,
            signal_to_noise=clip_norm / noise_norm,
            bound=bound(num_steps, failure_probability),
            expected_bound=bound(num_steps, None),
        )

    # Not necessarily unimodal, and cheap: look at all of them.
    options = [option(num_steps) for num_steps in range(1, max_steps + 1)]
    chosen = min(options, key=lambda option: option.bound)
    in_expectation = min(options, key=lambda option: option.expected_bound)
    shown = {chosen.num_steps, in_expectation.num_steps}
    for power in range(len(str(max_steps))):
        shown |= {10**power, 3 * 10**power}
    if strong_convexity is None:
        known_bound = min(clip_norm * clip_norm, 2 * smoothness * initial_gap)
    else:
        known_bound = min(initial_gap, clip_norm * clip_norm / (2 * strong_convexity))
    return GIBOPlan(
        **vars(chosen),
        clip_norm=clip_norm,
        mu=mu,
        step_size=1 / smoothness,
        failure_probability=failure_probability,
        strongly_convex=strong_convexity is not None,
        known_bound=known_bound,
        alternatives=tuple(o for o in options if o.num_steps in shown),
    )


def _noise_std(
    *, num_records: int, num_steps: int, mu: float, clip_norm: float
) -> float:
    """Return the noise of a step, line 8 of Algorithm 1."""
    num_records = check_count("num_records", num_records)
    num_steps = check_count("num_steps", num_steps)
    mu = check_positive("mu", mu)
    clip_norm = check_positive("clip_norm", clip_norm)
    return 2 * clip_norm * math.sqrt(num_steps) / (num_records * mu)


def _check_step_size(step_size: float | None, smoothness: float) -> float:
    largest = 1 / check_positive("smoothness", smoothness)
    if step_size is None:
        return largest
    step_size = check_positive("step_size", step_size)
    if step_size > largest * (1 + _ROUNDING):
        raise InvalidArgumentError(
            f"step_size must be at most 1 / smoothness = {largest:.7g}, beyond which "
            f"nothing is proven, got {step_size!r}."
        )
    return step_size


def _check_strong_convexity(strong_convexity: float, smoothness: float) -> float:
    strong_convexity = check_positive("strong_convexity", strong_convexity)
    if strong_convexity > smoothness:
        raise InvalidArgumentError(
            f"strong_convexity must be at most smoothness = {smoothness:.7g}, as it is "
            f"for every function, got {strong_convexity!r}."
        )
    return strong_convexity


def _check_traces(
    traces: float | Sequence[float], num_steps: int, rkhs_norm: float
) -> float | list[float]:
    """Return one tolerance, or a list of one trace a step."""
    rkhs_norm = check_nonnegative("rkhs_norm", rkhs_norm)
    if not isinstance(traces, Real | Sequence):
        raise InvalidArgumentError(
            "traces must be a number or a sequence of numbers, got "
            f"{type(traces).__name__}; convert a tensor with .tolist()."
        )
    checked: float | list[float]
    if isinstance(traces, Sequence):
        if len(traces) != num_steps:
            raise InvalidArgumentError(
                f"traces must be one number, or one a step: {num_steps}, got "
                f"{len(traces)}."
            )
        checked = [check_nonnegative("traces", trace) for trace in traces]
        largest = max(checked)
    else:
        checked = largest = check_nonnegative("traces", traces)
    if largest > 0 and rkhs_norm == 0:
        raise InvalidArgumentError(
            "rkhs_norm must be above 0 where traces are: without it they say nothing "
            f"about the gradient, got {rkhs_norm!r}."
        )
    return checked
