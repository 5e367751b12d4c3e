import itertools

import pytest
import torch
from gpytorch.kernels import (
    MaternKernel,
    RBFKernel,
)

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import (
    KernelDictionary,
    PaddedDictionary,
    kernel_gradient,
    leave_one_out_distances,
    projection_directions,
    sliced_wasserstein,
)
from tests.devices import seeded
from tests.models.surrogates.helpers import (
    DEVICE,
    NOISE,
    distance,
    make_kernel,
    normal,
    posterior,
    without,
)


class TestSlicedWasserstein:
    @pytest.mark.parametrize("dim", [1, 3])
    def test_isotropic_gaussians(self, dim, double):
        eye = torch.eye(dim, **double)
        directions = projection_directions(dim, device=DEVICE)
        result = sliced_wasserstein(4.0 * eye, 0.25 * eye, directions)
        torch.testing.assert_close(result, torch.tensor(1.5, **double))

    def test_definition(self, generator):
        A, B = normal(generator, 2, 4, 3, 3)
        A, B = A @ A.mT, B @ B.mT
        directions = projection_directions(3, 50, seed=4, device=DEVICE)
        result = sliced_wasserstein(A, B, directions)
        for i in range(4):
            expected = distance(A[i], B[i], directions)
            assert float(result[i]) == pytest.approx(expected, rel=1e-12)

    def test_projections_of_samples(self, generator, double):
        """In one dimension SW_2 is W_2, which sorting gives for samples."""
        x = normal(generator, 200_000).sort().values
        y = 3.0 * normal(generator, 200_000).sort().values
        expected = (x - y).square().mean().sqrt()
        one = torch.ones(1, 1, **double)
        result = sliced_wasserstein(one, 9.0 * one, one)
        assert float(result) == pytest.approx(float(expected), rel=0.02)

    def test_nearly_equal_covariances(self, double):
        eye = torch.eye(2, **double)
        directions = projection_directions(2, device=DEVICE)
        result = sliced_wasserstein(eye, (1 + 1e-14) * eye, directions)
        assert float(result) == pytest.approx(0.5e-14, rel=0.05)
        zero = torch.zeros(2, 2, **double)
        assert float(sliced_wasserstein(zero, zero, directions)) == 0.0

    def test_directions(self, tkwargs):
        directions = projection_directions(3, 20_000, seed=1, **tkwargs)
        assert (directions.dtype, directions.device) == tuple(tkwargs.values())
        ones = torch.ones(20_000, **tkwargs)
        torch.testing.assert_close(directions.norm(dim=-1), ones)
        moments = directions.T @ directions / 20_000
        eye = torch.eye(3, **tkwargs) / 3
        torch.testing.assert_close(moments, eye, rtol=0, atol=0.02)
        assert directions.mean(dim=0).abs().max() < 0.02
        again = projection_directions(3, 20_000, seed=1, **tkwargs)
        assert torch.equal(directions, again)
        other = projection_directions(3, 20_000, seed=2, **tkwargs)
        assert not torch.equal(directions, other)

    def test_directions_have_a_stream_of_their_own(self):
        plain = seeded(3)
        draws = torch.randn(5, 2, generator=plain, dtype=torch.float64, device=DEVICE)
        ours = projection_directions(2, 5, seed=3, device=DEVICE)
        assert not torch.allclose(ours, draws / draws.norm(dim=-1, keepdim=True))

    def test_bad_arguments(self, double):
        eye = torch.eye(2, **double)
        for name, kwargs in [
            ("dim", {"dim": 0}),
            ("num_projections", {"dim": 2, "num_projections": 0}),
            ("seed", {"dim": 2, "seed": -1}),
        ]:
            with pytest.raises(InvalidArgumentError, match=f"{name} must .* got"):
                projection_directions(**kwargs, device=DEVICE)
        with pytest.raises(InvalidArgumentError, match=r"directions must .* L x 2"):
            sliced_wasserstein(eye, eye, torch.ones(5, 3, **double))


class TestLeaveOneOutDistances:
    @pytest.mark.parametrize("base", [RBFKernel, MaternKernel])
    @pytest.mark.parametrize("padded", [True, False])
    def test_a_posterior_from_scratch_without_each_point(self, base, padded, generator):
        kernel = make_kernel(base)
        X, x = normal(generator, 2, 6, 3), normal(generator, 2, 3)
        directions = projection_directions(3, 40, device=DEVICE)
        C = kernel_gradient(kernel, x.unsqueeze(-2), X).squeeze(-3).mT
        cls = PaddedDictionary if padded else KernelDictionary
        loo = cls(kernel, X, noise_variance=NOISE).leave_one_out(C)
        full = [posterior(kernel, X[i], x[i], NOISE)[1] for i in range(2)]
        other = [posterior(kernel, X[i, :3], x[i], NOISE)[1] for i in range(2)]
        covariance, reference = torch.stack(full), torch.stack(other)
        to_full = leave_one_out_distances(loo, covariance, directions)
        to_other = leave_one_out_distances(
            loo, covariance, directions, reference=reference
        )
        assert to_full.shape == (2, 6)
        for i, j in itertools.product(range(2), range(6)):
            _, sigma = posterior(kernel, without(X[i], j), x[i], NOISE)
            for result, expected in [(to_full, full), (to_other, other)]:
                naive = distance(sigma, expected[i], directions)
                assert float(result[i, j]) == pytest.approx(naive, abs=1e-8)
