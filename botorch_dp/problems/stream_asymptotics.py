r"""The smallest asymptotic error of a parameter estimated from a stream.

The average of T iterates of stochastic gradient descent with noise of variance
:math:`s^2` on each gradient is asymptotically normal around the minimizer [Polyak1992]_
with covariance

.. math:: H^{-1} (S + s^2 I) H^{-1} / T, \qquad
    H = E\,\nabla^2 \ell(\theta^*), \quad S = E\,\nabla \ell \nabla \ell^\top(\theta^*).

For weighted losses of a linear predictor and standard normal covariates, H and S have
the form :math:`E\,[g(\|x\|^2)\, h(x^\top \theta^*)\, x x^\top]`, which this module
computes by quadrature in polar coordinates.

References:
    .. [Polyak1992] B. T. Polyak and A. B. Juditsky. Acceleration of Stochastic
        Approximation by Averaging. SIAM Journal on Control and Optimization, 1992.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from botorch_dp._validation import check_count, check_nonnegative
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems._stream_losses import MALLOWS_CONSTANT

Array = npt.NDArray[np.float64]

_NUM_NODES = 400
# A standard normal vector is longer than sqrt(p) + 12 with probability below 1e-31.
_TAIL = 12.0


def variance_floor(
    hessian: Tensor, covariance: Tensor, noise_std: float, num_steps: int
) -> float:
    r"""Return the smallest mean squared error per coordinate of an averaged estimate.

    It is :math:`\mathrm{tr}(H^{-1} (S + s^2 I) H^{-1}) / (p T)`. The average of
    stochastic gradient steps reaches it, and no choice of steps has a smaller error
    asymptotically. It can be far off for small T. Gradients that are changed by
    clipping, with less noise, have another floor and a bias.

    Args:
        hessian: The ``p x p`` Hessian H of the expected loss at the optimum.
        covariance: The ``p x p`` covariance S of a user's gradient there.
        noise_std: The standard deviation s of the noise on each coordinate.
        num_steps: The number of users T.

    Example:
        >>> eye = torch.eye(3, dtype=torch.float64)
        >>> variance_floor(0.5 * eye, eye, noise_std=2.0, num_steps=1000)
        0.02
    """
    size = hessian.shape[-1]
    if hessian.shape != (size, size) or covariance.shape != hessian.shape:
        raise InvalidArgumentError(
            "hessian and covariance must be p x p, got shapes "
            f"{tuple(hessian.shape)} and {tuple(covariance.shape)}."
        )
    variance = check_nonnegative("noise_std", noise_std) ** 2
    num_steps = check_count("num_steps", num_steps)
    noise = variance * torch.eye(size, dtype=hessian.dtype, device=hessian.device)
    inner = torch.linalg.solve(hessian, covariance + noise)
    sandwich = torch.linalg.solve(hessian, inner.mT)
    return float(sandwich.trace()) / (size * num_steps)


def mallows_power(power: int) -> Callable[[Array], Array]:
    """Return the function from ||x||^2 to a power of the Mallows weight."""

    def weight(squares: Array) -> Array:
        return (MALLOWS_CONSTANT / np.maximum(squares, MALLOWS_CONSTANT)) ** power

    return weight


def mean_square(weight: Callable[[Array], Array], dim: int) -> float:
    r"""Return a of :math:`E\,[g(\|x\|^2)\, x x^\top] = a I`, x standard normal.

    Args:
        weight: The function g.
        dim: The length p of x.
    """
    squares, chances = _radial_rule(dim)
    return float(chances @ (weight(squares) * squares)) / dim


def mean_outer_product(
    weight: Callable[[Array], Array], link: Callable[[Array], Array], theta: Tensor
) -> Tensor:
    r"""Return :math:`E\,[g(\|x\|^2)\, h(x^\top \theta)\, x x^\top]`, x standard normal.

    With t the direction of :math:`\theta` it is :math:`a\, t t^\top + b (I - t t^\top)`
    by symmetry; a and b are integrals over the length of x and its angle to t.

    Args:
        weight: The function g.
        link: The function h, even.
        theta: A ``p`` tensor.

    Returns:
        A ``p x p`` tensor in double precision.
    """
    theta = theta.double()
    dim, length = len(theta), float(theta.norm())
    squares, chances = _radial_rule(dim)
    cosines, shares = _angular_rule(dim)
    predictors = length * np.sqrt(squares)[:, None] * cosines  # radii x angles
    radial = chances * weight(squares) * squares
    joint = radial[:, None] * shares * link(predictors)
    along = float((joint * cosines**2).sum())
    across = float((joint * (1 - cosines**2)).sum()) / max(dim - 1, 1)
    eye = torch.eye(dim, dtype=theta.dtype, device=theta.device)
    if length == 0.0:  # no direction: along and across are equal
        return along * eye
    direction = theta / length
    return across * eye + (along - across) * torch.outer(direction, direction)


def _radial_rule(dim: int) -> tuple[Array, Array]:
    """Return squared lengths of a standard normal vector and their probabilities."""
    # Two pieces, because the Mallows weight has a kink.
    kink = math.sqrt(MALLOWS_CONSTANT)
    nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
    pieces = [(0.0, kink), (kink, kink + math.sqrt(dim) + _TAIL)]
    radii = np.concatenate([a + (b - a) * (nodes + 1) / 2 for a, b in pieces])
    widths = np.concatenate([(b - a) * weights / 2 for a, b in pieces])
    log_density = (dim - 1) * np.log(radii) - radii**2 / 2
    chances = widths * np.exp(log_density - log_density.max())
    return radii**2, chances / chances.sum()


def _angular_rule(dim: int) -> tuple[Array, Array]:
    """Return cosines, 0 to 1, of the angle to a fixed axis and their probabilities."""
    if dim == 1:
        return np.ones(1), np.ones(1)
    nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
    angles = (nodes + 1) * math.pi / 4
    shares = weights * np.sin(angles) ** (dim - 2)
    return np.cos(angles), shares / shares.sum()
