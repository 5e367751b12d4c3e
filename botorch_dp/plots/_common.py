"""What all pictures share: axes, histories, means with bands."""

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

# Whatever has a history, or a history itself.
Run = OptimizationResult | Optimizer | LDPBO | Sequence[Step]
Runs = Run | Sequence[Run]


def get_axes(ax: Any, purpose: str) -> Any:
    """Return the axes, or new ones for a picture of this name."""
    if ax is not None:
        return ax
    pyplot = import_extra("matplotlib.pyplot", extra="plots", purpose=purpose)
    return pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1]


def histories_of(runs: Runs) -> list[Sequence[Step]]:
    """Return the steps of each run: as many of each, and some."""
    if isinstance(runs, Sequence) and not any(isinstance(r, Step) for r in runs):
        several: list[Any] = list(runs)
    else:
        several = [runs]
    found = [getattr(run, "history", run) for run in several]
    lengths = sorted({len(steps) for steps in found})
    if len(lengths) != 1 or lengths[0] == 0:
        raise InvalidArgumentError(
            "runs must have steps, and all of them equally many, got "
            f"{lengths or 'no run'}."
        )
    return found


def same_numbers(found: Sequence[Sequence[Step]]) -> list[int]:
    """Return the numbers of the steps, which all runs must share."""
    numbers = [step.number for step in found[0]]
    if any([step.number for step in steps] != numbers for steps in found):
        raise InvalidArgumentError("runs must have the same steps: these differ.")
    return numbers


def check_quantiles(quantiles: tuple[float, float]) -> None:
    """Raise unless they rise within [0, 1]."""
    low, high = quantiles
    if not 0 <= low <= high <= 1:
        raise InvalidArgumentError(
            f"quantiles must be two rising numbers within [0, 1], got {quantiles!r}."
        )


def draw_mean(
    ax: Any, x: Any, values: Any, quantiles: tuple[float, float], label: str | None
) -> Any:
    """Draw the mean over runs of ``R x T`` values, and a band if there are several."""
    (line,) = ax.plot(x, values.mean(axis=0), label=label)
    if len(values) > 1:
        low, high = np.quantile(values, quantiles, axis=0)
        ax.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    return line
