"""The acquisition against brute force, autograd and finite differences."""

import pytest
import torch
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import AffineInputTransform
from botorch.optim import optimize_acqf
from gpytorch.kernels import (
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from botorch_dp.acquisition import GradientInformation
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import (
    GradientGP,
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from botorch_dp.models.chain_rules import outcome_scale
from botorch_dp.models.gradients import transformed
from botorch_dp.models.latent_gp import latent_gp
from tests.devices import DEVICE
from tests.models import model_matrix
from tests.models.model_matrix import CASES, center, deep, mixed


def make_kernel(name, d=3):
    with DEVICE:
        kernel = {
            "rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=d)),
            "matern": lambda: MaternKernel(nu=2.5, ard_num_dims=d),
            "rq": lambda: ScaleKernel(ScaleKernel(RQKernel())),
            "polynomial": lambda: PolynomialKernel(power=3),
            "periodic": lambda: PeriodicKernel(),
            "sum": lambda: ScaleKernel(RBFKernel()) + MaternKernel(nu=2.5),
            "active": lambda: RBFKernel(active_dims=[0, 2]),
        }[name]().double()
    for part in (kernel, *kernel.sub_kernels()):
        if part.has_lengthscale and part.ard_num_dims:
            part.lengthscale = torch.linspace(0.4, 0.9, d, device=DEVICE)
    return kernel


RADIAL = ["rbf", "matern", "rq"]
OTHERS = ["polynomial", "periodic", "sum", "active"]


@pytest.fixture
def points(generator):
    def draw(*shape):
        return torch.rand(
            *shape, 3, generator=generator, dtype=torch.float64, device=DEVICE
        )

    return draw


def make_model(X, name="rbf", noise_variance=1e-3, **kwargs):
    Y = X.sum(dim=-1, keepdim=True)
    return GradientGP(X, Y, make_kernel(name), noise_variance, **kwargs)


def brute_force(model, X_center, Z):
    """The trace after really conditioning on the candidates, whatever their values."""
    conditioned = GradientGP(
        torch.cat([model.train_inputs[0], Z]),
        torch.zeros(len(model.train_targets) + len(Z), 1, dtype=Z.dtype, device=DEVICE),
        model.covar_module,
        float(model.noise_variance),
    )
    return -conditioned.gradient_posterior(X_center).variance.sum()


class TestValue:
    @pytest.mark.parametrize("q", [1, 4])
    @pytest.mark.parametrize("name", RADIAL + OTHERS)
    def test_brute_force(self, name, q, points):
        model, X_center, Z = make_model(points(12), name), points(1), points(5, q)
        values = GradientInformation(model, X_center)(Z)
        expected = torch.stack([brute_force(model, X_center, z) for z in Z])
        assert torch.allclose(values, expected, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("name", ["rbf", "sum"])
    def test_several_points_add_up(self, name, points):
        model, X_center, Z = make_model(points(12), name), points(3), points(2, 4)
        together = GradientInformation(model, X_center)(Z)
        alone = sum(GradientInformation(model, x)(Z) for x in X_center)
        assert torch.allclose(together, alone)

    def test_one_candidate_has_the_closed_form_of_a_rank_one_update(self, points):
        X, X_center, z = points(12), points(1), points(1)
        model = make_model(X)
        before = model.gradient_posterior(X_center).variance.sum()
        gain = GradientInformation(model, X_center)(z.unsqueeze(0)) + before
        joint = model.posterior(z)
        h = 1e-5
        # c: the posterior covariance of f(z) with the gradient, by differences.
        steps = h * torch.eye(3, dtype=torch.float64, device=DEVICE)
        both = torch.cat([X_center + steps, X_center - steps, z])
        covariance = model.posterior(both).distribution.covariance_matrix.detach()
        c = (covariance[:3, -1] - covariance[3:6, -1]) / (2 * h)
        s = joint.variance.squeeze() + model.noise_variance
        assert torch.allclose(gain, c.square().sum() / s, rtol=1e-6)

    @pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
    @pytest.mark.parametrize("name", ["rbf", "periodic"])
    def test_t_batches(self, name, batch, points):
        acqf = GradientInformation(make_model(points(12), name), points(1))
        Z = points(*batch, 4)
        values = acqf(Z)
        flat = Z.reshape(-1, 4, 3)
        expected = torch.cat([acqf(z.unsqueeze(0)) for z in flat])
        assert torch.allclose(values.flatten(), expected)
        assert values.shape == (batch or (1,))

    def test_pending_points_count_as_candidates(self, points):
        model, X_center, Z, pending = (
            make_model(points(12)),
            points(1),
            points(2, 3),
            points(2),
        )
        with_pending = GradientInformation(model, X_center, X_pending=pending)(Z)
        together = torch.cat([Z, pending.expand(2, 2, 3)], dim=-2)
        assert torch.allclose(
            with_pending, GradientInformation(model, X_center)(together)
        )

    def test_duplicates_are_handled(self, points):
        X, X_center = points(12), points(1)
        model = make_model(X, noise_variance=1e-6)
        Z = torch.cat([X[:2], X_center, X_center]).unsqueeze(0)
        value = GradientInformation(model, X_center)(Z)
        assert torch.allclose(value, brute_force(model, X_center, Z[0]), rtol=1e-6)

    def test_targets_do_not_matter(self, points):
        X, X_center, Z = points(12), points(1), points(2, 3)
        one = GradientGP(X, X[:, :1])
        other = GradientGP(X, 1e6 * X[:, 1:2])
        assert torch.equal(
            GradientInformation(one, X_center)(Z),
            GradientInformation(other, X_center)(Z),
        )

    def test_trace_is_minus_the_value(self, points):
        acqf = GradientInformation(make_model(points(12)), points(1))
        Z = points(2, 3)
        assert torch.equal(acqf.trace(Z), -acqf(Z))

    def test_normalized_inputs(self, points):
        bounds = torch.tensor([[0.0] * 3, [1.0, 2.0, 4.0]], device=DEVICE).double()
        X, X_center, Z = points(12), points(1), points(2, 3).requires_grad_()
        with DEVICE:
            transform = Normalize(3, bounds=bounds)
        model = make_model(X, "sum", input_transform=transform)
        for name in ("rbf", "sum"):
            model = make_model(X, name, input_transform=transform)
            acqf = GradientInformation(model, X_center)
            values = acqf(Z)
            for value, z in zip(values, Z.detach(), strict=True):
                conditioned = model.condition_on_observations(z, z[:, :1])
                trace = conditioned.gradient_posterior(X_center).variance.sum()
                assert torch.allclose(value, -trace, rtol=1e-6)
            assert torch.autograd.gradcheck(acqf, (Z,), atol=1e-5)

    def test_float32(self, points):
        X, X_center, Z = (p.float() for p in (points(12), points(1), points(2, 3)))
        with DEVICE:
            kernel = RBFKernel()
        model = GradientGP(X, X[:, :1], kernel, noise_variance=1e-2)
        kernel = kernel.double()
        exact = GradientGP(X.double(), X[:, :1].double(), kernel, noise_variance=1e-2)
        found = GradientInformation(model, X_center)(Z)
        expected = GradientInformation(exact, X_center.double())(Z.double())
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), expected, rtol=1e-3)

    def test_moves_to_another_dtype(self, points):
        Z = points(2, 3)
        for name in ("rbf", "rq", "periodic"):
            acqf = GradientInformation(make_model(points(12), name, 1e-2), points(1))
            expected = acqf(Z)
            values = acqf.float()(Z.float())
            assert values.dtype == torch.float32
            assert torch.allclose(values.double(), expected, rtol=1e-3)


@pytest.mark.default_device
class TestEveryModel:
    """Against a model that is really conditioned on the candidates."""

    @pytest.mark.parametrize(
        ("make", "transform", "batch", "outputs"),
        [case for case in CASES if "plain" not in case.id],
    )
    def test_value(self, make, transform, batch, outputs):
        model = model_matrix.make_model(make, transform, batch, outputs)
        X_center, Z = center(make, 1), center(make, 2, seed=7)
        value = GradientInformation(model, X_center)(Z.unsqueeze(0))
        copied = GradientGP.from_model(model) if make is not deep else model
        parts = copied.models if isinstance(copied, ModelListGP) else [copied]
        expected = -sum(trace_after(part, X_center, Z) for part in parts)
        assert torch.allclose(value, expected, rtol=1e-6)

    @pytest.mark.parametrize("name", ["warp", "warped_saas", "mixed-n", "deep"])
    def test_finite_differences(self, name):
        case = next(case for case in CASES if name in case.id)
        model, make = model_matrix.make_model(*case.values), case.values[0]
        if make is mixed:
            pytest.skip("categories have no derivative")
        Z = center(make, 2, 2, seed=7).requires_grad_()
        acqf = GradientInformation(model, center(make, 1))
        assert torch.autograd.gradcheck(acqf, (Z,), atol=1e-5, rtol=1e-3)

    def test_weights_of_outputs(self):
        case = next(case for case in CASES if "list_with" in case.id)
        model = model_matrix.make_model(*case.values)
        x, Z = center(None, 1), center(None, 3, 2, seed=7)
        with DEVICE:
            weights = torch.tensor([2.0, 0.0, -1.0]).double()
            transform = ScalarizedPosteriorTransform(weights)
        found = GradientInformation(model, x, posterior_transform=transform)(Z)
        double, last = model.models
        alone = [
            GradientInformation(GradientGP.from_model(part), x)(Z)
            for part in (double.subset_output([0]), last)
        ]
        assert torch.allclose(found, 4 * alone[0] + alone[1])

    def test_fantasies_are_evaluated_once(self):
        case = next(case for case in CASES if "fantasized-none--1" in case.id)
        model = model_matrix.make_model(*case.values)
        assert model.batch_shape == (2,)
        acqf = GradientInformation(model, center(None, 1))
        assert len(acqf._all_members[0].geometries) == 1


def trace_after(model, X_center, Z):
    """The trace of a model's gradients after observing Z, whatever the values."""
    model.eval()
    inputs, noise = model.train_inputs[0], latent_gp(model).noise
    ours = type(model) is GradientGP
    new, jacobian = transformed(model, latent_gp(model), X_center)
    shape = latent_gp(model).root.shape[:-2]
    Z, _ = transformed(model, latent_gp(model), Z)
    every = torch.cat([x.expand(*shape, *x.shape[-2:]) for x in (inputs, Z)], dim=-2)
    level = noise.mean(dim=-1, keepdim=True).expand(*noise.shape[:-1], Z.shape[-2])
    S = torch.cat([noise, level], dim=-1)
    kernel = latent_gp(model).kernel
    K = kernel_value(kernel, every, every) + S.diag_embed()
    cross = kernel_gradient(kernel, new, every, categories=True).squeeze(-3)
    prior = prior_gradient_covariance(kernel, new, categories=True).squeeze(-3)
    covariance = prior - cross.mT @ torch.linalg.solve(K, cross)
    if jacobian is not None:
        J = jacobian.squeeze(-3)
        covariance = J.mT @ covariance @ J
    scale = None if ours else outcome_scale(model)
    if scale is not None:
        covariance = covariance * scale.square()
    traces = covariance.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    outputs = getattr(model, "num_outputs", 1)
    return traces.detach().sum() / (traces.numel() // outputs)


class TestGradient:
    @pytest.mark.parametrize("q", [1, 3])
    @pytest.mark.parametrize("name", RADIAL + OTHERS)
    def test_finite_differences(self, name, q, points):
        acqf = GradientInformation(make_model(points(8), name, 1e-2), points(2))
        Z = points(2, q).requires_grad_()
        assert torch.autograd.gradcheck(acqf, (Z,), atol=1e-5, rtol=1e-4)

    def test_autograd_through_the_joint_prior(self, points):
        # The same value from differentiable pieces, differentiated by autograd.
        X, X_center = points(12), points(1)
        model = make_model(X)
        Z = points(3).requires_grad_()

        def value(Z):
            every = torch.cat([X, Z])
            inverse = model.covar_module.base_kernel.lengthscale.detach().reciprocal()
            scale = model.covar_module.outputscale.detach()

            def k(a, b):
                difference = (a.unsqueeze(-2) - b.unsqueeze(-3)) * inverse
                return scale * torch.exp(-difference.square().sum(dim=-1) / 2)

            identity = torch.eye(15, dtype=Z.dtype, device=DEVICE)
            K = k(every, every) + model.noise_variance * identity
            cross = (
                k(X_center, every).mT * (every - X_center) * inverse.square()
            )  # 15 x 3
            prior = scale * inverse.square().sum()
            return -(prior - (cross * torch.linalg.solve(K, cross)).sum())

        acqf = GradientInformation(model, X_center)
        assert torch.allclose(acqf(Z.unsqueeze(0)), value(Z), rtol=1e-11)
        (found,) = torch.autograd.grad(acqf(Z.unsqueeze(0)).sum(), Z)
        (expected,) = torch.autograd.grad(value(Z), Z)
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)

    def test_at_a_coincident_candidate(self, points):
        X_center = points(1)
        acqf = GradientInformation(make_model(points(12), "matern"), X_center)
        Z = torch.stack([X_center, X_center]).requires_grad_()
        (gradient,) = torch.autograd.grad(acqf(Z).sum(), Z)
        assert gradient.isfinite().all()

    def test_no_second_derivatives(self, points):
        acqf = GradientInformation(make_model(points(12)), points(1))
        Z = points(1, 2).requires_grad_()
        (gradient,) = torch.autograd.grad(acqf(Z).sum(), Z, create_graph=True)
        with pytest.raises(RuntimeError, match=r"twice|does not require grad"):
            gradient.sum().backward()


class TestBoTorch:
    @pytest.mark.parametrize("sequential", [False, True])
    def test_optimize_acqf_finds_more_than_random_points(self, sequential, points):
        model, X_center = make_model(points(12)), points(1)
        acqf = GradientInformation(model, X_center)
        bounds = torch.tensor([[0.0] * 3, [1.0] * 3], device=DEVICE).double()
        with DEVICE:
            candidates, value = optimize_acqf(
                acqf,
                bounds=bounds,
                q=3,
                num_restarts=2,
                raw_samples=16,
                sequential=sequential,
            )
        assert candidates.shape == (3, 3)
        assert acqf(candidates) > acqf(points(200, 3)).max()
        if not sequential:
            assert torch.allclose(acqf(candidates), value)


class TestBadInput:
    def test_model(self, points):
        with pytest.raises(InvalidArgumentError, match="model must be an exact"):
            GradientInformation(torch.nn.Identity(), points(1))

    @pytest.mark.default_device
    def test_transforms_that_mix_coordinates(self, points):
        class Mix(AffineInputTransform):
            def _transform(self, X):
                return X @ X.new_ones(3, 3).triu()

        X = points(8)
        with DEVICE:
            mix = Mix(3, coefficient=torch.ones(3), offset=torch.zeros(3))
            model = SingleTaskGP(X, X[:, :1], input_transform=mix)
        with pytest.raises(UnsupportedError, match="Mix mixes coordinates"):
            GradientInformation(model, points(1))

    def test_posterior_transform(self, points):
        model = make_model(points(4))
        with DEVICE:
            weights = ScalarizedPosteriorTransform(torch.ones(2).double())
            expectation = ExpectationPosteriorTransform(n_w=2)
        with pytest.raises(UnsupportedError, match="2 weights, but the model has 1"):
            GradientInformation(model, points(1), posterior_transform=weights)
        with pytest.raises(UnsupportedError, match="must be a Scalarized"):
            GradientInformation(model, points(1), posterior_transform=expectation)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda x: x[:, :2], r"X_center.*\(1, 2\)"),
            (lambda x: x.unsqueeze(0), r"X_center.*\(1, 1, 3\)"),
            (lambda x: x[:0], "X_center.*at least one"),
            (lambda x: x * float("nan"), "X_center.*finite"),
            (lambda x: x.float(), "X_center.*float32"),
            (lambda x: None, "X_center.*None"),
        ],
    )
    def test_x_at(self, change, match, points):
        with pytest.raises(InvalidArgumentError, match=match):
            GradientInformation(make_model(points(4)), change(points(1)))

    @pytest.mark.parametrize(
        ("shape", "match"), [((2, 0, 3), "q >= 1"), ((2, 3, 2), r"\(2, 3, 2\)")]
    )
    def test_candidates(self, shape, match, points):
        acqf = GradientInformation(make_model(points(4)), points(1))
        Z = torch.zeros(shape, dtype=torch.float64, device=DEVICE)
        with pytest.raises(InvalidArgumentError, match=match):
            acqf(Z)

    def test_non_finite_candidates(self, points):
        acqf = GradientInformation(make_model(points(4)), points(1))
        with pytest.raises(InvalidArgumentError, match="finite"):
            acqf(points(1, 2) * float("nan"))


def test_the_earlier_name_of_the_centre_warns(points):
    model, x = make_model(points(5)), points(1)
    with pytest.warns(DeprecationWarning, match="X_at= is deprecated .* use X_center="):
        acqf = GradientInformation(model, X_at=x)
    assert torch.equal(acqf.X_center, x)
    with pytest.warns(
        DeprecationWarning, match=r"GradientInformation.X_at .* X_center"
    ):
        assert acqf.X_at is acqf.X_center
