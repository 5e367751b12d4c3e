"""Operations on tensors, and the same operations on small NumPy arrays.

An operation of PyTorch on a handful of numbers takes several times as long as that of
NumPy, and an evaluation consists of dozens of them. Code that is written in operators
and in these functions runs on both: on arrays, which share the memory of tensors, for
small problems on the CPU, and on tensors otherwise.

PyTorch solves the triangular systems and computes the large products in both cases,
because two libraries with threads of their own would slow each other down.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.linalg import get_lapack_funcs
from torch import Tensor

Array = Any  # a tensor or an array, depending on the operations in use
Profile = Callable[[Tensor], tuple[Tensor, ...]]

# OpenBLAS may use threads for more multiplications than this.
_ONE_THREAD = 2**18
_LAPACK = {
    np.dtype(dtype): get_lapack_funcs(("potrf", "potrs"), dtype=dtype)
    for dtype in ("float32", "float64")
}


class Tensors:
    """Operations on tensors."""

    addcmul = staticmethod(torch.addcmul)
    addmm = staticmethod(torch.addmm)
    baddbmm = staticmethod(torch.baddbmm)
    concatenate = staticmethod(torch.cat)
    exp_ = staticmethod(torch.exp_)
    mm = staticmethod(torch.mm)

    @staticmethod
    def clamp_(x: Tensor) -> Tensor:
        """Replace negative entries by zero."""
        return x.clamp_(min=0.0)

    @staticmethod
    def profile(formula: Profile, squares: Tensor) -> tuple[Tensor, ...]:
        """Return phi, rho and tau of a radial kernel."""
        return formula(squares)[:3]

    @staticmethod
    def solve(root: Tensor, rows: Tensor, transposed: bool = False) -> Tensor:
        """Solve a lower triangular system, or its transpose, for each row."""
        root = root.mT if transposed else root
        return torch.linalg.solve_triangular(root, rows.mT, upper=transposed).mT

    @staticmethod
    def add_to_diagonal_(S: Tensor, value: Tensor) -> None:
        S.diagonal(dim1=-2, dim2=-1).add_(value)

    @staticmethod
    def solve_positive(S: Tensor, C: Tensor) -> Tensor:
        """Solve positive definite systems, ``b x q x q`` and ``b x q x m``."""
        half, info = torch.linalg.cholesky_ex(S)
        if info.any():  # candidates coincide: only then pay for adding jitter
            half = psd_safe_cholesky(S)
        return torch.cholesky_solve(C, half)


class Arrays:
    """The same operations on arrays. Roots of triangular systems stay tensors."""

    concatenate = staticmethod(np.concatenate)

    @staticmethod
    def addcmul(x: Array, a: Array, b: Array) -> Array:
        result = a * b
        result += x
        return result

    @staticmethod
    def mm(A: Array, B: Array) -> Array:
        if len(A) * B.size <= _ONE_THREAD:
            return A @ B
        return torch.mm(torch.from_numpy(A), torch.from_numpy(B)).numpy()

    @staticmethod
    def addmm(x: Array, A: Array, B: Array) -> Array:
        result = Arrays.mm(A, B)
        result += x
        return result

    @staticmethod
    def baddbmm(
        x: Array, A: Array, B: Array, *, beta: float = 1.0, alpha: float = 1.0
    ) -> Array:
        result = A @ B
        result *= alpha
        result += beta * x
        return result

    @staticmethod
    def exp_(x: Array) -> Array:
        return np.exp(x, out=x)

    @staticmethod
    def clamp_(x: Array) -> Array:
        return np.maximum(x, 0.0, out=x)

    @staticmethod
    def profile(formula: Profile, squares: Array) -> tuple[Array, ...]:
        return tuple(part.numpy() for part in formula(torch.from_numpy(squares))[:3])

    @staticmethod
    def solve(root: Tensor, rows: Array, transposed: bool = False) -> Array:
        return Tensors.solve(root, torch.from_numpy(rows), transposed).numpy()

    @staticmethod
    def add_to_diagonal_(S: Array, value: Array) -> None:
        S.reshape(len(S), -1)[:, :: S.shape[-1] + 1] += value

    @staticmethod
    def solve_positive(S: Array, C: Array) -> Array:
        factor, solve = _LAPACK[S.dtype]
        solved = np.empty_like(C)
        for matrix, right, solution in zip(S, C, solved, strict=True):
            half, info = factor(matrix, lower=True)
            if info:
                tensors = torch.from_numpy(S), torch.from_numpy(C)
                return Tensors.solve_positive(*tensors).numpy()
            solution[:] = solve(half, right, lower=True)[0]
        return solved


def with_arrays(constants: Any) -> Any:
    """Return a copy of an object with arrays and numbers in place of its tensors."""
    twin = copy.copy(constants)
    for name, value in vars(twin).items():
        if isinstance(value, Tensor):
            setattr(twin, name, value.numpy() if value.dim() else value.item())
    twin.ops = Arrays
    return twin
