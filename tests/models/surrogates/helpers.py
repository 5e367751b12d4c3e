"""Kernels and posteriors from scratch, to compare surrogates with."""

import torch
from gpytorch.kernels import (
    RBFKernel,
    ScaleKernel,
)

from botorch_dp.models import (
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from tests.devices import DEVICE

NOISE = 1e-4
RADII = (0.05, 0.1, 0.2, 0.4, 0.8)


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device=DEVICE)


def make_kernel(base=RBFKernel, **kwargs):
    with DEVICE:
        kernel = ScaleKernel(base(**kwargs)).double()
        if kernel.base_kernel.has_lengthscale:
            kernel.base_kernel.lengthscale = 1.3
        kernel.outputscale = 2.0
    return kernel.requires_grad_(False)


def posterior(kernel, points, x, noise):
    """Weights and covariance of the gradient at x, from scratch."""
    prior = prior_gradient_covariance(kernel, x.unsqueeze(0)).squeeze(0)
    if not len(points):
        return x.new_zeros(len(x), 0), prior
    C = kernel_gradient(kernel, x.unsqueeze(0), points).squeeze(0).mT
    eye = torch.eye(len(points), dtype=x.dtype, device=DEVICE)
    K = kernel_value(kernel, points, points) + noise * eye
    W = torch.linalg.solve(K, C.mT).mT
    return W, prior - W @ C.mT


def distance(covariance1, covariance2, directions):
    """SW_2 of the definition, one direction at a time."""
    total = 0.0
    for u in directions:
        total += float((u @ covariance1 @ u).sqrt() - (u @ covariance2 @ u).sqrt()) ** 2
    return (total / len(directions)) ** 0.5


def without(points, j):
    return torch.cat([points[:j], points[j + 1 :]])


def greedy(points, score, budget):
    """Algorithm 2, lines 3 to 12, with line 10 repaired: leave out, one by one."""
    while len(points) > 1:
        scores = [score(without(points, j)) for j in range(len(points))]
        if min(scores) > budget:
            break
        points = without(points, scores.index(min(scores)))
    return points
