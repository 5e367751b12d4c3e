import pytest
import torch
from gpytorch.kernels import (
    MaternKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from botorch_dp.models import (
    kernel_gradient,
    prior_gradient_covariance,
)
from botorch_dp.models.kernels.covariances import Covariances, default_gradient_kernel
from tests.devices import DEVICE


def make_kernel(base=RBFKernel, **kwargs):
    with DEVICE:
        kernel = ScaleKernel(base(**kwargs)).double()
        if kernel.base_kernel.has_lengthscale:
            kernel.base_kernel.lengthscale = 1.3
        kernel.outputscale = 2.0
    return kernel


def uniform(generator, *shape, scale=3.0):
    return scale * torch.rand(
        *shape, generator=generator, dtype=torch.float64, device=DEVICE
    )


class TestCovariances:
    KERNELS = (
        (RBFKernel, {}),
        (RBFKernel, {"ard_num_dims": 3}),
        (MaternKernel, {"nu": 2.5}),
        (RQKernel, {}),
    )

    @pytest.mark.parametrize(("base", "kwargs"), KERNELS)
    def test_fast_path_is_the_general_one(self, base, kwargs, generator):
        kernel = make_kernel(base, **kwargs)
        if kwargs.get("ard_num_dims"):
            with DEVICE:
                scales = torch.tensor([[0.5, 1.0, 2.0]])
                kernel.base_kernel.lengthscale = scales.double()
        X, x = uniform(generator, 2, 5, 3), uniform(generator, 2, 3)
        X[0, 0] = x[0]
        fast, general = (Covariances(kernel, X, fast=fast) for fast in (True, False))
        assert fast._radial is not None
        for result, expected in [
            (fast.value(X, X[:, :2]), general.value(X, X[:, :2])),
            (fast.variance(X), general.variance(X)),
            (fast.gradient(x, X), general.gradient(x, X)),
            (fast.prior(x), general.prior(x)),
        ]:
            assert not result.requires_grad
            torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)

    def test_other_kernels(self, generator):
        kernel = make_kernel(PolynomialKernel, power=2)
        X, x = uniform(generator, 2, 5, 3), uniform(generator, 2, 3)
        covariances = Covariances(kernel, X)
        assert covariances._radial is None
        expected = kernel_gradient(kernel, x.unsqueeze(-2), X).squeeze(-3).mT
        torch.testing.assert_close(covariances.gradient(x, X), expected.detach())

    @pytest.mark.parametrize(("dim", "lengthscale"), [(1, 2.0), (4, 2.0), (9, 3.0)])
    def test_default_kernel_has_gradients_of_unit_variance(
        self, dim, lengthscale, double
    ):
        x = torch.zeros(1, dim, **double)
        kernel = default_gradient_kernel(x)
        assert kernel.base_kernel.lengthscale.item() == pytest.approx(lengthscale)
        eye = torch.eye(dim, **double).unsqueeze(0)
        torch.testing.assert_close(
            prior_gradient_covariance(kernel, x).detach(), eye, rtol=0, atol=1e-12
        )
