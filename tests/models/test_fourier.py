"""Random Fourier features, against kernels, densities and published numbers."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RBFKernelGrad,
    ScaleKernel,
)
from scipy.special import gamma, kv

from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
from botorch_dp.models import FourierFeatures
from tests.devices import DEVICE, seeded

MANY = 40_000


def uniform(generator, *shape, scale=1.0):
    return scale * torch.rand(
        *shape, generator=generator, dtype=torch.float64, device=DEVICE
    )


def vector(*values, **tkwargs):
    return torch.tensor(values, **{"dtype": torch.float64, "device": DEVICE, **tkwargs})


def make_kernel(base, outputscale=None, lengthscale=(0.7,), **kwargs):
    with DEVICE:
        kernel = base(**kwargs).double()
        kernel.lengthscale = vector(*lengthscale)
        if outputscale is not None:
            kernel = ScaleKernel(kernel).double()
            kernel.outputscale = vector(outputscale)
    return kernel


class TestKernels:
    @pytest.mark.parametrize(
        "kernel",
        [
            make_kernel(RBFKernel),
            make_kernel(RBFKernel, 2.5, (0.4, 0.9, 2.0), ard_num_dims=3),
            make_kernel(MaternKernel, 0.3, nu=0.5),
            make_kernel(MaternKernel, nu=1.5),
            make_kernel(MaternKernel, 4.0, (0.4, 0.9, 2.0), nu=2.5, ard_num_dims=3),
            make_kernel(RBFKernel, 2.0, (0.5,), active_dims=[1]),
            make_kernel(
                MaternKernel, 2.0, (0.4, 1.5), active_dims=[2, 0], ard_num_dims=2
            ),
        ],
        ids=str,
    )
    def test_products_of_features_are_the_kernel(self, kernel, generator):
        X = uniform(generator, 8, 3, scale=2.0)
        features = FourierFeatures.from_kernel(
            kernel, 3, num_features=MANY, seed=1, normalize=False
        )
        phi = features(X)
        expected = kernel(X).to_dense().detach()
        # A product has a standard error of at most sqrt(1.5 / M) of the variance.
        scale = float(expected.diagonal().max())
        assert (phi @ phi.mT - expected).abs().max() < 4 * scale * (1.5 / MANY) ** 0.5
        unit = FourierFeatures.from_kernel(kernel, 3, num_features=MANY, seed=1)(X)
        assert (unit @ unit.mT - expected).abs().max() < 4 * scale * (1.5 / MANY) ** 0.5

    @pytest.mark.parametrize("nu", [0.5, 0.8, 3.3])
    def test_any_smoothness(self, nu):
        """Against the closed form with a Bessel function."""
        features = FourierFeatures.draw(
            vector(0.5), nu=nu, num_features=MANY, seed=3, normalize=False
        )
        distances = np.array([0.1, 0.3, 0.9])
        phi = features(vector(*distances, 0.0).unsqueeze(-1))
        r = np.sqrt(2 * nu) * distances / 0.5
        expected = 2 ** (1 - nu) / gamma(nu) * r**nu * kv(nu, r)
        np.testing.assert_allclose(
            (phi[:-1] @ phi[-1]).cpu().numpy(), expected, atol=0.025
        )

    def test_large_smoothness_is_rbf(self):
        arguments = {"num_features": 200, "seed": 5}
        rbf = FourierFeatures.draw(vector(0.3, 1.0), **arguments)
        smooth = FourierFeatures.draw(vector(0.3, 1.0), nu=1e6, **arguments)
        torch.testing.assert_close(
            smooth.frequencies, rbf.frequencies, rtol=1e-2, atol=0
        )
        assert torch.equal(smooth.phases, rbf.phases)

    def test_frequencies_and_phases(self):
        features = FourierFeatures.draw(vector(0.5, 4.0), num_features=MANY, seed=0)
        standard = features.frequencies * vector(0.5, 4.0)
        covariance = standard.T.cov()
        torch.testing.assert_close(
            covariance,
            torch.eye(2, dtype=torch.float64, device=DEVICE),
            rtol=0,
            atol=0.03,
        )
        turns = features.phases / (2 * torch.pi)
        assert 0 <= turns.min() < 1e-3
        assert 1 - 1e-3 < turns.max() < 1
        assert abs(float(turns.mean()) - 0.5) < 0.01


class TestMap:
    def test_values(self, generator):
        """By a loop over points and features, with numpy."""
        W, b = uniform(generator, 5, 2, scale=3.0), uniform(generator, 5, scale=6.0)
        X = uniform(generator, 4, 3, 2)
        plain = FourierFeatures(W, b, outputscale=2.0, normalize=False)(X).cpu().numpy()
        unit = FourierFeatures(W, b, outputscale=2.0)(X).cpu().numpy()
        assert plain.shape == unit.shape == (4, 3, 5)
        for i in range(4):
            for j in range(3):
                cosines = np.cos(
                    W.cpu().numpy() @ X[i, j].cpu().numpy() + b.cpu().numpy()
                )
                np.testing.assert_allclose(
                    plain[i, j], np.sqrt(2 * 2.0 / 5) * cosines, rtol=1e-13
                )
                np.testing.assert_allclose(
                    unit[i, j],
                    np.sqrt(2.0) * cosines / np.linalg.norm(cosines),
                    rtol=1e-13,
                )

    @pytest.mark.parametrize("normalize", [True, False])
    def test_differentiable(self, normalize, generator):
        features = FourierFeatures.draw(
            vector(0.5, 0.5), num_features=6, seed=0, normalize=normalize
        )
        X = uniform(generator, 2, 3, 2).requires_grad_()
        assert torch.autograd.gradcheck(features, (X,))

    def test_one_point(self, generator):
        features = FourierFeatures.draw(vector(0.5, 0.5), num_features=6, seed=0)
        X = uniform(generator, 3, 2)
        torch.testing.assert_close(features(X[1]), features(X)[1])
        assert features(X[:0]).shape == (0, 6)

    def test_no_length(self):
        """A point where the only cosine is zero, up to rounding."""
        zero = torch.zeros(1, 1, dtype=torch.float64, device=DEVICE)
        features = FourierFeatures(zero + 1, zero[0] + torch.pi / 2)
        assert features(zero).isfinite().all()

    def test_dtypes(self, tkwargs, generator):
        features = FourierFeatures.draw(
            vector(0.5, 0.1, **tkwargs), num_features=9, seed=4
        )
        assert (features.dtype, features.device) == tuple(tkwargs.values())
        X = uniform(generator, 7, 2)
        phi = features(X.to(**tkwargs))
        assert phi.dtype == tkwargs["dtype"]
        double = FourierFeatures.draw(vector(0.5, 0.1), num_features=9, seed=4)
        torch.testing.assert_close(phi.double(), double(X), rtol=0, atol=1e-4)
        moved = double.to(**tkwargs)
        torch.testing.assert_close(moved.frequencies, features.frequencies)
        assert moved(X.to(**tkwargs)).dtype == tkwargs["dtype"]


class TestShared:
    def test_published_numbers(self):
        """An agent on another machine, or of another year, must find the same."""
        features = FourierFeatures.draw(
            vector(0.5, 0.25), num_features=3, seed=2026, nu=2.5
        )
        frequencies = [
            [-1.843544180298891, 1.118374030759186],
            [-3.452989260143859, 5.0830752055277175],
            [1.4120776215834698, -1.292173323309181],
        ]
        phases = [5.687186455494178, 1.1143429690439821, 4.101567880981347]
        np.testing.assert_allclose(
            features.frequencies.cpu().numpy(), frequencies, 1e-14
        )
        np.testing.assert_allclose(features.phases.cpu().numpy(), phases, 1e-14)

    def test_seed_alone_decides(self):
        arguments = {"num_features": 20, "nu": 1.5}
        first = FourierFeatures.draw(vector(0.5), seed=1, **arguments)
        torch.manual_seed(0)
        np.random.seed(0)
        second = FourierFeatures.draw(vector(0.5), seed=1, **arguments)
        assert torch.equal(first.frequencies, second.frequencies)
        assert torch.equal(first.phases, second.phases)
        assert first.fingerprint == second.fingerprint
        other = FourierFeatures.draw(vector(0.5), seed=2, **arguments)
        assert not torch.isclose(other.frequencies, first.frequencies).any()

    def test_from_kernel_is_draw(self):
        kernel = make_kernel(MaternKernel, 3.0, (0.5,), nu=1.5)
        drawn = FourierFeatures.draw(
            kernel.base_kernel.lengthscale.detach()[0].expand(2),
            nu=1.5,
            outputscale=float(kernel.outputscale.detach()),
            num_features=10,
            seed=9,
        )
        made = FourierFeatures.from_kernel(kernel, 2, num_features=10, seed=9)
        assert made.fingerprint == drawn.fingerprint

    def test_fingerprint_tells_all_apart(self):
        W, b = vector(1.0, 2.0).unsqueeze(-1), vector(0.0, 1.0)
        maps = [
            FourierFeatures(W, b),
            FourierFeatures(W + 1e-15, b),
            FourierFeatures(W, b + 1e-15),
            FourierFeatures(W, b, outputscale=2.0),
            FourierFeatures(W, b, normalize=False),
            FourierFeatures(W.float(), b.float()),
            FourierFeatures(W.T, b[:1]),
        ]
        assert len({features.fingerprint for features in maps}) == len(maps)


ROW = {"lengthscale": vector(0.5), "num_features": 4, "seed": 0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda W, b: FourierFeatures(W[0], b), "frequencies must be .* M x D"),
        (lambda W, b: FourierFeatures(W.long(), b), "frequencies .* torch.int64"),
        (lambda W, b: FourierFeatures([[1.0]], b), r"frequencies .* got \[\[1.0\]\]"),
        (lambda W, b: FourierFeatures(W, b[:1]), r"phases .* shape 2 on"),
        (lambda W, b: FourierFeatures(W, b.float()), "phases .* torch.float32"),
        (lambda W, b: FourierFeatures(W / 0, b), "must be finite"),
        (lambda W, b: FourierFeatures(W, b, outputscale=0.0), "outputscale"),
        (lambda W, b: FourierFeatures(W, b)(W[:, :1]), "X must be .* of shape ... x 3"),
        (
            lambda W, b: FourierFeatures(W, b)(W.float()),
            r"X must be a torch.float64 .* got torch.float32",
        ),
        (lambda W, b: FourierFeatures(W, b)(1.0), "got a float"),
        (
            lambda W, b: FourierFeatures.draw(**{**ROW, "lengthscale": W}),
            "lengthscale must be a D tensor",
        ),
        (
            lambda W, b: FourierFeatures.draw(**{**ROW, "lengthscale": 0.5}),
            "lengthscale .* got 0.5",
        ),
        (
            lambda W, b: FourierFeatures.draw(**{**ROW, "lengthscale": -b}),
            r"above 0, got \[-1.0, -1.0\]",
        ),
        (lambda W, b: FourierFeatures.draw(**ROW, nu=0.0), "nu must be"),
        (lambda W, b: FourierFeatures.draw(**{**ROW, "seed": -1}), "seed must be"),
        (
            lambda W, b: FourierFeatures.draw(**{**ROW, "num_features": 0}),
            "num_features must be",
        ),
        (
            lambda W, b: FourierFeatures.from_kernel(
                make_kernel(RBFKernel, active_dims=[3]), 3, num_features=2, seed=0
            ),
            r"dim must be .* got 3, .* active dimensions are \[3\]",
        ),
        (
            lambda W, b: FourierFeatures.from_kernel(
                make_kernel(RBFKernel, None, (1.0, 2.0), ard_num_dims=2),
                3,
                num_features=2,
                seed=0,
            ),
            "with 2 length scales",
        ),
    ],
)
def test_rejects(call, message):
    W = torch.ones(2, 3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(InvalidArgumentError, match=message):
        call(W, W[:, 0].clone())


@pytest.mark.parametrize(
    "make",
    [
        lambda: PeriodicKernel(),
        lambda: ScaleKernel(PeriodicKernel()),
        lambda: RBFKernelGrad(),
        lambda: AdditiveKernel(RBFKernel(), RBFKernel()),
        lambda: RBFKernel(batch_shape=torch.Size([2])),
        lambda: ScaleKernel(RBFKernel(), batch_shape=torch.Size([2])),
    ],
)
def test_rejects_kernels(make):
    with DEVICE:
        kernel = make()
    with pytest.raises(UnsupportedKernelError, match="kernel must be RBF or Matern"):
        FourierFeatures.from_kernel(kernel, 2, num_features=4, seed=0)


def test_light_import():
    """A deployed agent loads these files without GPyTorch and BoTorch."""
    code = (
        "import sys, types\n"
        "for name, path in PACKAGES.items():\n"
        "    package = types.ModuleType(name)\n"
        "    package.__path__ = [path]\n"
        "    sys.modules[name] = package\n"
        "import botorch_dp.models.linear_models\n"
        "loaded = {'gpytorch', 'botorch', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    import botorch_dp
    import botorch_dp.models

    packages = {
        module.__name__: module.__path__[0]
        for module in (botorch_dp, botorch_dp.models)
    }
    # As if the packages imported nothing themselves.
    subprocess.run(
        [sys.executable, "-c", f"PACKAGES = {packages!r}\n{code}"], check=True
    )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("nu", ["rbf", 2.5])
def test_gradient_is_that_of_autograd(normalize, nu, double):
    lengthscale = torch.tensor([0.2, 0.7], **double)
    features = FourierFeatures.draw(
        lengthscale,
        num_features=20,
        seed=1,
        nu=nu,
        outputscale=3.0,
        normalize=normalize,
    )
    generator = seeded(0)
    X = torch.rand(7, 2, generator=generator, **double).requires_grad_()
    weights = torch.randn(7, 20, generator=generator, **double)
    (features(X) * weights).sum().backward()
    assert torch.allclose(features.gradient(X.detach(), weights), X.grad, atol=1e-12)
