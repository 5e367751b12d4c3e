import copy

import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    RBFKernel,
    RBFKernelGrad,
    ScaleKernel,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.dictionary import KernelDictionary, nearest_points
from tests.devices import DEVICE, seeded

NOISE = 1e-6


def make_kernel(base=RBFKernel, lengthscale=1.0, outputscale=2.0, **kwargs):
    with DEVICE:
        kernel = ScaleKernel(base(**kwargs)).double()
        kernel.base_kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
        kernel.outputscale = outputscale
    return kernel


def uniform(generator, *shape, scale=3.0):
    return scale * torch.rand(
        *shape, generator=generator, dtype=torch.float64, device=DEVICE
    )


def random_index(generator, high, shape=()):
    return torch.randint(high, shape, generator=generator, device=DEVICE)


def dense(kernel, X1, X2=None):
    kernel = copy.deepcopy(kernel).to(X1)
    return kernel(X1, X1 if X2 is None else X2).to_dense().detach()


def noisy(kernel, X, noise=NOISE):
    eye = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
    return dense(kernel, X) + noise * eye


def without(tensor, j, dim):
    before, after = (
        tensor.narrow(dim, 0, j),
        tensor.narrow(dim, j, tensor.shape[dim] - j),
    )
    return torch.cat([before, after.narrow(dim, 1, after.shape[dim] - 1)], dim=dim)


def drop_per_element(points, index):
    flat = points.reshape(-1, *points.shape[-2:])
    rows = [without(p, int(j), 0) for p, j in zip(flat, index.flatten(), strict=True)]
    return torch.stack(rows).reshape(*points.shape[:-2], *rows[0].shape)


def assert_is_factor(dictionary, kernel, points, noise=NOISE, **tolerance):
    """Compare with torch's own factorization of the whole matrix."""
    torch.testing.assert_close(dictionary.points, points, rtol=0, atol=0)
    expected = torch.linalg.cholesky(noisy(kernel, points, noise))
    tolerance = tolerance or {"rtol": 0, "atol": 1e-8}
    torch.testing.assert_close(dictionary.cholesky, expected, **tolerance)


@pytest.fixture
def factorized_sizes(monkeypatch):
    """The sizes of the matrices that were factorized from scratch."""
    sizes, real = [], torch.linalg.cholesky_ex

    def counted(matrix, **kwargs):
        sizes.append(matrix.shape[-1])
        return real(matrix, **kwargs)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    return sizes


BATCHES = pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)


class TestAppend:
    @BATCHES
    @pytest.mark.parametrize("base", [RBFKernel, MaternKernel])
    def test_blocks_give_the_factor_of_all_points(
        self, batch, base, tkwargs, generator
    ):
        kernel = make_kernel(base)
        X = uniform(generator, *batch, 12, 3).to(**tkwargs)
        dictionary = KernelDictionary(kernel, X[..., :5, :], noise_variance=1e-2)
        for start, stop in [(5, 6), (6, 6), (6, 10), (10, 12)]:
            dictionary.append(X[..., start:stop, :])
        atol = 1e-12 if tkwargs["dtype"] == torch.float64 else 1e-5
        assert_is_factor(dictionary, kernel, X, 1e-2, rtol=0, atol=atol)
        assert dictionary.num_points == 12
        assert dictionary.batch_shape == torch.Size(batch)
        assert (dictionary.dtype, dictionary.device) == tuple(tkwargs.values())
        assert dictionary.cholesky.dtype == tkwargs["dtype"]

    @BATCHES
    def test_starts_empty(self, batch, double, generator):
        kernel = make_kernel()
        dictionary = KernelDictionary(kernel, torch.empty(*batch, 0, 2, **double))
        assert dictionary.num_points == 0
        assert dictionary.cholesky.shape == (*batch, 0, 0)
        assert dictionary.solve(torch.empty(*batch, 0, 4, **double)).numel() == 0
        X = uniform(generator, *batch, 4, 2)
        dictionary.append(X)
        assert_is_factor(dictionary, kernel, X)

    def test_kernel_with_one_length_scale_per_element(self, generator):
        with DEVICE:
            kernel = RBFKernel(batch_shape=torch.Size([3])).double()
            kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1)
        X = uniform(generator, 3, 8, 2)
        dictionary = KernelDictionary(kernel, X[:, :6])
        dictionary.append(X[:, 6:])
        dictionary.delete(random_index(generator, 8, (3,)).fill_(2))
        assert_is_factor(dictionary, kernel, without(X, 2, -2))

    def test_factorizes_new_blocks_only(self, generator, factorized_sizes):
        dictionary = KernelDictionary(make_kernel(), uniform(generator, 30, 3))
        dictionary.append(uniform(generator, 4, 3))
        dictionary.delete(2)
        assert factorized_sizes == [30, 4]


