"""The stencil against kernels' own posterior, and as central differences."""

import math
import warnings

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import Stencil, kernel_gradient
from botorch_dp.models.surrogates.stencil import stencil_gradient
from tests.devices import seeded


class TestStencil:
    @pytest.mark.parametrize("kernel", [RBFKernel(), MaternKernel(nu=2.5)])
    def test_is_the_posterior_mean_of_the_gradient_but_for_scale(self, kernel, double):
        with double["device"]:
            kernel = ScaleKernel(kernel).to(**double)
        x = torch.tensor([0.3, -1.0, 2.0], **double)
        stencil = Stencil(x, half_width=0.2)
        D = stencil.points
        K = kernel(D).to_dense() + 1e-6 * torch.eye(6, **double)
        C = kernel_gradient(kernel, x.unsqueeze(0), D)[0].mT  # d x M
        W = torch.linalg.solve(K, C.mT).mT.detach()
        scale = W[0, 0] / stencil.weights[0, 0]
        assert torch.allclose(
            W, scale * stencil.weights, atol=1e-6 * float(W.abs().max())
        )

    def test_is_exact_for_quadratics(self, tkwargs):
        generator = seeded(1)
        A = torch.randn(4, 4, generator=generator, **tkwargs)
        b, x = torch.randn(2, 4, generator=generator, **tkwargs)
        stencil = Stencil(x, half_width=0.3)
        X = stencil.points
        losses = ((X @ (A + A.T)) * X).sum(dim=-1) / 2 + X @ b
        atol = 1e-5 if tkwargs["dtype"] == torch.float32 else 1e-12
        expected = (A + A.T) @ x + b
        assert torch.allclose(stencil.gradient(losses), expected, atol=20 * atol)
        assert torch.allclose(stencil.weights @ losses, expected, atol=20 * atol)

    def test_batches(self, double, generator):
        x = torch.randn(5, 3, generator=generator, **double)
        stencil = Stencil(x)
        losses = stencil.points.square().sum(dim=-1)
        assert stencil.points.shape == (5, 6, 3)
        assert stencil.weights.shape == (5, 3, 6)
        assert torch.equal(stencil.num_points, torch.full((5,), 6, device=x.device))
        assert torch.allclose(stencil.gradient(losses), 2 * x)

    def test_stays_in_the_box(self, double):
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **double)
        x = torch.tensor([0.0, 0.95], **double)
        stencil = Stencil(x, half_width=0.2, bounds=bounds)
        assert torch.allclose(stencil.center, torch.tensor([0.2, 0.8], **double))
        assert (stencil.points >= 0).all()
        assert (stencil.points <= 1).all()

    def test_refuses(self, double):
        bounds = torch.tensor([[0.0], [0.3]], **double)
        with pytest.raises(InvalidArgumentError, match="half_width must be at most"):
            Stencil(torch.zeros(1, **double), half_width=0.2, bounds=bounds)
        with pytest.raises(InvalidArgumentError, match="half_width must be a finite"):
            Stencil(torch.zeros(1, **double), half_width=0.0)
        with pytest.raises(InvalidArgumentError, match="must be empty"):
            Stencil(torch.zeros(1, **double)).load_state_dict({"points": bounds})


class TestArrays:
    """Losses on the host are subtracted by numpy: the same numbers, no warnings."""

    @pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
    def test_agrees_with_torch(self, batch, tkwargs, generator):
        losses = torch.randn(*batch, 8, generator=generator, device="cpu").to(**tkwargs)
        stencil = Stencil(torch.zeros(*batch, 4, **tkwargs), half_width=0.3)
        found = stencil.gradient(losses)
        assert found.dtype == losses.dtype
        expected = stencil_gradient(losses, 0.3)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)
        assert stencil.points_shape == stencil.points.shape

    def test_differentiable(self, double):
        losses = torch.ones(4, **double, requires_grad=True)
        Stencil(torch.zeros(2, **double)).gradient(losses).sum().backward()
        assert losses.grad is not None

    @pytest.mark.parametrize("value", [math.inf, math.nan, 1e308])
    def test_silent(self, value, double):
        losses = torch.tensor([value, 1.0, value, 1.0], **double)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Stencil(torch.zeros(2, **double)).gradient(losses)
            Stencil(torch.zeros(2, **double)).gradient(-losses.abs())
