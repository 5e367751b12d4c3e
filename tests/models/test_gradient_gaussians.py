"""A Gaussian over gradients, as BoTorch's samplers use it."""

import pytest
import torch
from botorch.sampling import SobolQMCNormalSampler

from botorch_dp.models import GradientGP, GradientPosterior
from tests.devices import DEVICE


@pytest.fixture
def model(generator, double):
    X = torch.rand(15, 3, generator=generator, **double)
    Y = (X.sin() * torch.arange(1, 4, device=DEVICE)).sum(dim=-1, keepdim=True)
    return GradientGP(X, Y, noise_variance=1e-2)


@pytest.fixture
def x(generator, double):
    return torch.rand(4, 3, generator=generator, **double)


def test_moments(generator, tkwargs):
    mean = torch.zeros(2, 3, **tkwargs)
    covariance = torch.eye(3, **tkwargs).expand(2, 3, 3) * 4.0
    posterior = GradientPosterior(mean, covariance)
    assert posterior.mean is mean
    assert posterior.covariance is covariance
    assert torch.equal(posterior.variance, torch.full((2, 3), 4.0, **tkwargs))
    assert posterior.dtype == tkwargs["dtype"]
    assert posterior.device == DEVICE
    assert posterior.base_sample_shape == (2, 3)
    assert posterior.batch_range == (0, -2)


def test_samples_have_the_posterior_moments(model, x):
    # 16,384 Sobol samples: moments to a per cent of the standard deviation.
    posterior = model.gradient_posterior(x)
    sampler = SobolQMCNormalSampler(torch.Size([16_384]), seed=1)
    with DEVICE:
        samples = sampler(posterior)
    assert samples.shape == (16_384, 4, 3)
    scale = posterior.variance.max().sqrt()
    assert (samples.mean(dim=0) - posterior.mean).abs().max() < 0.02 * scale
    centred = samples - posterior.mean
    found = torch.einsum("sqa,sqb->qab", centred, centred) / len(samples)
    assert (found - posterior.covariance).abs().max() < 0.02 * scale**2


def test_samples_are_differentiable_in_the_point(model, x):
    at = x.clone().requires_grad_()
    posterior = model.gradient_posterior(at)
    assert posterior.rsample().shape == (1, 4, 3)
    samples = posterior.rsample(torch.Size([7]))
    assert samples.shape == posterior._extended_shape(torch.Size([7]))
    (gradient,) = torch.autograd.grad(samples.sum(), at)
    assert gradient.isfinite().all()


def test_base_samples_give_the_samples(model, x, double):
    posterior = model.gradient_posterior(x)
    zeros = torch.zeros(2, 4, 3, **double)
    samples = posterior.rsample_from_base_samples(torch.Size([2]), zeros)
    assert torch.equal(samples, posterior.mean.expand(2, 4, 3))
