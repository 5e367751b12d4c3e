"""The normal location problem, against loops and the paper's setting."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import NormalLocation


def test_losses_against_a_loop(tkwargs):
    problem = NormalLocation(6, 2, **tkwargs)
    X = torch.tensor([[0.0, 1.0], [-2.0, 4.0]], **tkwargs)
    losses = problem(X)
    for i, record in enumerate(problem._records.tolist()):
        for j, x in enumerate(X.tolist()):
            expected = sum((r - t) ** 2 for r, t in zip(record, x, strict=True)) / 2
            assert float(losses[i, j]) == pytest.approx(expected, rel=1e-5)


def test_gradients_against_autograd(double):
    problem = NormalLocation(**double)
    x = torch.linspace(-1, 1, 5, **double)
    jacobian = torch.func.jacrev(lambda x: problem(x.unsqueeze(0)).squeeze(-1))(x)
    assert torch.allclose(problem.gradients(x), jacobian)


def test_paper_setting(double):
    problem = NormalLocation(**double)
    assert (problem.num_records, problem.dim) == (50, 5)
    assert problem.transform == ("identity",) * 5
    assert problem.bounds.tolist() == [[-2.0] * 5, [4.0] * 5]
    # The mean of 50 standard normal numbers: 0.14 away, and hardly ever 0.7.
    assert ((problem.optimal_x - 1.0).abs() < 0.7).all()


def test_distribution(double):
    records = NormalLocation(20000, 2, mean=-1.0, **double)._records
    # Standard errors of 0.007 and 0.01.
    assert torch.allclose(
        records.mean(dim=0), torch.full((2,), -1.0, **double), atol=0.04
    )
    assert torch.allclose(records.T.cov(), torch.eye(2, **double), atol=0.05)


def test_optimum_is_in_the_box(double):
    problem = NormalLocation(20, 2, bounds=[(-1.0, 0.0), (-3.0, 3.0)], **double)
    assert problem.optimal_x[0] == 0.0
    first, second = torch.meshgrid(
        torch.linspace(-1, 0, 21, **double),
        torch.linspace(-3, 3, 21, **double),
        indexing="ij",
    )
    grid = torch.stack([first.flatten(), second.flatten()], dim=-1)
    assert (problem.evaluate_true(grid) >= problem.optimal_value).all()


def test_bounds_of_another_dimension():
    with pytest.raises(InvalidArgumentError, match="bounds must have 5 pairs"):
        NormalLocation(bounds=[(0.0, 1.0)], device="cpu")


def test_many_records_in_chunks(double):
    problem = NormalLocation(200_000, 2, **double)
    x = torch.zeros(1, 2, **double)
    total = sum(float(chunk.sum()) for chunk in problem.chunks(x, 30_000))
    assert total / 200_000 == pytest.approx(float(problem.evaluate_true(x)))
