"""Operations on tensors, and the same operations on small NumPy arrays.

An operation of PyTorch on a handful of numbers takes several times as long as that of
NumPy, and an evaluation consists of dozens of them. Code that is written in operators
and in these functions runs on both: on arrays, which share the memory of tensors, for
small problems on the CPU, and on tensors otherwise.

Two libraries with threads of their own slow each other down. What is small enough for
arrays is too small for threads; the few products that are not are left to PyTorch.
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
    np.dtype(dtype): get_lapack_funcs(("potrf", "potrs", "trtrs"), dtype=dtype)
    for dtype in ("float32", "float64")
}


class Tensors:
    """Operations on tensors."""

    addcmul = staticmethod(torch.addcmul)
    addmm = staticmethod(torch.addmm)
    concatenate = staticmethod(torch.cat)
    exp_ = staticmethod(torch.exp_)
    mm = staticmethod(torch.mm)

    @staticmethod
    def minus_bmm(x: Tensor, A: Tensor, B: Tensor) -> Tensor:
        """Return x - A B."""
        return torch.baddbmm(x, A, B, alpha=-1)

    @staticmethod
    def bmm_minus(A: Tensor, B: Tensor, x: Tensor) -> Tensor:
        """Return A B - x."""
        return torch.baddbmm(x, A, B, beta=-1)

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
    """The same operations on arrays."""

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
    def minus_bmm(x: Array, A: Array, B: Array) -> Array:
        return x - A @ B

    @staticmethod
    def bmm_minus(A: Array, B: Array, x: Array) -> Array:
        return A @ B - x

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
    def solve(root: Array, rows: Array, transposed: bool = False) -> Array:
        trtrs = _LAPACK[root.dtype][2]
        # LAPACK stores columns, so that its matrix is the transpose.
        return trtrs(root.T, rows.T, lower=0, trans=not transposed)[0].T

    @staticmethod
    def add_to_diagonal_(S: Array, value: Array) -> None:
        S.reshape(len(S), -1)[:, :: S.shape[-1] + 1] += value

    @staticmethod
    def solve_positive(S: Array, C: Array) -> Array:
        factor, solve, _ = _LAPACK[S.dtype]
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
