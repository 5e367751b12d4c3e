"""The best points of a grid around a centre, chosen one after another.

In few dimensions the trace has local minima of all kinds: simplices far away, triangles
beside the centre, copies at a wall. A search from a design in closed form misses some.
The covariances of a grid cost one triangular solve. Starting with each of its points,
the others are then chosen greedily, by the closed form of one more observation.
"""

import itertools

import torch
from torch import Tensor

from botorch_dp.acquisition._trace import Geometry

# Radii over that of the design in closed form.
_RADII = tuple(2.0**k for k in range(6))
# How many sets of points go on to their next point.
_BEST_SETS = 16


def grid_directions(num_dims: int) -> Tensor:
    """Return unit vectors to the neighbours in a square lattice, ``k x d``."""
    steps = itertools.product((-1.0, 0.0, 1.0), repeat=num_dims)
    directions = torch.tensor(
        [step for step in steps if any(step)], dtype=torch.float64, device="cpu"
    )
    return directions / directions.norm(dim=-1, keepdim=True)


def best_on_grid(
    geometry: Geometry,
    X_center: Tensor,
    design: Tensor,
    bounds: Tensor | None = None,
) -> Tensor:
    """Return the points of a grid that leave the smallest trace, found greedily.

    Args:
        geometry: The points seen so far, and the centre.
        X_center: The centre, a ``d`` tensor.
        design: A design in closed form, ``b x d``, whose radius is the smallest.
        bounds: A ``2 x d`` tensor of lower and upper bounds, or None.

    Returns:
        A ``b x d`` tensor.
    """
    scale = 2 / geometry.twice_scale
    radius = ((design - X_center) / scale).norm(dim=-1).median()
    radii = radius * X_center.new_tensor(_RADII)
    rays = grid_directions(X_center.shape[-1]).to(X_center)
    grid = X_center + scale * (radii[:, None, None] * rays).flatten(0, 1)
    if bounds is not None:
        grid = grid.clamp(min=bounds[0], max=bounds[1])
    return grid[_greedy(geometry, grid, len(design))]


def _greedy(geometry: Geometry, grid: Tensor, num_points: int) -> Tensor:
    """Return the indices of the points of the best set."""
    k = geometry.known.covariances(grid, len(grid))
    solved = geometry.ops.solve(geometry.root, k.with_known)
    R, C = solved.tensor_split([geometry.num_points], dim=-1)
    S = k.among_candidates[0] - R @ R.mT
    variances, noise = S.diagonal().clamp(min=0.0) + geometry.noise, geometry.noise
    gains = (C.square() @ geometry.weights) / variances
    sets = torch.arange(len(grid), device=grid.device).unsqueeze(-1)
    totals = gains
    while sets.shape[-1] < num_points:
        # Condition on the points of each set, and add the best other point.
        among = S[sets.unsqueeze(-1), sets.unsqueeze(-2)]
        among.diagonal(dim1=-2, dim2=-1).add_(noise)
        shares, _ = torch.linalg.solve_ex(among, S[sets])  # sets x points x grid
        left = (variances - (shares * S[sets]).sum(dim=-2)).clamp(min=noise)
        cross = C - shares.mT @ C[sets]  # sets x grid x derivatives
        gains = cross.square() @ geometry.weights / left
        gains, best = gains.nan_to_num(0.0).max(dim=-1)  # copies without noise
        sets = torch.cat([sets, best.unsqueeze(-1)], dim=-1)
        totals, kept = (totals + gains).topk(min(_BEST_SETS, len(sets)))
        sets = sets[kept]
    return sets[int(totals.argmax())]
