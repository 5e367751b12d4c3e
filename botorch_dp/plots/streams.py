"""Plots of a parameter learned from a stream, and of its dictionary."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.plots._common import (
    Runs,
    check_quantiles,
    draw_coordinates,
    draw_mean,
    finish,
    get_axes,
    histories_of,
    same_numbers,
)

# A true parameter, or a function from a step to it.
Truth = Tensor | Callable[[int], Tensor]


def plot_stream(
    runs: Runs,
    truth: Truth | None = None,
    *,
    coordinate: int | None = None,
    quantiles: tuple[float, float] = (0.0, 1.0),
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw a parameter learned from a stream of users, or its error.

    With a truth and no coordinate, this draws the mean squared error per coordinate on
    a log scale. Otherwise it draws one or all coordinates of the parameter, and the
    truth as a dotted line. Replications are drawn as their mean and a band.

    Args:
        runs: A result, an optimizer or a history whose points are ``p`` or
            ``R x p`` tensors, such as those of :class:`LDPBO`. Several with the same
            steps are further replications. The steps of a custom history, e.g. of
            averages, need a ``number`` and an ``x``.
        truth: The true parameter, a ``p`` tensor, or a function from the number of a
            user to it, such as ``optimal_x_at`` of a problem. **It must be public**,
            as it is for generated data only.
        coordinate: The index of the coordinate to draw.
        quantiles: The quantiles of the replications between which the band is drawn.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.
    """
    histories = histories_of(runs)
    check_quantiles(quantiles)
    users = same_numbers(histories)
    paths = torch.cat([_replications(steps) for steps in histories])  # R x T x p
    dim = paths.shape[-1]
    if coordinate is not None and coordinate not in range(dim):
        raise InvalidArgumentError(
            f"coordinate must be one of 0, ..., {dim - 1}, got {coordinate!r}."
        )
    true = None if truth is None else _truth(truth, users, dim)  # T x p
    ax = get_axes(ax, "plot_stream")
    if true is not None and coordinate is None:
        errors = (paths - true).square().mean(dim=-1)
        draw_mean(ax, users, errors.numpy(), quantiles, label)
        ax.set_yscale("log")
        return finish(ax, "users", "mean squared error", legend=label is not None)
    draw_coordinates(ax, users, paths.numpy(), quantiles, label, coordinate)
    if true is not None:
        ax.plot(users, true[:, coordinate], color="k", linestyle=":", label="truth")
    return finish(ax, "users", "parameter")


def plot_dictionary_size(
    runs: Runs,
    *,
    quantiles: tuple[float, float] = (0.0, 1.0),
    label: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the number of points in the dictionary of a stream over the users.

    The dictionary is public, because it depends only on released messages. Replications
    are drawn as their mean and a band.

    Args:
        runs: A result, an optimizer or a history of :class:`LDPBO` with
            ``mode="swc"``, ``"swc-literal"`` or a custom surrogate. Several with the
            same steps are further replications.
        quantiles: The quantiles of the replications between which the band is drawn.
        label: The name of the runs in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.

    Example:
        >>> from botorch_dp import GDP, LDPBO
        >>> from botorch_dp.problems import LinearStream
        >>> stream = LinearStream(2)
        >>> opt = LDPBO(stream.initial_x, GDP(1.0), stream.gradient_bound, mode="swc")
        >>> result = opt.run(stream, 20, progress=False)
        >>> (line,) = plot_dictionary_size(result).get_lines()
        >>> len(line.get_xdata())
        20
    """
    histories = histories_of(runs)
    check_quantiles(quantiles)
    users = same_numbers(histories)
    sizes = [[step.num_points for step in steps] for steps in histories]
    if any(size is None for row in sizes for size in row):
        raise InvalidArgumentError(
            "runs must have a dictionary, as with LDPBO(..., mode='swc'), but their "
            "history has no num_points."
        )
    counts = np.concatenate([np.array(row).T for row in sizes])  # R x T
    ax = get_axes(ax, "plot_dictionary_size")
    draw_mean(ax, users, counts, quantiles, label)
    ax.locator_params(axis="y", integer=True)
    return finish(ax, "users", "points kept", legend=label is not None)


def _replications(steps: Sequence[Step]) -> Tensor:
    """Return the points of a run of R replications, ``R x T x p``."""
    points = [step.x.detach().cpu().double() for step in steps]
    return torch.stack([x.reshape(-1, x.shape[-1]) for x in points], dim=1)


def _truth(truth: Truth, users: list[int], dim: int) -> Tensor:
    """Return the true parameter at each of T steps, ``T x p``."""
    rows = [truth if isinstance(truth, Tensor) else truth(user) for user in users]
    for row in rows:
        if row.shape != (dim,):
            raise InvalidArgumentError(
                f"truth must have shape ({dim},), as the parameter, got "
                f"{tuple(row.shape)}."
            )
    return torch.stack(rows).detach().cpu().double()
