"""Operations on arrays against those on tensors, and against NumPy."""

import numpy as np
import pytest
import torch

from botorch_dp.acquisition import _arrays
from botorch_dp.acquisition._arrays import Arrays, Tensors, with_arrays

CPU = torch.device("cpu")
pytestmark = pytest.mark.cpu_only("arrays share the memory of tensors on the CPU")


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def draw(request, generator):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=request.param, device=CPU)

    return normal


def both(name, *args, **kwargs):
    """The results of an operation on tensors and on arrays, both as arrays."""
    arrays = [arg.clone().numpy() if torch.is_tensor(arg) else arg for arg in args]
    result = getattr(Arrays, name)(*arrays, **kwargs)
    return getattr(Tensors, name)(*args, **kwargs).numpy(), result


class TestSameResults:
    @pytest.mark.parametrize(
        ("name", "shapes"),
        [
            ("addcmul", [(3,), (2, 3), (3,)]),
            ("addcmul", [(5,), (2, 1), (5,)]),
            ("mm", [(2, 3), (3, 4)]),
            ("addmm", [(4,), (2, 3), (3, 4)]),
            ("minus_bmm", [(2, 3, 3), (2, 3, 4), (2, 4, 3)]),
            ("bmm_minus", [(2, 3, 4), (2, 4, 3), (2, 1, 3)]),
            ("clamp_", [(2, 3)]),
            ("exp_", [(2, 3)]),
        ],
    )
    def test_elementary(self, name, shapes, draw):
        expected, found = both(name, *(draw(*shape) for shape in shapes))
        assert found.dtype == expected.dtype
        assert np.allclose(found, expected, rtol=1e-5)

    @pytest.mark.parametrize("transposed", [False, True])
    @pytest.mark.parametrize("rows", [1, 5])
    def test_triangular_systems(self, transposed, rows, draw):
        root = (draw(6, 6).tril() + 6 * torch.eye(6, device=CPU)).to(draw(1))
        right = draw(rows, 6)
        expected, found = both("solve", root, right, transposed)
        matrix = root.numpy().T if transposed else root.numpy()
        assert np.allclose(matrix @ found.T, right.numpy().T, atol=1e-5)
        assert np.allclose(found, expected, atol=1e-5)
        assert found.dtype == right.numpy().dtype

    def test_positive_definite_systems(self, draw):
        factor, right = draw(2, 4, 4), draw(2, 4, 3)
        S = factor @ factor.mT + torch.eye(4, device=CPU).to(factor)
        expected, found = both("solve_positive", S, right)
        assert np.allclose(S.numpy() @ found, right.numpy(), atol=1e-4)
        assert np.allclose(found, expected, atol=1e-4)

    @pytest.mark.filterwarnings("ignore:A not p.d.")
    def test_jitter_where_a_matrix_is_singular(self, draw):
        S = torch.ones(2, 3, 3, device=CPU).to(draw(1))
        S[0] = torch.eye(3, device=CPU)
        expected, found = both("solve_positive", S, draw(2, 3, 2))
        assert np.isfinite(found).all()
        assert np.array_equal(found, expected)

    def test_diagonals(self, draw):
        S = draw(2, 3, 3)
        array, expected = S.clone().numpy(), S.numpy() + 0.5 * np.eye(3)
        Arrays.add_to_diagonal_(array, 0.5)
        Tensors.add_to_diagonal_(S, torch.tensor(0.5, device=CPU))
        assert np.allclose(array, expected)
        assert np.allclose(S.numpy(), expected)

    def test_profiles(self, draw):
        def formula(q):
            return q, 2 * q, 3 * q, 4 * q

        squares = draw(2, 3).abs()
        parts = Arrays.profile(formula, squares.numpy())
        for factor, part in enumerate(parts, 1):
            assert np.allclose(part, factor * squares.numpy())
        assert len(parts) == len(Tensors.profile(formula, squares)) == 3


def test_large_products_are_left_to_torch(draw, monkeypatch):
    A, B = draw(2, 3).numpy(), draw(3, 4).numpy()
    monkeypatch.setattr(_arrays, "_ONE_THREAD", 0)
    assert np.allclose(Arrays.mm(A, B), A @ B, atol=1e-6)


def test_a_copy_with_arrays_shares_memory(draw):
    class Constants:
        ops = Tensors

        def __init__(self):
            self.matrix, self.number = draw(2, 3), draw()

    constants = Constants()
    twin = with_arrays(constants)
    assert torch.is_tensor(constants.matrix)
    assert np.shares_memory(twin.matrix, constants.matrix.numpy())
    assert twin.number == constants.number.item()
    assert twin.ops is Arrays
    assert constants.ops is Tensors
