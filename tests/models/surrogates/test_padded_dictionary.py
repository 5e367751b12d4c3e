import copy

import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    MaternKernel,
    RBFKernel,
    ScaleKernel,
)

from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
from botorch_dp.models import (
    GradientGP,
    GradientWeights,
    KernelDictionary,
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from botorch_dp.models.surrogates import padded_dictionary
from botorch_dp.models.surrogates.padded_dictionary import PaddedDictionary
from tests.devices import DEVICE, seeded

NOISE = 1e-4
BATCHES = pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)


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


def bools(*values):
    return torch.tensor(values, device=DEVICE)


def dense(kernel, points, noise=NOISE):
    eye = torch.eye(len(points), dtype=points.dtype, device=DEVICE)
    return copy.deepcopy(kernel)(points).to_dense().detach() + noise * eye


def assert_consistent(dictionary, kernel, expected_sets, noise=NOISE, atol=1e-8):
    """Each element holds these points, and the inverse of their matrix."""
    flat = dictionary.batch_shape.numel()
    slots = dictionary.num_slots
    points = dictionary.points.reshape(flat, slots, -1)
    mask = dictionary.mask.reshape(flat, slots)
    inverse = dictionary.inverse.reshape(flat, slots, slots)
    for i, expected in enumerate(expected_sets):
        held = points[i][mask[i]]
        assert sorted(held.tolist()) == sorted(p.tolist() for p in expected)
        truth = torch.zeros_like(inverse[i])
        if expected:
            where = mask[i].nonzero().squeeze(-1)
            small = torch.linalg.inv(dense(kernel, held, noise))
            truth[where.unsqueeze(-1), where] = small
        # The entries of an inverse are up to 1 / noise: compare in that unit.
        torch.testing.assert_close(
            inverse[i] * noise, truth * noise, rtol=0, atol=atol * noise
        )
        assert inverse[i][~mask[i]].abs().sum() == 0
        assert inverse[i][:, ~mask[i]].abs().sum() == 0


