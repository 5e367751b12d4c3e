import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.gradient_weights import GradientWeights, gradient_weights
from tests.devices import DEVICE

NOISE = 1e-3
LENGTHSCALES = [0.5, 0.8, 1.5]


def make_kernel(name, **tkwargs):
    with DEVICE:
        if name == "linear":
            kernel = RBFKernel() + LinearKernel()
        else:
            base = {"rbf": RBFKernel, "matern": MaternKernel}[name](ard_num_dims=3)
            kernel = ScaleKernel(base)
            kernel.double()  # before it takes numbers that single precision rounds
            base.lengthscale = torch.tensor(LENGTHSCALES, dtype=torch.float64)
            kernel.outputscale = torch.tensor(2.0, dtype=torch.float64)
    return kernel.to(**tkwargs).requires_grad_(False).eval()


def rand(generator, *shape, **tkwargs):
    drawn = torch.rand(*shape, generator=generator, dtype=torch.float64, device=DEVICE)
    return drawn.to(**tkwargs)


def cross_covariance(kernel, theta, D):
    """The d x M gradient of k(theta, D), by autograd."""

    def values(x):
        return kernel(x.unsqueeze(0), D).to_dense().squeeze(0)

    return torch.autograd.functional.jacobian(values, theta).mT


def prior_covariance(theta):
    """The prior covariance of the gradient with the kernel "rbf"."""
    lengthscales = torch.tensor(LENGTHSCALES, dtype=theta.dtype, device=theta.device)
    return torch.diag(2.0 / lengthscales.square())


def noisy(kernel, D, noise=NOISE):
    eye = torch.eye(len(D), dtype=D.dtype, device=D.device)
    return kernel(D).to_dense() + noise * eye


KERNELS = pytest.mark.parametrize("name", ["rbf", "matern", "linear"])


@pytest.fixture
def theta(generator, double):
    return rand(generator, 3, **double)


@pytest.fixture
def points(generator, double):
    return rand(generator, 8, 3, **double)


class TestZeroMean:
    @KERNELS
    def test_weights_against_dense_linear_algebra(self, name, theta, points, double):
        kernel = make_kernel(name, **double)
        found = gradient_weights(kernel, theta, points, noise_variance=NOISE)
        C = cross_covariance(kernel, theta, points)
        W = C @ torch.linalg.inv(noisy(kernel, points))
        torch.testing.assert_close(found.cross_covariance, C)
        torch.testing.assert_close(found.weights, W, rtol=1e-8, atol=1e-8)

    def test_covariance_and_trace_against_dense_linear_algebra(
        self, theta, points, double
    ):
        kernel = make_kernel("rbf", **double)
        found = gradient_weights(kernel, theta, points, noise_variance=NOISE)
        C, prior = cross_covariance(kernel, theta, points), prior_covariance(theta)
        expected = prior - C @ torch.linalg.inv(noisy(kernel, points)) @ C.mT
        torch.testing.assert_close(found.prior_covariance, prior)
        torch.testing.assert_close(found.covariance, expected, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            found.covariance, found.covariance.mT, rtol=0, atol=0
        )
        torch.testing.assert_close(found.trace, expected.trace())

    @KERNELS
    def test_is_the_gradient_of_the_posterior_mean(
        self, name, theta, points, double, generator
    ):
        kernel = make_kernel(name, **double)
        losses = rand(generator, 8, **double)
        solved = torch.linalg.solve(noisy(kernel, points), losses)

        def mean(x):
            return kernel(x.unsqueeze(0), points).to_dense().squeeze(0) @ solved

        expected = torch.autograd.functional.jacobian(mean, theta)
        found = gradient_weights(kernel, theta, points, noise_variance=NOISE)
        gradient = found.weights @ losses
        torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-7)


