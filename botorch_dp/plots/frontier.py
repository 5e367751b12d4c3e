"""Plot of utility against privacy."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
import torch

from botorch_dp.exceptions import InvalidArgumentError, UnsupportedConversionError
from botorch_dp.plots._common import check_quantiles, draw_band, finish, get_axes
from botorch_dp.privacy.guarantees import GDP, ApproxDP, Guarantee, PureDP

# For each method and guarantee a sequence, array or tensor with one utility for each
# replication.
Utilities = Mapping[str, Mapping[Guarantee, Any]]


def plot_frontier(
    utilities: Utilities,
    *,
    delta: float | None = None,
    references: Mapping[str, float] | None = None,
    quantiles: tuple[float, float] = (0.0, 1.0),
    ax: Any = None,
) -> Any:
    """Draw the utility of results against their privacy guarantee.

    Each method has a line through the means of its replications, with a band, on a log
    scale of mu or epsilon. On private data every replication costs its own budget, so
    use public or synthetic data for such a plot.

    Args:
        utilities: Maps each method to its guarantees, and each guarantee to the
            utilities of its replications. **They must be public**: scores on public or
            synthetic data, or released scores, never the loss on private records.
        delta: Draws the epsilon that each guarantee implies at this delta, so that
            guarantees of different kinds share an axis. None draws mu of ``GDP``,
            epsilon of ``PureDP``, or epsilon of ``ApproxDP`` with one delta.
        references: Utilities that do not depend on a guarantee, e.g. of a method that
            is not private; drawn as horizontal lines.
        quantiles: The quantiles of the replications between which the band is drawn.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.

    Example:
        >>> from botorch_dp import GDP
        >>> found = {GDP(0.5): [0.7, 0.8], GDP(2.0): [0.85, 0.95]}
        >>> ax = plot_frontier({"private": found}, references={"not private": 0.95})
        >>> [line.get_label() for line in ax.get_lines()], ax.get_xlabel()
        (['private', 'not private'], 'mu')
    """
    check_quantiles(quantiles)
    if not utilities or not all(utilities.values()):
        raise InvalidArgumentError(
            "utilities must have at least one method, and each at least one guarantee, "
            f"got {utilities!r}."
        )
    curves = {
        name: sorted(
            (*_amount(guarantee, delta), _replications(name, guarantee, values))
            for guarantee, values in found.items()
        )
        for name, found in utilities.items()
    }
    units = sorted({unit for points in curves.values() for _, unit, _ in points})
    if len(units) > 1:
        raise InvalidArgumentError(
            "utilities must have guarantees of one kind (GDP, PureDP, or ApproxDP with "
            f"one delta), got {', '.join(units)}. Pass delta to draw epsilon for all."
        )
    ax = get_axes(ax, "plot_frontier")
    for name, points in curves.items():
        x = [amount for amount, _, _ in points]
        mean = [np.mean(values) for *_, values in points]
        (line,) = ax.plot(x, mean, marker="o", markersize=4, label=name)
        if any(len(values) > 1 for *_, values in points):
            band = [np.quantile(values, quantiles) for *_, values in points]
            draw_band(ax, x, zip(*band, strict=True), line)
    styles = cycle([":", "--", "-."])
    for name, value in (references or {}).items():
        ax.axhline(value, color="k", linewidth=1, linestyle=next(styles), label=name)
    ax.set_xscale("log")
    return finish(ax, units[0], "utility")


def _amount(guarantee: Any, delta: float | None) -> tuple[float, str]:
    """Return the number to draw for a guarantee, and its name."""
    if not isinstance(guarantee, Guarantee):
        raise InvalidArgumentError(
            "utilities must have guarantees as keys, such as GDP(mu=1.0), got "
            f"{guarantee!r}."
        )
    if delta is not None:
        try:
            guarantee = guarantee.to_approx(delta)
        except UnsupportedConversionError as error:
            raise InvalidArgumentError(f"delta is too small: {error}") from error
    if isinstance(guarantee, GDP):
        return guarantee.mu, "mu"
    if isinstance(guarantee, PureDP):
        return guarantee.epsilon, "epsilon"
    if isinstance(guarantee, ApproxDP):
        return guarantee.epsilon, f"epsilon at delta={guarantee.delta:.6g}"
    raise InvalidArgumentError(f"delta must be given to draw {guarantee!r}.")


def _replications(name: str, guarantee: Guarantee, values: Any) -> list[float]:
    utilities = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    if utilities.dim() != 1 or not len(utilities) or not utilities.isfinite().all():
        raise InvalidArgumentError(
            f"utilities of {name!r} at {guarantee!r} must be finite numbers, one for "
            f"each replication, got {values!r}."
        )
    return utilities.tolist()
