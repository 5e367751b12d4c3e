"""Designs: against the formula, the acquisition, L-BFGS and published traces."""

import itertools
import math

import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from botorch_dp.acquisition import (
    GradientInformation,
    design_traces,
    optimal_design,
)
from botorch_dp.acquisition.design import _simplex
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
from botorch_dp.models import GradientGP, radial_kernel
from tests.devices import DEVICE


def make_kernel(name, lengthscale=1.0, outputscale=1.0):
    with DEVICE:
        base = RBFKernel() if name == "rbf" else MaternKernel(nu=2.5)
        kernel = ScaleKernel(base).double()
    if isinstance(lengthscale, list):
        with DEVICE:
            kernel.base_kernel = type(base)(ard_num_dims=len(lengthscale)).double()
    lengthscale = torch.tensor(lengthscale, dtype=torch.float64, device=DEVICE)
    kernel.base_kernel.lengthscale = lengthscale
    kernel.outputscale = torch.tensor(outputscale, dtype=torch.float64, device=DEVICE)
    return kernel


def without_history(d, kernel, noise_variance=1e-6):
    X = torch.full((1, d), 1e3, dtype=torch.float64, device=DEVICE)
    return GradientGP(X, X[:, :1], kernel, noise_variance)


def origin(d):
    return torch.zeros(d, dtype=torch.float64, device=DEVICE)


def formula(name, m, h, noise):
    """The residual share of m + 1 vertices at radius h, written down again."""
    if name == "rbf":
        phi, rho, slope = (lambda r: math.exp(-(r**2) / 2)), math.exp(-(h**2) / 2), 1.0
    else:
        s = math.sqrt(5) * h
        rho, slope = 5 / 3 * (1 + s) * math.exp(-s), 5 / 3

        def phi(r):
            t = math.sqrt(5) * r
            return (1 + t + t**2 / 3) * math.exp(-t)

    edge = h * math.sqrt(2 * (m + 1) / m)
    return 1 - (m + 1) * h**2 * rho**2 / (m * slope * (1 - phi(edge) + noise))


class TestWithoutHistory:
    @pytest.mark.parametrize(
        ("d", "b", "share"),
        [
            (5, 6, 1.154e-3),
            (10, 11, 1.279e-3),
            (33, 34, 1.371e-3),
            (5, 8, 6.264e-4),
        ],
    )
    def test_published_traces(self, d, b, share):
        model = without_history(d, make_kernel("rbf"))
        design = optimal_design(model, origin(d), b)
        assert float(design.trace) / d == pytest.approx(share, rel=1e-3)

    @pytest.mark.parametrize("name", ["rbf", "matern"])
    @pytest.mark.parametrize("d", [1, 2, 5, 10])
    def test_trace_is_the_formula(self, name, d):
        model = without_history(d, make_kernel(name))
        design = optimal_design(model, origin(d), d + 1)
        radii = design.points.norm(dim=-1)
        assert torch.allclose(radii, radii[0].expand(d + 1))
        slope = 1.0 if name == "rbf" else 5 / 3
        expected = d * slope * formula(name, d, float(radii[0]), 1e-6)
        assert float(design.trace) == pytest.approx(expected, abs=1e-10)
        # and the radius is the best there is
        for factor in (0.9, 0.99, 1.01, 1.1):
            other = d * slope * formula(name, d, factor * float(radii[0]), 1e-6)
            assert other > expected

    @pytest.mark.parametrize("name", ["rbf", "matern"])
    def test_traces_of_all_sizes_at_once(self, name):
        d, kernel = 4, make_kernel(name, 0.7, 3.0)
        model = without_history(d, kernel, 1e-5)
        radial = radial_kernel(kernel, origin(d).unsqueeze(0))
        traces = design_traces(radial, noise_variance=1e-5)
        assert len(traces) == 2 * d
        assert traces == sorted(traces, reverse=True)
        for b, trace in enumerate(traces, start=1):
            found = optimal_design(model, origin(d), b)
            assert found.points.shape == (b, d)
            assert float(found.trace) == pytest.approx(trace, rel=1e-8)

    def test_leading_order_of_radius_and_residual(self):
        # For RBF: simplex h^4 = 2 s^2 and sqrt(2 s^2); pairs h^6 = 1.5 s^2 and
        # (1.5 s^2)^(2/3) / 2.
        s2 = 1e-8
        model = without_history(200, make_kernel("rbf"), s2)
        simplex = optimal_design(model, origin(200), 201)
        assert float(simplex.points[0].norm()) == pytest.approx(
            (2 * s2) ** 0.25, rel=0.02
        )
        assert float(simplex.trace) / 200 == pytest.approx(math.sqrt(2 * s2), rel=0.02)
        model = without_history(2, make_kernel("rbf"), s2)
        pairs = optimal_design(model, origin(2), 4)
        assert float(pairs.points[0].norm()) == pytest.approx(
            (1.5 * s2) ** (1 / 6), rel=0.02
        )
        assert float(pairs.trace) / 2 == pytest.approx(
            (1.5 * s2) ** (2 / 3) / 2, rel=0.1
        )

    @pytest.mark.parametrize(("d", "b"), [(5, 6), (10, 11), (10, 20), (33, 34)])
    def test_as_good_as_four_restarts_of_lbfgs(self, d, b, generator):
        model = without_history(d, make_kernel("rbf"))
        design = optimal_design(model, origin(d), b)
        acqf = GradientInformation(model, origin(d))
        bounds = torch.tensor(
            [[-1.0] * d, [1.0] * d], dtype=torch.float64, device=DEVICE
        )
        starts = 0.1 * torch.randn(
            4, b, d, generator=generator, dtype=torch.float64, device=DEVICE
        )
        with DEVICE:
            _, value = optimize_acqf(
                acqf,
                bounds=bounds,
                q=b,
                num_restarts=4,
                batch_initial_conditions=starts,
                options={"maxiter": 200, "batch_limit": 4},
            )
        # L-BFGS gets there, and no further.
        assert float(design.trace) == pytest.approx(float(-value), rel=0.01)

    def test_ard_and_scale(self, double):
        lengthscale = [0.3, 1.0, 2.0]
        model = without_history(3, make_kernel("rbf", lengthscale, 4.0), 4e-6)
        design = optimal_design(model, origin(3), 4)
        whitened = design.points / torch.tensor(lengthscale, **double)
        radii = whitened.norm(dim=-1)
        assert torch.allclose(radii, radii[0].expand(4))
        expected = sum(4 / length**2 for length in lengthscale) * formula(
            "rbf", 3, float(radii[0]), 1e-6
        )
        assert float(design.trace) == pytest.approx(expected, rel=1e-9)

    def test_few_points_go_where_the_gradient_is_largest(self):
        model = without_history(3, make_kernel("rbf", [2.0, 0.5, 1.0]))
        points = optimal_design(model, origin(3), 2).points
        assert points[:, 1].abs().min() > 0
        assert points[:, [0, 2]].abs().max() < 1e-12

    def test_repetitions_beyond_two_a_direction(self):
        model = without_history(2, make_kernel("rbf"))
        traces = [
            float(optimal_design(model, origin(2), b).trace) for b in (4, 5, 8, 12)
        ]
        assert traces == sorted(traces, reverse=True)
        assert optimal_design(model, origin(2), 9).points.shape == (9, 2)


