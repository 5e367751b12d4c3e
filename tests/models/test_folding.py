"""Standardize becomes part of the mean, the kernel and the noise."""

import pytest
import torch

from botorch_dp.models.folding import AffineMean, folded_parts, make_likelihood
from botorch_dp.models.kernels.derivatives import kernel_value
from tests.devices import DEVICE
from tests.models.model_matrix import (
    data,
    fixed_noise,
    linear_mean,
    make_model,
    single_task,
)

pytestmark = pytest.mark.default_device


def test_parts_are_in_original_units():
    X, Y = data(outputs=2)
    model = make_model(fixed_noise, "none", (), 2)
    parts = folded_parts(model)
    assert torch.equal(parts.train_X, X)
    assert torch.allclose(parts.train_Y, Y)
    assert torch.allclose(parts.likelihood.noise.mT, 0.01 + 0.1 * Y.square())
    variances = kernel_value(parts.covar_module, X[:1], X[:1]).flatten()
    assert torch.allclose(variances, Y.var(dim=0))


def test_means():
    X, Y = data()
    parts = folded_parts(make_model(single_task, "none", (), 1))
    assert torch.allclose(parts.mean_module(X), Y.mean())
    model = make_model(linear_mean, "none", (), 1)
    mean = folded_parts(model).mean_module
    assert isinstance(mean, AffineMean)
    expected = model.mean_module(X) * Y.std() + Y.mean()
    assert torch.allclose(mean(X), expected)


def test_transforms_no_longer_learn():
    model = make_model(single_task, "normalize", (), 1)
    frozen = folded_parts(model).input_transform
    before = frozen.coefficient.clone()
    with DEVICE:
        frozen.train()(100 * data()[0])
    assert torch.equal(frozen.coefficient, before)
    assert model.input_transform.learn_coefficients


def test_one_noise_level_or_several():
    noise = torch.tensor([1e-9, 1e-9], dtype=torch.float64, device=DEVICE)
    assert make_likelihood(noise).noise.shape == (1,)
    noise = torch.tensor([1e-9, 0.1], dtype=torch.float64, device=DEVICE)
    assert torch.equal(make_likelihood(noise).noise, noise)  # not rounded up
