"""What is drawn of a gradient's posterior: arrows and ellipses."""

import math

import matplotlib as mpl
import numpy as np
import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientGP
from botorch_dp.plots import plot_gradient_posterior


@pytest.fixture
def points(tkwargs):
    return torch.tensor([[0.1, 0.2], [0.7, 0.4], [0.4, 0.9]], **tkwargs)


@pytest.fixture
def model(points):
    X = torch.cat([points, points + 0.15])
    return GradientGP(X, X[:, :1] - 2.0 * X[:, 1:], noise_variance=1e-3)


def boundary_of(ellipse, num=90):
    """Points on the ellipse, from its centre, axes and angle."""
    turn = np.linspace(0, 2 * np.pi, num)
    along = ellipse.width / 2 * np.cos(turn), ellipse.height / 2 * np.sin(turn)
    angle = math.radians(ellipse.angle)
    x = along[0] * math.cos(angle) - along[1] * math.sin(angle)
    y = along[0] * math.sin(angle) + along[1] * math.cos(angle)
    return np.stack([x + ellipse.center[0], y + ellipse.center[1]], axis=-1)


def test_arrows_and_ellipses(model, points):
    _, given = mpl.pyplot.subplots()
    scale, num_std = 0.3, 2.0
    ax = plot_gradient_posterior(
        model, points, scale=scale, num_std=num_std, label="mean", ax=given
    )
    assert ax is given
    posterior = model.gradient_posterior(points)
    (arrows,) = ax.collections
    assert np.allclose(arrows.get_offsets(), points)
    assert np.allclose(np.stack([arrows.U, arrows.V], -1), posterior.mean)
    assert arrows.scale == pytest.approx(1 / scale)
    assert (arrows.angles, arrows.scale_units) == ("xy", "xy")
    assert len(ax.patches) == len(points)
    for x, mean, covariance, ellipse in zip(
        points, posterior.mean, posterior.covariance, ax.patches, strict=True
    ):
        # In units of the gradient, every point of it is num_std deviations off.
        gradients = (boundary_of(ellipse) - x.numpy()) / scale
        off = torch.from_numpy(gradients) - mean.double()
        solved = torch.linalg.solve(covariance.double(), off.mT).mT
        assert torch.allclose(
            (off * solved).sum(dim=-1),
            torch.full((90,), num_std**2, dtype=torch.float64, device="cpu"),
            rtol=1e-3,
        )
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["mean"]


def test_widths_in_closed_form(tkwargs):
    # Nothing is known: the prior of an RBF kernel, 1 / lengthscale^2 = 4 a derivative.
    X = torch.full((1, 2), 0.5, **tkwargs)
    blank = GradientGP(X[:0], X[:0, :1])
    ax = plot_gradient_posterior(blank, X, scale=0.1)
    (ellipse,) = ax.patches
    assert (ellipse.width, ellipse.height) == pytest.approx((0.4, 0.4))
    assert ellipse.center == pytest.approx((0.5, 0.5))
    assert ax.get_legend() is None


def test_default_scale_keeps_to_the_nearest_distance(model, points):
    ax = plot_gradient_posterior(model, points)
    nearest = float(torch.pdist(points).min())
    reach = [
        float(np.linalg.norm(boundary_of(ellipse) - x.numpy(), axis=-1).max())
        for x, ellipse in zip(points, ax.patches, strict=True)
    ]
    # An upper bound of each is exact for the farthest, up to the ellipse's direction.
    assert 0.5 * nearest < max(reach) <= nearest * (1 + 1e-5)
    alone = plot_gradient_posterior(model, points[:1])
    (ellipse,) = alone.patches
    length = np.linalg.norm(np.array(ellipse.center) - points[0].numpy())
    assert length + ellipse.width / 2 == pytest.approx(1.0, rel=1e-4)


def test_everything_is_within_the_limits(model, points):
    ax = plot_gradient_posterior(model, points, scale=0.5)
    drawn = np.concatenate([boundary_of(ellipse) for ellipse in ax.patches])
    for values, (low, high) in zip(
        drawn.T, (ax.get_xlim(), ax.get_ylim()), strict=True
    ):
        assert low <= values.min() < values.max() <= high


def test_bad_input(model, points, tkwargs):
    with pytest.raises(InvalidArgumentError, match="must be an exact Gaussian"):
        plot_gradient_posterior(torch.nn.Identity(), points)
    for name in ("num_std", "scale"):
        with pytest.raises(InvalidArgumentError, match=f"{name} must be"):
            plot_gradient_posterior(model, points, **{name: 0.0})
    with pytest.raises(InvalidArgumentError, match="X must be a q x 2 tensor"):
        plot_gradient_posterior(model, points.unsqueeze(0))
    with pytest.raises(
        InvalidArgumentError, match=r"X must be .* shape \.\.\. x q x 2"
    ):
        plot_gradient_posterior(model, points[0])
    cube = torch.zeros(4, 3, **tkwargs)
    in_space = GradientGP(cube, cube[:, :1])
    with pytest.raises(InvalidArgumentError, match="one output and no batch"):
        plot_gradient_posterior(in_space, cube)
    batch = GradientGP(points.expand(2, 3, 2), points[:, :1].expand(2, 3, 1))
    with pytest.raises(InvalidArgumentError, match=r"gradients of shape \(2, 3, 2\)"):
        plot_gradient_posterior(batch, points)
