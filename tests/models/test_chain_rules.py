"""Jacobians of input transforms, scales of outcome transforms."""

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Standardize

from botorch_dp.models.chain_rules import (
    outcome_scale,
    outcome_shift,
    transform_points,
)
from tests.devices import DEVICE
from tests.models.model_matrix import D, data, make_model, single_task, uniform

pytestmark = pytest.mark.default_device


@pytest.mark.parametrize("transform", ["normalize", "warp", "filter"])
def test_jacobians_by_differences(transform):
    model = make_model(single_task, transform, (), 1).eval()
    X, h = uniform(2, 4, seed=9), 1e-6
    Z, jacobian = transform_points(model, X, torch.Size())
    assert torch.equal(Z, model.transform_inputs(X))
    for i in range(D):
        step = torch.zeros(D, dtype=X.dtype, device=X.device)
        step[i] = h
        moved = model.transform_inputs(X + step) - model.transform_inputs(X - step)
        assert torch.allclose(jacobian[..., i], moved / (2 * h), atol=1e-7)
    assert not Z.requires_grad
    assert transform_points(model, X.requires_grad_(), torch.Size())[0].requires_grad


def test_without_a_transform():
    model = make_model(single_task, "none", (), 1).eval()
    X = uniform(2)
    assert transform_points(model, X, torch.Size()) == (X, None)


def test_scale_and_shift_of_a_chain():
    X, Y = data(outputs=2)
    with DEVICE:
        chain = ChainedOutcomeTransform(a=Standardize(2), b=Standardize(2))
        model = SingleTaskGP(X, 5 + 3 * Y, outcome_transform=chain)
    scale, shift = outcome_scale(model), outcome_shift(model)
    assert scale.shape == shift.shape == (2, 1, 1)
    untransformed = model.train_targets * scale[..., 0] + shift[..., 0]
    assert torch.allclose(untransformed.mT, 5 + 3 * Y)
