"""The prior of a model whose forward is more than a kernel."""

import pytest
import torch

from botorch_dp.models.prior_of_model import PriorOfModel
from tests.models.model_matrix import deep, make_model, plain, uniform

pytestmark = pytest.mark.default_device


def test_agreement():
    assert PriorOfModel.agrees_with_parts(make_model(plain, "none", (), 1).eval())
    assert not PriorOfModel.agrees_with_parts(make_model(deep, "none", (), 1).eval())


@torch.no_grad()
def test_covariances_by_hand():
    model = make_model(deep, "none", (), 1).eval()
    X1, X2 = uniform(3), uniform(2, seed=4)
    features = [torch.stack([X.sin().sum(-1), X.prod(-1)], -1) for X in (X1, X2)]
    prior = PriorOfModel(model)
    expected = model.covar_module(*features).to_dense()
    assert torch.allclose(prior.forward(X1, X2), expected)
    assert torch.equal(prior.prior_mean(X1), model.mean_module(features[0]))
    assert not list(prior.parameters())