class TestWithHistory:
    @pytest.fixture
    def model(self, generator):
        X = torch.rand(20, 3, generator=generator, dtype=torch.float64, device=DEVICE)
        return GradientGP(X, X[:, :1], make_kernel("matern", 0.5), 1e-4)

    def test_trace_is_that_of_the_acquisition(self, model):
        at = origin(3) + 0.5
        for b in (1, 2, 4, 5, 6, 7):
            design = optimal_design(model, at, b)
            acqf = GradientInformation(model, at)
            assert torch.allclose(design.trace, acqf.trace(design.points))

    def test_far_better_than_random_points(self, model, generator):
        at = origin(3) + 0.5
        random = torch.rand(500, 4, 3, generator=generator, device=DEVICE).double()
        traces = GradientInformation(model, at).trace(random)
        assert float(optimal_design(model, at, 4).trace) < float(traces.min())

    def test_looks_along_the_least_known_direction(self, double):
        # Points on the first axis only: the second is unknown.
        line = torch.linspace(-1, 1, 9, **double)
        X = torch.stack([line, torch.zeros_like(line)], dim=-1)
        model = GradientGP(X, X[:, :1], make_kernel("rbf", 0.5), 1e-6)
        points = optimal_design(model, origin(2), 2).points
        assert points[:, 1].abs().min() > 10 * points[:, 0].abs().max()

    def test_as_a_start_optimize_acqf_never_ends_worse(self, model):
        bounds = torch.tensor(
            [[0.0] * 3, [1.0] * 3], dtype=torch.float64, device=DEVICE
        )
        for at, b in itertools.product((0.5, 0.98), (2, 4, 6)):
            x = origin(3) + at
            design = optimal_design(model, x, b, bounds)
            with DEVICE:
                _, value = optimize_acqf(
                    GradientInformation(model, x),
                    bounds=bounds,
                    q=b,
                    num_restarts=1,
                    batch_initial_conditions=design.points.unsqueeze(0),
                    options={"maxiter": 50},
                )
            assert float(-value) <= float(design.trace) * (1 + 1e-9)


class TestBox:
    @pytest.mark.parametrize("b", [1, 2, 3, 4, 5, 6])
    @pytest.mark.parametrize("at", [0.0, 0.01, 0.5, 1.0])
    def test_points_stay_inside_and_keep_telling(self, at, b):
        bounds = torch.tensor(
            [[0.0] * 3, [1.0] * 3], dtype=torch.float64, device=DEVICE
        )
        model = without_history(3, make_kernel("rbf"))
        x = origin(3) + at
        design = optimal_design(model, x, b, bounds)
        assert (design.points >= bounds[0]).all()
        assert (design.points <= bounds[1]).all()
        free = optimal_design(model, x, b)
        assert float(design.trace) >= float(free.trace) * (1 - 1e-6)
        if b >= 4:  # d + 1 points are enough, on a corner too
            assert float(design.trace) < 0.2