class TestDelete:
    @BATCHES
    def test_every_index(self, batch, tkwargs, generator):
        kernel = make_kernel()
        X = uniform(generator, *batch, 6, 3).to(**tkwargs)
        atol = 1e-12 if tkwargs["dtype"] == torch.float64 else 1e-5
        for j in range(6):
            dictionary = KernelDictionary(kernel, X, noise_variance=1e-2)
            dictionary.delete(j)
            expected = without(X, j, -2)
            assert_is_factor(dictionary, kernel, expected, 1e-2, rtol=0, atol=atol)

    @pytest.mark.parametrize("batch", [(), (4,), (2, 2)], ids=str)
    def test_each_element_deletes_its_own(self, batch, generator):
        kernel = make_kernel()
        X = uniform(generator, *batch, 9, 3)
        dictionary = KernelDictionary(kernel, X)
        for size in range(9, 0, -1):
            index = random_index(generator, size, batch)
            dictionary.delete(index)
            X = drop_per_element(X, index)
            assert_is_factor(dictionary, kernel, X)
        assert dictionary.num_points == 0

    def test_appended_point_deleted_again_changes_nothing(self, generator):
        dictionary = KernelDictionary(make_kernel(), uniform(generator, 3, 7, 2))
        before = dictionary.cholesky
        dictionary.append(uniform(generator, 3, 1, 2))
        dictionary.delete(torch.tensor([7, 0, 7], device=DEVICE))
        assert torch.equal(dictionary.cholesky[[0, 2]], before[[0, 2]])
        assert not torch.equal(dictionary.cholesky[1], before[1])


class TestManySteps:
    @pytest.mark.parametrize("batch", [(), (4,)], ids=str)
    @pytest.mark.parametrize("scale", [3.0, 0.04], ids=["spread", "clustered"])
    def test_thousand_appends_and_deletes(self, batch, scale, generator):
        kernel = make_kernel(outputscale=1.0)
        X = uniform(generator, *batch, 20, 5, scale=scale)
        dictionary = KernelDictionary(kernel, X)
        for _ in range(1000):
            size = X.shape[-2]
            if size <= 10 or (size < 40 and random_index(generator, 4) == 0):
                block = int(random_index(generator, 6)) + 1
                new = uniform(generator, *batch, block, 5, scale=scale)
                dictionary.append(new)
                X = torch.cat([X, new], dim=-2)
            else:
                index = random_index(generator, size, batch)
                dictionary.delete(index)
                X = drop_per_element(X, index)
        assert_is_factor(dictionary, kernel, X)
        product = dictionary.cholesky @ dictionary.cholesky.mT
        torch.testing.assert_close(product, noisy(kernel, X), rtol=0, atol=1e-13)

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_any_sequence(self, data):
        batch = data.draw(st.sampled_from([(), (1,), (2,), (2, 2)]))
        seed = data.draw(st.integers(0, 2**32))
        generator = seeded(seed)
        kernel = make_kernel(data.draw(st.sampled_from([RBFKernel, MaternKernel])))
        X = uniform(generator, *batch, data.draw(st.integers(0, 4)), 2)
        dictionary = KernelDictionary(kernel, X, noise_variance=1e-4)
        for _ in range(data.draw(st.integers(1, 12))):
            action = data.draw(st.sampled_from(["append", "repeat", "delete"]))
            size = X.shape[-2]
            if action == "append" or size == 0:
                new = uniform(generator, *batch, data.draw(st.integers(0, 3)), 2)
            elif action == "repeat":
                new = X[..., data.draw(st.integers(0, size - 1)), None, :]
            else:
                index = random_index(generator, size, batch)
                if data.draw(st.booleans()):
                    index.fill_(data.draw(st.integers(0, size - 1)))
                dictionary.delete(index)
                X = drop_per_element(X, index)
                continue
            dictionary.append(new)
            X = torch.cat([X, new], dim=-2)
        assert_is_factor(dictionary, kernel, X, 1e-4)


