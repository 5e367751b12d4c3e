"""Kernels and their derivatives, against plain formulas differentiated by torch.func.

`KernelGradientTestCase` is what every kernel must pass, in every surrounding: a
subclass names the kernel, writes down its formula for one pair of points, and says
what the prior covariance of the gradient is.
"""

import math

import gpytorch.kernels as gk
import pytest
import torch
from botorch.models.kernels import CategoricalKernel
from torch.func import grad, jacfwd, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
from botorch_dp.models.kernels import derivatives as kernel_gradients
from botorch_dp.models.kernels.derivatives import (
    check_twice_differentiable,
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
    kernel_value_and_gradient,
    prior_gradient_covariance,
)

D = 3
CPU = torch.device("cpu")
DOUBLE = {"dtype": torch.float64, "device": CPU}
VARIANTS = ["plain", "ard", "active_dims", "scale", "sum", "product", "nested", "batch"]


def build(make, generator, **tkwargs):
    """Make a kernel on the CPU, whatever the default device, with random parameters."""
    with CPU:
        kernel = make()
    for parameter in kernel.parameters():
        noise = torch.randn(parameter.shape, generator=generator, **DOUBLE)
        parameter.data = 0.4 * noise
    return kernel.to(**tkwargs)


def points(generator, *shape, **tkwargs):
    return torch.rand(*shape, generator=generator, **DOUBLE).to(**tkwargs)


def without_batch(make, kernel, index):
    """Make the same kernel without a batch shape, with one element's parameters."""
    with CPU:
        single = make().to(kernel.raw_outputscale)
    for own, batched in zip(single.parameters(), kernel.parameters(), strict=True):
        own.data = batched.data[index].reshape(own.shape)
    return single


def differentiate(output, inputs):
    """Return derivatives that can be differentiated again, zero where unconnected."""
    output = output + sum(0 * x.sum() for x in inputs)
    return torch.autograd.grad(output, inputs, create_graph=True)


