"""Plots of the quality of a run's points and of its gradient estimates."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.plots._common import (
    Runs,
    check_quantiles,
    draw_coordinates,
    draw_mean,
    finish,
    get_axes,
    histories_of,
)


def plot_convergence(
    runs: Runs,
    evaluate: Callable[[Tensor], Any] | None = None,
    *,
    initial_x: Tensor | None = None,
    quantiles: tuple[float, float] = (0.0, 1.0),
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the quality of a run's points, or their coordinates.

    Several runs are drawn as their mean and a band. Runs with different seeds show the
    effect of noise. On private data each run costs its own budget, so use public or
    synthetic data for such a plot.

    Args:
        runs: A result, an optimizer or a history, or several with the same number of
            steps.
        evaluate: Maps ``T x d`` points to T values. **It must be public**: a score on
            public test data or a known function, never the loss on private records.
            None draws the coordinates of the points.
        initial_x: The start of the runs, a ``d`` tensor; drawn at 0 evaluations.
        quantiles: The quantiles of the runs between which the band is drawn.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    histories = histories_of(runs)
    check_quantiles(quantiles)
    start = [] if initial_x is None else [initial_x]
    points = [torch.stack([*start, *(s.x for s in steps)]) for steps in histories]
    counts = [[step.num_evaluations for step in steps] for steps in histories]
    evaluations = np.mean(counts, axis=0)  # they may vary in Algorithm 2
    if initial_x is not None:
        evaluations = np.concatenate([[0.0], evaluations])
    ax = get_axes(ax, "plot_convergence")
    if evaluate is None:
        coordinates = np.stack([X.detach().cpu().numpy() for X in points])  # R x T x d
        draw_coordinates(ax, evaluations, coordinates, quantiles, label)
        return finish(ax, "evaluations", "released point")
    values = np.stack([_evaluated(evaluate, X) for X in points])  # R x T
    draw_mean(ax, evaluations, values, quantiles, label)
    has_name = label is not None
    return finish(ax, "evaluations", "value on public data", legend=has_name)


def plot_trace(runs: Runs, *, label: str | None = None, ax: Any = None) -> Any:
    r"""Draw the uncertainty of the gradient in each step, and the noise for privacy.

    The trace of the gradient's posterior covariance is the surrogate's expected squared
    error, if losses vary as the kernel assumes. The expected squared norm of the noise,
    :math:`d \sigma^2`, is the error that privacy adds. If it is far above the trace,
    more points per step do not help.

    Args:
        runs: A result, an optimizer or a history, or several with the same number of
            steps, of optimizers with a surrogate. Several are drawn as mean and range.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    histories = histories_of(runs)
    traces = [[step.trace for step in steps] for steps in histories]
    if any(trace is None for row in traces for trace in row):
        raise InvalidArgumentError(
            "runs must come from an optimizer with a surrogate, such as DPGIBO, but "
            "they have no trace."
        )
    noise = np.array(
        [[len(s.x) * s.noise_std**2 for s in steps] for steps in histories]
    )
    ax = get_axes(ax, "plot_trace")
    prefix = "" if label is None else f"{label}, "
    numbers = np.array([step.number for step in histories[0]])
    line = draw_mean(ax, numbers, np.array(traces), (0.0, 1.0), f"{prefix}surrogate")
    if noise.any():
        style = {"color": line.get_color(), "linestyle": "--"}
        ax.plot(numbers, noise.mean(axis=0), label=f"{prefix}noise", **style)
    ax.set_yscale("log")
    ax.locator_params(axis="x", integer=True)
    return finish(ax, "step", "squared error of the gradient")


def _evaluated(evaluate: Callable[[Tensor], Any], X: Tensor) -> Any:
    values = torch.as_tensor(evaluate(X), dtype=torch.float64, device="cpu").detach()
    if values.shape != X.shape[:1]:
        raise InvalidArgumentError(
            f"evaluate must return {len(X)} values for {len(X)} points, got shape "
            f"{tuple(values.shape)}."
        )
    return values.numpy()
