"""Bounds on the information gain: brute force, exact cases, misuse."""

import itertools
import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.kusner.information_gain import (
    information_gain,
    information_gain_bound,
)
from tests.optimizers.problems import DEVICE, DOUBLE
from tests.optimizers.release.kusner.bounds import rbf


def brute_force_gain(K, num_steps, noise_variance):
    """The greatest gain of all choices, with repetition."""
    best = 0.0
    for A in itertools.combinations_with_replacement(range(len(K)), num_steps):
        matrix = K[list(A)][:, list(A)] / noise_variance
        matrix = matrix + torch.eye(num_steps, **DOUBLE)
        best = max(best, 0.5 * torch.logdet(matrix).item())
    return best


class TestInformationGain:
    @pytest.mark.parametrize("noise_variance", [0.01, 0.3, 10.0])
    @pytest.mark.parametrize(("N", "T"), [(1, 4), (4, 1), (5, 3), (3, 6), (6, 4)])
    def test_brute_force(self, N, T, noise_variance, generator):
        for _ in range(5):
            root = torch.randn(N, N, generator=generator, **DOUBLE)
            K = root @ root.mT  # variances differ
            exact = brute_force_gain(K, T, noise_variance)
            gain = information_gain(K, num_steps=T, noise_variance=noise_variance)
            tolerance = 1e-9 * exact
            assert gain.greedy <= exact + tolerance
            for bound in (
                gain.one_by_one,
                gain.greedy_ratio,
                gain.submodular,
                gain.design,
            ):
                assert bound >= exact - tolerance
            assert gain.bound == min(
                gain.one_by_one, gain.greedy_ratio, gain.submodular, gain.design
            )
            value = information_gain_bound(
                K, num_steps=T, noise_variance=noise_variance
            )
            assert value == gain.bound
            assert gain.bound <= gain.one_by_one

    @pytest.mark.parametrize("noise_variance", [0.01, 0.3])
    def test_where_a_greedy_choice_is_not_the_best(self, noise_variance):
        # The first candidate varies most, but tells much of what the others would.
        K = torch.tensor([[1.01, 0.7, 0.7], [0.7, 1.0, 0.0], [0.7, 0.0, 1.0]], **DOUBLE)
        exact = brute_force_gain(K, 2, noise_variance)
        gain = information_gain(K, num_steps=2, noise_variance=noise_variance)
        assert gain.greedy < 0.99 * exact
        assert min(gain.design, gain.submodular, gain.greedy_ratio) >= exact
        assert gain.bound >= exact

    def test_exact_cases(self):
        # One step; one candidate, T times; independent candidates, once each.
        K = torch.tensor([[2.0, 0.5], [0.5, 1.0]], **DOUBLE)
        one = information_gain_bound(K, num_steps=1, noise_variance=0.5)
        assert one == pytest.approx(0.5 * math.log(5))
        single = torch.tensor([[2.0]], **DOUBLE)
        repeated = information_gain_bound(single, num_steps=7, noise_variance=0.5)
        assert repeated == pytest.approx(0.5 * math.log(1 + 7 * 2 / 0.5), rel=1e-12)
        eye = torch.eye(5, **DOUBLE)
        twice = information_gain_bound(eye, num_steps=10, noise_variance=0.5)
        assert twice == pytest.approx(2.5 * math.log(1 + 2 / 0.5), rel=1e-12)

    def test_one_by_one_is_the_trivial_bound(self):
        K = torch.ones(3, 3, **DOUBLE)
        gain = information_gain(K, num_steps=9, noise_variance=0.25)
        assert gain.one_by_one == pytest.approx(4.5 * math.log(5))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_kernel_and_matrix_agree(self, dtype, generator):
        X = torch.rand(40, 2, generator=generator, dtype=dtype, device=DEVICE)
        with DEVICE:
            kernel = ScaleKernel(MaternKernel(nu=2.5)).to(dtype)
            kernel.outputscale = 2.0
        lazily = information_gain(kernel, X, num_steps=12, noise_variance=0.1)
        K = kernel.double()(X.double()).to_dense().detach()
        at_once = information_gain(K, num_steps=12, noise_variance=0.1)
        assert lazily.indices == at_once.indices
        assert lazily.bound == pytest.approx(at_once.bound, rel=1e-6)
        chosen = K[list(lazily.indices)][:, list(lazily.indices)]
        exact = 0.5 * torch.logdet(torch.eye(12, **DOUBLE) + chosen / 0.1).item()
        assert lazily.greedy == pytest.approx(exact, rel=1e-6)
        assert kernel.outputscale.requires_grad  # the user's kernel is left alone

    def test_the_design_bound_closes_the_gap(self, generator):
        # Many observations of a smooth function: 1/(1 - 1/e) would be 58 % too much.
        X = torch.rand(500, 1, generator=generator, **DOUBLE)
        gain = information_gain(rbf(0.2), X, num_steps=200, noise_variance=0.1)
        assert gain.bound == gain.design < 1.01 * gain.greedy
        assert gain.greedy_ratio > 1.5 * gain.greedy

    def test_many_candidates(self, generator):
        # Their matrix would take 20 GB.
        X = torch.rand(50_000, 2, generator=generator, **DOUBLE)
        gain = information_gain(rbf(0.3), X, num_steps=20, noise_variance=0.1)
        assert 0 < gain.greedy <= gain.bound

    @pytest.mark.parametrize(
        ("kernel", "candidates", "match"),
        [
            (
                torch.eye(2, device=DEVICE),
                torch.zeros(2, 1, device=DEVICE),
                "candidates",
            ),
            (torch.zeros(2, 3, device=DEVICE), None, "N x N matrix"),
            (torch.zeros(0, 0, device=DEVICE), None, "N x N matrix"),
            (torch.ones(2, 2, device=DEVICE).triu(), None, "symmetric"),
            (-torch.eye(2, device=DEVICE), None, "finite variances"),
            (torch.full((2, 2), torch.inf, device=DEVICE), None, "finite variances"),
            ("rbf", None, "GPyTorch kernel or a matrix"),
        ],
    )
    def test_bad_kernels(self, kernel, candidates, match):
        with pytest.raises(InvalidArgumentError, match=match):
            information_gain(kernel, candidates, num_steps=2, noise_variance=0.1)

    @pytest.mark.parametrize(
        "candidates",
        [None, torch.zeros(2, device=DEVICE), torch.zeros(0, 1, device=DEVICE)],
    )
    def test_bad_candidates(self, candidates):
        with pytest.raises(InvalidArgumentError, match="candidate"):
            information_gain(rbf(1.0), candidates, num_steps=2, noise_variance=0.1)

    @pytest.mark.parametrize(
        ("name", "value"), [("num_steps", 0), ("noise_variance", 0.0)]
    )
    def test_bad_numbers(self, name, value):
        setting = {"num_steps": 2, "noise_variance": 0.1, name: value}
        with pytest.raises(InvalidArgumentError, match=f"{name} must"):
            information_gain_bound(torch.eye(2, **DOUBLE), **setting)
