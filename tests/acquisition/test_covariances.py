"""Covariances of candidates: radial kernels in closed form against any kernel."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from botorch_dp.acquisition._covariances import PlainPoints, WhitenedPoints
from botorch_dp.models.kernels.radial import radial_kernel

CPU = torch.device("cpu")
N, P, D, B, Q = 5, 2, 3, 2, 4


@pytest.fixture(
    params=[RBFKernel, lambda **options: MaternKernel(nu=2.5, **options), RQKernel],
    ids=["rbf", "matern", "rq"],
)
def kernel(request):
    with CPU:
        kernel = ScaleKernel(request.param(ard_num_dims=D)).double()
        kernel.base_kernel.lengthscale = torch.linspace(0.4, 0.9, D)
        kernel.outputscale = 2.0
    return kernel


@pytest.fixture
def uniform(generator):
    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64, device=CPU)

    return draw


@pytest.mark.parametrize("q", [1, Q])
@pytest.mark.parametrize("p", [1, P])
@torch.no_grad()
def test_whitened_points_agree_with_plain_points(p, q, kernel, uniform):
    inputs, centers, Z = uniform(N, D), uniform(p, D), uniform(B * q, D)
    radial = radial_kernel(kernel, inputs)
    scale, inverse = radial.outputscale, radial.inverse_lengthscale
    whitened = WhitenedPoints(radial, inputs, centers).covariances(Z, q)
    plain = PlainPoints(kernel, inputs, centers).covariances(Z, q)
    # Units: the output scale, and the length scales for gradients.
    units = scale * torch.cat([inputs.new_ones(N), inverse.repeat(p)])
    assert torch.allclose(units * whitened.with_known, plain.with_known)
    among = (scale * whitened.among_candidates).expand(B, q, q)
    assert torch.allclose(among, plain.among_candidates)
    weights, M = uniform(B * q, N + p * D), uniform(B, q, q)
    found = whitened.pull_back(units * weights, scale * (M + M.mT)) * inverse
    assert torch.allclose(found, plain.pull_back(weights, M + M.mT))


def test_pull_back_is_half_of_the_gradient(kernel, uniform):
    inputs, centers, Z = uniform(N, D), uniform(P, D), uniform(B * Q, D)
    weights, M = uniform(B * Q, N + P * D), uniform(B, Q, Q)
    M = M + M.mT
    points = PlainPoints(kernel, inputs, centers)

    def value(Z):
        k = points.covariances(Z, Q)
        linear = (2 * weights * k.with_known).sum()
        return linear - (M * k.among_candidates).sum()

    with torch.no_grad():
        found = 2 * points.covariances(Z, Q).pull_back(weights, M)
        h = 1e-6
        for i, j in ((0, 0), (3, 1), (7, 2)):
            step = torch.zeros_like(Z)
            step[i, j] = h
            slope = (value(Z + step) - value(Z - step)) / (2 * h)
            assert torch.allclose(found[i, j], slope, rtol=1e-6)
