"""Append points to a padded dictionary, and delete them, for the gradient at a point.

These functions depend on public points only. Elements of a batch are independent of
each other; those that need no more changes wait for the others.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_dp.models.dictionary import LeaveOneOut
from botorch_dp.models.gradient_weights import GradientWeights
from botorch_dp.models.surrogates.padded_dictionary import PaddedDictionary
from botorch_dp.models.surrogates.wasserstein import leave_one_out_distances

# A covariance to the power of (2^3)^2 = 64, whose columns approximate its top
# eigenvector: an eigenvalue 5 % below the largest keeps a share of 0.95^64 = 4 %.
# Measured at 50 x 20 x 20, this takes a fifth of the time of an eigendecomposition.
_ROUNDS, _DOUBLINGS = 2, 3


def prune_by_trace(
    dictionary: PaddedDictionary,
    x: Tensor,
    *,
    limit: float,
    keep: int,
    at_most: int,
) -> None:
    """Delete the points with the smallest effect, as long as the trace allows.

    Args:
        dictionary: The dictionary, which is changed.
        x: A ``batch_shape x p`` tensor: where the gradient is.
        limit: The largest trace of its covariance.
        keep: The number of points that are always kept.
        at_most: The number of points beyond which points are always deleted.
    """
    for _ in range(dictionary.num_slots):
        posterior = dictionary.gradient(x)
        effect = LeaveOneOut(posterior.weights, dictionary.inverse_diagonal())
        increase = effect.trace_increase.masked_fill(~dictionary.mask, torch.inf)
        increase, index = increase.min(dim=-1)
        number = dictionary.num_points
        where = (number > keep) & (posterior.trace + increase <= limit)
        where |= number > at_most
        if not where.any():
            break
        dictionary.delete(index, where)


def prune_by_distance(
    dictionary: PaddedDictionary,
    x: Tensor,
    *,
    reference: Tensor,
    directions: Tensor,
    limit: float,
) -> None:
    """Delete points as long as the sliced Wasserstein distance allows; keep one.

    Lines 3 to 12 of Algorithm 2, with the point removed in line 10.

    Args:
        dictionary: The dictionary, which is changed.
        x: A ``batch_shape x p`` tensor: where the gradient is.
        reference: The ``batch_shape x p x p`` covariance to measure from.
        directions: An ``L x p`` tensor of unit vectors.
        limit: The largest distance.
    """
    for _ in range(dictionary.num_slots):
        posterior = dictionary.gradient(x)
        distances = leave_one_out_distances(
            dictionary.leave_one_out(posterior.cross_covariance),
            posterior.covariance,
            directions,
            reference=reference,
        )
        least, index = distances.masked_fill(~dictionary.mask, torch.inf).min(dim=-1)
        where = (least <= limit) & (dictionary.num_points > 1)
        if not where.any():
            break
        dictionary.delete(index, where)


def append_best(
    dictionary: PaddedDictionary,
    x: Tensor,
    posterior: GradientWeights,
    *,
    radii: Sequence[float],
    bounds: Tensor | None,
    where: Tensor | None = None,
    center_first: bool = False,
    least_gain: float = 0.0,
) -> Tensor:
    r"""Append the point of a line through x that lowers the trace most.

    The line is along the top eigenvector of the gradient's covariance at x.

    Args:
        dictionary: The dictionary, which is changed.
        x: A ``batch_shape x p`` tensor: where the gradient is.
        posterior: ``dictionary.gradient(x)``.
        radii: Distances on both sides, in length scales of the kernel along the line.
        bounds: A ``2 x p`` box into which points are clamped.
        where: Which elements of the batch may change; all if None.
        center_first: Whether to append x itself where its value is less certain than
            a step of the first radius would make it.
        least_gain: With p + 1 points or more, append a point only if it lowers the
            trace by more than this share of its mean over directions.

    Returns:
        A ``batch_shape`` tensor: which elements have changed.
    """
    dim = x.shape[-1]
    steps = torch.tensor(
        [0.0, *radii, *(-radius for radius in radii)], dtype=x.dtype, device=x.device
    )
    v = top_direction(posterior.covariance)
    prior = (posterior.prior_covariance @ v.unsqueeze(-1)).squeeze(-1)
    variance = dictionary.variance(x.unsqueeze(-2)).squeeze(-1)
    scale = (variance / (prior * v).sum(dim=-1)).sqrt()
    step = (scale.unsqueeze(-1) * v).unsqueeze(-2) * steps.unsqueeze(-1)
    X = x.unsqueeze(-2) + step  # batch_shape x m x p
    if bounds is not None:
        X = X.clamp(min=bounds[0], max=bounds[1])
    solved, schur = dictionary.condition(X)
    c = dictionary.gradient_covariance(x, X) - posterior.cross_covariance @ solved
    gain = c.square().sum(dim=-2) / schur  # batch_shape x m
    best, index = gain[..., 1:].max(dim=-1)
    index = index + 1
    enough = dictionary.num_points > dim
    chosen = ~enough | (best > least_gain * posterior.trace / dim)
    if center_first:
        # One observation leaves at most twice the noise.
        least = 3.0 * dictionary.noise_variance
        unknown = schur[..., 0] > (radii[0] ** 2 * variance).clamp(min=least)
        index = index.masked_fill(unknown, 0)
        chosen = chosen | unknown
    if where is not None:
        chosen = chosen & where
    at = index.unsqueeze(-1)
    dictionary.append_conditioned(
        X.take_along_dim(at.unsqueeze(-1), dim=-2).squeeze(-2),
        solved.take_along_dim(at.unsqueeze(-2), dim=-1).squeeze(-1),
        schur.take_along_dim(at, dim=-1).squeeze(-1),
        chosen,
    )
    return chosen


def top_direction(covariance: Tensor) -> Tensor:
    """Return unit vectors near the top eigenvector, by repeated squaring.

    Any vector of the top eigenspace serves the purpose, as do nearby eigenvectors.

    Args:
        covariance: A ``batch_shape x p x p`` tensor.

    Returns:
        A ``batch_shape x p`` tensor.
    """
    power = covariance
    for _ in range(_ROUNDS):
        power = power / power.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None]
        for _ in range(_DOUBLINGS):
            power = power @ power
    index = power.diagonal(dim1=-2, dim2=-1).argmax(dim=-1)
    column = power.take_along_dim(index[..., None, None], dim=-1).squeeze(-1)
    return column / column.norm(dim=-1, keepdim=True)
