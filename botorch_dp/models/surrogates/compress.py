"""Compression of a given dictionary, to within a budget.

See :mod:`botorch_dp.models.surrogates.compressed` for the rules, and for a surrogate
that compresses while its point moves.
"""

import copy

import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_positive, check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.dictionary import KernelDictionary
from botorch_dp.models.gradient_weights import GradientWeights
from botorch_dp.models.kernels.derivatives import (
    kernel_gradient,
    prior_gradient_covariance,
)
from botorch_dp.models.surrogates.wasserstein import (
    leave_one_out_distances,
    projection_directions,
)

RULES = ("trace", "literal")


@torch.no_grad()
def compress(
    dictionary: KernelDictionary,
    x: Tensor,
    budget: float,
    *,
    rule: str = "trace",
    num_projections: int = 100,
    seed: int = 0,
) -> KernelDictionary:
    r"""Delete points as long as the gradient's posterior stays within a budget.

    Points are deleted one by one, always the one with the smallest effect, and at least
    one is kept. The reference is the posterior of the whole dictionary.

    Args:
        dictionary: A dictionary without batch dimensions; it is not changed.
        x: A ``p`` tensor: the point whose gradient is wanted.
        budget: The distance :math:`\kappa` in :math:`SW_2`, in units of the gradient.
        rule: ``"trace"`` bounds the distance by the trace of the difference of
            covariances over p; ``"literal"`` measures it by random projections.
        num_projections: The number of projections of ``"literal"``.
        seed: The seed of the projections.

    Returns:
        A dictionary of the remaining points, in their order.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> near = 0.1 * torch.eye(2, dtype=torch.float64)
        >>> points = torch.cat([near, -near, near + 9.0])
        >>> dictionary = KernelDictionary(RBFKernel(), points)
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> compress(dictionary, x, 0.01).num_points
        4
        >>> compress(dictionary, x, 0.2).num_points
        3
    """
    kappa = check_positive("budget (kappa)", budget)
    check_choice("rule", rule, RULES)
    if dictionary.batch_shape:
        raise InvalidArgumentError(
            "dictionary must have no batch dimensions, got batch_shape "
            f"{tuple(dictionary.batch_shape)}; compress its elements one by one."
        )
    dim = dictionary.points.shape[-1]
    directions = projection_directions(
        dim,
        num_projections,
        seed=seed,
        dtype=dictionary.dtype,
        device=dictionary.device,
    )
    check_tensor("x", x, (dim,))
    smaller = copy.copy(dictionary)  # its tensors are replaced, not written to
    x = x.to(dictionary.points).unsqueeze(0)
    prior = prior_gradient_covariance(smaller.kernel, x).squeeze(0)
    before: Tensor | None = None
    while smaller.num_points > 1:
        C = kernel_gradient(smaller.kernel, x, smaller.points).squeeze(0).mT
        leave_one_out = smaller.leave_one_out(C)
        weights = leave_one_out.weights
        covariance = GradientWeights.from_solution(weights, C, prior).covariance
        before = covariance if before is None else before
        if rule == "trace":
            trace = (covariance - before).trace() + leave_one_out.trace_increase
            distances = (trace.clamp(min=0.0) / dim).sqrt()
        else:
            distances = leave_one_out_distances(
                leave_one_out, covariance, directions, reference=before
            )
        least, index = distances.min(dim=-1)
        if least > kappa:
            break
        smaller.delete(int(index))
    return smaller