class TestDegeneratePoints:
    def test_duplicates(self, generator):
        kernel = make_kernel()
        X = uniform(generator, 5, 2)
        dictionary = KernelDictionary(kernel, X)
        dictionary.append(X)
        dictionary.append(X + 1e-9)
        torch.testing.assert_close(
            dictionary.cholesky @ dictionary.cholesky.mT,
            noisy(kernel, dictionary.points),
            rtol=0,
            atol=1e-14,
        )
        for _ in range(10):
            dictionary.delete(0)
        assert_is_factor(dictionary, kernel, X + 1e-9)

    @pytest.mark.parametrize("outputscale", [1e-8, 1.0, 1e8])
    @pytest.mark.parametrize("scale", [0.0, 0.04], ids=["equal", "clustered"])
    def test_noise_below_rounding(
        self, outputscale, scale, tkwargs, generator, factorized_sizes
    ):
        kernel = make_kernel(outputscale=outputscale)
        X = uniform(generator, 2, 100, 5, scale=scale).to(**tkwargs)
        eps = torch.finfo(tkwargs["dtype"]).eps
        noise = 0.01 * eps * outputscale
        assert (torch.linalg.cholesky_ex(noisy(kernel, X, noise)).info > 0).all()
        dictionary = KernelDictionary(kernel, X[:, :40], noise_variance=noise)
        for j in range(40, 100, 3):
            dictionary.append(X[:, j : j + 3])
            dictionary.delete(random_index(generator, 40, (2,)))
        assert factorized_sizes == [100, 40] + 20 * [3]
        factor = dictionary.cholesky
        expected = dense(kernel, dictionary.points)
        atol = 200 * eps * outputscale
        torch.testing.assert_close(factor @ factor.mT, expected, rtol=0, atol=atol)

    def test_kernel_less_accurate_than_rounding(self, generator):
        # Distances come from inner products: far from zero they cancel in float32.
        kernel = make_kernel(lengthscale=0.01, outputscale=1.0)
        centres = uniform(generator, 10, 1, 5, scale=1.0)
        offsets = uniform(generator, 10, 12, 5, scale=0.0004)
        X = (centres + offsets).transpose(0, 1).reshape(120, 5).float()
        dictionary = KernelDictionary(kernel, X[:10])
        for j in range(10, 120, 2):
            dictionary.append(X[j : j + 2])
        expected = dense(kernel, X.double())
        product = dictionary.cholesky @ dictionary.cholesky.mT
        torch.testing.assert_close(product.double(), expected, rtol=0, atol=0.02)
        # Old points count with more noise too: pivots below the error are meaningless.
        error = (dense(kernel, X) - expected).abs().max()
        assert dictionary.cholesky.diagonal().square().min() > error

    def test_indefinite_kernel(self, generator):
        class Indefinite(Kernel):
            def forward(self, x1, x2, diag=False, **params):
                return -x1 @ x2.mT

        with DEVICE:
            kernel = Indefinite()
        X = uniform(generator, 3, 2)
        dictionary = KernelDictionary(kernel, X[:0])
        with pytest.raises(InvalidArgumentError, match="kernel must be finite and pos"):
            dictionary.append(X)
        assert dictionary.num_points == 0


class TestSolve:
    @BATCHES
    def test_solves(self, batch, generator):
        kernel = make_kernel()
        X = uniform(generator, *batch, 10, 3)
        rhs = uniform(generator, *batch, 10, 4)
        dictionary = KernelDictionary(kernel, X, noise_variance=1e-3)
        expected = torch.linalg.solve(noisy(kernel, X, 1e-3), rhs)
        torch.testing.assert_close(dictionary.solve(rhs), expected)

    @BATCHES
    def test_inverse_diagonal_follows_changes(self, batch, generator):
        kernel = make_kernel()
        dictionary = KernelDictionary(kernel, uniform(generator, *batch, 8, 3))

        def check():
            inverse = torch.linalg.inv(noisy(kernel, dictionary.points))
            expected = inverse.diagonal(dim1=-2, dim2=-1)
            torch.testing.assert_close(dictionary.inverse_diagonal(), expected)
            assert dictionary.inverse_diagonal() is dictionary.inverse_diagonal()

        check()
        dictionary.append(uniform(generator, *batch, 2, 3))
        check()
        dictionary.delete(4)
        check()


