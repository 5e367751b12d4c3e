"""Noisy observations: their distribution, and what stays free of noise."""

import pytest
import torch

from benchmarks.problems import GPLengthscales, NoisyObservations
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import NormalLocation


def test_one_number_per_candidate(tkwargs):
    problem = NormalLocation(7, 2, **tkwargs)
    noisy = NoisyObservations(problem, 0.5, seed=1)
    X = torch.ones(4, 2, **tkwargs)
    noise = noisy(X) - problem(X)
    assert torch.allclose(noise, noise[:1].expand(7, 4), atol=1e-6)
    assert noise[0].unique().numel() == 4  # also where candidates are the same
    assert not torch.allclose(noisy(X), problem(X) + noise)  # drawn anew


def test_distribution(double):
    problem = NormalLocation(2, 2, **double)
    noisy = NoisyObservations(problem, 0.01)
    X = torch.zeros(20000, 2, **double)
    noise = (noisy(X).mean(dim=0) - problem.evaluate_true(X)) / 0.01
    # Standard errors 0.007, 0.005 and, of the kurtosis, 0.035.
    assert noise.mean().abs() < 0.035
    assert abs(noise.std() - 1.0) < 0.025
    assert abs(noise.pow(4).mean() - 3.0) < 0.3


def test_what_has_no_noise(double):
    problem = NormalLocation(**double)
    noisy = NoisyObservations(problem, 10.0)
    X = torch.zeros(3, 5, **double)
    assert torch.equal(noisy.evaluate_true(X), problem.evaluate_true(X))
    assert torch.equal(noisy.gradients(X[0]), problem.gradients(X[0]))
    assert torch.equal(noisy.optimal_x, problem.optimal_x)
    assert noisy.optimal_value == problem.optimal_value
    assert torch.equal(noisy.bounds, problem.bounds)
    assert noisy.transform == problem.transform


def test_zero_noise(double):
    problem = GPLengthscales(9, 2, num_train=8, **double)
    X = problem.true_lengthscales.unsqueeze(0)
    assert torch.equal(NoisyObservations(problem, 0.0)(X), problem(X))


def test_chunks_share_the_noise(double):
    problem = NormalLocation(10, 2, **double)
    X = torch.zeros(3, 2, **double)
    chunks = torch.cat(list(NoisyObservations(problem, 1.0, seed=4).chunks(X, 3)))
    noise = chunks - problem(X)
    assert torch.allclose(noise, noise[:1].expand(10, 3))


def test_seeds(double):
    problem = NormalLocation(3, 2, **double)
    X = torch.zeros(2, 2, **double)
    first, same, other = (NoisyObservations(problem, 1.0, seed=s) for s in (5, 5, 6))
    assert all(torch.equal(first(X), same(X)) for _ in range(3))
    assert not torch.isclose(NoisyObservations(problem, 1.0, seed=5)(X), other(X)).any()


def test_rejects(double):
    with pytest.raises(InvalidArgumentError, match="problem must be"):
        NoisyObservations(lambda X: X)
    with pytest.raises(InvalidArgumentError, match="noise_std"):
        NoisyObservations(NormalLocation(**double), -0.1)
    with pytest.raises(InvalidArgumentError, match="seed"):
        NoisyObservations(NormalLocation(**double), 0.1, seed=-1)