class TestUpdates:
    @BATCHES
    def test_many_random_operations_against_fresh_factorizations(
        self, batch, generator
    ):
        kernel, p = make_kernel(), 3
        dictionary = PaddedDictionary(
            kernel, uniform(generator, *batch, 2, p), noise_variance=NOISE
        )
        size = dictionary.batch_shape.numel()
        sets = [list(q) for q in dictionary.points.reshape(size, 2, p)]
        for step in range(120):
            where = torch.rand(size, generator=generator, device=DEVICE) < 0.7
            if torch.rand((), generator=generator, device=DEVICE) < 0.55:
                X = uniform(generator, size, p)
                dictionary.append(X.reshape(*batch, p), where.reshape(batch))
                for i in where.nonzero().flatten().tolist():
                    sets[i].append(X[i])
            else:
                mask = dictionary.mask.reshape(size, -1)
                where &= mask.any(dim=-1)
                scores = torch.rand(mask.shape, generator=generator, device=DEVICE)
                index = (scores * mask).argmax(dim=-1)
                points = dictionary.points.reshape(size, -1, p)
                for i in where.nonzero().flatten().tolist():
                    gone = points[i, index[i]].tolist()
                    sets[i] = [q for q in sets[i] if q.tolist() != gone]
                dictionary.delete(index.reshape(batch), where.reshape(batch))
            if step % 40 == 20:
                dictionary.compact()
                assert dictionary.num_slots == max(1, *map(len, sets), 0)
            if step % 10 == 0:
                assert_consistent(dictionary, kernel, sets)
        assert_consistent(dictionary, kernel, sets)
        expected = torch.tensor([len(s) for s in sets], device=DEVICE).reshape(batch)
        assert torch.equal(dictionary.num_points, expected)

    def test_batched_is_each_on_its_own(self, generator):
        kernel = make_kernel(MaternKernel)
        X = uniform(generator, 5, 4, 2)
        batched = PaddedDictionary(kernel, X[:, :1])
        single = [PaddedDictionary(kernel, X[i : i + 1, :1]) for i in range(5)]
        where = bools(True, False, True, True, False)
        index = torch.zeros(5, dtype=torch.long, device=DEVICE)
        for j in range(1, 4):
            batched.append(X[:, j], where if j == 2 else None)
            for i, dictionary in enumerate(single):
                if j != 2 or where[i]:
                    dictionary.append(X[i : i + 1, j])
        batched.delete(index, where)
        x = uniform(generator, 5, 2)
        gradient = batched.gradient(x)
        for i, dictionary in enumerate(single):
            if where[i]:
                dictionary.delete(index[:1])
            own = dictionary.gradient(x[i : i + 1])
            for name in ("covariance", "trace"):
                expected = getattr(own, name)[0]
                result = getattr(gradient, name)[i]
                torch.testing.assert_close(result, expected, rtol=0, atol=1e-8)
            values = batched.points[i].sum(dim=-1)
            own_values = dictionary.points[0].sum(dim=-1)
            torch.testing.assert_close(
                gradient.weights[i] @ values,
                own.weights[0] @ own_values,
                rtol=0,
                atol=1e-8,
            )

    def test_the_same_as_a_dictionary_with_a_factor(self, generator):
        kernel, X = make_kernel(), uniform(generator, 2, 8, 3)
        padded = PaddedDictionary(kernel, X[:, :5], noise_variance=NOISE)
        factor = KernelDictionary(kernel, X[:, :5], noise_variance=NOISE)
        for j in range(5, 8):
            padded.append(X[:, j])
        factor.append(X[:, 5:])
        index = torch.tensor([1, 4], device=DEVICE)
        padded.delete(index)
        factor.delete(index)
        padded.compact()
        assert torch.equal(padded.points, factor.points)
        C = uniform(generator, 2, 4, 7)
        ours, theirs = padded.leave_one_out(C), factor.leave_one_out(C)
        for name in ("weights", "inverse_diagonal", "trace_increase"):
            torch.testing.assert_close(
                getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-8
            )

    def test_refactorize_removes_what_has_accumulated(self, generator):
        kernel, X = make_kernel(), uniform(generator, 2, 4, 3)
        dictionary = PaddedDictionary(kernel, X, noise_variance=NOISE)
        dictionary.delete(torch.tensor([0, 2], device=DEVICE))
        dictionary._inverse = dictionary._inverse * 1.5
        dictionary.refactorize()
        sets = [[X[0, j] for j in (1, 2, 3)], [X[1, j] for j in (0, 1, 3)]]
        assert_consistent(dictionary, kernel, sets)

    def test_starts_empty_and_becomes_empty(self, double):
        kernel = make_kernel()
        dictionary = PaddedDictionary(kernel, torch.empty(2, 0, 3, **double))
        assert dictionary.num_points.tolist() == [0, 0]
        x = torch.ones(2, 3, **double)
        prior = prior_gradient_covariance(kernel, x).detach()
        torch.testing.assert_close(dictionary.gradient(x).covariance, prior)
        dictionary.append(x)
        dictionary.delete(torch.zeros(2, dtype=torch.long, device=DEVICE))
        dictionary.compact()
        assert dictionary.num_slots == 1
        assert dictionary.num_points.tolist() == [0, 0]
        torch.testing.assert_close(dictionary.gradient(x).covariance, prior)

    def test_mask_of_the_constructor(self, generator):
        kernel, X = make_kernel(), uniform(generator, 2, 3, 2)
        mask = bools([True, False, True], [False, False, True])
        dictionary = PaddedDictionary(kernel, X, mask, noise_variance=NOISE)
        sets = [[X[0, 0], X[0, 2]], [X[1, 2]]]
        assert_consistent(dictionary, kernel, sets)
        dictionary.compact()
        assert dictionary.mask.tolist() == [[True, True], [True, False]]
        assert_consistent(dictionary, kernel, sets)

    def test_repeated_points(self, double):
        for dtype in (torch.float32, torch.float64):
            X = torch.ones(1, 5, 2, **double).to(dtype)
            dictionary = PaddedDictionary(make_kernel(), X, noise_variance=1e-12)
            for _ in range(20):
                dictionary.append(X[:, 0])
            # The inverse of c I + v 1 1' has (1 - v / (c + 25 v)) / c on its diagonal.
            c = 2.0 * 16.0 * torch.finfo(dtype).eps ** 0.5
            expected = (1 - 2.0 / (c + 50.0)) / c
            diagonal = dictionary.inverse_diagonal()[dictionary.mask]
            assert diagonal.shape == (25,)
            assert (diagonal / expected - 1).abs().max() < 0.1

    def test_dtype_and_device_follow_the_points(self, tkwargs):
        X = torch.rand(2, 3, 2, generator=seeded(), device=DEVICE)
        X = X.to(**tkwargs)
        dictionary = PaddedDictionary(make_kernel(), X, noise_variance=1e-1)
        dictionary.append(X[:, 0] + 0.5)
        assert (dictionary.dtype, dictionary.device) == tuple(tkwargs.values())
        assert dictionary.inverse.dtype == tkwargs["dtype"]
        kernel = make_kernel()
        for i in range(2):
            held = dictionary.points[i][dictionary.mask[i]].double()
            truth = torch.linalg.inv(dense(kernel, held, 1e-1))
            result = dictionary.inverse[i, :4, :4].double()
            atol = 1e-10 if tkwargs["dtype"] == torch.float64 else 1e-4
            torch.testing.assert_close(result, truth, rtol=0, atol=atol)

    def test_handed_out_tensors_stay(self, generator):
        X = uniform(generator, 2, 4, 3)
        dictionary = PaddedDictionary(make_kernel(), X)
        handed = dictionary.points, dictionary.mask, dictionary.inverse
        copies = [tensor.clone() for tensor in handed]
        dictionary.delete(torch.tensor([0, 1], device=DEVICE))
        dictionary.append(X[:, 0] + 1)
        dictionary.refactorize()
        dictionary.assign(
            torch.tensor([1], device=DEVICE),
            dictionary.select(torch.tensor([0], device=DEVICE)),
        )
        dictionary.compact()
        for tensor, before in zip(handed, copies, strict=True):
            assert torch.equal(tensor, before)


