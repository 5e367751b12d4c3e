"""The posterior of a gradient, against autograd and brute-force joint Gaussians."""

import copy

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import (
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood

from botorch_dp.exceptions import (
    IllConditionedWarning,
    InvalidArgumentError,
    UnsupportedKernelError,
)
from botorch_dp.models import (
    GradientGP,
    GradientMixturePosterior,
    gradient_posterior,
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from tests.devices import DEVICE
from tests.models.model_matrix import CASES, center, deep, make_model, values


def make_kernel(name, d=3):
    with DEVICE:
        kernel = {
            "rbf": lambda: RBFKernel(ard_num_dims=d),
            "matern": lambda: ScaleKernel(MaternKernel(nu=2.5)),
            "polynomial": lambda: PolynomialKernel(power=3),
            "rq": lambda: RQKernel(),
            "periodic": lambda: PeriodicKernel(),
            "sum": lambda: ScaleKernel(RBFKernel()) + MaternKernel(nu=2.5),
            "product": lambda: (
                RBFKernel(active_dims=[0]) * RQKernel(active_dims=[1, 2])
            ),
        }[name]()
    return kernel.double()


KERNELS = ["rbf", "matern", "polynomial", "rq", "periodic", "sum", "product"]


@pytest.fixture
def data(generator):
    X = torch.rand(15, 3, generator=generator, dtype=torch.float64, device=DEVICE)
    Y = (X.sin() * torch.arange(1, 4, device=DEVICE)).sum(dim=-1, keepdim=True)
    x = torch.rand(4, 3, generator=generator, dtype=torch.float64, device=DEVICE)
    return X, Y, x


class TestPosterior:
    @pytest.mark.parametrize("name", KERNELS)
    def test_mean_is_the_gradient_of_the_mean(self, name, data):
        X, Y, x = data
        model = GradientGP(X, Y, make_kernel(name), noise_variance=1e-3)
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(model.posterior(at).mean.sum(), at)
        found = model.gradient_posterior(x).mean
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("name", KERNELS)
    def test_covariance_by_finite_differences_of_the_joint(self, name, data):
        # Differences of f at x +- h e_i are linear in f: their exact joint posterior.
        X, Y, x = data
        model = GradientGP(X, Y, make_kernel(name), noise_variance=1e-2)
        h, d = 1e-3, 3
        found = model.gradient_posterior(x[:1]).covariance[0]
        steps = h * torch.eye(d, dtype=torch.float64, device=DEVICE)
        joint = model.posterior(torch.cat([x[:1] + steps, x[:1] - steps]))
        covariance = joint.distribution.covariance_matrix.detach()
        plus_minus = torch.cat(
            [torch.eye(d, device=DEVICE), -torch.eye(d, device=DEVICE)], dim=1
        ).double() / (2 * h)
        expected = plus_minus @ covariance @ plus_minus.T
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)

    def test_against_gpytorchs_joint_kernel(self, data):
        X, Y, x = data
        model = GradientGP(X, Y, noise_variance=1e-3)
        with DEVICE:
            joint = RBFKernelGrad().double()
            joint.lengthscale = 0.5
        with torch.device(DEVICE):
            blocks = joint(torch.cat([X, x])).to_dense().detach()
        blocks = blocks.unflatten(0, (19, 4)).unflatten(2, (19, 4))
        K = blocks[:15, 0, :15, 0] + 1e-3 * torch.eye(15, device=DEVICE)
        for i in range(4):
            C = blocks[15 + i, 1:, :15, 0]
            prior = blocks[15 + i, 1:, 15 + i, 1:]
            posterior = model.gradient_posterior(x[i : i + 1])
            mean = (C @ torch.linalg.solve(K, Y)).T
            covariance = prior - C @ torch.linalg.solve(K, C.T)
            assert torch.allclose(posterior.mean, mean, atol=1e-9)
            assert torch.allclose(posterior.covariance[0], covariance, atol=1e-9)

    def test_a_quadratic_is_known_exactly(self, generator, double):
        # 21 features of degree 2 in 5 dimensions, 30 points, almost no noise.
        X = torch.rand(30, 5, generator=generator, **double)
        Y = X.square().sum(dim=-1, keepdim=True)
        with DEVICE:
            kernel = PolynomialKernel(power=2).double()
        model = GradientGP(X, Y, kernel, noise_variance=1e-8)
        posterior = model.gradient_posterior(X[:3])
        assert torch.allclose(posterior.mean, 2 * X[:3], atol=1e-4)
        assert posterior.variance.max() < 1e-4

    def test_constant_mean_counts(self, data):
        # What published code forgets: the residual is y - m.
        X, Y, x = data
        with DEVICE:
            mean = ConstantMean().double()
            mean.constant = -3.0
        shifted = GradientGP(X, Y - 3.0, noise_variance=1e-3, mean_module=mean)
        plain = GradientGP(X, Y, noise_variance=1e-3)
        assert torch.allclose(
            shifted.gradient_posterior(x).mean, plain.gradient_posterior(x).mean
        )

    def test_other_means_by_their_own_gradient(self, data):
        X, Y, x = data
        with DEVICE:
            mean = LinearMean(3).double()
        model = GradientGP(X, Y, noise_variance=1e-3, mean_module=mean)
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(model.posterior(at).mean.sum(), at)
        assert torch.allclose(model.gradient_posterior(x).mean, expected)
        assert torch.allclose(model.gradient_posterior(at).mean, expected)

    def test_differentiable_in_x(self, data):
        X, Y, x = data
        with DEVICE:
            kernel = MaternKernel(nu=2.5).double()
        model = GradientGP(X, Y, kernel, noise_variance=1e-2)

        def statistics(at):
            posterior = model.gradient_posterior(at)
            return posterior.mean, posterior.covariance

        at = x[:2].clone().requires_grad_()
        assert torch.autograd.gradcheck(statistics, (at,), atol=1e-4)

    def test_batches_of_models_and_points(self, generator, double):
        X = torch.rand(2, 10, 3, generator=generator, **double)
        Y = X.square().sum(dim=-1, keepdim=True)
        x = torch.rand(4, 1, 5, 3, generator=generator, **double)
        batched = GradientGP(X, Y, noise_variance=1e-3).gradient_posterior(x)
        assert batched.mean.shape == (4, 2, 5, 3)
        assert batched.covariance.shape == (4, 2, 5, 3, 3)
        for i in range(2):
            single = GradientGP(X[i], Y[i], noise_variance=1e-3)
            for j in range(4):
                posterior = single.gradient_posterior(x[j, 0])
                assert torch.allclose(batched.mean[j, i], posterior.mean)
                assert torch.allclose(batched.covariance[j, i], posterior.covariance)

    def test_off_diagonals_are_not_clamped(self, data):
        X, Y, x = data
        covariance = GradientGP(X, Y).gradient_posterior(x).covariance
        assert (covariance < 0).any()
        assert torch.allclose(covariance, covariance.mT)


class TestBoTorchModel:
    def test_in_optimize_acqf(self, data):
        X, Y, _ = data
        model = GradientGP(X, Y)
        bounds = torch.tensor(
            [[0.0] * 3, [1.0] * 3], dtype=torch.float64, device=DEVICE
        )
        with DEVICE:
            candidate, _ = optimize_acqf(
                LogExpectedImprovement(model, best_f=Y.max()),
                bounds=bounds,
                q=1,
                num_restarts=2,
                raw_samples=8,
            )
        assert candidate.shape == (1, 3)

    def test_condition_on_observations(self, data):
        X, Y, x = data
        y = x.sum(dim=-1, keepdim=True)
        conditioned = GradientGP(X, Y).condition_on_observations(x, y)
        fresh = GradientGP(torch.cat([X, x]), torch.cat([Y, y]))
        found, expected = (m.gradient_posterior(x) for m in (conditioned, fresh))
        assert torch.allclose(found.mean, expected.mean, atol=1e-8)
        assert torch.allclose(found.covariance, expected.covariance, atol=1e-8)

    @pytest.mark.default_device
    def test_fit_on_public_data_and_no_stale_cache(self, data):
        X, Y, x = data
        model = GradientGP(X, Y, noise_variance=1e-4, fixed=False)
        before = model.gradient_posterior(x).mean
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        after = model.gradient_posterior(x).mean
        assert not torch.allclose(before, after)
        truth = x.cos() * torch.arange(1, 4, device=x.device)
        assert (after - truth).norm() < (before - truth).norm()

    def test_hyperparameters_are_fixed_and_changes_are_seen(self, data):
        X, Y, x = data
        model = GradientGP(X, Y)
        assert not any(p.requires_grad for p in model.parameters())
        before = model.gradient_posterior(x)
        assert model.geometry()[0] is model.geometry()[0]  # kept
        model.covar_module.lengthscale = torch.tensor(0.9, device=DEVICE)
        changed = model.gradient_posterior(x)
        assert not torch.allclose(before.mean, changed.mean)
        model.set_train_data(targets=2 * model.train_targets, strict=False)
        assert torch.allclose(model.gradient_posterior(x).mean, 2 * changed.mean)

    def test_gradients_in_hyperparameters(self, data):
        X, Y, x = data
        model = GradientGP(X, Y).requires_grad_(True)
        model.gradient_posterior(x).variance.sum().backward()
        assert model.covar_module.raw_lengthscale.grad.abs() > 0

    def test_state_dict(self, data):
        X, Y, x = data
        model = GradientGP(X, Y, make_kernel("matern"), noise_variance=1e-3)
        model.covar_module.outputscale = torch.tensor(3.0, device=DEVICE)
        other = GradientGP(X, Y, make_kernel("matern"))
        other.load_state_dict(model.state_dict())
        assert torch.allclose(
            other.gradient_posterior(x).mean, model.gradient_posterior(x).mean
        )
        assert float(other.noise_variance) == pytest.approx(1e-3)

    def test_normalized_inputs(self, data):
        X, Y, x = data
        bounds = torch.tensor([[0.0] * 3, [1.0, 2.0, 5.0]], device=DEVICE).double()
        with DEVICE:
            transform = Normalize(3, bounds=bounds)
        model = GradientGP(X, Y, noise_variance=1e-3, input_transform=transform)
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(model.posterior(at).mean.sum(), at)
        found = model.gradient_posterior(x)
        assert torch.allclose(found.mean, expected)
        plain = GradientGP(X / bounds[1], Y, noise_variance=1e-3)
        covariance = plain.gradient_posterior(x / bounds[1]).covariance
        scale = bounds[1].reciprocal()
        assert torch.allclose(
            found.covariance, covariance * scale[:, None] * scale, atol=1e-10
        )

    def test_float32_works_and_warns_once(self, generator):
        X = torch.rand(40, 2, generator=generator, device=DEVICE)
        Y = X.sum(dim=-1, keepdim=True)
        model = GradientGP(X, Y, noise_variance=1e-2)
        found = model.gradient_posterior(X[:3])
        reference = GradientGP(X.double(), Y.double(), noise_variance=1e-2)
        expected = reference.gradient_posterior(X[:3].double())
        assert torch.allclose(found.mean.double(), expected.mean, atol=1e-2)
        clustered = X[:1] + 1e-3 * X
        bad = GradientGP(clustered, Y, noise_variance=1e-7)
        with pytest.warns(IllConditionedWarning, match=r"torch\.float64"):
            bad.gradient_posterior(X[:3])
        bad.covar_module.lengthscale = torch.tensor(0.6, device=DEVICE)
        bad.gradient_posterior(X[:3])  # a second warning would be an error

    def test_duplicate_points(self, data):
        X, Y, x = data
        model = GradientGP(torch.cat([X, X]), torch.cat([Y, Y]), noise_variance=2e-3)
        single = GradientGP(
            X, Y, noise_variance=1e-3
        )  # twice the points, half the noise
        assert torch.allclose(
            model.gradient_posterior(x).mean, single.gradient_posterior(x).mean
        )


class TestFromModel:
    def test_standardized_model_in_original_units(self, data):
        X, Y, x = data
        Y = 100 + 7 * Y
        with DEVICE:
            fitted = SingleTaskGP(X, Y)
        fitted.likelihood.noise = torch.tensor(1e-3, device=DEVICE)
        fitted.eval()
        model = GradientGP.from_model(fitted)
        for statistic in ("mean", "variance"):
            found, expected = (
                getattr(m.posterior(x), statistic) for m in (model, fitted)
            )
            assert torch.allclose(found, expected, rtol=1e-6)
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(fitted.posterior(at).mean.sum(), at)
        assert torch.allclose(model.gradient_posterior(x).mean, expected, rtol=1e-6)

    @pytest.mark.parametrize("called_before", [False, True])
    def test_normalized_model(self, data, called_before):
        X, Y, x = data
        bounds = torch.tensor([[0.0] * 3, [2.0] * 3], device=DEVICE).double()
        with DEVICE:
            fitted = SingleTaskGP(X, Y, input_transform=Normalize(3, bounds=bounds))
        if called_before:
            fitted.posterior(x)
        model = GradientGP.from_model(fitted)
        assert torch.allclose(
            model.posterior(x).mean, fitted.posterior(x).mean, rtol=1e-6
        )

    def test_is_a_copy(self, data):
        X, Y, _ = data
        with DEVICE:
            fitted = SingleTaskGP(X, Y, outcome_transform=None)
        before = copy.deepcopy(fitted.state_dict())
        model = GradientGP.from_model(fitted)
        model.covar_module.lengthscale = torch.tensor(9.0, device=DEVICE)
        assert all(
            torch.equal(value, before[key])
            for key, value in fitted.state_dict().items()
        )

    def test_refusals(self, data):
        X, Y, _ = data
        with DEVICE:
            logged = SingleTaskGP(X, Y + 1, outcome_transform=Log())
        with pytest.raises(UnsupportedError, match=r"Log is not affine"):
            GradientGP.from_model(logged)
        with pytest.raises(InvalidArgumentError, match="exact Gaussian process"):
            GradientGP.from_model(torch.nn.Identity())

    @pytest.mark.default_device
    def test_a_forward_that_does_more(self):
        model = make_model(deep, "none", (), 1)
        with pytest.raises(InvalidArgumentError, match=r"DeepGP\.forward does more"):
            GradientGP.from_model(model)

    @pytest.mark.default_device
    @pytest.mark.parametrize(
        ("make", "transform", "batch", "outputs"),
        [case for case in CASES if "deep" not in case.id],
    )
    def test_of_the_matrix(self, make, transform, batch, outputs):
        model = make_model(make, transform, batch, outputs)
        copied, x = GradientGP.from_model(model), center(make, *batch, 2)
        with torch.no_grad():
            expected = gradient_posterior(model, x)
            found = gradient_posterior(copied, x)
            assert torch.allclose(found.mean, expected.mean, rtol=1e-7)
            assert torch.allclose(found.covariance, expected.covariance, rtol=1e-6)
            if isinstance(expected, GradientMixturePosterior):
                return  # the copy is a batch of models
            for found_part, part in zip(
                values(copied, x), values(model, x), strict=True
            ):
                assert torch.allclose(found_part, part, rtol=1e-5, atol=1e-7)


class TestTraining:
    @pytest.mark.default_device
    def test_as_a_single_task_gp(self, data):
        X, Y, x = data
        models = [
            cls(X, Y, input_transform=Normalize(3), **options)
            for cls, options in ((SingleTaskGP, {}), (GradientGP, {"fixed": False}))
        ]
        for model in models:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        plain, ours = models
        assert torch.allclose(plain.posterior(x).mean, ours.posterior(x).mean)
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(plain.posterior(at).mean.sum(), at)
        assert torch.allclose(ours.gradient_posterior(x).mean, expected)

    @pytest.mark.default_device
    def test_fixed_hyperparameters_stay_what_they_are(self, data):
        model = GradientGP(*data[:2])
        copied = GradientGP.from_model(model)
        for fixed in (model, copy.deepcopy(model), copied):
            mll = ExactMarginalLogLikelihood(fixed.likelihood, fixed)
            with pytest.raises(InvalidArgumentError, match="fixed=False"):
                fit_gpytorch_mll(mll)
        both = ModelListGP(model, copied)
        with pytest.raises(InvalidArgumentError, match="fixed=False"):
            fit_gpytorch_mll(SumMarginalLogLikelihood(both.likelihood, both))

    def test_known_noise_by_hand(self, data):
        X, Y, x = data
        Yvar = 0.01 + Y.square()
        model = GradientGP(X, Y, train_Yvar=Yvar)
        K = kernel_value(model.covar_module, X, X) + Yvar.squeeze(-1).diag()
        cross = kernel_gradient(model.covar_module, x, X)  # q x n x d
        posterior = model.gradient_posterior(x)
        mean = cross.mT @ torch.linalg.solve(K, Y.squeeze(-1))
        assert torch.allclose(posterior.mean, mean)
        prior = prior_gradient_covariance(model.covar_module, x)
        lowered = cross.mT @ torch.linalg.solve(K, cross)
        assert torch.allclose(posterior.covariance, prior - lowered)
        assert torch.allclose(model.noise_variance, Yvar.mean())

    def test_one_noise_only(self, data):
        X, Y, _ = data
        with pytest.raises(InvalidArgumentError, match="exclude each other"):
            GradientGP(X, Y, noise_variance=0.1, train_Yvar=Y.square())
        with pytest.raises(InvalidArgumentError, match=r"train_Yvar .*\(3, 1\)"):
            GradientGP(X, Y, train_Yvar=Y[:3].square())

    def test_arguments_for_ax(self, data):
        X, Y, _ = data
        names = {"feature_names": list("abc"), "outcome_names": ["y"]}
        inputs = GradientGP.construct_inputs(
            SupervisedDataset(X, Y, Yvar=Y.square() + 0.1, **names)
        )
        assert inputs["fixed"] is False
        assert torch.equal(inputs["train_Yvar"], Y.square() + 0.1)
        inputs = GradientGP.construct_inputs(
            SupervisedDataset(X, Y, **names), fixed=True, noise_variance=0.1
        )
        with DEVICE:
            model = GradientGP(**inputs)
        assert float(model.noise_variance) == pytest.approx(0.1)


def test_without_points_it_is_the_prior(data):
    X, Y, _ = data
    model = GradientGP(X[:0], Y[:0])
    posterior = model.gradient_posterior(X)
    assert torch.equal(posterior.mean, torch.zeros_like(X))
    variance = model.covar_module.lengthscale.square().reciprocal()
    assert torch.allclose(posterior.variance, variance.expand_as(X))


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda X, Y: (X.long(), Y), "train_X.*int64"),
            (lambda X, Y: (X, Y.half()), "train_Y.*float16"),
            (lambda X, Y: (X, Y.squeeze(-1)), r"train_Y.*\(15,\)"),
            (lambda X, Y: (X, Y[:3]), r"train_Y.*\(3, 1\)"),
            (lambda X, Y: (X * float("nan"), Y), "finite"),
        ],
    )
    def test_training_data(self, data, change, match):
        X, Y, _ = data
        with pytest.raises(InvalidArgumentError, match=match):
            GradientGP(*change(X, Y))

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda x: x[:, :2], r"X must be.*3.*\(4, 2\)"),
            (lambda x: x[0], r"X must be.*\(3,\)"),
            (lambda x: x[:0], "at least one point"),
            (lambda x: x.float(), "float64.*float32"),
            (lambda x: x * float("inf"), "finite"),
        ],
    )
    def test_points(self, data, change, match):
        X, Y, x = data
        with pytest.raises(InvalidArgumentError, match=match):
            GradientGP(X, Y).gradient_posterior(change(x))

    @pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), 1e-13])
    def test_noise(self, data, noise):
        X, Y, _ = data
        with pytest.raises(InvalidArgumentError, match="noise_variance"):
            GradientGP(X, Y, noise_variance=noise)

    def test_transforms(self, data):
        X, Y, _ = data
        with DEVICE:
            with pytest.raises(InvalidArgumentError, match="input_transform"):
                GradientGP(X, Y, input_transform=Standardize(1))
            with pytest.raises(UnsupportedError, match="Log is not affine"):
                GradientGP(X, Y + 1, outcome_transform=Log())

    def test_kernels_without_gradients(self, data):
        X, Y, _ = data
        for nu in (0.5, 1.5):
            with DEVICE:
                kernel = MaternKernel(nu=nu)
            with pytest.raises(UnsupportedKernelError, match="Matern"):
                GradientGP(X, Y, kernel)
