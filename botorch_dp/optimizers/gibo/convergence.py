r"""Where DP-GIBO stays, and how long it must run: Lemma A.4 and Theorem B.2.

[Sopa2025dpgibo]_ proves that the iterates never leave a ball around the optimum (Lemma
A.4), and that with enough steps T and records n the gap to the minimum is as small as
one likes (Theorem B.2). Both statements are repaired here; the proofs are in
``docs/theory/dp_gibo.md``:

* :func:`invariant_radius`: a ball that the iterates do not leave;
* :func:`printed_radius`: the radius of the paper, for comparison;
* :func:`required_run`: the T and n of Theorem B.2, for an RBF kernel.

The numbers of Theorem B.2 are for theory only: T grows like a power of the dimension,
because the proof first covers the whole ball with evaluations.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Appendices A and B.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from botorch_dp._validation import check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.gibo.bounds import GIBOSetting, noise_term

# The design has half of the trace that is wanted; what is left for moving away from it.
_LEFT = 1 - math.sqrt(0.5)


@dataclass(frozen=True, kw_only=True)
class RequiredRun:
    r"""The run for which Theorem B.2 promises a gap.

    Attributes:
        trace: The trace :math:`\varepsilon'` that every step must reach in the end.
        cell_radius: The radius :math:`\delta` of a cell. A design around its centre
            reaches the trace in the whole cell.
        radius: The radius r of the ball around the optimum that holds the iterates.
        num_cells: The number of cells that cover the ball.
        num_cover_steps: The number of steps that evaluate the designs of all cells.
        num_steps: The number T of steps in all.
        num_records: The number n of records.
    """

    trace: float
    cell_radius: float
    radius: float
    num_cells: int
    num_cover_steps: int
    num_steps: int
    num_records: int


def invariant_radius(setting: GIBOSetting) -> float:
    r"""Return the radius of a ball that no iterate leaves: Lemma A.4, repaired.

    .. math::
        r = \frac1\tau \Bigl(\min(C_{\mathcal X} \sqrt{\mathrm{Tr}}, 2 B) + \frac{2 B
        \sqrt T}{n \mu} \bigl(4 \sqrt d + 2 \sqrt{2 \log \tfrac{T}{\xi}}\bigr)\Bigr)

    With probability :math:`1 - \xi` (the ``failure_probability``), a run that starts
    within r of the optimum, or within any larger distance, stays within it.

    Args:
        setting: The public numbers of the run, with ``strong_convexity``.

    Example:
        >>> setting = GIBOSetting(
        ...     num_records=1000, num_dims=5, num_steps=10, mu=1.0, clip_norm=1.0,
        ...     strong_convexity=0.5,
        ... )
        >>> round(invariant_radius(setting), 3), round(printed_radius(setting), 3)
        (0.195, 2.363)
    """
    return (_bias(setting) + _longest_noise(setting)) / setting.tau


def printed_radius(setting: GIBOSetting) -> float:
    r"""Return the radius that Lemma A.4 prints.

    .. math::
        r = \frac1\tau \sqrt{C_{\mathcal X}^2 \mathrm{Tr} + \frac{2}{\eta} \mathcal V}
        + \eta B \Bigl(1 + \frac{2 \sqrt T}{n \mu} \bigl(4 \sqrt d + 2 \sqrt{2 \log
        \tfrac{T}{\xi}}\bigr)\Bigr)

    Its proof takes it that a step which lowers the loss comes closer to the optimum,
    which is not so in general. For :math:`\eta \le 1` the radius is at least that of
    :func:`invariant_radius`, and therefore valid.

    Args:
        setting: The public numbers of the run, with ``strong_convexity``.
    """
    noise = _longest_noise(setting)  # before V: it checks failure_probability
    bias = setting.rkhs_norm**2 * _largest_trace(setting)
    total = math.sqrt(bias + 2 / setting.eta * noise_term(setting)) / setting.tau
    return total + setting.eta * (setting.clip_norm + noise)


def required_run(
    setting: GIBOSetting,
    *,
    gap: float,
    length_scale: float,
    prior_variance: float = 1.0,
    batch_size: int = 1,
) -> RequiredRun:
    r"""Return the T and n for a gap below ``gap``: Theorem B.2, repaired.

    The kernel is RBF. The first steps evaluate a design of d + 1 points around the
    centre of every cell, and the later ones follow Algorithm 1.

    Args:
        setting: The public numbers of the run, with ``strong_convexity`` and
            ``rkhs_norm``. Its ``num_steps``, ``num_records`` and ``traces`` are not
            used: they are what the theorem is about.
        gap: The gap :math:`\varepsilon` between the last loss and the minimum.
        length_scale: The length scale of the kernel.
        prior_variance: The variance of the kernel.
        batch_size: The number of evaluations of a step.

    Example:
        >>> setting = GIBOSetting(
        ...     num_records=1, num_steps=1, num_dims=2, mu=1.0, clip_norm=1.0,
        ...     strong_convexity=0.5, rkhs_norm=1.0,
        ... )
        >>> run = required_run(setting, gap=0.1, length_scale=1.0)
        >>> run.num_cells, run.num_steps, run.num_records
        (181476, 544436, 3024211)
    """
    gap = check_positive("gap", gap)
    scale = check_positive("length_scale", length_scale)
    variance = check_positive("prior_variance", prior_variance)
    batch_size = check_count("batch_size", batch_size)
    clip, tau, d = setting.clip_norm, setting.tau, setting.num_dims
    norm = check_positive("rkhs_norm", setting.rkhs_norm)
    failure = _failure_probability(setting)
    prior_trace = d * variance / scale**2  # W, without any observation
    trace = gap * tau / (3 * norm**2)
    cell = cell_radius(
        trace, num_dims=d, length_scale=scale, prior_variance=prior_variance
    )
    # V <= gap tau / 3 holds up to this length of a step's noise.
    noise = 2 * gap * tau / 3
    noise /= math.sqrt(4 * clip**2 + noise) + 2 * clip
    bias = min(norm * math.sqrt(prior_trace), 2 * clip)
    start = math.sqrt(2 * setting.initial_gap / tau)
    radius = max((bias + noise) / tau, start)
    num_cells = math.ceil(2 * radius * math.sqrt(d) / cell) ** d
    num_cover_steps = -(-num_cells * (d + 1) // batch_size)
    num_steps = num_cover_steps + 1
    kept = max(0.0, 1 - setting.eta * tau)
    if kept > 0:
        rate = -math.log(kept)
        after = math.log(max(1.0, prior_trace / trace)) / rate
        decay = math.log(max(1.0, 3 * setting.initial_gap / gap)) / rate
        num_steps = max(num_steps + math.ceil(after), math.ceil(decay))
    try:
        longest = _longest(d, num_steps, failure)
        records = 2 * clip * math.sqrt(num_steps) * longest / (setting.mu * noise)
        num_records = math.ceil(records)
    except OverflowError as error:
        raise InvalidArgumentError(
            f"num_dims = {d} is too large for Theorem B.2: it asks for more steps than "
            "a number can hold; try fewer dimensions or a larger gap."
        ) from error
    return RequiredRun(
        trace=trace,
        cell_radius=cell,
        radius=radius,
        num_cells=num_cells,
        num_cover_steps=num_cover_steps,
        num_steps=num_steps,
        num_records=num_records,
    )


def cell_radius(
    trace: float, *, num_dims: int, length_scale: float, prior_variance: float = 1.0
) -> float:
    r"""Return how far from its centre a design still reaches a trace.

    If the gradient's posterior covariance has a trace of at most half of ``trace`` at a
    point, it has at most ``trace`` within

    .. math::
        \delta = \Bigl(1 - \frac{1}{\sqrt2}\Bigr) \ell^2
        \sqrt{\frac{\varepsilon'}{s^2 (d + 2)}}

    of it, for an RBF kernel with length scale :math:`\ell` and variance :math:`s^2`.

    Args:
        trace: The trace :math:`\varepsilon'`.
        num_dims: The number d of parameters.
        length_scale: The length scale of the kernel.
        prior_variance: The variance of the kernel.
    """
    trace = check_positive("trace", trace)
    scale = check_positive("length_scale", length_scale)
    d = check_count("num_dims", num_dims)
    variance = check_positive("prior_variance", prior_variance)
    return _LEFT * scale**2 * math.sqrt(trace / (variance * (d + 2)))


def _bias(setting: GIBOSetting) -> float:
    """Bound the bias of a step (Lemma A.2); both gradients are at most clip_norm."""
    bias = setting.rkhs_norm * math.sqrt(_largest_trace(setting))
    return min(bias, 2 * setting.clip_norm)


def _largest_trace(setting: GIBOSetting) -> float:
    traces = setting.traces
    return max(traces) if isinstance(traces, Sequence) else traces


def _longest_noise(setting: GIBOSetting) -> float:
    """Bound the norm of the noise in every step (Lemma A.3)."""
    failure = _failure_probability(setting)
    longest = _longest(setting.num_dims, setting.num_steps, failure)
    return setting.noise_std * longest


def _longest(num_dims: int, num_steps: int, failure: float) -> float:
    log = math.log(num_steps) - math.log(failure)
    return 4 * math.sqrt(num_dims) + 2 * math.sqrt(2 * log)


def _failure_probability(setting: GIBOSetting) -> float:
    if setting.failure_probability is None:
        raise InvalidArgumentError(
            "failure_probability must be given: the ball and Theorem B.2 hold with a "
            "probability, not in expectation, got None."
        )
    return setting.failure_probability
