"""What every kernel with derivatives must pass, against its formula and torch.func.

A subclass of `KernelGradientTestCase` names the kernel, writes down its formula for one
pair of points, and gives the prior covariance of the gradient. Each kernel is tested on
its own, with active dimensions, scaled, in sums, products and batches.
"""

import math

import gpytorch.kernels as gk
import pytest
import torch
from torch.func import grad, jacfwd, vmap

from botorch_dp.models.kernels import derivatives as kernel_gradients
from botorch_dp.models.kernels.derivatives import (
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
    kernel_value_and_gradient,
    prior_gradient_covariance,
)
from tests.devices import DEVICE

D = 3


DOUBLE = {"dtype": torch.float64, "device": DEVICE}


VARIANTS = ["plain", "ard", "active_dims", "scale", "sum", "product", "nested", "batch"]


def build(make, generator, **tkwargs):
    """Make a kernel on the CPU, whatever the default device, with random parameters."""
    with DEVICE:
        kernel = make()
    for parameter in kernel.parameters():
        noise = torch.randn(parameter.shape, generator=generator, **DOUBLE)
        parameter.data = 0.4 * noise
    return kernel.to(**tkwargs)


def points(generator, *shape, **tkwargs):
    return torch.rand(*shape, generator=generator, **DOUBLE).to(**tkwargs)


def without_batch(make, kernel, index):
    """Make the same kernel without a batch shape, with one element's parameters."""
    with DEVICE:
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


class RQCase(KernelGradientTestCase):
    leaf = gk.RQKernel

    def formula(self, kernel, x, y):
        alpha = kernel.alpha.squeeze()
        return (1 + scaled(kernel, x, y).square().sum() / (2 * alpha)) ** -alpha

    def prior_covariance(self, kernel, x):
        return diagonal(kernel.lengthscale**-2)
