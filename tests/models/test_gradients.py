"""Gradients of every kind of model, against autograd and finite differences."""

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import (
    MultiTaskGP,
    SingleTaskGP,
    SingleTaskMultiFidelityGP,
    SingleTaskVariationalGP,
)
from botorch.models.transforms import (
    ChainedOutcomeTransform,
    Log,
    Standardize,
)
from botorch.models.transforms.input import InputPerturbation, Round
from gpytorch.kernels import MaternKernel

from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
from botorch_dp.models import GradientMixturePosterior, gradient_posterior
from tests.devices import DEVICE
from tests.models.model_matrix import (
    CASES,
    HIGH,
    D,
    DeepGP,
    center,
    data,
    ensemble_map_saas,
    environmental,
    make_model,
    mixed,
    plain,
    uniform,
    values,
)

pytestmark = pytest.mark.default_device


def test_the_matrix_is_large():
    assert len(CASES) >= 60


@pytest.mark.parametrize(("make", "transform", "batch", "outputs"), CASES)
def test_against_the_models_own_posterior(make, transform, batch, outputs):
    """The mean is the gradient of the mean, the covariance that of differences."""
    model = make_model(make, transform, batch, outputs)
    x = center(make, *batch, 1)
    found = gradient_posterior(model, x)
    # Means by autograd: batch elements do not depend on each other's points.
    at = x.clone().requires_grad_()
    mean = values(model, at)[0]
    assert mean.shape == found.mean.shape[:-1]
    expected = torch.stack(
        [
            torch.autograd.grad(mean.flatten()[i], at, retain_graph=True)[0].sum(
                dim=tuple(range(at.dim() - 1))
            )
            for i in range(mean.numel())
        ]
    )
    assert torch.allclose(found.mean.reshape(-1, D), expected, rtol=1e-7, atol=1e-9)
    # Differences of f at x +- h e_i are linear in f: their joint posterior is exact.
    h = 1e-3
    steps = h * torch.eye(D, dtype=x.dtype, device=DEVICE)
    free = torch.ones(D, dtype=torch.bool, device=DEVICE)
    if make is mixed:
        free[-1] = False
        steps[-1] = 0.0
    _, joint = values(model, torch.cat([x + steps, x - steps], dim=-2))
    identity = torch.eye(D, dtype=x.dtype, device=DEVICE)
    differences = torch.cat([identity, -identity], dim=1) / (2 * h)
    expected = differences @ joint @ differences.mT
    size = expected.abs().amax()
    assert torch.allclose(found.covariance[..., 0, :, :], expected, atol=1e-4 * size)
    assert (found.variance[..., ~free] == 0).all()
    assert (found.variance[..., free] > 0).all() or transform == "filter"


class TestPoints:
    def test_t_batches(self):
        model = make_model(*CASES[1].values)
        X = uniform(4, 2, 3)
        found = gradient_posterior(model, X)
        assert found.covariance.shape[-4:-2] == (2, 3) or found.mean.dim() == 5
        for i in range(4):
            one = gradient_posterior(model, X[i])
            assert torch.allclose(found.mean[i], one.mean)

    def test_differentiable_in_the_points(self):
        case = next(case for case in CASES if "matern-warp--2" in case.id)
        model = make_model(*case.values)
        at = uniform(2).requires_grad_()

        def statistics(at):
            posterior = gradient_posterior(model, at)
            return posterior.mean, posterior.covariance

        assert torch.autograd.gradcheck(statistics, (at,), atol=1e-4)

    def test_coincident_with_the_data(self):
        # Where autograd of GPyTorch's Matern kernel gives zero.
        model = make_model(plain, "none", (), 1)
        X = model.train_inputs[0][:1]
        far = gradient_posterior(model, X + 1e-6)
        assert torch.allclose(
            gradient_posterior(model, X).covariance, far.covariance, rtol=1e-3
        )

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda x: x[..., :2], r"X .*\(1, 2\)"),
            (lambda x: x.float(), "X .*float32"),
            (lambda x: x * float("nan"), "finite"),
            (lambda x: x[:0], "at least one point"),
        ],
    )
    def test_bad(self, change, match):
        model = make_model(plain, "none", (), 1)
        with pytest.raises(InvalidArgumentError, match=match):
            gradient_posterior(model, change(uniform(1)))

    @pytest.mark.parametrize("transform", ["none", "chain"])
    @pytest.mark.parametrize("features", [2, 4])
    def test_bad_number_of_features_before_a_transform(self, transform, features):
        model = make_model(environmental, transform, (), 1)
        X = uniform(1).repeat(1, 2)[:, :features]
        with pytest.raises(InvalidArgumentError, match=r"X .* 4 of the model"):
            gradient_posterior(model, X)


class TestRound:
    def test_is_the_process_before_rounding(self):
        # As autograd has it: the derivative of rounding counts as 1.
        X, Y = data()
        with DEVICE:
            rounding = Round(integer_indices=[2], approximate=False)
            model = SingleTaskGP(X, Y, input_transform=rounding)
        x = uniform(1)
        found = gradient_posterior(model, x)
        at = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(model.posterior(at).mean.sum(), at)
        assert torch.allclose(found.mean, expected)
        rounded = torch.cat([x[:, :2], x[:, 2:].round()], dim=-1)
        again = gradient_posterior(model, rounded)
        assert torch.allclose(found.covariance, again.covariance)


