"""The upper confidence bound: against BoTorch's own, and inside its optimizers."""

import math

import mpmath
import pytest
import torch
from botorch.acquisition.analytic import (
    AnalyticAcquisitionFunction,
    UpperConfidenceBound,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from gpytorch.kernels import RBFKernel

from botorch_dp.acquisition.private_ucb import (
    CONSTANTS,
    PrivateUpperConfidenceBound,
    ucb_beta,
)
from botorch_dp.exceptions import InvalidArgumentError
from tests.devices import DEVICE, seeded

SETTING = {"step": 4, "num_candidates": 200, "delta": 0.1}


def make_model(num_outputs=1, dtype=torch.float64):
    generator = seeded(7)
    X = torch.rand(8, 2, generator=generator, dtype=dtype, device=DEVICE)
    Y = torch.stack([(3 * X).sin().sum(dim=-1), X.prod(dim=-1)], dim=-1)
    with DEVICE:
        kernel = RBFKernel().to(dtype)
        return SingleTaskGP(
            X,
            Y[:, :num_outputs],
            train_Yvar=torch.full_like(Y[:, :num_outputs], 1e-2),
            covar_module=kernel,
            outcome_transform=None,
        ).eval()


@pytest.fixture
def points(generator):
    def draw(*shape, dtype=torch.float64):
        return torch.rand(*shape, 2, generator=generator, dtype=dtype, device=DEVICE)

    return draw


class TestSchedule:
    @pytest.mark.parametrize("delta", [0.5, 1e-6, 1e-300])
    @pytest.mark.parametrize("step", [1, 7, 10**9])
    @pytest.mark.parametrize(
        ("constants", "divisor"), [("repaired", 2), ("icml2015", 3), ("workshop", 3)]
    )
    def test_formula(self, constants, divisor, step, delta):
        with mpmath.workdps(40):
            ratio = 50 * mpmath.mpf(step) ** 2 * mpmath.pi**2 / (divisor * delta)
            expected = 2 * mpmath.log(ratio)
        value = ucb_beta(step=step, num_candidates=50, delta=delta, constants=constants)
        assert value == pytest.approx(float(expected), rel=1e-14)

    @pytest.mark.parametrize(
        ("constants", "share"),
        [("repaired", 1 / 3), ("icml2015", 0.5), ("workshop", 0.5)],
    )
    def test_what_all_steps_cost(self, constants, share):
        """|Lambda| exp(-beta_t / 2) over all t: the sum of 1 / t^2, with its rest."""
        count, delta, steps = 30, 0.2, 20_000
        setting = {"num_candidates": count, "delta": delta, "constants": constants}
        total = math.fsum(
            count * math.exp(-ucb_beta(step=t, **setting) / 2)
            for t in range(1, steps + 1)
        )
        assert total < share * delta
        rest = 1 / (steps + 0.5) / (math.pi**2 / 6)  # of all, Euler and Maclaurin
        assert total == pytest.approx(share * delta * (1 - rest), rel=1e-9)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("step", 0),
            ("step", 1.5),
            ("num_candidates", 0),
            ("delta", 0.0),
            ("delta", 1.0),
            ("constants", "icml"),
        ],
    )
    def test_bad_arguments(self, name, value):
        with pytest.raises(InvalidArgumentError, match=f"{name} must .*{value!r}"):
            ucb_beta(**{**SETTING, name: value})
        with pytest.raises(InvalidArgumentError, match=f"{name} must .*{value!r}"):
            PrivateUpperConfidenceBound(make_model(), **{**SETTING, name: value})


