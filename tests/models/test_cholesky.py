"""Updated factors, against torch's own factorization of the whole matrix."""

import pytest
import torch

from botorch_dp.models.cholesky import GrowingFactor, append_rows, delete_row, drop
from tests.devices import DEVICE

BATCHES = pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)


def positive_definite(generator, *batch, size):
    root = torch.randn(
        *batch, size, size + 2, generator=generator, dtype=torch.float64, device=DEVICE
    )
    return root @ root.mT


class TestAppendRows:
    @BATCHES
    @pytest.mark.parametrize("old", [0, 1, 5])
    @pytest.mark.parametrize("new", [0, 1, 3])
    def test_factor_of_the_whole_matrix(self, batch, old, new, generator):
        K = positive_definite(generator, *batch, size=old + new)
        factor = torch.linalg.cholesky(K[..., :old, :old])
        before = factor.clone()
        grown = append_rows(factor, K[..., old:, :old], K[..., old:, old:])
        torch.testing.assert_close(grown, torch.linalg.cholesky(K))
        grown.fill_(0.0)
        assert torch.equal(factor, before)

    def test_none_if_not_positive_definite(self, generator):
        K = positive_definite(generator, 2, size=4)
        K[1, 3, 3] = -1.0  # one element of the batch is enough
        factor = torch.linalg.cholesky(K[:, :2, :2])
        assert append_rows(factor, K[:, 2:, :2], K[:, 2:, 2:]) is None


class TestDeleteRow:
    @pytest.mark.parametrize("size", [1, 6, 128, 129, 300])
    @pytest.mark.parametrize("where", [0.0, 0.4, 1.0])
    def test_factor_without_a_row(self, size, where, generator):
        # A block of columns has 128 of them.
        K = positive_definite(generator, size=size)
        j = int(where * (size - 1))
        rest = [i for i in range(size) if i != j]
        index = torch.tensor(j, device=DEVICE)
        smaller = delete_row(torch.linalg.cholesky(K), index)
        expected = torch.linalg.cholesky(K[rest][:, rest])
        torch.testing.assert_close(smaller, expected, rtol=1e-9, atol=1e-9)
        assert torch.equal(smaller, smaller.tril())

    def test_each_element_of_a_batch_has_its_own_row(self, generator):
        K = positive_definite(generator, 2, 3, size=5)
        factor = torch.linalg.cholesky(K)
        before = factor.clone()
        index = torch.tensor([[0, 1, 4], [2, 2, 3]], device=DEVICE)
        smaller = delete_row(factor, index)
        assert torch.equal(factor, before)
        for i, j in torch.ones(2, 3, device=DEVICE).nonzero().tolist():
            alone = delete_row(factor[i, j], index[i, j])
            torch.testing.assert_close(smaller[i, j], alone)

    def test_last_row_leaves_the_others_to_the_bit(self, generator):
        factor = torch.linalg.cholesky(positive_definite(generator, size=6))
        smaller = delete_row(factor, torch.tensor(5, device=DEVICE))
        assert torch.equal(smaller, factor[:5, :5])

    def test_nearly_singular(self, generator):
        K = positive_definite(generator, size=8)
        K[1] = K[0]
        K[:, 1] = K[:, 0]
        K += 1e-13 * K.diagonal().max() * torch.eye(8, dtype=K.dtype, device=DEVICE)
        smaller = delete_row(torch.linalg.cholesky(K), torch.tensor(0, device=DEVICE))
        torch.testing.assert_close(smaller @ smaller.mT, K[1:, 1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [-1, -2])
def test_drop(dim, generator):
    matrix = positive_definite(generator, 2, size=4)
    index = torch.tensor([0, 2], device=DEVICE)
    dropped = drop(matrix, index, dim=dim)
    for element, j, result in zip(matrix, [0, 2], dropped, strict=True):
        rest = torch.tensor([i for i in range(4) if i != j], device=DEVICE)
        assert torch.equal(result, element.index_select(dim, rest))


def grow(factor, K, sizes):
    """Append blocks of these sizes, from where the factor ends."""
    for size in sizes:
        old, new = len(factor), len(factor) + size
        half = factor.solve(K[:old, old:new])
        rest = K[old:new, old:new] - half.mT @ half
        factor.append(half, torch.linalg.cholesky(rest))


class TestGrowingFactor:
    @pytest.mark.parametrize("sizes", [[7], [3, 4], [1] * 7, [2, 1, 3, 1]], ids=str)
    def test_factor_of_the_whole_matrix(self, sizes, generator):
        K, rhs = (
            positive_definite(generator, size=7),
            torch.eye(7, device=DEVICE).double(),
        )
        factor = GrowingFactor(K)
        assert not factor
        grow(factor, K, sizes)
        expected = torch.linalg.cholesky(K)
        assert len(factor) == 7
        torch.testing.assert_close(factor.dense(), expected)
        before = rhs.clone()
        torch.testing.assert_close(expected @ factor.solve(rhs), rhs)
        torch.testing.assert_close(expected.mT @ factor.solve_transposed(rhs), rhs)
        assert torch.equal(rhs, before)

    @pytest.mark.parametrize("kept", range(8))
    def test_truncated_and_grown_again(self, kept, generator):
        K, other = (positive_definite(generator, size=7) for _ in range(2))
        other[:kept, :kept] = K[:kept, :kept]
        other += 20 * torch.eye(7, dtype=K.dtype, device=DEVICE)
        K += 20 * torch.eye(7, dtype=K.dtype, device=DEVICE)
        factor = GrowingFactor(K)
        grow(factor, K, [2, 3, 2])
        factor.truncate(kept)
        assert len(factor) == kept
        grow(factor, other, [7 - kept] if kept < 7 else [])
        torch.testing.assert_close(factor.dense(), torch.linalg.cholesky(other))

    def test_rounding_does_not_accumulate(self, generator):
        # Condition 1e12: after 150 appends no worse than a factorization in one go.
        points = torch.rand(300, 2, generator=generator, device=DEVICE).double()
        K = torch.exp(-torch.cdist(points, points).square() / 2)
        K += 1e-10 * torch.eye(300, dtype=K.dtype, device=DEVICE)
        assert torch.linalg.cond(K) > 1e12
        factor = GrowingFactor(K)
        grow(factor, K, [2] * 150)
        assert len(factor._panels) <= 16
        errors = [
            float((found @ found.mT - K).abs().max())
            for found in (factor.dense(), torch.linalg.cholesky(K))
        ]
        assert errors[0] <= 2 * errors[1] + 1e-15
