r"""The trace of a gradient's covariance after q observations, with its gradient in Z.

With K = L L^T and U = \nabla k(x, D) L^-T, solving [[L, 0], [U, I]] [R; C] =
[k(D, Z); \nabla k(x, Z)] gives R with S = k(Z, Z) + s^2 I - R^T R, and C. With
G = C S^-1 and M = G^T G,

    d tr(C S^-1 C^T) = <2 G, d \nabla k(x, Z)> + <2 T, d k(D, Z)> - <M, d k(Z, Z)>,

where T = L^-T (R M - U^T G) comes from the transposed system. Below, candidates are in
rows: everything is transposed.

Both systems are solved, never multiplied by an inverse: S is a small difference of
large numbers when points are close together, and an inverse of K would lose its digits.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_dp._validation import check_tensor
from botorch_dp.acquisition._arrays import Array, Tensors, with_arrays
from botorch_dp.acquisition._covariances import (
    Covariances,
    KnownPoints,
    WhitenedPoints,
)

# Up to this number of covariances, operations on arrays are faster (measured).
_SMALL = 2**14


class Geometry:
    """What does not depend on the candidates.

    Args:
        known: The n points D and the p centres.
        root: The joint root [[L, 0], [U, I]], with n + p d rows.
        noise: The variance s^2 of an observation, a scalar.
        weights: The weights of the p d derivatives in the trace.
        trace: The trace before any candidate is observed, a scalar.
        scale: The derivatives of the coordinates of ``known`` in those of Z, ``d``.
    """

    def __init__(
        self,
        known: KnownPoints,
        root: Tensor,
        noise: Tensor,
        weights: Tensor,
        trace: Tensor,
        scale: Tensor,
    ) -> None:
        self.ops: Any = Tensors
        self.known, self.root, self.noise = known, root, noise
        self.weights, self.trace, self.twice_scale = weights, trace, 2 * scale
        self.num_points = n = len(root) - len(weights)
        # The sums over the points and over the derivatives, in two rows.
        self.rows = root.new_zeros(2, len(root))
        self.rows[0, :n] = 1.0
        self.rows[1, n:] = weights
        self.at_points, self.at_derivatives = self.rows
        # The largest number of entries of Z for which arrays are faster.
        self.most_in_arrays = 0
        if isinstance(known, WhitenedPoints) and root.device.type == "cpu":
            self.most_in_arrays = _SMALL // len(root) * len(scale)

    @functools.cached_property
    def in_arrays(self) -> "Geometry":
        """The same for candidates in an array."""
        twin: Geometry = with_arrays(self)
        twin.known = with_arrays(self.known)
        return twin


def minus_trace(
    X: Tensor, geometry: Geometry, needs_gradient: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return minus the trace after the candidates, and its gradient in them.

    Args:
        X: The candidates, ``batch_shape x q x d``.
        geometry: What does not depend on them.
        needs_gradient: Whether to compute the gradient.
    """
    *batch_shape, q, d = shape = X.shape
    if X.numel() <= geometry.most_in_arrays:
        geometry, Z = geometry.in_arrays, X.numpy().reshape(-1, d)
        _check_finite(X, Z.sum())
        gain, gradient = evaluate(geometry, Z, q, needs_gradient)
        if gradient is not None:
            gradient = torch.from_numpy(gradient.reshape(shape))
        return torch.from_numpy(gain.reshape(batch_shape) - geometry.trace), gradient
    _check_finite(X, X.sum())
    # Inference mode saves a fifth of the time on small problems.
    with torch.inference_mode():
        gain, gradient = evaluate(geometry, X.reshape(-1, d), q, needs_gradient)
        if gradient is not None:
            gradient = gradient.view(shape)
    return gain.view(batch_shape) - geometry.trace, gradient


class MinusTrace(torch.autograd.Function):
    """Minus the trace after the candidates X, ``batch_shape x q x d``."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, geometry: Geometry) -> Tensor:
        # The gradient is computed now, while its parts are at hand.
        value, gradient = minus_trace(X.detach(), geometry, ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.gradient = gradient
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        # Gradients are recorded only if second derivatives are wanted: refuse them.
        multiply = _multiply_once if torch.is_grad_enabled() else _multiply
        return multiply(ctx, grad_output)


def _multiply(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
    return ctx.gradient * grad_output[..., None, None], None


_multiply_once = once_differentiable(_multiply)


def _check_finite(X: Tensor, total: Array) -> None:
    # The sum is not finite if an entry is not, or if it overflows: look again.
    if not math.isfinite(total):
        check_tensor("X", X, finite=True)


def evaluate(
    geometry: Geometry, Z: Array, q: int, needs_gradient: bool
) -> tuple[Array, Array | None]:
    """Return by how much candidates lower the trace, and its gradient in them.

    Args:
        geometry: What does not depend on the candidates.
        Z: The candidates, ``b q x d``.
        q: The number of candidates in a set.
        needs_gradient: Whether to compute the gradient.

    Returns:
        b numbers, and a ``b q x d`` gradient or None.
    """
    k = geometry.known.covariances(Z, q)
    solved = geometry.ops.solve(geometry.root, k.with_known)
    condition = _one_candidate if q == 1 else _several_candidates
    return condition(geometry, k, solved, needs_gradient)


def _one_candidate(
    geometry: Geometry, k: Covariances, solved: Array, needs_gradient: bool
) -> tuple[Array, Array | None]:
    """Evaluate for q = 1, where S and M are numbers."""
    ops = geometry.ops
    explained, lowered = (geometry.rows @ (solved * solved).mT)[..., None]  # b x 1
    # The points explain at most k(z, z), also after rounding.
    S = ops.clamp_(k.among_candidates.reshape(-1, 1) - explained)
    S += geometry.noise
    gain = lowered / S
    if not needs_gradient:
        return gain, None
    # All of this is multiplied by S until the end.
    weights = ops.addcmul(geometry.at_derivatives, gain, geometry.at_points)
    weights *= solved  # [R M, G]
    gradient = _pull_back(geometry, k, weights, gain[..., None])
    gradient /= S
    return gain, gradient


def _several_candidates(
    geometry: Geometry, k: Covariances, solved: Array, needs_gradient: bool
) -> tuple[Array, Array | None]:
    """Evaluate for any q."""
    ops, among, n = geometry.ops, k.among_candidates, geometry.num_points
    sets = solved.reshape(*among.shape[:2], -1)
    R, C = sets[..., :n], sets[..., n:]
    S = ops.minus_bmm(among, R, R.mT)
    ops.add_to_diagonal_(S, geometry.noise)
    unweighted = ops.solve_positive(S, C)
    G = unweighted * geometry.weights  # b x q x p d
    gain = (C * G).sum(axis=(-2, -1))
    if not needs_gradient:
        return gain, None
    M = G @ unweighted.mT
    weights = ops.concatenate([M @ R, G], axis=-1).reshape(solved.shape)
    return gain, _pull_back(geometry, k, weights, M)


def _pull_back(geometry: Geometry, k: Covariances, weights: Array, M: Array) -> Array:
    # One solution subtracts U^T G and then applies L^-T.
    weights = geometry.ops.solve(geometry.root, weights, transposed=True)
    gradient = k.pull_back(weights, M)
    gradient *= geometry.twice_scale
    return gradient
