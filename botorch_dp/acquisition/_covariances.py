r"""Prior covariances of candidates Z with points D and gradients, and derivatives.

Every covariance of an acquisition function that conditions on candidates is linear in
k(Z, D), the covariance of the values at Z with the gradients at p centres, and k(Z, Z).
Candidates are in rows.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp.models.kernels.derivatives import (
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
)
from botorch_dp.models.kernels.radial import RadialKernel


class Covariances(Protocol):
    """The covariances of candidates, ``b x q x d``.

    Attributes:
        with_known: The covariance of the values at Z with the n values at D and the p
            gradients, ``b q x (n + p d)``.
        among_candidates: k(Z, Z), ``b x q x q``.
    """

    with_known: Tensor
    among_candidates: Tensor

    def pull_back(self, weights: Tensor, M: Tensor) -> Tensor:
        """Return half of a gradient in Z, ``b x q x d``.

        Args:
            weights: Half of the derivative in ``with_known``, ``b q x (n + p d)``.
            M: Minus the derivative in ``among_candidates``, ``b x q x q``.
        """
        ...


@dataclass(frozen=True)
class KnownPoints:
    """Points and centres, for any kernel.

    Attributes:
        kernel: The kernel.
        inputs: The points D, ``n x d``.
        centers: The points whose gradients count, ``p x d``.
    """

    kernel: Kernel
    inputs: Tensor
    centers: Tensor

    def __call__(self, Z: Tensor) -> Covariances:
        return _KernelCovariances(self, Z)


class _KernelCovariances:
    """Covariances of any kernel, in O(N q d) memory."""

    def __init__(self, known: KnownPoints, Z: Tensor) -> None:
        self._known, self._Z = known, Z
        with_inputs = kernel_value(known.kernel, Z, known.inputs)  # b x q x n
        gradient = kernel_gradient(known.kernel, known.centers, Z)  # b x p x q x d
        gradient = gradient.transpose(-2, -3).flatten(-2)
        self.with_known = torch.cat([with_inputs, gradient], dim=-1).flatten(0, 1)
        self.among_candidates = kernel_value(known.kernel, Z, Z)

    def pull_back(self, weights: Tensor, M: Tensor) -> Tensor:
        kernel, inputs, Z = self._known.kernel, self._known.inputs, self._Z
        T, G = weights.unflatten(0, Z.shape[:2]).tensor_split([len(inputs)], dim=-1)
        hessian = kernel_cross_hessian(kernel, self._known.centers, Z)
        G = G.unflatten(-1, (-1, Z.shape[-1])).transpose(-2, -3)  # b x p x q x d
        gradient = (G.unsqueeze(-2) @ hessian).squeeze(-2).sum(dim=-3)
        for part, points, sign in ((T, inputs, 1), (M, Z, -1)):
            slopes = kernel_gradient(kernel, Z, points)  # b x q x m x d
            gradient += sign * (part.unsqueeze(-2) @ slopes).squeeze(-2)
        return gradient


class WhitenedPoints:
    """Points and centres for a radial kernel, in units of its scales.

    Covariances are in units of the output scale and gradients in units of the length
    scales, so that profiles need no scaling.

    Args:
        radial: The kernel.
        inputs: The points D, ``n x d``.
        centers: The points whose gradients count, ``p x d``.
    """

    def __init__(self, radial: RadialKernel, inputs: Tensor, centers: Tensor) -> None:
        (n, d), p = inputs.shape, len(centers)
        self.num_points, self.num_centers, self.size = n, p, n + p * d
        self.profile, self.inverse = radial.unit_profile, radial.inverse_lengthscale
        # Candidates lie near the first centre. With that point as the origin, squared
        # distances as |z|^2 + |x|^2 - 2 z x lose no digits.
        self.shift = -centers[0] * self.inverse
        points, self.centers = (
            torch.addcmul(self.shift, X, self.inverse) for X in (inputs, centers)
        )
        # A centre counts d times, once for each derivative.
        every = torch.cat([points, self.centers.repeat_interleave(d, dim=0)])
        self.columns = (-2 * every).mT.contiguous()
        self.norms = every.square().sum(dim=-1)
        # The last column adds up the weights of the points.
        identity = torch.eye(d, d + 1, dtype=every.dtype, device=every.device)
        ones = points.new_ones(n, 1)
        self.pull = torch.cat([torch.cat([points, ones], -1), identity.repeat(p, 1)])
        self.variance = every.new_ones(1, 1, 1)

    def __call__(self, Z: Tensor) -> Covariances:
        return _RadialCovariances(self, Z)


class _RadialCovariances:
    r"""Covariances of a radial kernel, in O(N q) memory: sums are matrix products.

    In whitened coordinates the gradient of k(z, x) in z is - rho (z - x), so that a
    weighted sum over many x is sum a x - (sum a) z with a = weight * rho.
    """

    def __init__(self, known: WhitenedPoints, Z: Tensor) -> None:
        (b, q, d), n, size = Z.shape, known.num_points, known.size
        self._known = known
        self._z = z = torch.addcmul(known.shift, Z, known.inverse)
        self._rows = rows = z.view(-1, d)
        norms = (rows * rows).sum(dim=-1, keepdim=True)
        squares = torch.addmm(known.norms, rows, known.columns)
        if q > 1:
            among = torch.baddbmm(norms.view(b, 1, q), z, z.mT, alpha=-2)
            squares = torch.cat([squares, among.view(-1, q)], dim=-1)
        squares = squares.add_(norms).clamp_(min=0.0)
        phi, self._rho, self._tau = known.profile(squares)[:3]  # b q x (n + p d + q)
        self.among_candidates = known.variance
        if q > 1:
            self.among_candidates = phi[:, size:].view(b, q, q)
            self._rho_among = self._rho[:, size:].view(b, q, q)
            self._rho, self._tau = self._rho[:, :size], self._tau[:, :size]
        self._delta = rows
        if known.num_centers > 1:
            self._delta = (rows.unsqueeze(-2) - known.centers).flatten(1)
        with_gradient = self._rho[:, n:] * self._delta
        self.with_known = torch.cat([phi[:, :n], with_gradient], dim=-1)

    def pull_back(self, weights: Tensor, M: Tensor) -> Tensor:
        known, rows, z = self._known, self._rows, self._z
        n, d = known.num_points, rows.shape[-1]
        pulled = torch.mm(self._rho * weights, known.pull)
        turns = (self._tau[:, n:] * weights[:, n:]).mul_(self._delta)
        total = turns.sum(dim=-1, keepdim=True).add_(pulled[:, d:])
        gradient = pulled[:, :d]
        if known.num_centers > 1:
            turns = turns.unflatten(-1, (-1, d)).sum(dim=-1)
            gradient = torch.addmm(gradient, turns, known.centers)
        if z.shape[1] == 1:
            return torch.addcmul(gradient, total, rows, value=-1).view_as(z)
        among = self._rho_among * M
        total = total.view(*z.shape[:2], 1) - among.sum(dim=-1, keepdim=True)
        gradient = torch.addcmul(gradient.view_as(z), total, z, value=-1)
        return torch.baddbmm(gradient, among, z, alpha=-1)