class TestPosterior:
    @pytest.mark.default_device
    def test_gradient_is_that_of_a_gradient_gp(self, generator, double):
        kernel, X = make_kernel(), uniform(generator, 6, 2)
        x, Y = uniform(generator, 2), uniform(generator, 6, 1)
        posterior = PaddedDictionary(kernel, X, noise_variance=NOISE).gradient(x)
        model = GradientGP(X, Y, kernel, noise_variance=NOISE)
        expected = model.gradient_posterior(x.unsqueeze(-2))
        mean = (posterior.weights @ Y).squeeze(-1)
        torch.testing.assert_close(mean, expected.mean.reshape(2).detach())
        torch.testing.assert_close(
            posterior.covariance,
            expected.covariance.reshape(2, 2).detach(),
            rtol=0,
            atol=1e-9,
        )

    @BATCHES
    def test_gradient_from_scratch(self, batch, generator):
        kernel = make_kernel(MaternKernel)
        X, x = uniform(generator, *batch, 5, 2), uniform(generator, *batch, 2)
        posterior = PaddedDictionary(kernel, X, noise_variance=NOISE).gradient(x)
        C = kernel_gradient(kernel, x.unsqueeze(-2), X).squeeze(-3).mT.detach()
        eye = torch.eye(5, dtype=X.dtype, device=DEVICE)
        K = kernel_value(kernel, X, X).detach() + NOISE * eye
        W = torch.linalg.solve(K, C.mT).mT
        prior = prior_gradient_covariance(kernel, x.unsqueeze(-2)).squeeze(-3).detach()
        torch.testing.assert_close(posterior.weights, W)
        sigma = prior - W @ C.mT
        torch.testing.assert_close(posterior.covariance, sigma, rtol=0, atol=1e-9)
        trace = sigma.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        torch.testing.assert_close(posterior.trace, trace, rtol=0, atol=1e-9)

    def test_condition_from_scratch(self, generator):
        kernel = make_kernel()
        X, Z = uniform(generator, 2, 4, 3), uniform(generator, 2, 5, 3)
        dictionary = PaddedDictionary(kernel, X, noise_variance=NOISE)
        solved, schur = dictionary.condition(Z)
        for i in range(2):
            K = kernel_value(kernel, X[i], Z[i]).detach()
            expected = torch.linalg.solve(dense(kernel, X[i]), K)
            torch.testing.assert_close(solved[i], expected, rtol=0, atol=1e-8)
            variance = 2.0 + NOISE - (K * expected).sum(dim=0)
            torch.testing.assert_close(schur[i], variance, rtol=0, atol=1e-9)

    def test_leave_one_out_ignores_empty_slots(self, generator):
        X = uniform(generator, 2, 4, 3)
        dictionary = PaddedDictionary(make_kernel(), X)
        dictionary.delete(torch.tensor([1, 2], device=DEVICE))
        C = dictionary.gradient(X[:, 0]).cross_covariance
        result = dictionary.leave_one_out(C)
        increase = result.trace_increase
        assert increase[0, 1] == 0
        assert increase[1, 2] == 0
        assert (increase[dictionary.mask] > 0).all()
        assert (result.weights[0, :, 1] == 0).all()

    def test_select_and_assign(self, generator):
        kernel, X = make_kernel(), uniform(generator, 4, 3, 2)
        dictionary = PaddedDictionary(kernel, X, noise_variance=NOISE)
        index = torch.tensor([2, 0], device=DEVICE)
        part = dictionary.select(index)
        new = uniform(generator, 2, 2)
        part.append(new)
        assert dictionary.num_points.tolist() == [3, 3, 3, 3]
        dictionary.assign(index, part)
        sets = [list(X[i]) for i in range(4)]
        sets[2].append(new[0])
        sets[0].append(new[1])
        assert_consistent(dictionary, kernel, sets)
        dictionary.compact()
        small = dictionary.select(torch.tensor([1], device=DEVICE))
        small.compact()
        dictionary.assign(torch.tensor([1], device=DEVICE), small)
        assert_consistent(dictionary, kernel, sets)


