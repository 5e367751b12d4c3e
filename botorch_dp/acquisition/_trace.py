r"""The trace of a gradient's covariance after q observations, with its gradient in Z.

With K = L L^T and U = \nabla k(x, D) L^-T, solving [[L, 0], [U, I]] [R; C] =
[k(D, Z); \nabla k(x, Z)] gives R with S = k(Z, Z) + s^2 I - R^T R, and C. With
G = C S^-1 and M = G^T G,

    d tr(C S^-1 C^T) = <2 G, d \nabla k(x, Z)> + <2 T, d k(D, Z)> - <M, d k(Z, Z)>,

where T = L^-T (R M - U^T G) comes from the transposed system. Below, candidates are in
rows: everything is transposed.

Both systems are solved, never multiplied by an inverse. A product with L^-1 takes longer
than a solution, and one with K^-1 loses the digits of S, which is a small difference of
large numbers when the points are close together.
"""

from typing import Any

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_dp.acquisition._covariances import Covariances, KnownPoints


class Geometry:
    """What does not depend on the candidates.

    Args:
        known: The points D and the centres.
        root: The joint root [[L, 0], [U, I]], with n + p d rows.
        noise: The variance s^2 of an observation, a scalar.
        weights: The weights of the p d derivatives in the trace.
        trace: The trace before any candidate is observed.
        scale: The factors from the gradient in units of ``known`` to that in Z, ``d``.
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
        self.known, self.root, self.noise = known, root, noise
        self.weights, self.trace, self.twice_scale = weights, trace, 2 * scale
        self.num_points = n = len(root) - len(weights)
        # Rows that separate the points from the derivatives.
        self.rows = root.new_zeros(2, len(root))
        self.rows[0, :n] = 1.0
        self.rows[1, n:] = weights
        self.at_points, self.at_derivatives = self.rows


class MinusTrace(torch.autograd.Function):
    """Minus the trace after the candidates X, ``batch_shape x q x d``."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, geometry: Geometry) -> Tensor:
        # The gradient is computed now, while its parts are at hand. Inference mode
        # saves a fifth of the time on small problems.
        *batch_shape, q, d = ctx.shape = X.shape
        with torch.inference_mode():
            gain, ctx.gradient = evaluate(
                geometry, X.reshape(-1, d), q, ctx.needs_input_grad[0]
            )
        return gain.view(batch_shape) - geometry.trace

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        # Grad mode is on only if second derivatives are wanted: there are none.
        differentiate = _refuse_twice if torch.is_grad_enabled() else _scale
        return differentiate(ctx, grad_output), None


def _scale(ctx: Any, grad_output: Tensor) -> Tensor:
    return ctx.gradient.view(ctx.shape) * grad_output[..., None, None]


_refuse_twice = once_differentiable(_scale)


def evaluate(
    geometry: Geometry, Z: Tensor, q: int, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return by how much candidates lower the trace, and the gradient of that.

    Args:
        geometry: What does not depend on the candidates.
        Z: The candidates, ``b q x d``.
        q: The number of candidates in a set.
        needs_gradient: Whether to compute the gradient.

    Returns:
        A tensor with b entries, and a ``b q x d`` tensor or None.
    """
    k = geometry.known.covariances(Z, q)
    solved = torch.linalg.solve_triangular(geometry.root, k.with_known.mT, upper=False)
    condition = _one_candidate if q == 1 else _several_candidates
    return condition(geometry, k, solved.mT, needs_gradient)


def _one_candidate(
    geometry: Geometry, k: Covariances, solved: Tensor, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Evaluate for q = 1, where S and M are numbers."""
    sums = torch.mm(geometry.rows, (solved * solved).mT)  # 2 x b
    explained, lowered = sums.unsqueeze(-1)
    # What the points explain is at most k(z, z), also after rounding.
    S = torch.sub(k.among_candidates.view(-1, 1), explained)  # b x 1
    S = S.clamp_(min=0.0).add_(geometry.noise)
    gain = lowered / S
    if not needs_gradient:
        return gain, None
    # Everything below is multiplied by S until the last line.
    weights = torch.addcmul(geometry.at_derivatives, gain, geometry.at_points)
    weights = weights.mul_(solved)  # [R M, G]
    return gain, _pull_back(geometry, k, weights, gain.unsqueeze(-1)).div_(S)


def _several_candidates(
    geometry: Geometry, k: Covariances, solved: Tensor, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Evaluate for any q."""
    among, n = k.among_candidates, geometry.num_points
    sets = solved.view(*among.shape[:2], -1)
    R, C = sets[..., :n], sets[..., n:]
    S = torch.baddbmm(among, R, R.mT, alpha=-1)
    S.diagonal(dim1=-2, dim2=-1).add_(geometry.noise)
    half, info = torch.linalg.cholesky_ex(S)
    if info.any():  # candidates coincide: only then pay for adding jitter
        half = psd_safe_cholesky(S)
    unweighted = torch.cholesky_solve(C, half)
    G = unweighted * geometry.weights  # b x q x p d
    gain = (C * G).sum(dim=(-2, -1))
    if not needs_gradient:
        return gain, None
    M = torch.bmm(G, unweighted.mT)
    weights = torch.cat([torch.bmm(M, R), G], dim=-1).view_as(solved)
    return gain, _pull_back(geometry, k, weights, M)


def _pull_back(
    geometry: Geometry, k: Covariances, weights: Tensor, M: Tensor
) -> Tensor:
    # One solution subtracts U^T G and then applies L^-T.
    weights = torch.linalg.solve_triangular(geometry.root.mT, weights.mT, upper=True)
    return k.pull_back(weights.mT, M).mul_(geometry.twice_scale)
