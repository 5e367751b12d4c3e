r"""Bounds on the information gain of a kernel.

``docs/theory/published_releases.md`` derives them.

References:
    .. [Nemhauser1978submodular] G. Nemhauser, L. Wolsey and M. Fisher. An Analysis of
        Approximations for Maximizing Submodular Set Functions. Mathematical Programming
        14, 1978. Section 4.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import (
    check_count,
    check_instance,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class InformationGain:
    r"""A lower bound and upper bounds on the information gain :math:`\gamma_T`.

    :math:`I(A) = \frac12 \log\det(I + K_A / \sigma^2)`, and :math:`\gamma_T` is the
    maximum over all A of T candidates, which may repeat. With :math:`A_k` the first k
    of a greedy choice, :math:`v_k` the variance given them and
    :math:`m_k = \frac12 \log(1 + \max v_k / \sigma^2)` the largest next gain:

    Attributes:
        greedy: :math:`I(A_T)`, what the greedy choice attains: a lower bound.
        one_by_one: :math:`T m_0`, as if every observation were the first.
        greedy_ratio: :math:`I(A_T) / (1 - (1 - 1/T)^T)`, because I is submodular
            [Nemhauser1978submodular]_.
        submodular: :math:`\min_k I(A_k) + T m_k`.
        design: :math:`I(A_T) + \frac{1}{2 \sigma^2} \bigl(T \max v_T - \sum_{a \in A_T}
            v_T(a)\bigr)`, the tangent at :math:`A_T` of a concave relaxation. It is
            usually the smallest of them.
        indices: The greedy choice.
    """

    greedy: float
    one_by_one: float
    greedy_ratio: float
    submodular: float
    design: float
    indices: tuple[int, ...]

    @property
    def bound(self) -> float:
        r"""The smallest of the upper bounds on :math:`\gamma_T`."""
        return min(self.one_by_one, self.greedy_ratio, self.submodular, self.design)


@torch.no_grad()
def information_gain(
    kernel: Kernel | Tensor,
    candidates: Tensor | None = None,
    *,
    num_steps: int,
    noise_variance: float,
) -> InformationGain:
    r"""Bound the information gain :math:`\gamma_T` of T observations.

    It depends on prior covariances only, not on private targets. Greedy choices update
    a partial Cholesky factor in double precision, in O(N T^2) time and O(N T) memory
    for N candidates; with a kernel, no N x N matrix is formed.

    Args:
        kernel: The kernel :math:`k_2`, or its ``N x N`` matrix at the candidates.
        candidates: An ``N x d`` tensor; None if the kernel is a matrix.
        num_steps: The number T of observations.
        noise_variance: The variance :math:`\sigma^2` of an observation.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> candidates = torch.linspace(0, 4, 100).unsqueeze(-1)
        >>> gain = information_gain(
        ...     RBFKernel(), candidates, num_steps=30, noise_variance=0.1
        ... )
        >>> round(gain.greedy, 2), round(gain.design, 2), round(gain.greedy_ratio, 2)
        (11.47, 11.9, 17.96)
    """
    num_steps = check_count("num_steps", num_steps)
    noise_variance = check_positive("noise_variance", noise_variance)
    variances, column = _covariances(kernel, candidates)
    rows = variances.new_empty(num_steps, len(variances))  # of the Cholesky factor
    gain, indices = 0.0, []
    largest = float(variances.max())
    one_by_one = submodular = num_steps * _gain(largest, noise_variance)
    for k in range(num_steps):
        index = int(variances.argmax())
        indices.append(index)
        row = column(index) - rows[:k].mT @ rows[:k, index]
        rows[k] = row / math.sqrt(largest + noise_variance)
        variances = (variances - rows[k].square()).clamp_(min=0.0)
        gain += _gain(largest, noise_variance)
        largest = float(variances.max())
        submodular = min(submodular, gain + num_steps * _gain(largest, noise_variance))
    slack = num_steps * largest - float(variances[indices].sum())
    return InformationGain(
        greedy=gain,
        one_by_one=one_by_one,
        greedy_ratio=gain / (1 - (1 - 1 / num_steps) ** num_steps),
        submodular=submodular,
        design=gain + slack / (2 * noise_variance),
        indices=tuple(indices),
    )


def information_gain_bound(
    kernel: Kernel | Tensor,
    candidates: Tensor | None = None,
    *,
    num_steps: int,
    noise_variance: float,
) -> float:
    r"""Return the smallest upper bound of :func:`information_gain` on :math:`\gamma_T`.

    Example:
        >>> round(
        ...     information_gain_bound(torch.eye(3), num_steps=3, noise_variance=1.0), 4
        ... )  # each candidate once: 3 log(2) / 2
        1.0397
    """
    return information_gain(
        kernel, candidates, num_steps=num_steps, noise_variance=noise_variance
    ).bound


def _gain(variance: float, noise_variance: float) -> float:
    return 0.5 * math.log1p(variance / noise_variance)


def _covariances(
    kernel: Kernel | Tensor, candidates: Tensor | None
) -> tuple[Tensor, Callable[[int], Tensor]]:
    """Return the prior variances, and a function that returns a covariance column."""
    if isinstance(kernel, Tensor):
        if candidates is not None:
            raise InvalidArgumentError(
                "candidates must be None if the kernel is given as a matrix."
            )
        check_tensor(
            "kernel", kernel, ("N", *kernel.shape[:1]), meaning="an N x N matrix"
        )
        matrix = kernel.detach().double()
        if not torch.allclose(matrix, matrix.mT):
            raise InvalidArgumentError("kernel must be a symmetric matrix.")
        return _check_variances(matrix.diagonal()), lambda index: matrix[index]
    check_instance("kernel", kernel, Kernel, expected="a GPyTorch kernel or a matrix")
    points = cast(Tensor, candidates)
    points = check_tensor("candidates", points, ("N", "d")).detach().double()
    function = copy.deepcopy(kernel).requires_grad_(False).eval().to(points)

    def column(index: int) -> Tensor:
        return function(points[index : index + 1], points).to_dense().squeeze(0)

    return _check_variances(function(points, diag=True)), column


def _check_variances(variances: Tensor) -> Tensor:
    if variances.dim() != 1 or not len(variances):
        raise InvalidArgumentError(
            "kernel must give one variance to each of at least one candidate, got "
            f"shape {tuple(variances.shape)}."
        )
    if not bool((variances.isfinite() & (variances >= 0)).all()):
        raise InvalidArgumentError("kernel must give finite variances, 0 or above.")
    return variances
