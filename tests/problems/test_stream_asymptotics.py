"""Asymptotic variances, against brute force and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import (
    LinearStream,
    LogisticStream,
    ReLUStream,
    variance_floor,
)
from botorch_dp.problems.stream_asymptotics import (
    mallows_power,
    mean_outer_product,
    mean_square,
)

THETAS = {1: [0.7], 2: [1.0, -2.0], 3: [1.0, 1.0, 1.0], 5: [0.0] * 5}


def monte_carlo(stream, num_users):
    """H and S from gradients of many users, with standard errors."""
    stream.chunk_size = 1
    p, n = stream.dim, num_users
    at = stream.optimal_x.expand(n, p)
    gradients = stream.gradients(1, at)
    products = gradients.unsqueeze(-1) * gradients.unsqueeze(-2)  # n x p x p
    # The Hessian of a user's loss, by autograd.
    x = at.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        stream.losses(1, x.unsqueeze(1)).sum(), x, create_graph=True
    )
    columns = [
        torch.autograd.grad(slope[:, j].sum(), x, retain_graph=True)[0]
        for j in range(p)
    ]
    hessians = torch.stack(columns, dim=-1)
    return [(v.mean(dim=0), v.std(dim=0) / n**0.5) for v in (hessians, products)]


@pytest.mark.parametrize("mallows", [True, False])
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kind", [LinearStream, LogisticStream, ReLUStream])
def test_against_monte_carlo(kind, dim, mallows, double):
    options = {"theta": THETAS[dim], "mallows": mallows, **double}
    n = 100_000
    sampled = monte_carlo(kind(dim, num_replications=n, seed=4, **options), n)
    for matrix, (mean, error) in zip(
        kind(dim, **options).asymptotics(), sampled, strict=True
    ):
        assert matrix.shape == (dim, dim)
        assert ((matrix - mean).abs() <= 4.5 * error + 1e-15).all()
        # The sample is large enough to tell: errors are small.
        assert error.max() < 0.03 * max(float(mean.abs().max()), 1e-9)


@pytest.mark.parametrize("c", [0.4, 2.0])
def test_huber_constant(c, double):
    n = 100_000
    sampled = monte_carlo(LinearStream(2, c=c, num_replications=n, **double), n)
    for matrix, (mean, error) in zip(
        LinearStream(2, c=c, **double).asymptotics(), sampled, strict=True
    ):
        assert ((matrix - mean).abs() <= 4.5 * error).all()


@pytest.mark.parametrize("dim", [3, 5, 20, 100])
def test_isotropic_means_in_closed_form(dim):
    # E min(r^2, 2) and E min(r^2, 4 / r^2) by partial moments of chi-square laws.
    below = dim * chi2.cdf(2, dim + 2)
    first = below + 2 * chi2.sf(2, dim)
    second = below + 4 * chi2.sf(2, dim - 2) / (dim - 2)
    assert mean_square(mallows_power(1), dim) == pytest.approx(first / dim, rel=1e-10)
    assert mean_square(mallows_power(2), dim) == pytest.approx(second / dim, rel=1e-10)
    assert mean_square(mallows_power(0), dim) == pytest.approx(1.0, rel=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 3, 20])
def test_outer_product_in_closed_form(dim, double):
    # E cos(x theta) x x^T = exp(-|theta|^2 / 2) (I - theta theta^T).
    theta = torch.linspace(-0.3, 0.8, dim, **double)
    found = mean_outer_product(mallows_power(0), np.cos, theta)
    eye = torch.eye(dim, **double)
    factor = math.exp(-float(theta @ theta) / 2)
    expected = factor * (eye - torch.outer(theta, theta))
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    # At zero the link is a constant.
    zero = mean_outer_product(mallows_power(1), np.cos, torch.zeros(dim, **double))
    expected = mean_square(mallows_power(1), dim) * eye
    assert torch.allclose(zero, expected, rtol=1e-10, atol=1e-12)


def test_logistic_at_zero_and_dtype(tkwargs):
    stream = LogisticStream(5, theta=THETAS[5], **tkwargs)
    hessian, covariance = stream.asymptotics()
    assert hessian.dtype == covariance.dtype == tkwargs["dtype"]
    eye = torch.eye(5, **tkwargs)
    for matrix, power in ((hessian, 1), (covariance, 2)):
        assert torch.allclose(matrix, mean_square(mallows_power(power), 5) / 4 * eye)


def test_floor_is_reached(double):
    """By averaged gradient descent with noise, about: the claim behind the name."""
    stream = LinearStream(2, num_replications=400, **double)
    generator = torch.Generator(device="cpu").manual_seed(0)
    noise_std, num_steps = 0.5, 3000
    x = stream.optimal_x.expand(400, 2).clone()
    mean = torch.zeros_like(x)
    for step in range(1, num_steps + 1):
        noise = torch.randn(400, 2, generator=generator, **double)
        x -= step**-0.6 * (stream.gradients(step, x) + noise_std * noise)
        mean += (x - mean) / step
    error = float((mean - stream.optimal_x).square().mean())
    floor = variance_floor(*stream.asymptotics(), noise_std, num_steps)
    assert 0.85 < error / floor < 1.3


def test_variance_floor(double):
    generator = torch.Generator(device="cpu").manual_seed(0)
    a, b = torch.randn(2, 3, 3, generator=generator, **double)
    hessian, covariance = a @ a.T + torch.eye(3, **double), b @ b.T
    inverse = hessian.inverse()
    middle = covariance + 0.49 * torch.eye(3, **double)
    expected = float((inverse @ middle @ inverse).trace()) / (3 * 50)
    found = variance_floor(hessian, covariance, noise_std=0.7, num_steps=50)
    assert found == pytest.approx(expected, rel=1e-12)


def test_rejects(double):
    eye = torch.eye(2, **double)
    for bad in (eye[:1], torch.eye(3, **double)):
        with pytest.raises(InvalidArgumentError, match="must be p x p"):
            variance_floor(eye, bad, 0.0, 10)
        with pytest.raises(InvalidArgumentError, match="must be p x p"):
            variance_floor(bad, eye, 0.0, 10)
    with pytest.raises(InvalidArgumentError, match="noise_std"):
        variance_floor(eye, eye, -1.0, 10)
    with pytest.raises(InvalidArgumentError, match="num_steps"):
        variance_floor(eye, eye, 1.0, 0)
