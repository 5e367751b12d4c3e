"""The best points of a grid: against all sets of its points."""

import itertools
import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_dp.acquisition import GradientInformation, _grid, optimal_design
from botorch_dp.acquisition._grid import best_on_grid, grid_directions
from botorch_dp.models import GradientGP
from tests.devices import DEVICE


def cube(d):
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64, device=DEVICE)


def make_model(X, noise=1e-3):
    with DEVICE:
        kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.5, dtype=torch.float64, device=DEVICE)
    return GradientGP(X, X[:, :1], kernel, noise)


@pytest.mark.parametrize(("d", "count"), [(1, 2), (2, 8), (3, 26)])
def test_directions(d, count):
    directions = grid_directions(d)
    assert len(directions) == count
    assert torch.allclose(directions.norm(dim=-1), directions.new_ones(count))
    assert torch.allclose(directions.sum(dim=0), directions.new_zeros(d))


@pytest.mark.parametrize("b", [1, 2, 3])
def test_greedy_against_all_sets(b, generator, monkeypatch):
    monkeypatch.setattr(_grid, "_RADII", (1.0, 4.0))
    X = torch.rand(5, 2, generator=generator, dtype=torch.float64, device=DEVICE)
    theta = cube(2).mean(dim=0)
    acqf = GradientInformation(make_model(X), theta)
    design = optimal_design(make_model(X + 1e3), theta, b).points
    with torch.no_grad():
        found = best_on_grid(acqf._geometry, theta, design)
    radius = float((design - theta).norm(dim=-1).median())
    rays = grid_directions(2).to(theta)
    grid = torch.cat([theta + radius * r * rays for r in (1.0, 4.0)])
    sets = torch.stack(
        [grid[list(s)] for s in itertools.combinations_with_replacement(range(16), b)]
    )
    traces, trace = acqf.trace(sets), float(acqf.trace(found))
    assert (
        float((found.unsqueeze(1) - grid).norm(dim=-1).min(dim=1).values.max()) < 1e-9
    )
    assert trace <= 1.05 * float(traces.min())
    if b <= 2:
        assert math.isclose(trace, float(traces.min()), rel_tol=1e-6)


def test_in_the_box_with_copies_in_a_corner():
    theta = cube(2)[0]
    model = make_model(theta.unsqueeze(0) + 0.1, noise=1e-6)
    acqf = GradientInformation(model, theta)
    design = optimal_design(model, theta, 4, cube(2), max_evaluations=0).points
    with torch.no_grad():
        found = best_on_grid(acqf._geometry, theta, design, cube(2))
    assert found.shape == (4, 2)
    assert ((found >= 0) & (found <= 1)).all()
