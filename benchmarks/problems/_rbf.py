"""Evaluate many RBF expansions at once, in blocks that fit into a cache."""

from collections.abc import Callable

import torch
from torch import Tensor

# The number of entries of a kernel matrix in a block: 8 MB in double precision.
_BLOCK_ENTRIES = 2**20
# Smaller exponents are replaced by this one, whose exponential is 1e-261. Subnormal
# results would take a processor up to thirty times as long.
_LEAST_EXPONENT = -600.0


def rbf_kernel(inputs: Tensor, centers: Tensor, scales: Tensor) -> Tensor:
    r"""Return :math:`\exp(-\|(x - c) / s\|^2 / 2)` for all pairs and scales.

    Args:
        inputs: An ``n x d`` tensor.
        centers: An ``m x d`` tensor.
        scales: A ``b x d`` tensor of length scales.

    Returns:
        A ``b x n x m`` tensor.
    """
    return _kernel(_left(inputs, scales), _right(centers, scales))


def rbf_expansion(
    centers: Tensor, scales: Tensor, weights: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return the function that evaluates b weighted sums of RBF kernels.

    Args:
        centers: An ``m x d`` tensor.
        scales: A ``b x d`` tensor of length scales.
        weights: A ``b x m`` tensor.

    Returns:
        A function from an ``n x d`` tensor of points to an ``n x b`` tensor of values.
    """
    rights = [_right(centers, scale) for scale in scales.unsqueeze(1)]
    columns = weights.unsqueeze(-1)  # b x m x 1
    size = max(1, _BLOCK_ENTRIES // len(centers))

    def evaluate(inputs: Tensor) -> Tensor:
        values = [
            torch.cat(
                [
                    _kernel(_left(block, scale), right) @ column
                    for block in inputs.split(size)
                ],
                dim=-2,
            )
            for scale, right, column in zip(
                scales.unsqueeze(1), rights, columns, strict=True
            )
        ]
        return torch.cat(values, dim=0).squeeze(-1).T

    return evaluate


def _left(inputs: Tensor, scales: Tensor) -> Tensor:
    scaled = inputs / scales.unsqueeze(1)  # b x n x d
    norms = scaled.square().sum(dim=-1, keepdim=True) / 2
    return torch.cat([scaled, -norms, torch.ones_like(norms)], dim=-1)


def _right(centers: Tensor, scales: Tensor) -> Tensor:
    scaled = centers / scales.unsqueeze(1)  # b x m x d
    norms = scaled.square().sum(dim=-1, keepdim=True) / 2
    return torch.cat([scaled, torch.ones_like(norms), -norms], dim=-1).mT


def _kernel(left: Tensor, right: Tensor) -> Tensor:
    # One product gives x c - |x|^2 / 2 - |c|^2 / 2 = -|x - c|^2 / 2.
    return (left @ right).clamp_(min=_LEAST_EXPONENT, max=0.0).exp_()
