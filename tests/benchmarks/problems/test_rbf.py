"""Blocked RBF kernels and expansions, against one exponential at a time."""

import math

import pytest
import torch

from benchmarks.problems import _rbf
from benchmarks.problems._rbf import rbf_expansion, rbf_kernel

N, M, B, D = 7, 5, 3, 2


@pytest.fixture
def tensors(double):
    generator = torch.Generator(device="cpu").manual_seed(0)
    inputs, centers, weights = (
        torch.randn(*shape, generator=generator, **double)
        for shape in ((N, D), (M, D), (B, M))
    )
    scales = 0.5 + torch.rand(B, D, generator=generator, **double)
    return inputs, centers, scales, weights


def kernel(x, c, scale):
    return math.exp(-float(((x - c) / scale).square().sum()) / 2)


def test_kernel(tensors):
    inputs, centers, scales, _ = tensors
    found = rbf_kernel(inputs, centers, scales)
    expected = [
        [[kernel(x, c, scale) for c in centers] for x in inputs] for scale in scales
    ]
    assert found.shape == (B, N, M)
    torch.testing.assert_close(found, inputs.new_tensor(expected))


@pytest.mark.parametrize("block", [2**20, 2 * M, 1])
def test_expansion(tensors, block, monkeypatch):
    """Whatever the size of a block."""
    monkeypatch.setattr(_rbf, "_BLOCK_ENTRIES", block)
    inputs, centers, scales, weights = tensors
    found = rbf_expansion(centers, scales, weights)(inputs)
    kernels = rbf_kernel(inputs, centers, scales)  # B x N x M
    assert found.shape == (N, B)
    torch.testing.assert_close(found, torch.einsum("bnm,bm->nb", kernels, weights))


def test_far_apart(double):
    """No number is so small that a processor becomes slow, and none is above 1."""
    inputs = torch.tensor([[0.0], [1e-9], [1e6]], **double)
    found = rbf_kernel(inputs, inputs, torch.ones(1, 1, **double))[0]
    assert found.max() <= 1.0
    assert found.diagonal().tolist() == [1.0] * 3
    assert 0.0 < found[0, 2] < 1e-200
