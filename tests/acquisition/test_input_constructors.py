"""BoTorch's registry makes the acquisition functions of this library."""

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError

from botorch_dp.acquisition import GradientInformation, PrivateUpperConfidenceBound
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientGP

SETTING = {"step": 4, "num_candidates": 200, "delta": 0.1}


@pytest.fixture
def points(generator, double):
    def draw(*shape):
        return torch.rand(*shape, 2, generator=generator, **double)

    return draw


@pytest.fixture
def model(points):
    X = points(8)
    return GradientGP(X, X.sin().sum(dim=-1, keepdim=True), noise_variance=1e-2)


class TestGradientInformation:
    @pytest.fixture
    def construct(self):
        return get_acqf_input_constructor(GradientInformation)

    def test_arguments(self, construct, model, points):
        x, pending, Z = points(1), points(2), points(4, 3)
        arguments = construct(
            model=model, X_center=x, X_pending=pending, training_data=None
        )
        expected = GradientInformation(model, x, pending)
        assert torch.equal(GradientInformation(**arguments)(Z), expected(Z))

    def test_the_centre_is_the_best_point_by_default(self, construct, points):
        X = points(8)
        values = X.sum(dim=-1, keepdim=True)
        model = GradientGP(X, torch.cat([values, -values], dim=-1), noise_variance=1e-6)
        for weight, best in ((1.0, values.argmax()), (-1.0, values.argmin())):
            with X.device:
                weights = torch.tensor([weight, 0.0], dtype=X.dtype)
                transform = ScalarizedPosteriorTransform(weights)
            arguments = construct(
                model=model, X_baseline=X, posterior_transform=transform
            )
            assert torch.equal(arguments["X_center"], X[best])
            acqf = GradientInformation(**arguments)
            one = GradientGP(X, values, noise_variance=1e-6)
            assert torch.allclose(acqf(X[:2]), GradientInformation(one, X[best])(X[:2]))
        with pytest.raises(InvalidArgumentError, match="X_center must be given"):
            construct(model=model, X_baseline=X)

    def test_the_earlier_name_of_the_centre_warns(self, construct, model, points):
        x = points(1)
        with pytest.warns(DeprecationWarning, match="use X_center="):
            arguments = construct(model=model, X_at=x)
        assert arguments["X_center"] is x


class TestPrivateUpperConfidenceBound:
    @pytest.fixture
    def construct(self):
        return get_acqf_input_constructor(PrivateUpperConfidenceBound)

    @pytest.mark.parametrize("constants", ["repaired", "icml2015"])
    def test_arguments(self, construct, model, points, constants):
        setting = {**SETTING, "constants": constants, "maximize": False}
        arguments = construct(model=model, **setting, training_data=None, bounds=None)
        acqf = PrivateUpperConfidenceBound(**arguments)
        X = points(3, 1)
        expected = PrivateUpperConfidenceBound(model, **setting)
        assert torch.equal(acqf(X), expected(X))

    def test_pending_points_are_passed_on_and_refused(self, construct, model, points):
        arguments = construct(model=model, **SETTING, X_pending=points(1))
        with pytest.raises(UnsupportedError, match="X_pending"):
            PrivateUpperConfidenceBound(**arguments)