class TestState:
    def test_round_trip_to_the_bit(self, generator):
        kernel, X = make_kernel(), uniform(generator, 2, 3, 2)
        dictionary = PaddedDictionary(kernel, X)
        dictionary.append(X[:, 0] + 0.1, bools(True, False))
        state = dictionary.state_dict()
        other = PaddedDictionary(kernel, X[:, :1])
        other.load_state_dict(state)
        for name in ("points", "mask", "inverse"):
            assert torch.equal(getattr(other, name), getattr(dictionary, name))
        state["points"].zero_()
        assert other.points.abs().sum() > 0

    def test_refused_state_changes_nothing(self, generator):
        X = uniform(generator, 2, 3, 2)
        dictionary = PaddedDictionary(make_kernel(), X)
        good = dictionary.state_dict()
        for name, bad, message in [
            ("points", X[:, :, :1], "points must be .* 2 x 3 x 2"),
            ("points", X * torch.nan, "points must be finite"),
            ("mask", good["mask"][:, :2], "points must be .* 2 x 2 x 2"),
            ("inverse", good["inverse"][:, :2], "inverse must be .* 2 x 3 x 3"),
        ]:
            with pytest.raises(InvalidArgumentError, match=message):
                dictionary.load_state_dict({**good, name: bad})
            assert torch.equal(dictionary.points, X)


