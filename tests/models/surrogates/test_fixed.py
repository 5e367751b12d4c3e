import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import NystromSurrogate, RandomFeatureSurrogate
from tests.devices import DEVICE

BOTH = pytest.mark.parametrize("cls", [NystromSurrogate, RandomFeatureSurrogate])


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device=DEVICE)


def rbf(X1, X2, lengthscale, outputscale):
    squares = (X1.unsqueeze(-2) - X2.unsqueeze(-3)).square().sum(dim=-1)
    return outputscale * torch.exp(-squares / (2 * lengthscale**2))


def exact_mean(Z, values, x, lengthscale, outputscale, noise):
    """The posterior mean at x, from scratch: differentiable in x."""
    eye = torch.eye(len(Z), dtype=Z.dtype, device=DEVICE)
    K = rbf(Z, Z, lengthscale, outputscale) + noise * eye
    k = rbf(x.unsqueeze(0), Z, lengthscale, outputscale)
    return (k @ torch.linalg.solve(K, values)).squeeze(0)


class TestNystrom:
    @pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
    def test_gradient_of_the_exact_posterior_mean(self, batch, generator, double):
        surrogate = NystromSurrogate(
            torch.zeros(*batch, 2, **double), num_points=20, noise_variance=1e-2
        )
        x = normal(generator, *batch, 2)
        surrogate.update(x)
        losses = normal(generator, *batch, 20)
        gradients = surrogate.gradient(losses).reshape(-1, 2)
        points = surrogate.points.reshape(-1, 20, 2)
        for i, at in enumerate(x.reshape(-1, 2)):
            at = at.clone().requires_grad_()
            values = losses.reshape(-1, 20)[i]
            mean = exact_mean(points[i], values, at, 2.0, 4.0, 1e-2)
            (expected,) = torch.autograd.grad(mean, at)
            torch.testing.assert_close(gradients[i], expected, rtol=1e-8, atol=1e-8)

    def test_any_smooth_kernel(self, generator, double):
        with DEVICE:
            kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
        surrogate = NystromSurrogate(torch.zeros(2, **double), kernel=kernel)
        linear = surrogate.points @ torch.tensor([1.0, -2.0], **double)
        expected = torch.tensor([1.0, -2.0], **double)
        torch.testing.assert_close(
            surrogate.gradient(linear), expected, rtol=0, atol=0.05
        )


class TestRandomFeatures:
    @pytest.mark.parametrize("num_features", [16, 64])
    def test_weights_differentiate_the_fitted_model(
        self, num_features, generator, double
    ):
        """Both systems of equations, against finite differences of the features."""
        surrogate = RandomFeatureSurrogate(
            torch.zeros(3, 2, **double),
            num_features=num_features,
            num_points=32,
            noise_variance=1e-1,
        )
        x, losses = normal(generator, 3, 2), normal(generator, 3, 32)
        surrogate.update(x)
        Phi = surrogate.features(surrogate.points[0])
        assert Phi.shape == (32, num_features)
        eye = torch.eye(num_features, **double)
        coefficients = torch.linalg.solve(
            Phi.T @ Phi + 1e-1 * eye, Phi.T @ losses.T
        )  # F x 3
        for j in range(2):
            step = torch.zeros(2, **double)
            step[j] = 1e-5
            phi = surrogate.features(x + step) - surrogate.features(x - step)
            expected = (phi / 2e-5 * coefficients.T).sum(dim=-1)
            torch.testing.assert_close(
                surrogate.gradient(losses)[:, j], expected, rtol=1e-6, atol=1e-8
            )

    def test_inner_products_approximate_the_kernel(self, generator, double):
        with DEVICE:
            kernel = ScaleKernel(RBFKernel()).double()
            kernel.base_kernel.lengthscale, kernel.outputscale = 1.5, 3.0
        surrogate = RandomFeatureSurrogate(
            torch.zeros(2, **double), num_features=20_000, num_points=4, kernel=kernel
        )
        X = normal(generator, 6, 2)
        phi = surrogate.features(X)
        # The standard deviation of an entry is at most 3 sqrt(3 / 2 / 20000) = 0.026.
        torch.testing.assert_close(
            phi @ phi.T, rbf(X, X, 1.5, 3.0), rtol=0, atol=4 * 0.026
        )

    def test_many_features_give_the_exact_posterior(self, generator, double):
        x, losses = 0.5 * normal(generator, 2), normal(generator, 12)
        errors = []
        for num_features in (200, 20_000):
            surrogate = RandomFeatureSurrogate(
                torch.zeros(2, **double),
                num_features=num_features,
                num_points=12,
                noise_variance=1.0,
            )
            surrogate.update(x)
            at = x.clone().requires_grad_()
            mean = exact_mean(surrogate.points, losses, at, 2.0, 4.0, 1.0)
            (expected,) = torch.autograd.grad(mean, at)
            errors.append(float((surrogate.gradient(losses) - expected).norm()))
        assert errors[1] < 0.02
        assert errors[1] < errors[0] / 3

    def test_only_rbf_kernels(self, double):
        with DEVICE:
            kernel = MaternKernel(nu=2.5).double()
        with pytest.raises(InvalidArgumentError, match="kernel must be an RBF kernel"):
            RandomFeatureSurrogate(torch.zeros(2, **double), kernel=kernel)

    def test_num_features(self, double):
        with pytest.raises(InvalidArgumentError, match=r"num_features must .* got 0"):
            RandomFeatureSurrogate(torch.zeros(2, **double), num_features=0)