class TestSimplex:
    @pytest.mark.parametrize("m", [1, 2, 5, 33])
    def test_regular(self, m, double):
        vertices = _simplex(m, double["dtype"], double["device"])
        gram = vertices @ vertices.T
        expected = torch.full((m + 1, m + 1), -1 / m, **double)
        expected.fill_diagonal_(1.0)
        assert torch.allclose(gram, expected, atol=1e-12)


class TestBadInput:
    @pytest.mark.parametrize("b", [0, -1, 2.5])
    def test_batch_size(self, b):
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            optimal_design(without_history(2, make_kernel("rbf")), origin(2), b)

    def test_kernel(self, double):
        with DEVICE:
            kernel = PeriodicKernel().double()
        with pytest.raises(UnsupportedKernelError, match=r"Periodic.*optimize_acqf"):
            optimal_design(without_history(2, kernel), origin(2), 3)

    @pytest.mark.parametrize(
        ("bounds", "match"),
        [
            ([[0.0, 0.0], [0.0, 1.0]], "every lower bound below its upper"),
            ([[1.0, 1.0], [2.0, 2.0]], "X_center must lie within"),
            ([[0.0], [1.0]], r"2 x 2.*\(2, 1\)"),
        ],
    )
    def test_bounds(self, bounds, match, double):
        model = without_history(2, make_kernel("rbf"))
        with pytest.raises(InvalidArgumentError, match=match):
            optimal_design(model, origin(2), 3, torch.tensor(bounds, **double))

    def test_more_than_one_point(self):
        model = without_history(2, make_kernel("rbf"))
        with pytest.raises(
            InvalidArgumentError, match=r"X_center.*one point.*\(3, 2\)"
        ):
            optimal_design(model, origin(2).expand(3, 2), 3)

    @pytest.mark.parametrize("noise", [0.0, -1.0, math.nan])
    def test_noise(self, noise):
        radial = radial_kernel(make_kernel("rbf"), origin(2).unsqueeze(0))
        with pytest.raises(InvalidArgumentError, match="noise_variance"):
            design_traces(radial, noise_variance=noise)

    def test_bounds_that_are_no_tensor(self):
        model = without_history(2, make_kernel("rbf"))
        with pytest.raises(InvalidArgumentError, match="bounds"):
            optimal_design(model, origin(2), 3, [(0, 1), (0, 1)])

    def test_input_transform(self, double):
        X = torch.ones(1, 2, **double)
        with DEVICE:
            transform = Normalize(
                2, bounds=torch.tensor([[0.0] * 2, [2.0] * 2]).double()
            )
        model = GradientGP(X, X[:, :1], input_transform=transform)
        with pytest.raises(InvalidArgumentError, match="input_transform"):
            optimal_design(model, origin(2), 3)


def test_the_earlier_name_of_the_centre_warns():
    model = without_history(2, make_kernel("rbf"))
    with pytest.warns(DeprecationWarning, match="X_at= is deprecated .* use X_center="):
        design = optimal_design(model, X_at=origin(2), batch_size=3)
    assert torch.equal(design.points, optimal_design(model, origin(2), 3).points)


class TestModels:
    @pytest.mark.parametrize("noise", [None, 0.02])
    def test_a_single_task_gp(self, noise, generator):
        # As its copy with Standardize folded into the kernel.
        X = torch.rand(6, 2, generator=generator, dtype=torch.float64, device=DEVICE)
        Y = 5 * X.sin().sum(dim=-1, keepdim=True)
        with DEVICE:
            Yvar = None if noise is None else torch.full_like(Y, noise)
            model = SingleTaskGP(X, Y, Yvar)
        found = optimal_design(model, X[0], 3)
        expected = optimal_design(GradientGP.from_model(model), X[0], 3)
        assert torch.allclose(found.trace, expected.trace, rtol=1e-4)
        again = GradientInformation(model, X[0]).trace(found.points)
        assert torch.allclose(found.trace, again)

    @pytest.mark.parametrize("kind", ["two outputs", "batch", "list"])
    def test_several_processes_are_refused(self, kind, generator):
        X = torch.rand(6, 2, generator=generator, dtype=torch.float64, device=DEVICE)
        with DEVICE:
            model = {
                "two outputs": lambda: SingleTaskGP(X, X),
                "batch": lambda: SingleTaskGP(X[None], X[None, :, :1]),
                "list": lambda: ModelListGP(SingleTaskGP(X, X[:, :1])),
            }[kind]()
        with pytest.raises(InvalidArgumentError, match="one output and no batch"):
            optimal_design(model, X[0], 3)
