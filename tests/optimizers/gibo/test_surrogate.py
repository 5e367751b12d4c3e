"""One factor from step to step, against a factorization of every step."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from botorch_dp import GradientGP
from botorch_dp.acquisition import GradientInformation
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import radial_kernel
from botorch_dp.models.gradient_weights import gradient_weights
from botorch_dp.models.kernels.radial import RadialKernel
from botorch_dp.optimizers.gibo.surrogate import RadialSurrogate
from tests.optimizers.problems import DEVICE, DOUBLE, seeded

NOISE = 1e-4


def make_kernel(name):
    with DEVICE:
        base = {
            "rbf": lambda: RBFKernel(ard_num_dims=3),
            "matern": lambda: MaternKernel(nu=2.5),
            "rq": lambda: RQKernel(),
        }[name]()
        kernel = ScaleKernel(base).double().requires_grad_(False)
        kernel.outputscale = 1.7
        kernel.base_kernel.lengthscale = (
            torch.tensor([0.3, 0.5, 0.8], **DOUBLE) if name == "rbf" else 0.5
        )
    return kernel


def make_surrogate(kernel, constant_mean=True):
    radial = radial_kernel(kernel, torch.zeros(1, 3, **DOUBLE))
    return RadialSurrogate(radial, constant_mean=constant_mean)


def points_near(theta, count, seed):
    noise = torch.randn(count, len(theta), generator=seeded(seed), **DOUBLE)
    return theta + 0.2 * noise


@pytest.mark.parametrize("constant_mean", [False, True])
@pytest.mark.parametrize("name", ["rbf", "matern", "rq"])
class TestSteps:
    """Points come and go as in a run: every step agrees with a fresh computation."""

    def steps(self, surrogate, theta):
        points = torch.empty(0, 3, **DOUBLE)
        windows = (
            [],
            [0, 1, 2, 3],  # all: they only grow
            [0, 1, 2, 3, 4, 5, 6, 7],
            [1, 2, 3, 4, 8, 9],  # the first has left: nothing can be kept
            [1, 2, 3, 10, 12],  # the beginning can be kept
            [12, 1, 3, 10, 2],  # the same points in another order
            [12, 2, 10, 0],
        )
        for step, window in enumerate(windows):
            theta = theta + 0.03
            surrogate.look(theta, window, points, NOISE)
            new = points_near(theta, 4, step)
            yield theta, points, window, new
            points = torch.cat([points, new])

    def test_weights_and_trace(self, name, constant_mean):
        kernel = make_kernel(name)
        surrogate = make_surrogate(kernel, constant_mean=constant_mean)
        for theta, points, window, new in self.steps(
            surrogate, torch.full((3,), 0.4, **DOUBLE)
        ):
            keys = list(range(len(points), len(points) + len(new)))
            placed = surrogate.place(new.unsqueeze(0))
            expected = gradient_weights(
                kernel,
                theta,
                torch.cat([points[window], new]),
                noise_variance=NOISE,
                constant_mean=constant_mean,
            )
            trace = float(expected.trace)
            assert math.isclose(surrogate.trace_with(placed), trace, rel_tol=1e-9)
            surrogate.add(placed, keys)
            weights, found = surrogate.weights([*window, *keys])
            assert torch.allclose(weights, expected.weights, rtol=1e-8, atol=1e-9)
            assert math.isclose(found, trace, rel_tol=1e-9)

    def test_choices_and_directions(self, name, constant_mean):
        kernel = make_kernel(name)
        surrogate = make_surrogate(kernel, constant_mean=constant_mean)
        for theta, points, window, new in self.steps(
            surrogate, torch.full((3,), 0.4, **DOUBLE)
        ):
            model = GradientGP(
                points[window], points[window, :1], kernel, noise_variance=NOISE
            )
            acqf = GradientInformation(model, theta)
            other = theta + 0.5 * (new - theta)
            choices = torch.stack([new, other, new - 0.1])
            traces = acqf.trace(choices)
            placed = surrogate.place(choices)
            assert torch.equal(placed.points, choices[traces.argmin()])
            assert math.isclose(placed.trace, float(traces.min()), rel_tol=1e-8)
            # The first direction is the one with the largest variance.
            first = surrogate.directions()[:, 0] / surrogate.radial.inverse_lengthscale
            covariance = acqf.prior_covariance[0]
            left = first @ covariance @ first / (first @ first)
            most = torch.linalg.eigvalsh(covariance)[-1]
            assert math.isclose(float(left), float(most), rel_tol=1e-8)


class TestFactor:
    def test_kept_while_points_stay(self):
        surrogate, theta = make_surrogate(make_kernel("rbf")), torch.zeros(3, **DOUBLE)
        points, sizes = points_near(theta, 60, 0), []
        for count in range(0, 60, 3):
            surrogate.look(theta, range(count), points, NOISE)
            sizes.append(len(surrogate._factor._panels))
        assert max(sizes) > 5  # appended
        assert min(sizes[10:]) < max(sizes)  # and joined now and then
        D = surrogate._points
        K = make_kernel("rbf")(D).to_dense() + NOISE * torch.eye(len(D), **DOUBLE)
        expected = torch.linalg.cholesky(K)
        assert torch.allclose(surrogate._factor.dense(), expected, atol=1e-10)

    def test_another_noise_needs_another_factor(self):
        kernel = make_kernel("matern")
        surrogate, theta = make_surrogate(kernel), torch.zeros(3, **DOUBLE)
        points = points_near(theta, 8, 0)
        for noise in (1e-2, 1e-5, 1e-3):
            surrogate.look(theta, range(8), points, noise)
            weights, _ = surrogate.weights(range(8))
            expected = gradient_weights(
                kernel, theta, points, noise_variance=noise, constant_mean=True
            )
            assert torch.allclose(weights, expected.weights, rtol=1e-7, atol=1e-8)

    def test_interrupted(self):
        kernel = make_kernel("rbf")
        surrogate, theta = make_surrogate(kernel), torch.zeros(3, **DOUBLE)
        points = points_near(theta, 12, 0)
        surrogate.look(theta, range(8), points, NOISE)
        placed = surrogate.place(points[None, 8:])
        surrogate._factor.append(placed.half, placed.triangle)  # and no further
        surrogate.look(theta, range(12), points, NOISE)
        weights, _ = surrogate.weights(range(12))
        expected = gradient_weights(
            kernel, theta, points, noise_variance=NOISE, constant_mean=True
        )
        assert torch.allclose(weights, expected.weights, rtol=1e-7, atol=1e-8)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_copies_and_hardly_any_noise(self, dtype):
        # Rounding would make the matrix indefinite without more noise.
        kernel = make_kernel("matern").to(dtype)
        theta = torch.zeros(3, dtype=dtype, device=DEVICE)
        radial = radial_kernel(kernel, theta.unsqueeze(0))
        surrogate = RadialSurrogate(radial, constant_mean=True)
        points = (1e-3 * points_near(theta.double(), 30, 0)).to(dtype).repeat(3, 1)
        for count in (30, 60, 90):
            surrogate.look(theta, range(count), points, 1e-30)
            weights, trace = surrogate.weights(range(count))
            assert weights.isfinite().all()
            assert math.isfinite(trace)

    def test_more_noise_when_it_fails(self, monkeypatch):
        surrogate, theta = make_surrogate(make_kernel("rbf")), torch.zeros(3, **DOUBLE)
        points = points_near(theta, 12, 0)
        surrogate.look(theta, range(8), points, 1e-30)
        before, attempts = surrogate._rounding, []
        attempt = surrogate._try

        def fails_at_first(choices):
            attempts.append(len(surrogate._keys))
            return None if len(attempts) == 1 else attempt(choices)

        monkeypatch.setattr(surrogate, "_try", fails_at_first)
        surrogate.add(surrogate.place(points[None, 8:]), range(8, 12))
        assert attempts == [8, 0, 8]  # the old points, too, get more noise
        assert surrogate._rounding == 10 * before
        assert surrogate.weights(range(12))[0].shape == (3, 12)

    def test_a_kernel_that_is_none(self):
        def not_positive(q):
            return (1 + 10 * q, torch.ones_like(q), torch.ones_like(q))

        one = torch.ones((), **DOUBLE)
        radial = RadialKernel(torch.ones(2, **DOUBLE), one, not_positive)
        surrogate = RadialSurrogate(radial, constant_mean=True)
        theta = torch.zeros(2, **DOUBLE)
        with pytest.raises(InvalidArgumentError, match="positive semidefinite"):
            surrogate.look(theta, range(5), points_near(theta, 5, 0), NOISE)
