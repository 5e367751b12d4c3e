"""One factorization of any exact model, and single kernels of a batch."""

import pytest
import torch

from botorch_dp.models.kernels.derivatives import kernel_value
from botorch_dp.models.latent_gp import candidate_noise, latent_gp, member
from tests.models.model_matrix import (
    additive_map_saas,
    fixed_noise,
    make_model,
    matern,
    mixed,
    plain,
    uniform,
)

pytestmark = pytest.mark.default_device


@pytest.mark.parametrize("make", [matern, mixed])
def test_a_member_is_one_kernel_of_the_batch(make):
    kernel = make_model(make, "none", (2,), 2).covar_module
    with torch.no_grad():
        for parameter in kernel.parameters():
            steps = torch.arange(parameter.numel(), device=parameter.device)
            parameter += 0.01 * steps.view(parameter.shape)
    X = uniform(4)
    every = kernel_value(kernel, X, X)
    for i in range(2):
        for j in range(2):
            one = member(kernel, (i, j))
            assert torch.allclose(kernel_value(one, X, X), every[i, j])
            assert one.batch_shape == ()


def test_a_kernel_without_batch_is_its_own_member():
    kernel = make_model(additive_map_saas, "normalize", (), 1).covar_module
    X = uniform(4)
    assert torch.equal(
        kernel_value(member(kernel, (3,)), X, X), kernel_value(kernel, X, X)
    )


def test_noise():
    known = latent_gp(model := make_model(fixed_noise, "none", (), 1))
    assert torch.equal(known.noise, model.likelihood.noise)
    assert torch.equal(candidate_noise(model, known), known.noise.mean())
    K = kernel_value(model.covar_module, known.inputs, known.inputs)
    assert torch.allclose(known.root @ known.root.mT, K + known.noise.diag())


def test_the_factorization_is_kept_without_gradients():
    model = make_model(plain, "none", (), 1)
    with torch.no_grad():
        assert latent_gp(model).root is latent_gp(model).root
    assert latent_gp(model).root.requires_grad  # in the hyperparameters
    model.requires_grad_(False)
    assert latent_gp(model).root is latent_gp(model).root
