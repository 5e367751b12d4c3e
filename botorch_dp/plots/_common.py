"""Helpers of all plots: axes, histories, and means with bands."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from botorch_dp._imports import import_extra
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.optimizer import (
    OptimizationResult,
    Optimizer,
    Step,
)
from botorch_dp.optimizers.ldp.simulation import LDPBO

# An object with a history, or a history itself.
Run = OptimizationResult | Optimizer | LDPBO | Sequence[Step]
Runs = Run | Sequence[Run]


def get_axes(ax: Any, purpose: str) -> Any:
    """Return the axes, or new ones for the plot named ``purpose``."""
    if ax is not None:
        return ax
    pyplot = import_extra("matplotlib.pyplot", extra="plots", purpose=purpose)
    return pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1]


def histories_of(runs: Runs) -> list[Sequence[Step]]:
    """Return the steps of each run; all runs must have the same number of steps."""
    if isinstance(runs, Sequence) and not any(isinstance(r, Step) for r in runs):
        several: list[Any] = list(runs)
    else:
        several = [runs]
    found = [getattr(run, "history", run) for run in several]
    lengths = sorted({len(steps) for steps in found})
    if len(lengths) != 1 or lengths[0] == 0:
        raise InvalidArgumentError(
            "runs must have at least one step, and the same number of steps, got "
            f"{lengths or 'no run'}."
        )
    return found


def same_numbers(found: Sequence[Sequence[Step]]) -> list[int]:
    """Return the numbers of the steps, which must be the same in all runs."""
    numbers = [step.number for step in found[0]]
    if any([step.number for step in steps] != numbers for steps in found):
        raise InvalidArgumentError("runs must have the same step numbers.")
    return numbers


def check_quantiles(quantiles: tuple[float, float]) -> None:
    """Raise unless both are within [0, 1] and in ascending order."""
    low, high = quantiles
    if not 0 <= low <= high <= 1:
        raise InvalidArgumentError(
            f"quantiles must be two ascending numbers in [0, 1], got {quantiles!r}."
        )


def draw_mean(
    ax: Any, x: Any, values: Any, quantiles: tuple[float, float], label: str | None
) -> Any:
    """Draw the mean over runs of ``R x T`` values, with a band for several runs."""
    (line,) = ax.plot(x, values.mean(axis=0), label=label)
    if len(values) > 1:
        draw_band(ax, x, np.quantile(values, quantiles, axis=0), line)
    return line


def draw_band(ax: Any, x: Any, band: Any, line: Any) -> None:
    """Draw the band between two curves in the color of a line."""
    low, high = band
    ax.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def draw_coordinates(
    ax: Any,
    x: Any,
    paths: Any,
    quantiles: tuple[float, float],
    label: str | None,
    coordinate: int | None = None,
) -> None:
    """Draw one or all coordinates of ``R x T x d`` points, with a name for each."""
    for index in range(paths.shape[-1]) if coordinate is None else [coordinate]:
        name = f"$x_{{{index + 1}}}$" if label is None else f"{label} {index + 1}"
        draw_mean(ax, x, paths[..., index], quantiles, name)


def finish(ax: Any, xlabel: str, ylabel: str, *, legend: bool = True) -> Any:
    """Return the axes with the names of both axes and, if wanted, a legend."""
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if legend:
        ax.legend()
    return ax
