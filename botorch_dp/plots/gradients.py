"""Plot of the posterior of a gradient in the plane."""

import math
from typing import Any

import torch
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp._imports import import_extra
from botorch_dp._validation import check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.gradients import gradient_posterior
from botorch_dp.plots._common import finish, get_axes


@torch.no_grad()
def plot_gradient_posterior(
    model: ExactGP,
    X: Tensor,
    *,
    num_std: float = 1.0,
    scale: float | None = None,
    color: Any = "C0",
    label: str | None = None,
    ax: Any = None,
) -> Any:
    r"""Draw the posterior of the gradient at points of the plane.

    An arrow from each point is the mean. An ellipse around its tip is the uncertainty:
    the set of g with :math:`(g - \mu')^\top \Sigma'^{-1} (g - \mu')` at most
    ``num_std`` squared, at the scale of the arrows. One standard deviation contains
    39 % of a Gaussian in the plane, and two contain 86 %.

    Args:
        model: Any exact model with one output. **Its targets must be public** or
            released by a mechanism, because the arrows depend on them. Never use a
            model of private losses.
        X: A ``q x 2`` tensor of points, with the dtype and device of the model.
        num_std: The size of the ellipses in standard deviations.
        scale: The length on the axes of a gradient of length one. By default, nothing
            reaches farther than the distance between the two nearest points.
        color: The color of arrows and ellipses.
        label: The name of the arrows in the legend.
        ax: The matplotlib axes to draw on; None makes new ones.

    Returns:
        The axes.

    Example:
        >>> from botorch_dp import GradientGP
        >>> X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).double()
        >>> model = GradientGP(X, X.sum(dim=-1, keepdim=True))
        >>> ax = plot_gradient_posterior(model, X, scale=0.2)
        >>> len(ax.patches)  # an ellipse for each point
        3
    """
    num_std = check_positive("num_std", num_std)
    posterior = gradient_posterior(model, X)
    if posterior.mean.shape != X.shape or X.dim() != 2 or X.shape[-1] != 2:
        raise InvalidArgumentError(
            "X must be a q x 2 tensor, and model must have one output and no batch "
            f"dimensions, got X of shape {tuple(X.shape)} and gradients of shape "
            f"{tuple(posterior.mean.shape)}."
        )
    values, vectors = torch.linalg.eigh(posterior.covariance)
    radii = num_std * values.clamp(min=0.0).sqrt()  # q x 2, ascending
    mean = posterior.mean
    if scale is None:
        reach = float((mean.norm(dim=-1) + radii[:, 1]).max())
        scale = _least_distance(X) / reach if reach > 0 else 1.0
    scale = check_positive("scale", scale)
    ax = get_axes(ax, "plot_gradient_posterior")
    ax.quiver(
        *X.mT.cpu().numpy(),
        *mean.mT.cpu().numpy(),
        angles="xy",
        scale_units="xy",
        scale=1.0 / scale,
        color=color,
        width=0.005,
        zorder=3,
        label=label,
    )
    patches = import_extra(
        "matplotlib.patches", extra="plots", purpose="plot_gradient_posterior"
    )
    tips = (X + scale * mean).tolist()
    for tip, radius, axis in zip(tips, radii.tolist(), vectors.tolist(), strict=True):
        ellipse = patches.Ellipse(
            tip,
            width=2 * scale * radius[1],
            height=2 * scale * radius[0],
            angle=math.degrees(math.atan2(axis[1][1], axis[0][1])),  # of the major axis
            edgecolor=color,
            facecolor="none",
            zorder=3,
        )
        ax.add_patch(ellipse)
    ax.autoscale_view()
    return finish(ax, "$x_1$", "$x_2$", legend=label is not None)


def _least_distance(X: Tensor) -> float:
    """Return the smallest distance between different points, or 1 if there are none."""
    distances = torch.pdist(X)
    distances = distances[distances > 0]
    return float(distances.min()) if len(distances) else 1.0
