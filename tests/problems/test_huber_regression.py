"""Huber regression, against a loop, autograd and the conditions of an optimum."""

import math

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import HuberRegression


def huber(r, c):
    return r * r / 2 if abs(r) <= c else c * abs(r) - c * c / 2


@pytest.mark.parametrize("c", [0.3, 1.0])
def test_losses_against_a_loop(tkwargs, c):
    problem = HuberRegression(8, 2, c=c, **tkwargs)
    X = torch.tensor([[0.0, 1.0], [-2.0, 4.0], [1.0, 1.0]], **tkwargs)
    losses = problem(X)
    inputs, targets = problem._inputs.tolist(), problem._targets.tolist()
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        weight = min(1.0, 2.0 / (x[0] ** 2 + x[1] ** 2))
        for j, theta in enumerate(X.tolist()):
            residual = y - x[0] * theta[0] - x[1] * theta[1]
            expected = weight * huber(residual, c)
            assert float(losses[i, j]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("c", [0.5, 1.0])
def test_gradients_against_autograd(double, c):
    problem = HuberRegression(c=c, **double)
    x = torch.linspace(-1, 2, 4, **double)
    jacobian = torch.func.jacrev(lambda x: problem(x.unsqueeze(0)).squeeze(-1))(x)
    assert torch.allclose(problem.gradients(x), jacobian)


def test_gradient_bound(double):
    problem = HuberRegression(5000, **double)
    assert problem.gradient_bound == math.sqrt(2.0)
    norms = problem.gradients(torch.full((4,), -2.0, **double)).norm(dim=-1)
    # Reached by some record nearly, and so larger than the paper's 1.
    assert 1.41 < norms.max() <= problem.gradient_bound
    half = HuberRegression(5000, c=0.5, **double)
    norms = half.gradients(torch.full((4,), -2.0, **double)).norm(dim=-1)
    assert 0.705 < norms.max() <= half.gradient_bound


def test_paper_setting(double):
    problem = HuberRegression(**double)
    assert (problem.num_records, problem.dim, problem.c) == (100, 4, 1.0)
    assert problem.transform == ("identity",) * 4
    assert ((problem.optimal_x - 1.0).abs() < 0.6).all()


@pytest.mark.parametrize("seed", range(5))
def test_optimum(double, seed):
    problem = HuberRegression(seed=seed, **double)
    # A line search on values cannot see below the root of the rounding unit, 1.5e-8.
    assert problem.gradients(problem.optimal_x).mean(dim=0).abs().max() < 1e-8


def test_optimum_in_the_box(double):
    problem = HuberRegression(50, 2, bounds=[(-1.0, 0.5), (-3.0, 3.0)], **double)
    gradient = problem.gradients(problem.optimal_x).mean(dim=0)
    # The conditions of Karush, Kuhn and Tucker for this convex problem.
    assert problem.optimal_x[0] == 0.5
    assert gradient[0] < 0
    assert gradient[1].abs() < 1e-8


def test_consistency(double):
    problem = HuberRegression(20000, **double)
    assert ((problem.optimal_x - 1.0).abs() < 0.06).all()  # about five standard errors


def test_rejects():
    with pytest.raises(InvalidArgumentError, match="c must be"):
        HuberRegression(c=0.0, device="cpu")
    with pytest.raises(InvalidArgumentError, match="bounds must have 4 pairs"):
        HuberRegression(bounds=[(0.0, 1.0)], device="cpu")