class TestValue:
    @pytest.mark.parametrize("constants", CONSTANTS)
    @pytest.mark.parametrize("maximize", [True, False])
    @pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
    def test_botorch(self, batch, maximize, constants, tkwargs, points):
        dtype = tkwargs["dtype"]
        model, X = make_model(dtype=dtype), points(*batch, 1, dtype=dtype)
        acqf = PrivateUpperConfidenceBound(
            model, **SETTING, constants=constants, maximize=maximize
        )
        assert isinstance(acqf, AnalyticAcquisitionFunction)
        beta = torch.tensor(ucb_beta(**SETTING, constants=constants), **tkwargs)
        with DEVICE:
            botorch_acqf = UpperConfidenceBound(model, beta=beta, maximize=maximize)
        expected = botorch_acqf(X)
        values = acqf(X)
        assert values.dtype == dtype
        assert values.shape == (batch or (1,))
        assert torch.equal(values, expected)

    def test_by_hand(self, points):
        # The root is of beta alone: not, as misprinted, of beta times sigma.
        model, X = make_model(), points(5, 1)
        posterior = model.posterior(X)
        mean, variance = posterior.mean.flatten(), posterior.variance.flatten()
        beta = 2 * math.log(200 * 16 * math.pi**2 / 0.2)
        for maximize, sign in ((True, 1), (False, -1)):
            acqf = PrivateUpperConfidenceBound(model, **SETTING, maximize=maximize)
            assert torch.allclose(acqf(X), sign * mean + (beta * variance).sqrt())

    def test_attributes(self):
        acqf = PrivateUpperConfidenceBound(make_model(), **SETTING)
        assert (acqf.step, acqf.num_candidates) == (4, 200)
        assert acqf.beta.item() == ucb_beta(**SETTING)
        assert "beta" in acqf.state_dict()

    def test_gradient(self, points):
        acqf = PrivateUpperConfidenceBound(make_model(), **SETTING)
        X = points(3, 1).requires_grad_()
        assert torch.autograd.gradcheck(acqf, (X,))

    def test_one_outcome_of_several(self, points):
        model, X = make_model(num_outputs=2), points(5, 1)
        with pytest.raises(UnsupportedError, match="posterior transform"):
            PrivateUpperConfidenceBound(model, **SETTING)
        weights = torch.tensor([0.5, 2.0], dtype=torch.float64, device=DEVICE)
        transform = ScalarizedPosteriorTransform(weights)
        acqf = PrivateUpperConfidenceBound(
            model, **SETTING, posterior_transform=transform
        )
        posterior = model.posterior(X, posterior_transform=transform)
        expected = posterior.mean + acqf.beta.sqrt() * posterior.variance.sqrt()
        assert torch.allclose(acqf(X), expected.flatten())

    def test_one_candidate_at_a_time(self, points):
        acqf = PrivateUpperConfidenceBound(make_model(), **SETTING)
        with pytest.raises(AssertionError, match="q=1"):
            acqf(points(3, 2))

    def test_pending_points_are_not_supported(self, points):
        with pytest.raises(UnsupportedError, match="X_pending"):
            PrivateUpperConfidenceBound(make_model(), **SETTING, X_pending=points(2))
        acqf = PrivateUpperConfidenceBound(make_model(), **SETTING)
        with pytest.raises(UnsupportedError, match="X_pending"):
            acqf.set_X_pending(points(2))


class TestOptimizers:
    def test_discrete(self, points):
        acqf = PrivateUpperConfidenceBound(make_model(), **SETTING)
        choices = points(200)
        best, value = optimize_acqf_discrete(acqf, q=1, choices=choices)
        values = acqf(choices.unsqueeze(-2))
        assert torch.equal(best.squeeze(0), choices[values.argmax()])
        assert value.item() == pytest.approx(values.max().item())

    @pytest.mark.default_device
    @pytest.mark.parametrize("maximize", [True, False])
    def test_continuous(self, maximize):
        acqf = PrivateUpperConfidenceBound(make_model(), **SETTING, maximize=maximize)
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        _, value = optimize_acqf(
            acqf, bounds=bounds, q=1, num_restarts=4, raw_samples=32
        )
        axis = torch.linspace(0, 1, 41, dtype=torch.float64)
        grid = torch.cartesian_prod(axis, axis).unsqueeze(-2)
        assert value.item() > acqf(grid).max().item() - 1e-6