class TestConstantMean:
    @KERNELS
    def test_weights_are_those_of_ordinary_kriging(self, name, theta, points, double):
        # min_w Var(w^T l - df) subject to w^T 1 = 0, by its Lagrange multipliers.
        kernel = make_kernel(name, **double)
        found = gradient_weights(
            kernel, theta, points, noise_variance=NOISE, constant_mean=True
        )
        system = torch.zeros(9, 9, **double)
        system[:8, :8] = noisy(kernel, points)
        system[8, :8] = system[:8, 8] = 1.0
        C = cross_covariance(kernel, theta, points)
        rhs = torch.cat([C, torch.zeros(3, 1, **double)], dim=-1)
        W = torch.linalg.solve(system, rhs.mT)[:8].mT
        torch.testing.assert_close(found.weights, W, rtol=1e-7, atol=1e-7)

    def test_covariance_is_that_of_ordinary_kriging(self, theta, points, double):
        kernel = make_kernel("rbf", **double)
        found = gradient_weights(
            kernel, theta, points, noise_variance=NOISE, constant_mean=True
        )
        # The covariance of the error, for any weights that sum to zero.
        W, C = found.weights, cross_covariance(kernel, theta, points)
        expected = prior_covariance(theta) - W @ C.mT - C @ W.mT
        expected = expected + W @ noisy(kernel, points) @ W.mT
        torch.testing.assert_close(found.covariance, expected, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.trace, expected.trace())
        zero_mean = gradient_weights(kernel, theta, points, noise_variance=NOISE)
        assert found.trace > zero_mean.trace

    def test_constants_have_no_gradient(self, theta, points, double):
        found = gradient_weights(
            make_kernel("rbf", **double),
            theta,
            points,
            noise_variance=NOISE,
            constant_mean=True,
        )
        sums = found.weights.sum(dim=-1)
        torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-10)

    def test_one_point_says_nothing(self, theta, points, double):
        found = gradient_weights(
            make_kernel("rbf", **double),
            theta,
            points[:1],
            noise_variance=NOISE,
            constant_mean=True,
        )
        assert found.weights.abs().max() < 1e-12
        torch.testing.assert_close(found.trace, prior_covariance(theta).trace())


@pytest.mark.parametrize("constant_mean", [False, True])
class TestBoth:
    @pytest.mark.parametrize("batch", [(2,), (2, 3)], ids=str)
    def test_elements_of_a_batch_are_independent(
        self, constant_mean, batch, generator, double
    ):
        kernel = make_kernel("matern", **double)
        theta, D = rand(generator, *batch, 3, **double), rand(generator, *batch, 6, 3)
        options = {"noise_variance": NOISE, "constant_mean": constant_mean}
        found = gradient_weights(kernel, theta, D, **options)
        assert found.weights.shape == (*batch, 3, 6)
        assert found.covariance.shape == found.prior_covariance.shape == (*batch, 3, 3)
        assert found.trace.shape == batch
        for index in torch.ones(batch, device=DEVICE).nonzero().tolist():
            one = gradient_weights(kernel, theta[*index], D[*index], **options)
            torch.testing.assert_close(found.weights[*index], one.weights)
            torch.testing.assert_close(found.trace[*index], one.trace)
            torch.testing.assert_close(found.covariance[*index], one.covariance)

    def test_dtype_and_no_autograd(self, constant_mean, tkwargs, generator):
        kernel = make_kernel("rbf", **tkwargs).requires_grad_(True)
        theta, D = rand(generator, 3, **tkwargs), rand(generator, 8, 3, **tkwargs)
        options = {"noise_variance": 1e-2, "constant_mean": constant_mean}
        found = gradient_weights(kernel, theta, D, **options)
        precise = gradient_weights(
            kernel.double(), theta.double(), D.double(), **options
        )
        for name in ("weights", "trace", "covariance"):
            value = getattr(found, name)
            assert value.dtype == tkwargs["dtype"]
            assert value.device == tkwargs["device"]
            assert not value.requires_grad
            close = {"rtol": 1e-3, "atol": 1e-3}
            torch.testing.assert_close(value.double(), getattr(precise, name), **close)

    def test_repeated_points_average_their_noise(
        self, constant_mean, theta, points, double
    ):
        kernel = make_kernel("rbf", **double)
        options = {"constant_mean": constant_mean}
        twice = gradient_weights(
            kernel, theta, points.repeat(2, 1), noise_variance=2 * NOISE, **options
        )
        once = gradient_weights(kernel, theta, points, noise_variance=NOISE, **options)
        summed = twice.weights[:, :8] + twice.weights[:, 8:]
        torch.testing.assert_close(summed, once.weights, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(twice.trace, once.trace)


def test_refuses_bad_input(theta, points, double):
    kernel = make_kernel("rbf", **double)
    with pytest.raises(InvalidArgumentError, match=r"noise_variance .*got 0\.0"):
        gradient_weights(kernel, theta, points, noise_variance=0.0)
    with pytest.raises(InvalidArgumentError, match="points"):
        gradient_weights(kernel, theta, points[0], noise_variance=NOISE)
    with pytest.raises(InvalidArgumentError, match="feature"):
        gradient_weights(kernel, theta[:2], points, noise_variance=NOISE)


def test_from_solution(generator, double):
    W, C = rand(generator, 2, 3, 5, **double), rand(generator, 2, 3, 5, **double)
    prior = torch.eye(3, **double).expand(2, 3, 3)
    found = GradientWeights.from_solution(W, C, prior)
    sigma = prior - torch.einsum("bim,bjm->bij", W, C)
    expected = sigma.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    torch.testing.assert_close(found.trace, expected)
    torch.testing.assert_close(found.covariance, (sigma + sigma.mT) / 2)
