"""A posterior updated point by point equals one from scratch."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import CandidatePosterior
from tests.devices import DEVICE


@pytest.fixture
def kernel():
    with DEVICE:
        kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
        kernel.lengthscale = 0.4
    return kernel


@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-8])
def test_equals_a_fresh_posterior(kernel, generator, double, noise):
    X = torch.rand(200, 3, generator=generator, **double)
    posterior = CandidatePosterior(kernel, X, noise_variance=noise, max_observations=30)
    chosen = torch.randint(200, (30,), generator=generator, device=DEVICE).tolist()
    chosen[5] = chosen[3]  # one point twice
    values = torch.randn(30, generator=generator, **double)
    for index, value in zip(chosen, values, strict=True):
        posterior.observe(index, value)
    D = X[chosen]
    K = kernel(D).to_dense() + noise * torch.eye(30, **double)
    cross = kernel(X, D).to_dense()
    mean = cross @ torch.linalg.solve(K, values)
    variance = 1 - (cross * torch.linalg.solve(K, cross.mT).mT).sum(dim=-1)
    scale = float(mean.abs().max())
    assert torch.allclose(posterior.mean, mean, atol=1e-6 * scale)
    assert torch.allclose(posterior.variance, variance, atol=1e-8)


def test_variances_do_not_depend_on_values(kernel, generator, double):
    X = torch.rand(50, 2, generator=generator, **double)
    found = []
    for scale in (1.0, -100.0):
        posterior = CandidatePosterior(
            kernel, X, noise_variance=1e-4, max_observations=5
        )
        for index in range(5):
            posterior.observe(index, scale * index)
        found.append(posterior.variance)
    assert torch.equal(*found)


def test_full(kernel, double):
    X = torch.zeros(3, 1, **double)
    posterior = CandidatePosterior(kernel, X, noise_variance=1e-4, max_observations=1)
    posterior.observe(0, 1.0)
    with pytest.raises(InvalidArgumentError, match="max_observations"):
        posterior.observe(1, 1.0)


def test_bad_candidates(double):
    with DEVICE:
        kernel = RBFKernel()
    with pytest.raises(InvalidArgumentError, match=r"candidates must be .* N x d"):
        CandidatePosterior(
            kernel, torch.zeros(3, **double), noise_variance=1e-4, max_observations=1
        )


def test_root_of_the_covariance(kernel, generator, double):
    X = torch.rand(12, 2, generator=generator, **double)
    posterior = CandidatePosterior(kernel, X, noise_variance=0.05, max_observations=2)
    D = [2, 7]
    for index in D:
        posterior.observe(index, 1.0)
    among = torch.tensor([0, 3, 4, 11, 3], device=DEVICE)  # one twice: singular
    root = posterior.covariance_root(among)
    K = kernel(X[D]).to_dense() + 0.05 * torch.eye(2, **double)
    cross = kernel(X[among], X[D]).to_dense()
    exact = kernel(X[among]).to_dense() - cross @ torch.linalg.solve(K, cross.mT)
    assert torch.allclose(root @ root.mT, exact, atol=1e-12)