class KernelGradientTestCase:
    supports_ard = True
    leaf = None

    def formula(self, kernel, x, y):
        """The kernel of two points, each of shape d, as in a textbook."""
        raise NotImplementedError

    def prior_covariance(self, kernel, x):
        """The d x d prior covariance of the gradient at a point."""
        raise NotImplementedError

    def unknown_forward(self, kernel, x1, x2):
        """The kernel matrix by a smooth formula, for the autograd path."""
        return self.leaf.forward(kernel, x1, x2)

    def make(self, **kwargs):
        return self.leaf(**kwargs)

    def make_variant(self, variant, batch_shape=()):
        batch = {"batch_shape": torch.Size(batch_shape)}
        if variant == "plain":
            return self.make()
        if variant == "ard":
            return self.make(ard_num_dims=D) if self.supports_ard else self.make()
        if variant == "active_dims":
            return self.make(active_dims=(2, 0))
        if variant == "scale":
            return gk.ScaleKernel(self.make(active_dims=(1, 2)))
        other = gk.RBFKernel(active_dims=(0, 1), **batch)
        if variant == "sum":
            return self.make() + gk.ScaleKernel(other)
        if variant == "product":
            return self.make(active_dims=(1, 2)) * other * gk.RQKernel()
        if variant == "nested":
            return gk.ScaleKernel(self.make() * gk.ScaleKernel(other)) + self.make()
        return gk.ScaleKernel(self.make(**batch) + other, **batch)

    @pytest.fixture(params=VARIANTS)
    def variant(self, request):
        return request.param

    @pytest.fixture
    def kernel(self, variant, generator):
        batch = (3,) if variant == "batch" else ()
        return build(lambda: self.make_variant(variant, batch), generator, **DOUBLE)

    def plain(self, kernel, x, y):
        """The formula of a composite kernel, of two points."""
        if kernel.active_dims is not None:
            x, y = x[kernel.active_dims], y[kernel.active_dims]
        return self.plain_forward(kernel, x, y)

    def plain_forward(self, kernel, x, y):
        if isinstance(kernel, gk.ScaleKernel):
            return kernel.outputscale * self.plain_forward(kernel.base_kernel, x, y)
        if isinstance(kernel, gk.AdditiveKernel):
            return sum(self.plain(part, x, y) for part in kernel.kernels)
        if isinstance(kernel, gk.ProductKernel):
            return math.prod(self.plain(part, x, y) for part in kernel.kernels)
        for case in (self, RBFCase(), RQCase()):
            if type(kernel) is case.leaf:
                return case.formula(kernel, x, y)
        raise AssertionError(kernel)

    def expected(self, kernel, X1, X2):
        def k(x, y):
            return self.plain(kernel, x, y)

        functions = (k, grad(k), jacfwd(grad(k), argnums=1))
        return [vmap(vmap(f, (None, 0)), (0, None))(X1, X2) for f in functions]

    def test_agrees_with_the_differentiated_formula(self, variant, kernel, generator):
        X1, X2 = points(generator, 4, D, **DOUBLE), points(generator, 5, D, **DOUBLE)
        singles = [kernel]
        if variant == "batch":
            singles = [
                without_batch(lambda: self.make_variant(variant), kernel, i)
                for i in range(3)
            ]
        expected = [self.expected(single, X1, X2) for single in singles]
        for actual, parts in zip(
            (
                kernel_value(kernel, X1, X2),
                kernel_gradient(kernel, X1, X2),
                kernel_cross_hessian(kernel, X1, X2),
            ),
            zip(*expected, strict=True),
            strict=True,
        ):
            wanted = torch.stack(parts) if variant == "batch" else parts[0]
            assert actual.shape == wanted.shape
            assert torch.allclose(actual, wanted, rtol=1e-9, atol=1e-11)
        value, gradient = kernel_value_and_gradient(kernel, X1, X2)
        assert torch.allclose(value, kernel_value(kernel, X1, X2), rtol=1e-10)
        assert torch.equal(gradient, kernel_gradient(kernel, X1, X2))

    def test_agrees_with_gpytorch(self, kernel, tkwargs, generator):
        kernel = kernel.to(**tkwargs)
        X1, X2 = points(generator, 4, D, **tkwargs), points(generator, 5, D, **tkwargs)
        value = kernel_value(kernel, X1, X2)
        assert value.dtype == tkwargs["dtype"]
        assert value.device == tkwargs["device"]
        expected = kernel(X1, X2).to_dense()
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-5)

    def test_agrees_with_autograd_path(self, kernel, tkwargs, generator, monkeypatch):
        kernel = kernel.to(**tkwargs)
        X1, X2 = points(generator, 4, D, **tkwargs), points(generator, 5, D, **tkwargs)
        closed = [f(kernel, X1, X2) for f in (kernel_value, kernel_gradient)]
        closed += [kernel_cross_hessian(kernel, X1, X2)]

        def forward(kernel, x1, x2, **params):
            return self.unknown_forward(kernel, x1, x2)

        unknown = type("Unknown", (self.leaf,), {"forward": forward})
        leaves = [k for k in (kernel, *kernel.sub_kernels()) if type(k) is self.leaf]
        for leaf in leaves:
            leaf.__class__ = unknown
        assert leaves
        calls = []
        monkeypatch.setattr(
            kernel_gradients, "check_by_probe", lambda kernel, X: calls.append(kernel)
        )
        general = [f(kernel, X1, X2) for f in (kernel_value, kernel_gradient)]
        general += [kernel_cross_hessian(kernel, X1, X2)]
        assert len(calls) == 2 * len(leaves)
        tol = 1e-9 if tkwargs["dtype"] == torch.float64 else 2e-4
        for a, b in zip(closed, general, strict=True):
            assert b.dtype == tkwargs["dtype"]
            assert torch.allclose(a, b, rtol=tol, atol=tol)

    def test_central_differences(self, kernel, generator):
        X1, X2 = points(generator, 3, D, **DOUBLE), points(generator, 2, D, **DOUBLE)
        X2[0] = X1[1]  # coincident
        h = 1e-5
        gradient = kernel_gradient(kernel, X1, X2)
        cross = kernel_cross_hessian(kernel, X1, X2)
        for a in range(D):
            step = torch.zeros(D, **DOUBLE)
            step[a] = h
            with torch.no_grad():
                up, down = (kernel(X1 + s, X2).to_dense() for s in (step, -step))
                assert torch.allclose(
                    gradient[..., a], (up - down) / (2 * h), atol=1e-8
                )
                up, down = (kernel_gradient(kernel, X1, X2 + s) for s in (step, -step))
                expected = (up - down) / (2 * h)
            # A Matern-5/2 kernel has a |h|^5 term: its differences converge like h.
            assert torch.allclose(cross[..., :, a], expected, atol=1e-3)

    def test_cross_hessian_is_symmetric(self, kernel, generator):
        X1, X2 = points(generator, 4, D, **DOUBLE), points(generator, 3, D, **DOUBLE)
        there = kernel_cross_hessian(kernel, X1, X2)
        back = kernel_cross_hessian(kernel, X2, X1)
        assert torch.allclose(there, back.transpose(-4, -3).transpose(-2, -1))

    def test_prior_is_the_coincident_cross_hessian(self, kernel, generator):
        X = points(generator, 4, D, **DOUBLE)
        prior = prior_gradient_covariance(kernel, X)
        cross = kernel_cross_hessian(kernel, X, X.clone())
        diagonal = cross.diagonal(dim1=-4, dim2=-3).movedim(-1, -3)
        assert prior.shape == (*kernel.batch_shape, 4, D, D)
        assert torch.allclose(prior, diagonal, rtol=1e-12)
        assert (torch.linalg.eigvalsh(prior) > -1e-10).all()

    @pytest.mark.parametrize("ard", [False, True])
    def test_prior_at_coincident_points_is_exact(self, ard, tkwargs, generator):
        kwargs = {"ard_num_dims": D} if ard and self.supports_ard else {}
        kernel = build(
            lambda: gk.ScaleKernel(self.make(**kwargs)), generator, **tkwargs
        )
        X = points(generator, 4, D, **tkwargs)
        expected = torch.stack(
            [self.prior_covariance(kernel.base_kernel, x) for x in X]
        )
        expected = kernel.outputscale * expected
        actual = prior_gradient_covariance(kernel, X)
        assert actual.dtype == tkwargs["dtype"]
        assert torch.allclose(actual, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("variant", ["plain", "product", "nested"], indirect=True)
    def test_autograd_agrees_with_the_formula(self, kernel, generator):
        """In points and hyperparameters: of the cross Hessian, third derivatives."""
        X1, X2 = points(generator, 3, D, **DOUBLE), points(generator, 2, D, **DOUBLE)
        inputs = (X1.requires_grad_(), X2.requires_grad_(), *kernel.parameters())
        functions = (kernel_value, kernel_gradient, kernel_cross_hessian)
        for f, formula in zip(functions, self.expected(kernel, X1, X2), strict=True):
            weights = torch.rand(formula.shape, generator=generator, **DOUBLE)
            actual = differentiate((weights * f(kernel, X1, X2)).sum(), inputs)
            wanted = differentiate((weights * formula).sum(), inputs)
            for a, b in zip(actual, wanted, strict=True):
                assert torch.allclose(a, b, rtol=1e-8, atol=1e-9)

    def test_gradients_flow_at_coincident_points(self, kernel, generator):
        X1 = points(generator, 3, D, **DOUBLE).requires_grad_()
        X2 = X1.detach().clone().requires_grad_()
        inputs = (X1, X2, *kernel.parameters())
        for f in (kernel_value, kernel_gradient, kernel_cross_hessian):
            output = f(kernel, X1, X2)
            weights = torch.rand(output.shape, generator=generator, **DOUBLE)
            grads = differentiate((output * weights).sum(), inputs)
            assert all(g.isfinite().all() for g in grads)

    def test_autograd_of_each_order_gives_the_next(self, kernel, generator):
        """At coincident points too, where this is hardest."""
        X1 = points(generator, 2, D, **DOUBLE).requires_grad_()
        X2 = X1.detach().clone().requires_grad_()
        value, gradient = kernel_value_and_gradient(kernel, X1, X2)
        # Summed over the batch, as autograd does.
        first = gradient.reshape(-1, 2, 2, D).sum(0)
        cross = kernel_cross_hessian(kernel, X1, X2).reshape(-1, 2, 2, D, D).sum(0)
        for i in range(2):
            for k in (value, kernel_value(kernel, X1, X2)):
                (g,) = differentiate(k[..., i, :].sum(), [X1])
                assert torch.allclose(g[i], first[i].sum(0), rtol=1e-9, atol=1e-7)
                for a in range(D):
                    (h,) = differentiate(g[i, a], [X2])
                    assert torch.allclose(h, cross[i, :, a], rtol=1e-9, atol=1e-7)
            for a in range(D):
                (h,) = differentiate(first[i, :, a].sum(), [X2])
                assert torch.allclose(h, cross[i, :, a], rtol=1e-9, atol=1e-7)

    def test_batches_of_points_broadcast(self, kernel, generator):
        X1 = points(generator, 2, 1, 4, D, **DOUBLE)
        X2 = points(generator, 3, 5, D, **DOUBLE)
        batched = kernel_cross_hessian(kernel, X1, X2)
        gradient = kernel_gradient(kernel, X1, X2)
        assert batched.shape == (2, 3, 4, 5, D, D)
        assert gradient.shape == (2, 3, 4, 5, D)
        assert kernel_value(kernel, X1, X2).shape == (2, 3, 4, 5)
        assert prior_gradient_covariance(kernel, X1).shape == (
            2, *(kernel.batch_shape or (1,)), 4, D, D
        )  # fmt: skip
        for i in range(2):
            for j in range(3):
                one = kernel_cross_hessian(kernel, X1[i, 0], X2[j])
                one = one[j] if kernel.batch_shape else one
                assert torch.allclose(batched[i, j], one)


def scaled(kernel, x, y):
    return (x - y) / kernel.lengthscale.squeeze()


def diagonal(values):
    return values.reshape(-1).expand(D).diag_embed()


class RBFCase(KernelGradientTestCase):
    leaf = gk.RBFKernel

    def formula(self, kernel, x, y):
        return torch.exp(-scaled(kernel, x, y).square().sum() / 2)

    def prior_covariance(self, kernel, x):
        return diagonal(kernel.lengthscale**-2)


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


class RQCase(KernelGradientTestCase):
    leaf = gk.RQKernel

    def formula(self, kernel, x, y):
        alpha = kernel.alpha.squeeze()
        return (1 + scaled(kernel, x, y).square().sum() / (2 * alpha)) ** -alpha

    def prior_covariance(self, kernel, x):
        return diagonal(kernel.lengthscale**-2)


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
    with CPU:
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
    with CPU:
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
    with CPU:
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


def test_works_without_grad_mode(generator, double):
    kernel = build(lambda: gk.MaternKernel(nu=2.5), generator, **double)
    unknown = build(
        lambda: gk.RFFKernel(num_samples=5, num_dims=D), generator, **double
    )
    X = points(generator, 3, D, **double)
    with torch.no_grad():
        for k in (kernel, unknown):
            assert not kernel_cross_hessian(k, X, X).requires_grad
            assert kernel_cross_hessian(k, X, X).abs().sum() > 0


def test_float32_kernel_follows_double_points(generator, double):
    kernel = build(lambda: gk.ScaleKernel(gk.RQKernel()), generator, device=CPU)
    kernel = kernel.float()
    X = points(generator, 3, D, **double)
    for f in (kernel_value, kernel_gradient, kernel_cross_hessian):
        assert f(kernel, X, X).dtype == torch.float64
        assert f(kernel.double(), X.float(), X.float()).dtype == torch.float32
        kernel = kernel.float()


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor made inside it."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result._base is None:
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize(
    "make",
    [gk.RBFKernel, gk.MaternKernel, gk.RQKernel, lambda: gk.PolynomialKernel(power=2)],
    ids=["RBF", "Matern", "RQ", "Polynomial"],
)
def test_memory(make, generator, double):
    """No n x m x d for values, no n x n for the prior, no n d x m d for anything."""
    kernel = build(lambda: gk.ScaleKernel(make()), generator, **double)
    n, m, d = 60, 50, 4
    X1, X2 = points(generator, n, d, **double), points(generator, m, d, **double)
    for call, bound in [
        (lambda: kernel_value(kernel, X1, X2), n * m),
        (lambda: kernel_gradient(kernel, X1, X2), n * m * d),
        (lambda: kernel_cross_hessian(kernel, X1, X2), n * m * d**2),
        (lambda: prior_gradient_covariance(kernel, X1), n * d**2),
    ]:
        with torch.no_grad(), LargestTensor() as largest:
            call()
        assert bound / d**2 <= largest.numel <= bound


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
        with CPU:
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

        with CPU:
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

        with CPU:
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
        with CPU:
            renamed, doubled = Renamed(nu=2.5).double(), Doubled().double()
        expected = renamed.lengthscale**-2
        assert torch.allclose(prior_gradient_covariance(renamed, X), 5 / 3 * expected)
        assert torch.allclose(prior_gradient_covariance(doubled, X), 2 * expected)


class UnknownRBF(gk.RBFKernel):
    """A kernel this library does not know, because its forward is its own."""

    def forward(self, x1, x2, diag=False, **params):
        return super().forward(x1, x2, diag=diag, **params)


class TestRefusals:
    @pytest.mark.parametrize("nu", [0.5, 1.5])
    @pytest.mark.parametrize("inside", [False, True])
    def test_rough_matern(self, nu, inside, double):
        with CPU:
            kernel = gk.MaternKernel(nu=nu).double()
            if inside:
                kernel = gk.ScaleKernel(gk.RBFKernel() + gk.ScaleKernel(kernel))
        X = torch.zeros(1, D, **double)
        pattern = rf"MaternKernel.*{'inside ScaleKernel' if inside else ''}.*nu={nu}"
        for call in (
            lambda: check_twice_differentiable(kernel),
            lambda: kernel_cross_hessian(kernel, X, X),
            lambda: prior_gradient_covariance(kernel, X),
        ):
            with pytest.raises(UnsupportedKernelError, match=pattern + r".*nu=2\.5"):
                call()
        assert kernel_value(kernel, X, X).shape == (1, 1)

    def test_matern_one_half_has_no_gradient(self, double):
        with CPU:
            kernel = gk.MaternKernel(nu=0.5).double()
        X = torch.zeros(1, D, **double)
        with pytest.raises(UnsupportedKernelError, match=r"nu=0\.5.*no gradient"):
            kernel_gradient(kernel, X, X)
        expected = kernel(X, X + 0.5).to_dense()
        assert torch.allclose(kernel_value(kernel, X, X + 0.5), expected)

    def test_matern_three_halves_has_a_gradient(self, generator, double):
        kernel = build(lambda: gk.MaternKernel(nu=1.5), generator, **double)
        X1, X2 = points(generator, 3, D, **double), points(generator, 4, D, **double)
        X2[0] = X1[0]
        X1.requires_grad_()

        def k(x, y):
            s = 3**0.5 * scaled(kernel, x, y).square().sum().sqrt()
            return (1 + s) * torch.exp(-s)

        gradient = kernel_gradient(kernel, X1, X2)
        assert torch.equal(gradient[0, 0], torch.zeros(D, **double))
        expected = vmap(vmap(grad(k), (None, 0)), (0, None))(X1, X2)
        expected[0, 0] = 0.0
        assert torch.allclose(gradient, expected, rtol=1e-10)
        (second,) = differentiate(gradient[1:, 1:, 0].sum(), [X1])
        hessian = vmap(vmap(jacfwd(grad(k)), (None, 0)), (0, None))(X1[1:], X2[1:])
        assert torch.allclose(second[1:], hessian[..., 0, :].sum(1))
        (third,) = differentiate(second[1:, 1].sum(), [X1])
        (expected,) = differentiate(hessian[..., 0, 1].sum(), [X1])
        assert torch.allclose(third, expected)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: gk.ArcKernel(gk.RBFKernel(), ard_num_dims=D),
            lambda: gk.IndexKernel(num_tasks=2),
            lambda: CategoricalKernel(ard_num_dims=D),
            lambda: gk.HammingIMQKernel(vocab_size=2),
            lambda: gk.PiecewisePolynomialKernel(q=0),
            lambda: gk.PiecewisePolynomialKernel(q=2),
            gk.RBFKernelGrad,
            gk.Matern52KernelGrad,
            lambda: gk.MultitaskKernel(gk.RBFKernel(), num_tasks=2),
        ],
    )
    def test_kernels_known_not_to_qualify(self, make, double):
        with CPU:
            kernel = make().double()
        name = type(kernel).__name__
        with pytest.raises(UnsupportedKernelError, match=f"^{name} is not supported"):
            check_twice_differentiable(kernel)
        X = torch.zeros(2, D, **double)
        with pytest.raises(UnsupportedKernelError, match=name):
            kernel_gradient(kernel, X, X)

    @pytest.mark.parametrize(
        "make", [gk.RBFKernel, gk.MaternKernel, gk.CosineKernel, gk.RQKernel]
    )
    def test_smooth_kernels_pass(self, make):
        with CPU:
            assert check_twice_differentiable(gk.ScaleKernel(make() * make())) is None

    def test_arguments(self, double):
        X = torch.zeros(2, D, **double)
        with CPU:
            kernel = gk.RBFKernel().double()
            ard = gk.ScaleKernel(gk.RBFKernel(ard_num_dims=2)).double()
            dims = gk.ScaleKernel(gk.RBFKernel(active_dims=(1, 3))).double()
            batched = gk.RBFKernel(batch_shape=torch.Size([3])).double()
        for bad, args, pattern in [
            ("rbf", (X, X), "kernel must be a gpytorch.kernels.Kernel, got str"),
            (kernel, ([1.0], X), "X1 must be"),
            (kernel, (X, X[0]), r"X2 must be .* of shape \(3,\)"),
            (kernel, (X.long(), X), "X1 must be .*int64"),
            (kernel, (X, X[:, :2]), "number of features.*d=3.*d=2"),
            (kernel, (X, X.float()), "dtype.*float64.*float32"),
            (ard, (X, X), "RBFKernel has ard_num_dims=2.*d=3"),
            (dims, (X, X), r"active_dims \[1, 3\].*d=3"),
            (batched, (X.expand(2, 2, D), X), r"broadcast, got \(2,\), \(\), \(3,\)"),
            (kernel.to("meta"), (X, X), r"kernel is on meta and X1 on cpu.*\.to\(X1\)"),
        ]:
            with pytest.raises(InvalidArgumentError, match=pattern):
                kernel_cross_hessian(bad, *args)
        with pytest.raises(InvalidArgumentError, match=r"^X must be"):
            prior_gradient_covariance(ard, X[0])
