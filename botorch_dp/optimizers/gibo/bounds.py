r"""What is proven about DP-GIBO, as functions of public numbers.

DP-GIBO takes T steps against a gradient that is averaged over n records, each clipped
to norm B, and made private by noise of standard deviation
:math:`\sigma = 2 B \sqrt T / (n \mu)` in each of d coordinates. [Sopa2025dpgibo]_
bounds, with probability :math:`1 - \delta` (the ``failure_probability``, not related to
a privacy delta) and step sizes :math:`\eta \le 1/L`,

* Theorem 3.2, the mean of the squared gradient norms along the way:
  :func:`gradient_norm_bound`;
* Theorem 3.3, how far the last value is above the least one:
  :func:`suboptimality_bound`;
* Corollary 3.4, how far the last point is from the best one: :func:`distance_bound`;
* Corollary 3.6, the same for Algorithm 2: pass its tolerance as ``traces``.

The bounds assume, wherever the iterates go, that the loss of every record is L-smooth
(2.8), that its gradient has norm at most B (2.9), that its norm in the kernel's space
is at most ``rkhs_norm`` (2.7), and for 3.3 and 3.4 that the average loss is strongly
convex (2.10). Strong convexity and bounded gradients are possible together only on a
bounded region. Losses are observed without noise; jitter is allowed if ``traces`` are
those of the model with jitter. Privacy needs none of these assumptions.

With ``failure_probability=None`` the functions bound expectations over the noise
instead. ``docs/theory/dp_gibo.md`` has the derivation, and the two corrections to the
published bounds.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Section 3.2,
        proofs in appendices A and B.
"""

import math
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

# A step_size of 1 / smoothness may exceed it by a rounding error.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class GIBOSetting:
    """The public numbers that the bounds are about.

    Attributes:
        num_records: The number n of records.
        num_dims: The number d of parameters.
        num_steps: The number T of steps.
        mu: The mu of the guarantee for all steps together.
        clip_norm: The norm B to which the gradients of records are clipped, and a bound
            on their true gradients.
        smoothness: The Lipschitz constant L of the gradients.
        initial_gap: A bound on F_0, the gap between the first loss and the minimum.
        strong_convexity: The constant tau of strong convexity, at most ``smoothness``;
            None if the average loss is not strongly convex.
        step_size: The step size eta, at most ``1 / smoothness``, which is the default.
        rkhs_norm: The bound C_X on the norms of the losses in the kernel's space; 0
            with no traces stands for exact gradients.
        traces: The traces of the gradient's posterior covariance, which are public: one
            for each step, or one number that bounds them all (Algorithm 2's tolerance).
            In expectation: bounds on their means.
        failure_probability: The probability that the bound fails, or None to bound the
            expectation. It is not related to a privacy delta.

    Example:
        >>> setting = GIBOSetting(
        ...     num_records=1000, num_dims=5, num_steps=10, mu=1.0, clip_norm=1.0
        ... )
        >>> round(noise_term(setting), 4), round(gradient_norm_bound(setting), 4)
        (0.2003, 0.6005)
    """

    num_records: int
    num_dims: int
    num_steps: int
    mu: float
    clip_norm: float
    smoothness: float = 1.0
    initial_gap: float = 1.0
    strong_convexity: float | None = None
    step_size: float | None = None
    rkhs_norm: float = 0.0
    traces: float | Sequence[float] = 0.0
    failure_probability: float | None = 0.05

    def __post_init__(self) -> None:
        for name in ("num_records", "num_dims", "num_steps"):
            check_count(name, getattr(self, name))
        for name in ("mu", "clip_norm", "smoothness"):
            check_positive(name, getattr(self, name))
        check_nonnegative("initial_gap", self.initial_gap)
        if self.failure_probability is not None:
            check_probability("failure_probability", self.failure_probability)
        tau = self.strong_convexity
        if tau is not None and check_positive("strong_convexity", tau) > (
            self.smoothness
        ):
            raise InvalidArgumentError(
                f"strong_convexity must be at most smoothness = {self.smoothness:.7g}, "
                f"as for every function, got {tau!r}."
            )
        if self.step_size is not None:
            largest = 1 / self.smoothness
            if check_positive("step_size", self.step_size) > largest * (1 + _ROUNDING):
                raise InvalidArgumentError(
                    f"step_size must be at most 1 / smoothness = {largest:.7g}, beyond "
                    f"which nothing is proven, got {self.step_size!r}."
                )
        _check_traces(self.traces, self.num_steps, self.rkhs_norm)

    @property
    def noise_std(self) -> float:
        """The noise of a step in each coordinate (Algorithm 1, line 8)."""
        return (
            2
            * self.clip_norm
            * math.sqrt(self.num_steps)
            / (self.num_records * self.mu)
        )

    @property
    def eta(self) -> float:
        """The step size."""
        return 1 / self.smoothness if self.step_size is None else self.step_size

    @property
    def tau(self) -> float:
        """The constant of strong convexity."""
        if self.strong_convexity is None:
            raise InvalidArgumentError(
                "strong_convexity must be given for this bound, got None."
            )
        return self.strong_convexity


