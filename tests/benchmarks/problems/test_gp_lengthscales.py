"""GP length scales, against GPyTorch, scipy and the distribution of the data."""

import gpytorch
import numpy as np
import pytest
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

import benchmarks.problems._rbf as rbf
import benchmarks.problems.gp_lengthscales as module
from benchmarks.problems import GPLengthscales
from botorch_dp.exceptions import InvalidArgumentError


@pytest.fixture
def problem(double):
    return GPLengthscales(40, 3, num_train=30, data_noise_std=0.2, seed=3, **double)


@pytest.fixture
def X(double):
    return torch.tensor([[0.1, 1.0, 5.0], [2.0, 0.5, 0.3], [5.0, 5.0, 5.0]], **double)


def test_losses_against_scipy(problem, X):
    train, inputs = problem._train_inputs.numpy(), problem._inputs.numpy()
    losses = problem(X)
    for j, scales in enumerate(X.numpy()):
        gram = np.exp(-cdist(train / scales, train / scales, "sqeuclidean") / 2)
        cross = np.exp(-cdist(inputs / scales, train / scales, "sqeuclidean") / 2)
        factor = cho_factor(gram + 0.2**2 * np.eye(30))
        mean = cross @ cho_solve(factor, problem._train_targets.numpy())
        expected = (problem._targets.numpy() - mean) ** 2
        np.testing.assert_allclose(losses[:, j].numpy(), expected, rtol=1e-9)


@pytest.mark.default_device
def test_losses_against_gpytorch(problem, X):
    class Model(gpytorch.models.ExactGP):
        def __init__(self, scales, likelihood):
            super().__init__(problem._train_inputs, problem._train_targets, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel(ard_num_dims=3).double()
            self.covar_module.lengthscale = scales

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    losses = problem(X)
    for j, scales in enumerate(X):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = torch.tensor(0.04, dtype=torch.float64)
        model = Model(scales, likelihood).eval()
        with torch.no_grad():
            mean = model(problem._inputs).mean
        expected = (problem._targets - mean).square()
        assert torch.allclose(losses[:, j], expected, rtol=1e-6)


def test_blocks_change_nothing(problem, X, monkeypatch):
    losses = problem(X)
    monkeypatch.setattr(rbf, "_BLOCK_ENTRIES", 7 * 30)
    monkeypatch.setattr(module, "_FACTOR_ENTRIES", 2 * 30**2)
    assert torch.allclose(problem(X), losses, rtol=1e-10)


def test_data_are_drawn_from_the_process(double):
    """Whitened with a covariance made here, the targets are standard normal."""
    whitened = []
    for seed in range(30):
        problem = GPLengthscales(60, 2, num_train=40, seed=seed, **double)
        inputs = torch.cat([problem._train_inputs, problem._inputs]).numpy()
        assert np.abs(inputs).max() <= 1.5
        scales = problem.true_lengthscales.numpy()
        assert ((scales >= 0.1) & (scales <= 5.0)).all()
        squared = cdist(inputs / scales, inputs / scales, "sqeuclidean")
        root = np.linalg.cholesky(np.exp(-squared / 2) + 0.1**2 * np.eye(100))
        targets = torch.cat([problem._train_targets, problem._targets]).numpy()
        whitened.append(np.linalg.solve(root, targets))
    values = np.concatenate(whitened)  # 3000 numbers: standard errors 0.018 and 0.026
    assert abs(values.mean()) < 0.08
    assert abs(values.var() - 1.0) < 0.11


def test_true_length_scales_are_good(double):
    for seed in range(3):
        problem = GPLengthscales(500, 4, num_train=200, seed=seed, **double)
        generator = torch.Generator(device="cpu").manual_seed(seed)
        unit = torch.rand(20, 4, generator=generator, **double)
        at_truth = problem.evaluate_true(problem.true_lengthscales.unsqueeze(0))
        assert at_truth < 1.02 * problem.evaluate_true(0.1 + 4.9 * unit).min()


def test_settings(double):
    problem = GPLengthscales(5, lower=0.2, upper=2.0, num_train=5, **double)
    assert problem.dim == 10
    assert problem.bounds.tolist() == [[0.2] * 10, [2.0] * 10]
    assert problem.transform == ("log",) * 10
    assert (problem.true_lengthscales >= 0.2).all()
    assert (problem.true_lengthscales <= 2.0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_train": 0}, "num_train"),
        ({"data_noise_std": 0.0}, "data_noise_std"),
        ({"half_width": -1.0}, "half_width"),
        ({"lower": 0.0}, "lower"),
        ({"lower": 5.0}, "lower must be below upper"),
    ],
)
def test_rejects(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        GPLengthscales(5, 2, device="cpu", **arguments)
