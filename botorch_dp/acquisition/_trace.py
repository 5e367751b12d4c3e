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

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_dp.acquisition._covariances import Covariances


@dataclass(frozen=True)
class Geometry:
    """What does not depend on the candidates.

    Attributes:
        covariances: Takes candidates, ``b x q x d``, and returns their covariances.
        root: The joint root [[L, 0], [U, I]], with n + p d rows.
        noise: The variance s^2 of an observation, a scalar.
        weights: The weights of the p d derivatives in the trace.
        trace: The trace before any candidate is observed.
        twice_scale: The factors from half of the gradient to the gradient, ``d``.
    """

    covariances: Callable[[Tensor], Covariances]
    root: Tensor
    noise: Tensor
    weights: Tensor
    trace: Tensor
    twice_scale: Tensor
    rows: tuple[Tensor, Tensor] = field(init=False)
    columns: Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Add what separates the n points from the p d derivatives in a row."""
        n = len(self.root) - len(self.weights)
        rows = self.root.new_zeros(2, len(self.root))
        rows[0, :n] = 1.0
        rows[1, n:] = self.weights
        object.__setattr__(self, "rows", rows.unbind())
        object.__setattr__(self, "columns", rows.mT.contiguous())


class MinusTrace(torch.autograd.Function):
    """Minus the trace after the candidates X, ``batch_shape x q x d``."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, geometry: Geometry) -> Tensor:
        # The gradient is computed now, while its parts are at hand. Inference mode
        # saves a fifth of the time on small problems.
        shape = X.shape
        with torch.inference_mode():
            Z = X.reshape(-1, *shape[-2:])  # b x q x d
            gain, gradient = evaluate(geometry, Z, ctx.needs_input_grad[0])
            gain = gain.view(shape[:-2])
            if gradient is not None:
                ctx.gradient = gradient.view(shape)
        return gain - geometry.trace

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient * grad_output[..., None, None], None


def evaluate(
    geometry: Geometry, Z: Tensor, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return by how much Z lowers the trace, ``b``, and the gradient, ``b x q x d``."""
    k, root = geometry.covariances(Z), geometry.root
    solved = torch.linalg.solve_triangular(root, k.with_known.mT, upper=False).mT
    condition = _one_candidate if Z.shape[1] == 1 else _several_candidates
    gain, M, weights = condition(geometry, k.among_candidates, solved, needs_gradient)
    if not needs_gradient:
        return gain, None
    # One solution subtracts U^T G and then applies L^-T.
    weights = torch.linalg.solve_triangular(root.mT, weights.mT, upper=True).mT
    return gain, k.pull_back(weights, M).mul_(geometry.twice_scale)


def _one_candidate(
    geometry: Geometry, among: Tensor, solved: Tensor, needs_gradient: bool
) -> tuple[Tensor, ...]:
    """Return tr, M and [R M, G] for q = 1, where S is a number."""
    at_points, at_gradients = geometry.rows
    explained, lowered = torch.mm(solved * solved, geometry.columns).split(1, dim=1)  # b x 1
    # What the points explain is at most k(z, z), also after rounding.
    left = torch.sub(among.view(-1, 1), explained).clamp_(min=0.0)
    precision = left.add_(geometry.noise).reciprocal_()
    gain = lowered * precision
    if not needs_gradient:
        return gain, gain, solved
    M = gain * precision
    weights = torch.addcmul(at_gradients * precision, M, at_points).mul_(solved)
    return gain, M.view(-1, 1, 1), weights


def _several_candidates(
    geometry: Geometry, among: Tensor, solved: Tensor, needs_gradient: bool
) -> tuple[Tensor, ...]:
    """Return tr, M and [R M, G] for any q."""
    b, q, _ = among.shape
    size = len(geometry.weights)
    solved = solved.view(b, q, -1)
    n = solved.shape[-1] - size
    R, C = solved[..., :n], solved[..., n:]
    S = torch.baddbmm(among, R, R.mT, alpha=-1)
    S.diagonal(dim1=-2, dim2=-1).add_(geometry.noise)
    half, info = torch.linalg.cholesky_ex(S)
    if info.any():  # candidates coincide: only then pay for adding jitter
        half = psd_safe_cholesky(S)
    unweighted = torch.cholesky_solve(C, half)
    G = unweighted * geometry.weights  # b x q x p d
    gain = (C * G).sum(dim=(-2, -1))
    if not needs_gradient:
        return gain, S, solved
    M = torch.bmm(G, unweighted.mT)
    return gain, M, torch.cat([torch.bmm(M, R), G], dim=-1).view(b * q, -1)