def noise_term(setting: GIBOSetting) -> float:
    r"""Return what privacy adds to the bounds, the V of Theorem 3.2.

    .. math::
        \mathcal V = M \Bigl(2 + \frac{M}{2 B^2}\Bigr), \qquad
        M = \frac{2 B^2 \sqrt T}{n \mu}
            \Bigl(4 \sqrt d + 2 \sqrt{2 \log \tfrac{T}{\delta}}\Bigr),

    or :math:`2 d B^2 T / (n \mu)^2` in expectation.

    Args:
        setting: The public numbers of the run.
    """
    noise_std, num_dims = setting.noise_std, setting.num_dims
    if setting.failure_probability is None:
        return num_dims * noise_std * noise_std / 2
    # Lemma A.3: with this probability no draw of N(0, I) in T steps is longer.
    longest = 4 * math.sqrt(num_dims) + 2 * math.sqrt(
        2 * (math.log(setting.num_steps) - math.log(setting.failure_probability))
    )
    noise = noise_std * longest  # M is clip_norm * noise
    return 2 * setting.clip_norm * noise + noise * noise / 2


def gradient_norm_bound(setting: GIBOSetting) -> float:
    r"""Bound the mean squared gradient norm over the steps: Theorem 3.2, corrected.

    .. math::
        \frac1T \sum_{t < T} \|\nabla f(\theta^{(t)})\|^2 \le \frac{2 F_0}{\eta T}
        + \frac{C_{\mathcal X}^2}{T} \sum_{t < T} \mathrm{Tr}_t + 2 \mathcal V

    Args:
        setting: The public numbers of the run.
    """
    traces, num_steps = setting.traces, setting.num_steps
    if isinstance(traces, Sequence):
        traces = math.fsum(traces) / num_steps
    descent = 2 * setting.initial_gap / (setting.eta * num_steps)
    bias = setting.rkhs_norm * setting.rkhs_norm * traces
    return descent + bias + 2 * noise_term(setting)


def suboptimality_bound(setting: GIBOSetting) -> float:
    r"""Bound the gap between the last loss and the minimum: Theorem 3.3.

    .. math::
        F_T \le (1 - \eta \tau)^T F_0 + \frac{C_{\mathcal X}^2 \eta}{2}
        \sum_{t < T} (1 - \eta \tau)^{T - 1 - t} \, \mathrm{Tr}_t
        + \frac{\mathcal V}{\tau},

    with :math:`C_{\mathcal X}^2 \varepsilon / (2 \tau)` as the middle term if
    ``traces`` is one tolerance :math:`\varepsilon` (Corollary 3.6).

    Args:
        setting: The public numbers of the run, with ``strong_convexity``.
    """
    eta, tau, traces = setting.eta, setting.tau, setting.traces
    kept = max(0.0, 1 - eta * tau)  # what a step leaves of the gap
    if isinstance(traces, Sequence):
        total = 0.0
        for trace in traces:
            total = kept * total + trace
        bias = eta * total / 2
    else:
        bias = traces / (2 * tau)
    return (
        kept**setting.num_steps * setting.initial_gap
        + setting.rkhs_norm * setting.rkhs_norm * bias
        + noise_term(setting) / tau
    )


def distance_bound(setting: GIBOSetting) -> float:
    r"""Bound the distance of the last point from the best: Corollary 3.4, corrected.

    .. math::
        \|\theta^{(T)} - \theta^*\| \le \sqrt{\frac{2}{\tau} F_T}

    with the bound of :func:`suboptimality_bound` for :math:`F_T`. In expectation it
    bounds the root mean square distance.

    Args:
        setting: The public numbers of the run, with ``strong_convexity``.
    """
    return math.sqrt(2 * suboptimality_bound(setting) / setting.tau)


def _check_traces(
    traces: float | Sequence[float], num_steps: int, rkhs_norm: float
) -> None:
    """Check one tolerance, or a list of one trace for each step."""
    rkhs_norm = check_nonnegative("rkhs_norm", rkhs_norm)
    if not isinstance(traces, Real | Sequence):
        raise InvalidArgumentError(
            "traces must be a number or a sequence of numbers, got "
            f"{type(traces).__name__}; convert a tensor with .tolist()."
        )
    if isinstance(traces, Sequence):
        if len(traces) != num_steps:
            raise InvalidArgumentError(
                f"traces must be one number, or {num_steps}, one for each step, got "
                f"{len(traces)}."
            )
        largest = max(check_nonnegative("traces", trace) for trace in traces)
    else:
        largest = check_nonnegative("traces", traces)
    if largest > 0 and rkhs_norm == 0:
        raise InvalidArgumentError(
            "rkhs_norm must be above 0 if traces are: without it they say nothing "
            f"about the gradient, got {rkhs_norm!r}."
        )
