import pytest
import torch
from gpytorch.kernels import (
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from botorch_dp.models.kernels.radial import radial_kernel
from tests.devices import DEVICE

RADIAL = {
    "rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
    "matern": lambda: MaternKernel(nu=2.5, ard_num_dims=3),
    "rq": lambda: ScaleKernel(ScaleKernel(RQKernel())),
    "all dimensions": lambda: RBFKernel(active_dims=[0, 1, 2]),
}
OTHERS = {
    "polynomial": lambda: PolynomialKernel(power=3),
    "periodic": PeriodicKernel,
    "sum": lambda: ScaleKernel(RBFKernel()) + MaternKernel(nu=2.5),
    "some dimensions": lambda: RBFKernel(active_dims=[0, 2]),
    "scaled some": lambda: ScaleKernel(RBFKernel(active_dims=[0])),
    "batched": lambda: RBFKernel(batch_shape=torch.Size([2])),
    "batched scale": lambda: ScaleKernel(RBFKernel(), batch_shape=torch.Size([2])),
    "rough": lambda: MaternKernel(nu=1.5),
}


@pytest.fixture
def X(generator, double):
    return torch.rand(5, 3, generator=generator, **double)


@pytest.mark.parametrize("name", RADIAL)
class TestRadial:
    @pytest.fixture
    def kernel(self, name):
        with DEVICE:
            kernel = RADIAL[name]().double()
            for part in (kernel, *kernel.sub_kernels()):
                if part.has_lengthscale and part.ard_num_dims:
                    part.lengthscale = torch.linspace(0.4, 0.9, part.ard_num_dims)
        return kernel

    def test_profile_is_the_kernel(self, kernel, X):
        radial = radial_kernel(kernel, X)
        z = X * radial.inverse_lengthscale
        q = torch.cdist(z, z).square()
        assert torch.allclose(radial.profile(q)[0], kernel(X).to_dense(), atol=1e-7)

    def test_rho_and_tau_are_its_derivatives(self, kernel, X):
        radial = radial_kernel(kernel, X)
        q = X.flatten().clone().requires_grad_()
        phi, rho, tau = radial.profile(q)
        (slope,) = torch.autograd.grad(phi.sum(), q, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), q)
        torch.testing.assert_close(rho, -2 * slope)
        torch.testing.assert_close(tau, 4 * curvature)

    def test_hyperparameters_are_constants(self, kernel, X):
        radial = radial_kernel(kernel, X.float())
        for part in (radial.inverse_lengthscale, radial.outputscale):
            assert not part.requires_grad
            assert part.dtype == torch.float32
        assert radial.inverse_lengthscale.shape == (3,)


@pytest.mark.parametrize("name", OTHERS)
def test_others_have_no_radial_form(name, X):
    with DEVICE:
        kernel = OTHERS[name]().double()
    assert radial_kernel(kernel, X) is None
