"""Refined designs: against a dense grid, many restarts and differentiation."""

import math

import numpy as np
import pytest
import torch
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.acquisition import GradientInformation, optimal_design
from botorch_dp.acquisition._refinement import (
    _descend,
    _evaluation,
    _Search,
    default_evaluations,
    is_history,
    refine,
    scales_of_starts,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientGP, radial_kernel
from tests.devices import DEVICE

BASES = {"rbf": RBFKernel, "matern": lambda: MaternKernel(nu=2.5)}


def make_model(X, name="rbf", lengthscale=0.5, noise=1e-4):
    with DEVICE:
        kernel = BASES[name]().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64, device=DEVICE)
    return GradientGP(X, X[:, :1], kernel, noise)


def cube(d):
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64, device=DEVICE)


@pytest.fixture
def uniform(generator):
    def draw(*shape):
        return torch.rand(
            *shape, generator=generator, dtype=torch.float64, device=DEVICE
        )

    return draw


def stencils(uniform, d, steps, noise):
    """Designs around earlier points of a walk, and its next point."""
    theta, X = 0.4 + 0.2 * uniform(d), uniform(0, d)
    for _ in range(steps):
        far = torch.full_like(theta.unsqueeze(0), 1e3)
        model = make_model(far, noise=noise)
        X = torch.cat([X, optimal_design(model, theta, d + 1, cube(d)).points])
        theta = (theta + 0.1 * (uniform(d) - 0.5)).clamp(0.0, 1.0)
    return make_model(X, noise=noise), theta


class TestTraces:
    @pytest.mark.parametrize("b", [1, 2])
    def test_against_a_dense_grid(self, b, uniform):
        model = make_model(uniform(4, 1), lengthscale=0.3)
        at = torch.full((1,), 0.5, dtype=torch.float64, device=DEVICE)
        line = torch.linspace(0, 1, 200, dtype=torch.float64, device=DEVICE)
        grid = torch.cartesian_prod(*[line] * b).view(-1, b, 1)
        least = float(GradientInformation(model, at).trace(grid).min())
        found = optimal_design(model, at, b, cube(1))
        assert float(found.trace) <= 1.2 * least

    @pytest.mark.parametrize(
        ("d", "steps", "noise"), [(2, 6, 1e-6), (3, 4, 1e-3), (5, 3, 1e-6)]
    )
    def test_against_20_restarts(self, d, steps, noise, uniform):
        model, theta = stencils(uniform, d, steps, noise)
        plain = optimal_design(model, theta, d + 1, cube(d), max_evaluations=0)
        found = optimal_design(model, theta, d + 1, cube(d))
        radius = float((plain.points - theta).norm(dim=-1).median())
        offsets = 4 * radius * (uniform(19, d + 1, d) - 0.5)
        starts = torch.cat([plain.points.unsqueeze(0), theta + offsets])
        with DEVICE:
            _, value = optimize_acqf(
                GradientInformation(model, theta),
                cube(d),
                q=d + 1,
                num_restarts=20,
                batch_initial_conditions=starts.clamp(0.0, 1.0),
                options={"maxiter": 60, "batch_limit": 20},
            )
        assert float(found.trace) <= 1.2 * -float(value)
        assert float(found.trace) <= float(plain.trace)

    @pytest.mark.parametrize("at", [0.0, 0.03, 0.5])
    @pytest.mark.parametrize("b", [1, 3, 4, 8])
    def test_in_the_box_and_never_worse(self, b, at, uniform):
        model = make_model(uniform(10, 4), "matern")
        theta = torch.full((4,), at, dtype=torch.float64, device=DEVICE)
        plain = optimal_design(model, theta, b, cube(4), max_evaluations=0)
        found = optimal_design(model, theta, b, cube(4))
        assert ((found.points >= 0) & (found.points <= 1)).all()
        assert float(found.trace) <= float(plain.trace)
        again = GradientInformation(model, theta).trace(found.points)
        assert torch.allclose(found.trace, again)

    def test_more_evaluations_leave_less(self, uniform):
        model, theta = stencils(uniform, 5, 3, 1e-6)
        traces = [
            float(optimal_design(model, theta, 6, max_evaluations=k).trace)
            for k in (0, 4, 8, 16)
        ]
        assert traces == sorted(traces, reverse=True)
        assert traces[-1] < traces[0] / 1.5

    def test_single_precision(self, uniform):
        X = uniform(6, 2).float()
        with DEVICE:
            model = GradientGP(X, X[:, :1], RBFKernel(), 1e-2)
        found = optimal_design(model, X[0], 3, cube(2).float())
        assert found.points.dtype == torch.float32


