"""How good the points of a run were, and how well it knew its gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.plots._common import (
    Runs,
    check_quantiles,
    draw_mean,
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
    """Draw how good the points of a run were, or where they were.

    Several runs give their mean and a band. Runs with different seeds show what noise
    does. On private data each costs its own budget; make such a picture with public or
    synthetic data.

    Args:
        runs: A result, an optimizer or a history, or several with equally many steps.
        evaluate: From ``T x d`` points to T values. **It must be public**: a score on
            public test data or a known function, never the loss on private records.
            None draws the coordinates of the points.
        initial_x: Where the runs started, a ``d`` tensor; drawn at 0 evaluations.
        quantiles: Of the runs, from where to where the band goes; by default from the
            lowest to the highest.
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
    evaluations = np.mean(counts, axis=0)  # of one step; Algorithm 2 may vary
    if initial_x is not None:
        evaluations = np.concatenate([[0.0], evaluations])
    ax = get_axes(ax, "plot_convergence")
    if evaluate is None:
        coordinates = np.stack([X.detach().cpu().numpy() for X in points])  # R x T x d
        for index in range(coordinates.shape[-1]):
            name = f"$x_{{{index + 1}}}$" if label is None else f"{label} {index + 1}"
            draw_mean(ax, evaluations, coordinates[..., index], quantiles, name)
    else:
        values = np.stack([_evaluated(evaluate, X) for X in points])  # R x T
        draw_mean(ax, evaluations, values, quantiles, label)
    ax.set_xlabel("evaluations")
    ax.set_ylabel("released point" if evaluate is None else "value on public data")
    if evaluate is None or label is not None:
        ax.legend()
    return ax


def plot_trace(runs: Runs, *, label: str | None = None, ax: Any = None) -> Any:
    r"""Draw what each step leaves unknown of the gradient, beside its noise.

    The trace of the gradient's posterior covariance is the surrogate's expected squared
    error, if losses vary as the kernel says. The expected squared norm of the noise,
    :math:`d \sigma^2`, is what privacy adds: where it is far above the trace, more
    points a step would not help.

    Args:
        runs: A result, an optimizer or a history, or several with equally many steps,
            of optimizers with a surrogate. Several give their mean and range.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    histories = histories_of(runs)
    traces = [[step.trace for step in steps] for steps in histories]
    if any(trace is None for row in traces for trace in row):
        raise InvalidArgumentError(
            "runs must be of an optimizer with a surrogate, such as DPGIBO: these have "
            "no trace."
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
    ax.set_xlabel("step")
    ax.set_ylabel("squared error of the gradient")
    ax.legend()
    return ax


def _evaluated(evaluate: Callable[[Tensor], Any], X: Tensor) -> Any:
    values = torch.as_tensor(evaluate(X), dtype=torch.float64, device="cpu").detach()
    if values.shape != X.shape[:1]:
        raise InvalidArgumentError(
            f"evaluate must return {len(X)} values for {len(X)} points, got shape "
            f"{tuple(values.shape)}."
        )
    return values.numpy()