class TestBadArguments:
    @pytest.fixture
    def dictionary(self, generator):
        return PaddedDictionary(make_kernel(), uniform(generator, 2, 3, 2))

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            ([[0.0]], "points must be a ... x S x p tensor"),
            (
                torch.zeros(3, device=DEVICE),
                "points must be a ... x S x p tensor",
            ),
            (torch.zeros(3, 2, device=DEVICE, dtype=torch.long), "got torch.int64"),
            (torch.full((3, 2), torch.nan, device=DEVICE), "points must be finite"),
        ],
    )
    def test_points(self, points, message):
        with pytest.raises(InvalidArgumentError, match=message):
            PaddedDictionary(make_kernel(), points)

    def test_mask(self, generator):
        with pytest.raises(InvalidArgumentError, match=r"mask must be .* 2 x 3"):
            PaddedDictionary(
                make_kernel(), uniform(generator, 2, 3, 2), bools(True, True, True)
            )

    @pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), "1"])
    def test_noise_variance(self, noise, generator):
        with pytest.raises(InvalidArgumentError, match=r"noise_variance must.*got"):
            PaddedDictionary(
                make_kernel(), uniform(generator, 3, 2), noise_variance=noise
            )

    def test_kernel(self, generator):
        X = uniform(generator, 3, 2)
        with pytest.raises(UnsupportedKernelError, match="MaternKernel"):
            PaddedDictionary(make_kernel(MaternKernel, nu=0.5), X)
        with DEVICE:
            batched = RBFKernel(batch_shape=torch.Size([2]))
        with pytest.raises(InvalidArgumentError, match=r"batch_shape \(2,\)"):
            PaddedDictionary(batched, X)

    def test_indefinite_kernel(self, generator):
        class Indefinite(Kernel):
            def forward(self, x1, x2, diag=False, **params):
                value = -x1 @ x2.mT
                return value.diagonal(dim1=-2, dim2=-1) if diag else value

        with DEVICE:
            kernel = Indefinite()
        with pytest.raises(InvalidArgumentError, match="kernel must be finite and pos"):
            PaddedDictionary(kernel, uniform(generator, 3, 2))

    def test_operations(self, dictionary, double):
        zero = torch.zeros(2, dtype=torch.long, device=DEVICE)
        for call, message in [
            (lambda: dictionary.append(torch.zeros(2, 3, **double)), "X must .* 2 x 2"),
            (
                lambda: dictionary.append(torch.full((2, 2), torch.inf, **double)),
                "X must be finite",
            ),
            (
                lambda: dictionary.append(torch.zeros(2, 2, **double), zero),
                "where must be a torch.bool tensor of shape 2",
            ),
            (lambda: dictionary.delete(zero[:1]), "index must .* shape 2 on"),
            (lambda: dictionary.delete(zero + 3), r"have a point, got \[3, 3\]"),
            (lambda: dictionary.delete(zero - 1), r"have a point, got \[-1, -1\]"),
            (
                lambda: dictionary.gradient(torch.zeros(3, 2, **double)),
                "x must .* 2 x 2",
            ),
            (lambda: dictionary.gradient([0.0]), r"x must .* got a list"),
            (
                lambda: dictionary.condition(torch.zeros(2, 2, **double)),
                "X must .* 2 x m x 2",
            ),
            (
                lambda: dictionary.leave_one_out(torch.zeros(2, 2, **double)),
                "cross_covariance must .* 2 x t x 3",
            ),
        ]:
            with pytest.raises(InvalidArgumentError, match=message):
                call()
        assert dictionary.num_points.tolist() == [3, 3]

    def test_deleted_twice(self, dictionary):
        zero = torch.zeros(2, dtype=torch.long, device=DEVICE)
        dictionary.delete(zero, bools(True, False))
        with pytest.raises(InvalidArgumentError, match="index must be slots that have"):
            dictionary.delete(zero, bools(True, False))
        dictionary.delete(zero, bools(False, True))
        assert dictionary.num_points.tolist() == [2, 2]


class TestEarlierNames:
    def test_gradient(self):
        with pytest.warns(DeprecationWarning, match="GradientWeights"):
            assert padded_dictionary.PaddedGradient is GradientWeights

    def test_settle(self, double):
        dictionary = PaddedDictionary(make_kernel(), torch.zeros(1, 1, 2, **double))
        with pytest.warns(DeprecationWarning, match="use refactorize"):
            dictionary.settle()
