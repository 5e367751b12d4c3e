"""Each closed form passes the test case of all kernels."""

import math

import gpytorch.kernels as gk
import pytest
import torch

from botorch_dp.models.kernels.derivatives import (
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from tests.models.kernels.kernel_test_case import (
    DEVICE,
    DOUBLE,
    D,
    KernelGradientTestCase,
    RBFCase,
    RQCase,
    build,
    diagonal,
    differentiate,
    points,
    scaled,
)


class TestRBF(RBFCase):
    pass


class TestMatern(KernelGradientTestCase):
    leaf = gk.MaternKernel

    def formula(self, kernel, x, y):
        r = scaled(kernel, x, y).square().sum().sqrt()
        return (1 + 5**0.5 * r + 5 / 3 * r**2) * torch.exp(-(5**0.5) * r)

    def prior_covariance(self, kernel, x):
        return diagonal(5 / 3 * kernel.lengthscale**-2)

    def unknown_forward(self, kernel, x1, x2):
        z = (x1.unsqueeze(-2) - x2.unsqueeze(-3)) / kernel.lengthscale.unsqueeze(-2)
        s = (5 * z.square().sum(-1)).sqrt()
        return (1 + s + s**2 / 3) * torch.exp(-s)


class TestRQ(RQCase):
    pass


class TestPeriodic(KernelGradientTestCase):
    leaf = gk.PeriodicKernel

    def formula(self, kernel, x, y):
        sines = torch.sin(math.pi * (x - y) / kernel.period_length.squeeze())
        return torch.exp(-2 * (sines.square() / kernel.lengthscale.squeeze()).sum())

    def prior_covariance(self, kernel, x):
        return diagonal(4 * math.pi**2 / (kernel.lengthscale * kernel.period_length**2))

    def unknown_forward(self, kernel, x1, x2):
        angle = math.pi * (x1.unsqueeze(-2) - x2.unsqueeze(-3))
        sines = torch.sin(angle / kernel.period_length.unsqueeze(-2))
        return torch.exp(-2 * (sines**2 / kernel.lengthscale.unsqueeze(-2)).sum(-1))


class TestCosine(KernelGradientTestCase):
    leaf = gk.CosineKernel
    supports_ard = False

    def formula(self, kernel, x, y):
        r = (x - y).square().sum().sqrt()
        return torch.cos(math.pi * r / kernel.period_length.squeeze())

    def prior_covariance(self, kernel, x):
        return diagonal(math.pi**2 / kernel.period_length**2)

    def unknown_forward(self, kernel, x1, x2):
        r = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square().sum(-1).sqrt()
        return torch.cos(math.pi * r / kernel.period_length)

    # A cosine of a distance is a covariance in one dimension only.
    def test_prior_is_the_coincident_cross_hessian(self, generator):
        kernel = build(self.leaf, generator, **DOUBLE)
        X = points(generator, 4, 1, **DOUBLE)
        prior = prior_gradient_covariance(kernel, X)
        expected = (math.pi / kernel.period_length) ** 2
        assert torch.allclose(prior, expected.expand(4, 1, 1))

    @pytest.mark.parametrize("distance", [0.09, 0.11])
    def test_series_meets_the_quotient(self, distance, generator):
        """Below s = 0.1 derivatives come from a series: it must be as exact."""
        kernel = build(self.leaf, generator, **DOUBLE)
        x = torch.zeros(1, 1, **DOUBLE)
        frequency = math.pi / kernel.period_length.item()
        y = x + distance / frequency
        y.requires_grad_()
        cross = kernel_cross_hessian(kernel, x, y)
        expected = frequency**2 * math.cos(distance)
        assert cross.item() == pytest.approx(expected, rel=1e-12)
        (third,) = torch.autograd.grad(cross.sum(), y)
        expected = -(frequency**3) * math.sin(distance)
        assert third.item() == pytest.approx(expected, rel=1e-9)
        # In two dimensions, along (0.6, 0.8), tau stands alone off the diagonal.
        origin, y = torch.zeros(1, 2, **DOUBLE), torch.tensor([[0.6, 0.8]], **DOUBLE)
        cross = kernel_cross_hessian(kernel, origin, y * distance / frequency)
        factor = math.cos(distance) - math.sin(distance) / distance
        expected = 0.48 * frequency**2 * factor
        assert cross[0, 0, 0, 1].item() == pytest.approx(expected, rel=1e-11)


class TestLinear(KernelGradientTestCase):
    leaf = gk.LinearKernel

    def formula(self, kernel, x, y):
        return (kernel.variance.squeeze() * x * y).sum()

    def prior_covariance(self, kernel, x):
        return diagonal(kernel.variance)


class TestConstant(KernelGradientTestCase):
    leaf = gk.ConstantKernel
    supports_ard = False

    def formula(self, kernel, x, y):
        return kernel.constant.squeeze() + 0 * (x @ y)

    def prior_covariance(self, kernel, x):
        return x.new_zeros(D, D)


class PolynomialCase(KernelGradientTestCase):
    leaf = gk.PolynomialKernel
    supports_ard = False
    power = 2

    def make(self, **kwargs):
        return self.leaf(power=self.power, **kwargs)

    def formula(self, kernel, x, y):
        return (x @ y + kernel.offset.squeeze()) ** self.power

    def prior_covariance(self, kernel, x):
        p, base = self.power, x @ x + kernel.offset.squeeze()
        slope = p * base ** (p - 1)
        curvature = p * (p - 1) * base ** (p - 2)
        return diagonal(slope) + curvature * torch.outer(x, x)


class TestPolynomialOfDegree1(PolynomialCase):
    power = 1


class TestPolynomialOfDegree2(PolynomialCase):
    pass


class TestPolynomialOfDegree3(PolynomialCase):
    power = 3


def test_vanishing_derivative_of_a_polynomial_at_base_zero(double):
    with DEVICE:
        kernel = gk.PolynomialKernel(power=1).double()
    X = torch.zeros(1, D, **double)
    kernel.raw_offset.data.fill_(-1e4)  # an offset of exactly 0
    assert torch.equal(
        prior_gradient_covariance(kernel, X), torch.eye(D, **double)[None]
    )


@pytest.mark.parametrize(
    ("plain", "derivative"),
    [
        (gk.RBFKernel, gk.RBFKernelGrad),
        (gk.MaternKernel, gk.Matern52KernelGrad),
        (
            lambda ard_num_dims: gk.PolynomialKernel(power=3),
            lambda ard_num_dims: gk.PolynomialKernelGrad(power=3),
        ),
    ],
    ids=["RBF", "Matern52", "Polynomial"],
)
@pytest.mark.default_device  # GPyTorch fills a matrix made without device=
def test_agrees_with_gpytorch_derivative_kernels(plain, derivative, generator, double):
    n, m = 4, 3
    kernel = build(lambda: gk.ScaleKernel(plain(ard_num_dims=D)), generator, **double)
    with DEVICE:
        joint = gk.ScaleKernel(derivative(ard_num_dims=D)).double()
    for own, theirs in zip(joint.parameters(), kernel.parameters(), strict=True):
        own.data = theirs.data.clone()
    X1, X2 = points(generator, n, D, **double), points(generator, m, D, **double)
    X2[1] = X1[2]
    # Value and derivatives of one point are neighbours in GPyTorch's matrix.
    blocks = joint(X1, X2).to_dense().reshape(n, D + 1, m, D + 1).transpose(1, 2)
    assert torch.allclose(kernel_value(kernel, X1, X2), blocks[..., 0, 0])
    assert torch.allclose(kernel_gradient(kernel, X1, X2), blocks[..., 1:, 0])
    assert torch.allclose(kernel_cross_hessian(kernel, X1, X2), blocks[..., 1:, 1:])


def test_literal_values_at_unit_scale(double):
    X = torch.zeros(1, 2, **double)
    Y = torch.tensor([[1.0, 0.0]], **double)
    with DEVICE:
        matern, rbf = gk.MaternKernel(nu=2.5).double(), gk.RBFKernel().double()
    matern.raw_lengthscale.data.fill_(math.log(math.e - 1))
    rbf.raw_lengthscale.data.fill_(math.log(math.e - 1))
    assert prior_gradient_covariance(matern, X)[0, 0, 0].item() == pytest.approx(5 / 3)
    assert prior_gradient_covariance(rbf, X)[0, 0, 0].item() == pytest.approx(1.0)
    # mpmath: 5/3 (1 + sqrt 5) exp(-sqrt 5) and exp(-1/2)
    gradient = kernel_gradient(matern, X, Y)[0, 0]
    assert gradient.tolist() == pytest.approx([0.576440387885, 0.0], abs=1e-11)
    gradient = kernel_gradient(rbf, X, Y)[0, 0]
    assert gradient.tolist() == pytest.approx([0.606530659713, 0.0], abs=1e-11)


@pytest.mark.parametrize("make", [gk.RBFKernel, gk.MaternKernel, gk.RQKernel])
def test_rounding_of_distances_costs_no_derivative(make, tkwargs, generator):
    """Of 40 coincident pairs GPyTorch's clamp loses the derivatives of several."""
    kernel = build(make, generator, **tkwargs)
    X1 = points(generator, 40, D, **tkwargs).requires_grad_()
    X2 = X1.detach().clone().requires_grad_()
    (g,) = differentiate(kernel_value(kernel, X1, X2).diagonal().sum(), [X1])
    (h,) = differentiate(g[:, 0].sum(), [X2])
    expected = prior_gradient_covariance(kernel, X1)[:, 0]
    assert torch.allclose(h, expected, rtol=1e-2, atol=1e-2)
