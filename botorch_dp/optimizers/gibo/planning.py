"""A planner for DP-GIBO: how many steps to take, from public numbers alone."""

import math
import textwrap
from dataclasses import dataclass, replace

from botorch_dp._validation import check_count, check_nonnegative, check_positive
from botorch_dp.optimizers.gibo.bounds import (
    GIBOSetting,
    gradient_norm_bound,
    suboptimality_bound,
)
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.guarantees import Guarantee


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
    """How many steps to take, chosen without data; print it to see alternatives.

    Attributes:
        clip_norm: The norm B to which gradients of records are clipped.
        mu: The mu of the guarantee for all steps together.
        step_size: The step size that the bounds are for.
        failure_probability: The chance that ``bound`` fails; None if the plan is the
            best in expectation.
        strongly_convex: Whether the bounds are Theorem 3.3's, of the last loss above
            the least, or 3.2's, of the mean squared gradient norm.
        known_bound: A bound on the same quantity if no step is taken: a larger bound
            says nothing.
        alternatives: Other numbers of steps and this one, in ascending order.
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

    The number of steps, up to ``max_steps``, minimizes the bound of Theorem 3.3 if
    ``strong_convexity`` is given, and of Theorem 3.2 otherwise. More steps descend
    further but share one budget, so the noise of each grows with their square root.
    The theorems are worst cases and recommend few steps;
    ``failure_probability=None`` bounds the expectation instead and recommends more.
    The table of either plan shows both bounds.

    The clip norm is ``gradient_bound``. The noise grows with it, so a larger one only
    costs. A smaller one clips records, which biases the gradient in a way that these
    bounds do not cover; it is equally private, and may be worth a try. The step size is
    ``1 / smoothness``, which is best for every bound.

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
        tolerance: A bound on the trace of the gradient's covariance at every step. It
            adds the same to the bounds for every number of steps.
        failure_probability: The probability that the bound fails, or None to choose by
            the expectation.
        max_steps: The largest number of steps to consider.

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
    setting = GIBOSetting(
        num_records=num_records,
        num_dims=num_dims,
        num_steps=1,
        mu=check_guarantee("guarantee", guarantee).to_gdp().mu,
        clip_norm=check_positive("gradient_bound", gradient_bound),
        smoothness=smoothness,
        initial_gap=initial_gap,
        strong_convexity=strong_convexity,
        rkhs_norm=rkhs_norm,
        traces=check_nonnegative("tolerance", tolerance),
        failure_probability=failure_probability,
    )
    max_steps = check_count("max_steps", max_steps)
    bound = suboptimality_bound if strong_convexity else gradient_norm_bound

    def option(num_steps: int) -> StepsOption:
        taken = replace(setting, num_steps=num_steps)
        noise_norm = math.sqrt(num_dims) * taken.noise_std
        return StepsOption(
            num_steps=num_steps,
            noise_std=taken.noise_std,
            noise_norm=noise_norm,
            signal_to_noise=taken.clip_norm / noise_norm,
            bound=bound(taken),
            expected_bound=bound(replace(taken, failure_probability=None)),
        )

    # The bound need not be unimodal, and it is cheap: look at all numbers of steps.
    options = [option(num_steps) for num_steps in range(1, max_steps + 1)]
    chosen = min(options, key=lambda option: option.bound)
    in_expectation = min(options, key=lambda option: option.expected_bound)
    shown = {chosen.num_steps, in_expectation.num_steps}
    for power in range(len(str(max_steps))):
        shown |= {10**power, 3 * 10**power}
    squared = setting.clip_norm * setting.clip_norm
    if strong_convexity is None:
        known_bound = min(squared, 2 * smoothness * initial_gap)
    else:
        known_bound = min(initial_gap, squared / (2 * strong_convexity))
    return GIBOPlan(
        **vars(chosen),
        clip_norm=setting.clip_norm,
        mu=setting.mu,
        step_size=setting.eta,
        failure_probability=failure_probability,
        strongly_convex=strong_convexity is not None,
        known_bound=known_bound,
        alternatives=tuple(o for o in options if o.num_steps in shown),
    )
