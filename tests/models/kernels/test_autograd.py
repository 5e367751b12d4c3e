"""Kernels without a closed form are differentiated by torch.func."""

import math

import gpytorch.kernels as gk
import pytest
import torch

from botorch_dp.exceptions import UnsupportedKernelError
from botorch_dp.models.kernels.derivatives import (
    check_twice_differentiable,
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from tests.models.kernels.kernel_test_case import (
    DEVICE,
    D,
    build,
    diagonal,
    points,
)


class TestUnknownKernels:
    def test_spectral_and_random_feature_kernels(self, generator, double):
        """Kernels without a closed form here, at coincident points."""
        X = points(generator, 3, D, **double)
        spectral = build(
            lambda: gk.SpectralMixtureKernel(num_mixtures=2, ard_num_dims=D),
            generator, **double,
        )  # fmt: skip
        # k = prod_a sum_q w_q exp(-2 pi^2 v_qa^2 t_a^2) cos(2 pi m_qa t_a)
        w = spectral.mixture_weights  # 2
        v, mean = spectral.mixture_scales[:, 0], spectral.mixture_means[:, 0]  # 2 x D
        total = w.sum()
        curvature = (4 * math.pi**2 * w[:, None] * (v**2 + mean**2)).sum(0)
        expected = diagonal(curvature * total ** (D - 1)).expand(3, D, D)
        assert torch.allclose(prior_gradient_covariance(spectral, X), expected)

        features = build(
            lambda: gk.RFFKernel(num_samples=7, num_dims=D), generator, **double
        )
        frequencies = features.randn_weights / features.lengthscale.transpose(-1, -2)
        expected = (frequencies @ frequencies.T / 7).expand(3, D, D)
        assert torch.allclose(prior_gradient_covariance(features, X), expected)

    def test_gradients_flow_through_torch_func(self, generator, double):
        kernel = build(UnknownRBF, generator, **double)
        known = gk.RBFKernel.__new__(gk.RBFKernel)
        known.__dict__ = kernel.__dict__
        X1 = points(generator, 3, D, **double).requires_grad_()
        X2 = X1.detach().clone().requires_grad_()
        inputs = (X1, X2, kernel.raw_lengthscale)
        for f in (kernel_value, kernel_gradient, kernel_cross_hessian):
            weights = torch.rand(f(known, X1, X2).shape, generator=generator, **double)
            for a, b in zip(
                torch.autograd.grad((weights * f(kernel, X1, X2)).sum(), inputs),
                torch.autograd.grad((weights * f(known, X1, X2)).sum(), inputs),
                strict=True,
            ):
                assert torch.allclose(a, b, atol=1e-12)

    @pytest.mark.parametrize("lengthscale", [1e-4, 1.0, 1e4])
    def test_probe_accepts_smooth_kernels_at_any_scale(self, lengthscale, tkwargs):
        with DEVICE:
            kernel = UnknownRBF().to(**tkwargs)
        kernel.lengthscale = torch.tensor(lengthscale, **tkwargs)
        X = lengthscale * torch.ones(1, D, **tkwargs)
        expected = torch.eye(D, **tkwargs) / lengthscale**2
        actual = prior_gradient_covariance(kernel, X)
        assert torch.allclose(actual, expected, rtol=1e-3, atol=0)

    @pytest.mark.parametrize("guard", ["none", "where", "clamp", "covar_dist"])
    @pytest.mark.parametrize("nu", [0.5, 2.5])
    def test_probe_refuses_kernels_of_unsquared_distances(self, guard, nu, tkwargs):
        class MyMatern(gk.Kernel):
            has_lengthscale = True

            def forward(self, x1, x2, diag=False, **params):
                z1, z2 = x1 / self.lengthscale, x2 / self.lengthscale
                q = (z1.unsqueeze(-2) - z2.unsqueeze(-3)).square().sum(-1)
                if guard == "covar_dist":
                    r = self.covar_dist(z1, z2)
                elif guard == "where":
                    r = torch.where(q > 0, torch.where(q > 0, q, 1.0).sqrt(), 0.0)
                else:
                    r = q.clamp_min(1e-30).sqrt() if guard == "clamp" else q.sqrt()
                if nu == 0.5:
                    return torch.exp(-r)
                s = 5**0.5 * r
                return (1 + s + s**2 / 3) * torch.exp(-s)

        with DEVICE:
            kernel = gk.ScaleKernel(MyMatern()).to(**tkwargs)
        X = torch.zeros(1, D, **tkwargs)
        check_twice_differentiable(kernel)  # nothing is known against it
        for f in (kernel_gradient, kernel_cross_hessian):
            with pytest.raises(UnsupportedKernelError, match=r"MyMatern.*square_dist"):
                f(kernel, X, X + 1)
        assert kernel_value(kernel, X, X).item() == pytest.approx(math.log(2))

    def test_probes_once(self, double):
        calls = []

        class Counting(UnknownRBF):
            def forward(self, x1, x2, **params):
                calls.append(x1.shape)
                return super().forward(x1, x2, **params)

        with DEVICE:
            kernel = Counting().double()
        X = torch.zeros(1, D, **double)
        kernel_gradient(kernel, X, X)
        first = len(calls)
        kernel_gradient(kernel, X, X)
        assert first > 1
        assert len(calls) == first + 1

    def test_subclass_keeps_the_closed_form_only_with_its_formula(self, double):
        class Renamed(gk.MaternKernel):
            pass

        class Doubled(gk.RBFKernel):
            def covar_dist(self, x1, x2, **params):
                return 2 * super().covar_dist(x1, x2, **params)

        X = torch.zeros(1, 1, **double)
        with DEVICE:
            renamed, doubled = Renamed(nu=2.5).double(), Doubled().double()
        expected = renamed.lengthscale**-2
        assert torch.allclose(prior_gradient_covariance(renamed, X), 5 / 3 * expected)
        assert torch.allclose(prior_gradient_covariance(doubled, X), 2 * expected)


class UnknownRBF(gk.RBFKernel):
    """A kernel this library does not know, because its forward is its own."""

    def forward(self, x1, x2, diag=False, **params):
        return super().forward(x1, x2, diag=diag, **params)
