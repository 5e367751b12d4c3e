"""Derivatives of any kernel: dtypes, memory, and what is refused."""

import gpytorch.kernels as gk
import pytest
import torch
from botorch.models.kernels import CategoricalKernel
from torch.func import grad, jacfwd, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
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
    differentiate,
    points,
    scaled,
)


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
    kernel = build(lambda: gk.ScaleKernel(gk.RQKernel()), generator, device=DEVICE)
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


class TestRefusals:
    @pytest.mark.parametrize("nu", [0.5, 1.5])
    @pytest.mark.parametrize("inside", [False, True])
    def test_rough_matern(self, nu, inside, double):
        with DEVICE:
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
        with DEVICE:
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
        with DEVICE:
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
        with DEVICE:
            assert check_twice_differentiable(gk.ScaleKernel(make() * make())) is None

    def test_arguments(self, double):
        X = torch.zeros(2, D, **double)
        with DEVICE:
            kernel = gk.RBFKernel().double()
            ard = gk.ScaleKernel(gk.RBFKernel(ard_num_dims=2)).double()
            dims = gk.ScaleKernel(gk.RBFKernel(active_dims=(1, 3))).double()
            batched = gk.RBFKernel(batch_shape=torch.Size([3])).double()
        for bad, args, pattern in [
            ("rbf", (X, X), "kernel must be a gpytorch.kernels.Kernel, got 'rbf'"),
            (kernel, ([1.0], X), "X1 must be"),
            (kernel, (X, X[0]), r"X2 must be .* of shape \(3,\)"),
            (kernel, (X.long(), X), "X1 must be .*int64"),
            (kernel, (X, X[:, :2]), "number of features.*d=3.*d=2"),
            (kernel, (X, X.float()), "dtype.*float64.*float32"),
            (ard, (X, X), "RBFKernel has ard_num_dims=2.*d=3"),
            (dims, (X, X), r"active_dims \[1, 3\].*d=3"),
            (batched, (X.expand(2, 2, D), X), r"broadcast, got \(2,\), \(\), \(3,\)"),
            (kernel.to("meta"), (X, X), r"kernel .* X1, .*, got meta.*\.to\(X1\)"),
        ]:
            with pytest.raises(InvalidArgumentError, match=pattern):
                kernel_cross_hessian(bad, *args)
        with pytest.raises(InvalidArgumentError, match=r"^X must be"):
            prior_gradient_covariance(ard, X[0])


class TestCategories:
    """They are refused unless asked for, and their derivatives are zero."""

    @pytest.mark.default_device
    def test_of_a_product(self, generator, double):
        X = torch.rand(2, 4, 3, generator=generator, **double)
        X[..., 2] = torch.tensor([0.0, 1.0, 1.0, 2.0], **double)
        with DEVICE:
            smooth = gk.RBFKernel(active_dims=[0, 1]).double()
            categories = CategoricalKernel(
                active_dims=[2], batch_shape=torch.Size([2])
            ).double()
        kernel = smooth * categories
        with pytest.raises(UnsupportedKernelError, match="categories"):
            kernel_gradient(kernel, X, X)
        factor = kernel_value(categories, X, X)
        assert torch.allclose(factor.diagonal(dim1=-2, dim2=-1), X.new_ones(()))
        found = kernel_gradient(kernel, X, X, categories=True)
        expected = kernel_gradient(smooth, X, X) * factor.unsqueeze(-1)
        assert torch.allclose(found, expected)
        found = kernel_cross_hessian(kernel, X, X, categories=True)
        expected = kernel_cross_hessian(smooth, X, X) * factor[..., None, None]
        assert torch.allclose(found, expected)
        for at in (X, X[0]):  # the kernel alone has a batch
            found = prior_gradient_covariance(kernel, at, categories=True)
            expected = prior_gradient_covariance(smooth, at)
            assert torch.allclose(found, expected.expand_as(found))
