"""The trace and its gradient: both kinds of arrays, and high precision."""

import copy

import mpmath
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from botorch_dp.acquisition import GradientInformation
from botorch_dp.acquisition._arrays import Arrays, Tensors
from botorch_dp.acquisition._trace import Geometry
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientGP

CPU = torch.device("cpu")
pytestmark = pytest.mark.cpu_only("compares tensors with arrays, which share memory")
KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=3)),
    "matern": lambda: MaternKernel(nu=2.5),
    "rq": lambda: ScaleKernel(RQKernel()),
}


@pytest.fixture
def uniform(generator):
    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64, device=CPU)

    return draw


def make_acqf(X, X_center, name="rbf", noise_variance=1e-3):
    with CPU:
        kernel = KERNELS[name]().double()
    return GradientInformation(
        GradientGP(X, X[:, :1], kernel, noise_variance), X_center
    )


def on_tensors(acqf):
    """The same acquisition function without arrays, as on any other device."""
    twin = copy.copy(acqf)
    geometry = copy.copy(acqf._geometry)
    geometry.most_in_arrays = 0
    members = copy.copy(acqf._all_members[0])
    members.geometries = [((), geometry)]
    twin._all_members = [members]
    return twin


def value_and_gradient(acqf, Z):
    Z = Z.clone().requires_grad_()
    values = acqf(Z)
    # Different factors, so that each gradient meets its own value.
    factors = torch.arange(1.0, 1 + values.numel(), device=CPU).to(Z)
    (gradient,) = torch.autograd.grad((factors.view_as(values) * values).sum(), Z)
    return values.detach(), gradient


class TestArraysAndTensors:
    @pytest.mark.parametrize("batch", [(1,), (4,), (2, 3)])
    @pytest.mark.parametrize("q", [1, 2, 5])
    @pytest.mark.parametrize("p", [1, 2])
    @pytest.mark.parametrize("name", KERNELS)
    def test_agree(self, name, p, q, batch, uniform):
        X, X_center, Z = uniform(9, 3), uniform(p, 3), uniform(*batch, q, 3)
        in_arrays = make_acqf(X, X_center, name)
        assert Z.numel() <= in_arrays._geometry.most_in_arrays
        found = value_and_gradient(in_arrays, Z)
        expected = value_and_gradient(on_tensors(make_acqf(X, X_center, name)), Z)
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("q", [1, 3])
    def test_agree_without_points(self, q, uniform):
        acqf = make_acqf(uniform(0, 3), uniform(1, 3))
        Z = uniform(2, q, 3)
        found = value_and_gradient(acqf, Z)
        expected = value_and_gradient(on_tensors(acqf), Z)
        assert all(map(torch.allclose, found, expected))

    @pytest.mark.parametrize("q", [1, 3])
    def test_finite_differences_on_tensors(self, q, uniform):
        acqf = on_tensors(make_acqf(uniform(8, 3), uniform(2, 3), noise_variance=1e-2))
        Z = uniform(2, q, 3).requires_grad_()
        assert torch.autograd.gradcheck(acqf, (Z,), atol=1e-5, rtol=1e-4)

    def test_many_candidates_and_other_kernels_use_tensors(self, uniform):
        geometry = make_acqf(uniform(9, 3), uniform(1, 3))._geometry
        assert geometry.most_in_arrays == 2**14 // (9 + 3) * 3
        assert geometry.ops is Tensors
        assert geometry.in_arrays.ops is Arrays
        other = Geometry(
            known=object(),
            root=geometry.root,
            noise=geometry.noise,
            weights=geometry.weights,
            trace=geometry.trace,
            scale=geometry.twice_scale / 2,
        )
        assert other.most_in_arrays == 0

    def test_candidates_are_not_changed(self, uniform):
        acqf, Z = make_acqf(uniform(9, 3), uniform(1, 3)), uniform(2, 4, 3)
        before = Z.clone()
        value_and_gradient(acqf, Z)
        assert torch.equal(Z, before)

    def test_not_contiguous(self, uniform):
        acqf = make_acqf(uniform(9, 3), uniform(1, 3))
        Z = uniform(2, 3, 4).mT.requires_grad_()  # 2 x 4 x 3
        for one in (acqf, on_tensors(acqf)):
            assert torch.allclose(one(Z), one(Z.detach().contiguous()))

    @pytest.mark.parametrize("q", [1, 2])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_non_finite_candidates_are_refused(self, bad, q, uniform):
        acqf, Z = make_acqf(uniform(9, 3), uniform(1, 3)), uniform(1, q, 3)
        Z[0, 0, 1] = bad
        for one in (acqf, on_tensors(acqf)):
            with pytest.raises(InvalidArgumentError, match="X must be finite"):
                one(Z)

    @pytest.mark.parametrize("use", [lambda acqf: acqf, on_tensors])
    def test_no_second_derivatives_behind_other_functions(self, use, uniform):
        acqf = use(make_acqf(uniform(9, 3), uniform(1, 3)))
        Z = uniform(1, 2, 3).requires_grad_()
        total = acqf(Z).exp().sum()
        (gradient,) = torch.autograd.grad(total, Z, create_graph=True)
        with pytest.raises(RuntimeError, match="twice"):
            gradient.sum().backward()