class TestHistory:
    def test_far_points_are_none(self):
        d, theta = 3, cube(3).mean(dim=0)
        model = make_model(torch.full_like(cube(3)[:1], 1e3))
        plain = optimal_design(model, theta, d + 1, max_evaluations=0)
        assert torch.equal(optimal_design(model, theta, d + 1).points, plain.points)

    def test_distance_decides(self):
        with DEVICE:
            radial = radial_kernel(RBFKernel().double(), cube(2)[:1])
        point = torch.tensor([[1.0, 0.0]], dtype=torch.float64, device=DEVICE)
        assert is_history(point, radial)
        assert is_history(5 * point, radial)  # exp(-12.5) = 3.7e-6
        assert not is_history(6 * point, radial)  # exp(-18) = 1.5e-8
        assert not is_history(point[:0], radial)

    def test_radii_that_a_search_tries(self, uniform):
        few, more, costly = (
            scales_of_starts(
                GradientInformation(make_model(uniform(n, d)), uniform(d))._geometry, b
            )
            for n, d, b in ((5, 3, 4), (5, 4, 5), (300, 4, 20))
        )
        assert set(few) > set(more) > set(costly) == {1.0}

    @pytest.mark.parametrize("at", [0.0, 0.02])
    def test_a_costly_search_at_a_wall_is_never_worse(self, at, uniform):
        model = make_model(uniform(300, 4))
        theta = torch.full((4,), at, dtype=torch.float64, device=DEVICE)
        plain = optimal_design(model, theta, 20, cube(4), max_evaluations=0)
        found = optimal_design(model, theta, 20, cube(4), max_evaluations=1)
        assert float(found.trace) <= float(plain.trace) * (1 + 1e-6)

    @pytest.mark.parametrize(("d", "n", "expected"), [(3, 5, 12), (4, 5, 16)])
    def test_fewer_evaluations_if_there_are_two_searches(self, d, n, expected, uniform):
        acqf = GradientInformation(make_model(uniform(n, d)), uniform(d))
        assert default_evaluations(acqf._geometry, d + 1) == expected

    def test_fewer_evaluations_if_they_are_costly(self, uniform):
        geometry = GradientInformation(
            make_model(uniform(300, 4)), uniform(4)
        )._geometry
        assert default_evaluations(geometry, 5) == 16
        assert default_evaluations(geometry, 20) == 12


class TestSearch:
    def test_gradient_in_whitened_offsets(self, uniform):
        # Against the definition of the trace, differentiated by autograd.
        X, theta, noise = uniform(6, 3), cube(3).mean(dim=0), 1e-3
        acqf = GradientInformation(make_model(X, noise=noise), theta)
        offsets = uniform(4, 3) - 0.5

        def trace(z):
            Z = torch.cat([X, theta + 0.5 * z])
            K = torch.exp(-torch.cdist(Z, Z).square() / 0.5)
            apart = Z - theta
            cross = apart / 0.25 * torch.exp(-apart.square().sum(-1, True) / 0.5)
            K = K + noise * torch.eye(len(Z), device=K.device, dtype=K.dtype)
            return 3 / 0.25 - (cross * torch.linalg.solve(K, cross)).sum()

        z = offsets.clone().requires_grad_()
        expected = trace(z)
        (gradient,) = torch.autograd.grad(expected, z)
        scale = np.full(3, 0.5)
        at = _evaluation(acqf._geometry, theta, scale)
        found, its_gradient = at(offsets.cpu().numpy())
        assert found == pytest.approx(float(expected.detach()), rel=1e-8)
        its_gradient = torch.from_numpy(its_gradient).to(gradient)
        assert torch.allclose(its_gradient, gradient, rtol=1e-6, atol=1e-8)

    def test_descends_on_a_quadratic_inside_walls(self):
        scales = np.array([1.0, 10.0, 100.0])

        def at(z):
            return float((scales * (z - 2.0) ** 2).sum()), 2 * scales * (z - 2.0)

        start = np.ones((2, 3))
        search = _Search(start, *at(start))
        _descend(at, search, -3.0, 3.0, 40, -math.inf)
        assert search.trace < 1e-9
        search = _Search(start, *at(start))
        _descend(at, search, -1.5, 1.5, 40, -math.inf)
        assert (abs(search.z - 1.5) < 1e-9).all()
        assert search.trace == pytest.approx(at(search.z)[0])

    def test_counts_evaluations_and_stops_at_the_target(self):
        calls = []

        def at(z):
            calls.append(z)
            return float((z**4).sum()), 4 * z**3

        start = np.ones((1, 2))
        _descend(at, _Search(start, *at(start)), -9.0, 9.0, 5, -math.inf)
        assert len(calls) == 6
        calls.clear()
        search = _Search(start, *at(start))
        _descend(at, search, -9.0, 9.0, 5, 3.0)
        assert search.trace == 2.0
        assert len(calls) == 1

    def test_target_of_a_refinement(self, uniform):
        model, theta = stencils(uniform, 2, 4, 1e-6)
        acqf = GradientInformation(model, theta)
        starts = theta + 0.1 * (uniform(2, 3, 2) - 0.5)
        traces = acqf.trace(starts)
        easy, trace = refine(
            acqf._geometry, theta, starts, target=2 * float(traces.min())
        )
        assert torch.allclose(easy, starts[int(traces.argmin())])
        assert trace == pytest.approx(float(traces.min()))
        found, trace = refine(acqf._geometry, theta, starts)
        assert float(acqf.trace(found)) == pytest.approx(trace, rel=1e-6)
        assert trace < float(traces.min())


@pytest.mark.parametrize("count", [-1, 1.5])
def test_bad_number_of_evaluations(count, uniform):
    model, theta = make_model(uniform(3, 2)), cube(2).mean(dim=0)
    with pytest.raises(InvalidArgumentError, match="max_evaluations"):
        optimal_design(model, theta, 3, max_evaluations=count)