class TestLeaveOneOut:
    @BATCHES
    def test_covariance_without_each_point(self, batch, generator):
        kernel = make_kernel(MaternKernel)
        X, T = uniform(generator, *batch, 7, 3), uniform(generator, *batch, 2, 3)
        dictionary = KernelDictionary(kernel, X, noise_variance=1e-3)
        C = dense(kernel, T, X)
        result = dictionary.leave_one_out(C)

        def posterior(X):
            C = dense(kernel, T, X)
            W = C @ torch.linalg.inv(noisy(kernel, X, 1e-3))
            return W, dense(kernel, T) - W @ C.mT

        weights, full = posterior(X)
        torch.testing.assert_close(result.weights, weights)
        for j in range(7):
            _, sigma = posterior(without(X, j, -2))
            increase = sigma - full
            w = result.weights[..., j, None]  # batch x t x 1
            ours = w @ w.mT / result.inverse_diagonal[..., j, None, None]
            torch.testing.assert_close(ours, increase)
            trace = increase.diagonal(dim1=-2, dim2=-1).sum(-1)
            torch.testing.assert_close(result.trace_increase[..., j], trace)


class TestNearest:
    @BATCHES
    @pytest.mark.parametrize("window", [1, 4, 50])
    def test_euclidean_order(self, batch, window, generator):
        X, x = uniform(generator, *batch, 20, 3), uniform(generator, *batch, 3)
        index = nearest_points(make_kernel(), X, x, window)
        distances = (X - x.unsqueeze(-2)).norm(dim=-1)
        assert torch.equal(index, distances.argsort(dim=-1)[..., :window])

    def test_length_scales_count(self, double):
        X = torch.tensor([[1.0, 0.0], [0.0, 2.0]], **double)
        x = torch.zeros(2, **double)
        kernel = make_kernel(lengthscale=[[0.1, 10.0]], ard_num_dims=2)
        assert nearest_points(kernel, X, x, 2).tolist() == [1, 0]
        assert nearest_points(make_kernel(), X, x, 2).tolist() == [0, 1]

    def test_kernel_that_is_not_stationary(self, generator):
        with DEVICE:
            kernel = LinearKernel().double()
            kernel.variance = 1.0
        X, x = uniform(generator, 10, 3), uniform(generator, 3)
        index = nearest_points(kernel, X, x, 10)
        assert torch.equal(index, (X - x).norm(dim=-1).argsort())


class TestState:
    def test_handed_out_tensors_stay(self, generator):
        dictionary = KernelDictionary(make_kernel(), uniform(generator, 6, 3))
        points, factor = dictionary.points, dictionary.cholesky
        copies = points.clone(), factor.clone()
        dictionary.append(uniform(generator, 2, 3))
        dictionary.delete(0)
        assert torch.equal(points, copies[0])
        assert torch.equal(factor, copies[1])

    def test_caller_keeps_its_kernel_and_points(self, generator):
        kernel, X = make_kernel(), uniform(generator, 5, 3).requires_grad_()
        original = copy.deepcopy(kernel)
        dictionary = KernelDictionary(kernel, X)
        with DEVICE:
            kernel.outputscale = 7.0
        new = uniform(generator, 2, 3).requires_grad_()
        dictionary.append(new)
        assert all(p.requires_grad for p in kernel.parameters())
        assert not dictionary.points.requires_grad
        assert not dictionary.cholesky.requires_grad
        with torch.no_grad():
            expected = torch.cat([X, new])
            X.zero_()
        assert_is_factor(dictionary, original, expected)