def exact_trace(X, x, Z, noise_variance, lengthscale):
    """The trace of the RBF kernel's gradient after Z, with 50 digits."""
    points = [[mpmath.mpf(float(v)) for v in row] for row in X.tolist()] + Z
    center = [mpmath.mpf(v) for v in x.tolist()]
    size, d = len(points), len(center)

    def k(a, b):
        squares = sum(((u - v) / lengthscale) ** 2 for u, v in zip(a, b, strict=True))
        return mpmath.exp(-squares / 2)

    K = mpmath.matrix(size, size)
    for i in range(size):
        for j in range(size):
            K[i, j] = k(points[i], points[j]) + (noise_variance if i == j else 0)
    trace = d / lengthscale**2
    for i in range(d):
        cross = [k(center, z) * (z[i] - center[i]) / lengthscale**2 for z in points]
        cross = mpmath.matrix(cross)
        trace -= (cross.T * mpmath.cholesky_solve(K, cross))[0]
    return trace


class TestHighPrecision:
    @pytest.mark.parametrize("q", [1, 2])
    @pytest.mark.parametrize(
        ("noise_variance", "rtol"), [(1e-4, 1e-11), (1e-6, 2e-9), (1e-8, 5e-7)]
    )
    def test_close_points(self, noise_variance, rtol, q, uniform):
        # The condition number is about 10 / noise_variance.
        X, x = 0.35 + 0.3 * uniform(10, 2), torch.full((2,), 0.5, device=CPU).double()
        Z = 0.35 + 0.3 * uniform(1, q, 2)
        with CPU:
            kernel = RBFKernel().double()
            kernel.lengthscale = 0.5
        model = GradientGP(X, X[:, :1], kernel, noise_variance)
        acqf = GradientInformation(model, x)
        s2, scale = float(model.noise_variance), float(kernel.lengthscale)
        with mpmath.workdps(50):
            rows = [[mpmath.mpf(v) for v in row] for row in Z[0].tolist()]
            h, slopes = mpmath.mpf(10) ** -18, []
            for row in rows:
                for i in range(2):
                    ends = []
                    for sign in (1, -1):
                        row[i] += sign * h
                        ends.append(exact_trace(X, x, rows, s2, mpmath.mpf(scale)))
                        row[i] -= sign * h
                    slopes.append(float((ends[1] - ends[0]) / (2 * h)))
            exact = float(-exact_trace(X, x, rows, s2, mpmath.mpf(scale)))
        expected = torch.tensor(slopes, dtype=torch.float64, device=CPU)
        for one in (acqf, on_tensors(acqf)):
            value, gradient = value_and_gradient(one, Z)
            assert abs(value.item() / exact - 1) < rtol
            error = (gradient.flatten() - expected).abs().max() / expected.abs().max()
            assert error < rtol

    @pytest.mark.parametrize("use", [lambda acqf: acqf, on_tensors])
    def test_rounding_cannot_explain_more_than_everything(self, use, uniform):
        X = uniform(9, 3)
        acqf = use(make_acqf(X, uniform(1, 3)))
        acqf._geometry.root[:9, :9] *= 0.99  # so that points explain too much
        values, gradient = value_and_gradient(acqf, X.unsqueeze(-2))
        # Without a limit, the residual variances would be negative, and so would what
        # an observation teaches.
        assert (values >= -acqf._geometry.trace).all()
        assert gradient.isfinite().all()
