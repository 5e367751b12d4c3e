"""Updated factors, against torch's own factorization of the whole matrix."""

import pytest
import torch

from botorch_dp.models.cholesky import append_rows, delete_row, drop
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