class TestBadArguments:
    @pytest.fixture
    def dictionary(self, generator):
        return KernelDictionary(make_kernel(), uniform(generator, 2, 4, 3))

    @pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf"), "1"])
    def test_noise_variance(self, noise, double):
        with pytest.raises(InvalidArgumentError, match=r"noise_variance must.*got"):
            KernelDictionary(
                make_kernel(), torch.zeros(1, 2, **double), noise_variance=noise
            )

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            (
                [[1.0]],
                r"points must be a ... x M x d tensor .* got \[\[1.0\]\]",
            ),
            (torch.zeros(3, device=DEVICE), r"points must be .* M x d .* shape \(3,\)"),
            (torch.zeros(3, 2, device=DEVICE, dtype=torch.long), "got torch.int64"),
            (
                torch.full((3, 2), torch.nan, device=DEVICE),
                r"points must be finite, got \[\[nan",
            ),
        ],
        ids=["list", "vector", "integers", "nan"],
    )
    def test_points(self, points, message):
        with pytest.raises(InvalidArgumentError, match=message):
            KernelDictionary(make_kernel(), points)

    def test_append(self, dictionary, double):
        def refuse(X, message):
            before = dictionary.cholesky
            with pytest.raises(InvalidArgumentError, match=message):
                dictionary.append(X)
            assert dictionary.cholesky is before

        refuse(
            torch.zeros(2, 1, 4, **double),
            r"X must be .* of shape 2 x b x 3 .* got .* \(2, 1",
        )
        refuse(
            torch.zeros(3, 1, 3, **double),
            r"X must be .* of shape 2 x b x 3 .* got .* \(3, 1",
        )
        refuse(
            torch.zeros(1, 3, **double),
            r"X must be .* of shape 2 x b x 3 .* got .* \(1, 3\)",
        )
        refuse(
            torch.zeros(2, 1, 3, device=DEVICE).float(),
            "X must be a torch.float64 .*, got torch.float32",
        )
        refuse(
            torch.full((2, 1, 3), torch.inf, **double),
            r"X must be finite, got \[\[\[inf",
        )
        refuse([[0.0]], "X must be a torch.float64 tensor .* got a list")

    @pytest.mark.parametrize(
        ("index", "message"),
        [
            (
                4,
                r"index must be at least 0 and below the number of points, 4, got \[4,",
            ),
            (-1, "index must be a whole number of at least 0, got -1"),
            (1.0, "index must be a whole number of at least 0, got 1.0"),
            (torch.tensor([0, 4], device=DEVICE), r"number of points, 4, got \[0, 4\]"),
            (torch.tensor([-1, 0], device=DEVICE), r"at least 0 .* got \[-1, 0\]"),
            (
                torch.tensor([0], device=DEVICE),
                r"index must be .* of shape 2 on .*, got .* \(1,\)",
            ),
            (
                torch.tensor(0, device=DEVICE),
                r"index must be .* of shape 2 on .*, got .* \(\)",
            ),
            (
                torch.zeros(2, device=DEVICE),
                "index must be a torch.int64 tensor of shape 2 on",
            ),
        ],
    )
    def test_delete(self, dictionary, index, message):
        with pytest.raises(InvalidArgumentError, match=message):
            dictionary.delete(index)
        assert dictionary.num_points == 4

    def test_delete_from_empty(self, double):
        dictionary = KernelDictionary(make_kernel(), torch.empty(0, 3, **double))
        with pytest.raises(InvalidArgumentError, match="number of points, 0, got 0"):
            dictionary.delete(0)

    def test_shapes_of_other_arguments(self, dictionary, double):
        wrong = torch.zeros(2, 5, 5, **double)
        with pytest.raises(
            InvalidArgumentError, match=r"rhs must be .* of shape 2 x 4 x m"
        ):
            dictionary.solve(wrong)
        with pytest.raises(
            InvalidArgumentError, match=r"cross_covariance .* 2 x t x 4"
        ):
            dictionary.leave_one_out(wrong)

    @pytest.mark.default_device
    def test_kernel_with_several_outputs(self, generator):
        with DEVICE:
            kernel = RBFKernelGrad()
        with pytest.raises(InvalidArgumentError, match=r"kernel must give one number"):
            KernelDictionary(kernel, uniform(generator, 4, 2))

    def test_private_values_are_not_looked_at(self, dictionary, double):
        targets = torch.full((2, 4, 1), torch.nan, **double)
        assert dictionary.solve(targets).isnan().all()
