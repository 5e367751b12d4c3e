"""The fitted model of a local search."""

import gpytorch
import pytest
import torch

from botorch_dp.optimizers.baselines.local.surrogate import (
    fit_local_model,
    standardized,
)
from tests.devices import seeded
from tests.optimizers.problems import DOUBLE


def data(n=30, d=3):
    X = torch.rand(n, d, generator=seeded(), **DOUBLE)
    return X, (X - 0.3).square().sum(dim=-1)


class TestStandardized:
    def test_mean_and_variance(self):
        values = standardized(1e6 + 3 * torch.arange(5, **DOUBLE))
        assert abs(float(values.mean())) < 1e-6
        assert abs(float(values.var(correction=0)) - 1) < 1e-9

    def test_equal_values_are_zero(self):
        assert not standardized(torch.full((4,), 7.0, **DOUBLE)).any()

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_what_is_not_finite_counts_as_the_worst(self, bad):
        values = standardized(torch.tensor([1.0, 2.0, bad], **DOUBLE))
        assert torch.equal(values[1], values[2])
        assert values.isfinite().all()


@pytest.mark.default_device
class TestFit:
    def test_gradients_of_a_quadratic(self):
        X, values = data()
        model, _ = fit_local_model(X, values, None, refit=True)
        at = torch.full((1, 3), 0.5, **DOUBLE)
        scale = values.std(correction=0)
        expected = 2 * (at - 0.3) / scale
        found = model.gradient_posterior(at).mean
        assert torch.allclose(found, expected, rtol=0.05)

    def test_a_fit_raises_the_posterior_probability_of_the_parameters(self):
        X, values = data()
        likelihoods = []
        for refit in (False, True):
            model, _ = fit_local_model(X, values, None, refit=refit)
            model.train()
            mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
            likelihoods.append(float(mll(model(X), model.train_targets).detach()))
        assert likelihoods[1] > likelihoods[0] + 0.1

    def test_hyperparameters_are_kept(self):
        X, values = data()
        first, found = fit_local_model(X, values, None, refit=True)
        again, same = fit_local_model(X, values, found, refit=False)
        assert all(torch.equal(found[name], same[name]) for name in found)
        at = X[:1] + 0.01
        means = [m.gradient_posterior(at).mean for m in (first, again)]
        assert torch.allclose(*means)

    def test_nothing_to_fit(self):
        model, _ = fit_local_model(*data(1), None, refit=True)
        assert model.gradient_posterior(data(1)[0]).mean.shape == (1, 3)
