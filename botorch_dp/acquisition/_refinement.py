"""A few steps of L-BFGS from a design, to use what history tells.

A design in closed form is optimal without history. Points that are already there change
the best radius (they tell the curvature, so that new points may lie farther away) and
break the symmetry. A dozen evaluations of the trace with its gradient make up for most
of that: see ``benchmarks/results/design_history.md``.

The steps are written out because a general optimizer spends several times as long on
its own bookkeeping as the evaluations take.

References:
    .. [Nocedal2006numerical] J. Nocedal and S. J. Wright. Numerical Optimization.
        Springer, 2nd edition, 2006. Algorithm 7.4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp.acquisition._grid import best_on_grid
from botorch_dp.acquisition._trace import Geometry, evaluate, minus_trace
from botorch_dp.models.kernels.radial import RadialKernel

# Radii over that of the design. The best one with history is the radius of pairs, at
# most a few times that of a simplex.
_RADII, _RADII_IN_FEW_DIMS = (1.0, 2.0), (1.0, 1.4, 2.0, 2.8)
# In few dimensions there are local minima, and evaluations are cheap: a second search
# starts from the best points of a grid.
_FEW_DIMS = 3
# How many evaluations fit into twice the time of the design (measured): a search has
# fewer if there are two, or if an evaluation takes long.
_EVALUATIONS, _FEWER_EVALUATIONS = 16, 12
_FIRST_EVALUATIONS = 4  # of each of two searches; the better one goes on
_COSTLY = 10**6  # multiplications of a triangular solve
# A smaller correlation with the value at the centre is no history.
_NO_CORRELATION = 1e-6
# How far the first step moves a point, and any step at most, over its distance from
# the centre.
_FIRST_STEP, _LONGEST_STEP = 0.35, 1.5
# Less curvature along a step than this, as a cosine, is not used.
_LEAST_CURVATURE = 1e-8

Array = Any
Evaluate = Callable[[Array], tuple[float, Array]]


def scales_of_starts(geometry: Geometry, batch_size: int) -> tuple[float, ...]:
    """Return radii over that of the design, the best of which starts a search.

    Args:
        geometry: The points seen so far, and the centre.
        batch_size: The number of points to choose.
    """
    if len(geometry.twice_scale) <= _FEW_DIMS:
        return _RADII_IN_FEW_DIMS
    return _RADII[:1] if is_costly(geometry, batch_size) else _RADII


def default_evaluations(geometry: Geometry, batch_size: int) -> int:
    """Return how often a search evaluates the trace.

    Args:
        geometry: The points seen so far, and the centre.
        batch_size: The number of points to choose.
    """
    few_dims = len(geometry.twice_scale) <= _FEW_DIMS
    fewer = few_dims or is_costly(geometry, batch_size)
    return _FEWER_EVALUATIONS if fewer else _EVALUATIONS


def is_costly(geometry: Geometry, batch_size: int) -> bool:
    """Return whether an evaluation takes a good part of the time of the design."""
    return len(geometry.root) ** 2 * batch_size > _COSTLY


def is_history(whitened: Tensor, radial: RadialKernel) -> bool:
    """Return whether any point is near enough to tell anything about the gradient.

    Args:
        whitened: The distances of the points from the centre in length scales,
            ``n x d``.
        radial: The kernel.
    """
    if not len(whitened):
        return False
    nearest = whitened.square().sum(dim=-1).min()
    return float(radial.unit_profile(nearest)[0]) > _NO_CORRELATION


def refine(
    geometry: Geometry,
    X_center: Tensor,
    designs: Tensor,
    bounds: Tensor | None = None,
    *,
    max_evaluations: int | None = None,
    target: float = -math.inf,
) -> tuple[Tensor, float]:
    """Return points with a smaller trace than those given, and that trace.

    Args:
        geometry: The points seen so far, and the centre.
        X_center: The centre, a ``d`` tensor.
        designs: Sets of points, ``k x b x d``: the design in closed form first, then
            with other radii.
        bounds: A ``2 x d`` tensor of lower and upper bounds, or None.
        max_evaluations: How often a search may evaluate the trace; at least 1. By
            default as often as fits into twice the time of the design.
        target: A trace that is small enough: the search stops there.
    """
    scale = (2 / geometry.twice_scale).double().cpu().numpy()
    center = X_center.double().cpu().numpy()
    low, high = -math.inf, math.inf
    if bounds is not None:
        low, high = (bounds.double().cpu().numpy() - center) / scale
    trace_at = _evaluation(geometry, X_center, scale)
    if max_evaluations is None:
        max_evaluations = default_evaluations(geometry, designs.shape[-2])

    def search_from(start: Tensor, evaluations: int) -> _Search:
        z = (start.double().cpu().numpy() - center) / scale
        search = _Search(z, *trace_at(z))
        _descend(trace_at, search, low, high, evaluations - 1, target)
        return search

    start = designs[0]
    if len(designs) > 1:
        values, _ = minus_trace(designs, geometry, needs_gradient=False)
        start = designs[int(values.argmax())]
    if len(X_center) > _FEW_DIMS or max_evaluations <= _FIRST_EVALUATIONS:
        found = search_from(start, max_evaluations)
    else:
        found = search_from(start, _FIRST_EVALUATIONS)
        if found.trace > target:
            on_grid = best_on_grid(geometry, X_center, designs[0], bounds)
            other = search_from(on_grid, _FIRST_EVALUATIONS)
            found = min(found, other, key=lambda search: search.trace)
            left = max_evaluations - _FIRST_EVALUATIONS
            _descend(trace_at, found, low, high, left, target)
    best = torch.from_numpy(center + scale * found.z).to(X_center)
    if bounds is not None:  # rounding
        best = best.clamp(min=bounds[0], max=bounds[1])
    return best, found.trace


def _evaluation(geometry: Geometry, X_center: Tensor, scale: Array) -> Evaluate:
    """Return the trace and its gradient as a function of whitened offsets."""
    center = X_center.double().cpu().numpy()

    def in_arrays(z: Array) -> tuple[float, Array]:
        gain, gradient = evaluate(geometry.in_arrays, center + scale * z, len(z), True)
        return before - gain.item(), gradient * -scale

    def on_tensors(z: Array) -> tuple[float, Array]:
        X = torch.from_numpy(center + scale * z).to(X_center)
        value, gradient = minus_trace(X.unsqueeze(0), geometry)
        assert gradient is not None
        return -float(value), gradient[0].double().cpu().numpy() * -scale

    before = float(geometry.trace)
    if X_center.dtype != torch.float64 or not geometry.most_in_arrays:
        return on_tensors
    return lambda z: (in_arrays if z.size <= geometry.most_in_arrays else on_tensors)(z)


@dataclass
class _Search:
    """Where a search is, and what it knows about the Hessian.

    Attributes:
        z: The points, ``b x d``, with the centre as the origin.
        trace: The trace there.
        gradient: Its gradient, ``b x d``.
        pairs: Steps, changes of the gradient, and their inner products.
    """

    z: Array
    trace: float
    gradient: Array
    pairs: list[tuple[Array, Array, float]] = field(default_factory=list)


def _descend(
    trace_at: Evaluate,
    search: _Search,
    low: Array | float,
    high: Array | float,
    max_evaluations: int,
    target: float,
) -> None:
    """Take steps of projected L-BFGS.

    Args:
        trace_at: Returns the trace and its gradient.
        search: Where to start. It is changed.
        low: Lower bounds, ``d`` or one number.
        high: Upper bounds, ``d`` or one number.
        max_evaluations: The number of evaluations.
        target: A trace that is small enough.
    """
    z, trace, gradient = search.z, search.trace, search.gradient
    pairs, evaluations = search.pairs, 0
    while evaluations < max_evaluations and trace > target:
        blocked = (z <= low) & (gradient > 0) | (z >= high) & (gradient < 0)
        if blocked.any():
            direction = _direction(np.where(blocked, 0.0, gradient), pairs)
            direction[blocked] = 0.0
        else:
            direction = _direction(gradient, pairs)
        squares = (z * z).sum(axis=-1)
        lengths = (direction * direction).sum(axis=-1)
        if pairs:
            longest = math.sqrt(float((lengths / np.maximum(squares, 1e-12)).max()))
            step = min(1.0, _LONGEST_STEP / max(longest, 1e-300))
        else:
            total = max(float(lengths.sum()), 1e-300)
            typical = float(np.sort(squares)[len(z) // 2])
            step = _FIRST_STEP * math.sqrt(typical * len(z) / total)
        while evaluations < max_evaluations:
            tried = np.minimum(np.maximum(z + step * direction, low), high)
            there, its_gradient = trace_at(tried)
            evaluations += 1
            s, y = tried - z, its_gradient - gradient
            if there < trace:
                break
            # The parabola through both values and the first slope.
            slope = float((gradient * s).sum())
            if not slope < 0:
                return
            step *= min(max(-slope / (2 * (there - trace - slope)), 0.1), 0.6)
        curvature = float((s * y).sum())
        if curvature > _LEAST_CURVATURE * math.sqrt(
            float((s * s).sum() * (y * y).sum())
        ):
            pairs.append((s, y, curvature))
        if there < trace:
            z, trace, gradient = tried, there, its_gradient
            search.z, search.trace, search.gradient = z, trace, gradient


def _direction(gradient: Array, pairs: list[tuple[Array, Array, float]]) -> Array:
    """Return minus the inverse Hessian of L-BFGS times a gradient."""
    direction, shares = -gradient, []
    for s, y, curvature in reversed(pairs):
        share = np.vdot(s, direction) / curvature
        direction -= share * y
        shares.append(share)
    if pairs:
        _, y, curvature = pairs[-1]
        direction *= curvature / np.vdot(y, y)
    for (s, y, curvature), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - np.vdot(y, direction) / curvature) * s
    return direction