class TestMixture:
    def test_moments_are_those_of_many_samples(self):
        model = make_model(ensemble_map_saas, "normalize", (), 1)
        found = gradient_posterior(model, uniform(2))
        assert isinstance(found, GradientMixturePosterior)
        torch.manual_seed(0)
        samples = found.rsample(torch.Size([40_000])).flatten(0, 1)  # of all members
        samples = samples.view(-1, 2, D)
        mean = samples.mean(dim=0)
        spread = found.mixture_variance.sqrt()
        assert ((found.mixture_mean - mean).abs() < 0.03 * spread).all()
        centered = samples - mean
        covariance = (centered.unsqueeze(-1) * centered.unsqueeze(-2)).mean(dim=0)
        size = spread.unsqueeze(-1) * spread.unsqueeze(-2)
        assert ((found.mixture_covariance - covariance).abs() < 0.03 * size).all()


class TestCache:
    def test_changes_are_seen(self):
        X, Y = data()
        x = uniform(2)
        with DEVICE:
            model = SingleTaskGP(X, Y, torch.full_like(Y, 0.1))
            before, again = (gradient_posterior(model, x) for _ in range(2))
            assert torch.equal(before.mean, again.mean)
            with torch.no_grad():
                first = gradient_posterior(model, x).mean
                model.likelihood.noise_covar.noise = model.likelihood.noise * 9
                second = gradient_posterior(model, x).mean
                model.set_train_data(targets=2 * model.train_targets, strict=False)
                third = gradient_posterior(model, x).mean
        assert not torch.allclose(first, second)
        assert not torch.allclose(second, third)

    def test_gradients_in_hyperparameters(self):
        X, Y = data()
        with DEVICE:
            model = SingleTaskGP(X, Y)
            x = uniform(1)
            with torch.no_grad():
                gradient_posterior(model, x)  # kept, without a graph
            raw = model.covar_module.raw_lengthscale
            (found,) = torch.autograd.grad(
                gradient_posterior(model, x).variance.sum(), raw
            )
            h, moved = 1e-5, []
            for sign in (1, -1):
                with torch.no_grad():
                    raw[0, 0] += sign * h
                    moved.append(gradient_posterior(model, x).variance.sum())
                    raw[0, 0] -= sign * h
        expected = (moved[0] - moved[1]) / (2 * h)
        assert float(found[0, 0]) == pytest.approx(float(expected), rel=1e-5)


class TestOutcomeTransforms:
    def test_a_chain_of_standardizations(self):
        X, Y = data()
        with DEVICE:
            chain = ChainedOutcomeTransform(a=Standardize(1), b=Standardize(1))
            model = SingleTaskGP(X, Y, outcome_transform=chain)
            at = uniform(2).requires_grad_()
            mean = model.posterior(at).mean
        (expected,) = torch.autograd.grad(mean.sum(), at)
        assert torch.allclose(gradient_posterior(model, at).mean, expected)

    def test_log_is_refused_unless_latent(self):
        X, Y = data()
        with DEVICE:
            model = SingleTaskGP(X, Y.exp(), outcome_transform=Log())
            same = SingleTaskGP(X, Y, outcome_transform=None)
        x = uniform(2)
        with pytest.raises(UnsupportedError, match=r"Log is not affine.*latent=True"):
            gradient_posterior(model, x)
        found = gradient_posterior(model, x, latent=True)
        assert torch.allclose(found.mean, gradient_posterior(same, x).mean)


class TestRefusals:
    def test_models(self):
        X, Y = data()
        with DEVICE:
            variational = SingleTaskVariationalGP(X, Y)
            tasks = MultiTaskGP(
                torch.cat([X, (X[:, :1] > 1).double()], dim=-1), Y, task_feature=-1
            )
        with pytest.raises(InvalidArgumentError, match="exact Gaussian process"):
            gradient_posterior(variational, X)
        with pytest.raises(UnsupportedError, match="correlated tasks"):
            gradient_posterior(tasks, X)

    def test_kernels_without_gradient(self):
        X, Y = data()
        with DEVICE:
            rough = SingleTaskGP(X, Y, covar_module=MaternKernel(nu=0.5).double())
        with pytest.raises(UnsupportedKernelError, match=r"nu=0\.5"):
            gradient_posterior(rough, X)

    def test_fidelities_in_their_default_kernel(self):
        X, Y = data()
        with DEVICE:
            model = SingleTaskMultiFidelityGP(X / HIGH, Y, data_fidelities=[2])
        with pytest.raises(UnsupportedKernelError, match="LinearTruncatedFidelity"):
            gradient_posterior(model, X)

    def test_a_forward_whose_autograd_is_wrong(self):
        model = make_model(
            lambda *a: plain(*a, cls=DeepGP, kernel=MaternKernel), "none", (), 1
        )
        with pytest.raises(UnsupportedKernelError, match="PriorOfModel"):
            gradient_posterior(model, uniform(1))

    def test_transforms_that_make_several_points_of_one(self):
        X, Y = data()
        with DEVICE:
            moves = 0.1 * torch.eye(D, dtype=torch.float64)
            model = SingleTaskGP(X, Y, input_transform=InputPerturbation(moves))
            with pytest.raises(UnsupportedError, match="InputPerturbation makes 6"):
                gradient_posterior(model, uniform(2))