@BOTH
class TestBoth:
    def test_points_are_drawn_in_a_box_around_the_start(self, cls, double):
        start = torch.tensor([[1.0, 5.0], [2.0, 5.0]], **double)
        surrogate = cls(start, half_width=0.5)
        assert surrogate.points.shape == (2, 128, 2)
        assert surrogate.weights.shape == (2, 2, 128)
        assert surrogate.num_points.tolist() == [128, 128]
        assert surrogate.num_points.device == DEVICE
        points = surrogate.points[0]
        assert torch.equal(points, surrogate.points[1])
        box = torch.tensor([[0.5, 4.5], [2.5, 5.5]], **double)
        torch.testing.assert_close(surrogate.box, box)
        assert ((points > box[0]) & (points < box[1])).all()
        assert (
            (points.amax(dim=0) - points.amin(dim=0)) > 0.9 * (box[1] - box[0])
        ).all()
        given = cls(start, bounds=box + 10.0).points[0]
        torch.testing.assert_close(given, points + 10.0)

    def test_seeds(self, cls, double):
        x = torch.zeros(2, **double)
        first, again, other = (cls(x, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(first.points, again.points)
        assert torch.equal(first.weights, again.weights)
        assert not torch.equal(first.points, other.points)

    def test_gradient_of_a_smooth_function(self, cls, double):
        surrogate = cls(torch.zeros(2, **double), half_width=1.0)
        surrogate.update(torch.full((2,), 0.2, **double))
        losses = (surrogate.points - 0.5).square().sum(dim=-1) / 2
        expected = torch.full((2,), -0.3, **double)
        atol = 0.02 if cls is NystromSurrogate else 0.1
        torch.testing.assert_close(
            surrogate.gradient(losses), expected, rtol=0, atol=atol
        )

    def test_dtype_follows_the_start(self, cls, tkwargs):
        surrogate = cls(torch.zeros(2, **tkwargs), num_points=16)
        double = cls(torch.zeros(2, device=DEVICE).double(), num_points=16)
        assert surrogate.points.dtype == tkwargs["dtype"]
        assert surrogate.weights.dtype == tkwargs["dtype"]
        expected = double.weights.to(tkwargs["dtype"])
        assert torch.equal(surrogate.weights, expected)
        gradient = surrogate.gradient(torch.ones(16, **tkwargs))
        assert (gradient.dtype, gradient.device) == tuple(tkwargs.values())

    def test_state(self, cls, generator, double):
        start = torch.zeros(3, 2, **double)
        surrogate, other = cls(start), cls(start)
        surrogate.update(normal(generator, 3, 2))
        assert not torch.equal(surrogate.weights, other.weights)
        other.load_state_dict(surrogate.state_dict())
        assert torch.equal(surrogate.weights, other.weights)

    def test_settings_are_plain(self, cls, double):
        settings = cls(torch.zeros(2, **double), seed=3, num_points=5).settings()
        assert settings["surrogate"] == cls.__name__
        assert settings["seed"] == 3
        assert settings["num_points"] == 5
        assert settings["box"] == [[-2.0, -2.0], [2.0, 2.0]]
        assert settings["noise_variance"] == pytest.approx(4e-6)

    def test_private_values_are_not_looked_at(self, cls, double):
        surrogate = cls(torch.zeros(2, **double))
        assert surrogate.gradient(torch.full((128,), torch.nan, **double)).isnan().all()

    def test_bad_arguments(self, cls, double):
        x = torch.zeros(3, 2, **double)
        for bad in ([0.0], torch.zeros((), **double), x.long(), x[:0]):
            with pytest.raises(
                InvalidArgumentError,
                match=r"initial_x must (be a ... x p tensor|not be empty)",
            ):
                cls(bad)
        for name, value in [
            ("num_points", 0),
            ("half_width", 0.0),
            ("noise_variance", -1.0),
            ("seed", -1),
        ]:
            with pytest.raises(InvalidArgumentError, match=f"{name} must .* got"):
                cls(x, **{name: value})
        for bounds, message in [
            (x, "bounds must be a 2 x 2 tensor"),
            (torch.zeros(2, 2, **double), "every lower bound below its upper"),
            (torch.tensor([[0.0, 0.0], [1.0, torch.inf]], **double), "must be finite"),
        ]:
            with pytest.raises(InvalidArgumentError, match=message):
                cls(x, bounds=bounds)
        surrogate = cls(x)
        with pytest.raises(InvalidArgumentError, match=r"x must .* shape 3 x 2"):
            surrogate.update(x[:2])
        with pytest.raises(InvalidArgumentError, match=r"x must .* got torch.float32"):
            surrogate.update(x.float())
        with pytest.raises(InvalidArgumentError, match=r"x must .* got a list"):
            surrogate.update([1])
        with pytest.raises(InvalidArgumentError, match=r"losses must .* \(3, 128\)"):
            surrogate.gradient(torch.zeros(3, 127, **double))
