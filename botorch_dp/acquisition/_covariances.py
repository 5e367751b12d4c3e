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

from botorch_dp.models.kernels.closed_forms import rbf_profile
from botorch_dp.models.kernels.derivatives import (
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
)
from botorch_dp.models.kernels.radial import RadialKernel


class Covariances(Protocol):
    """The covariances of b sets of q candidates.

    Attributes:
        with_known: The covariance of the values at Z with the n values at D and the p
            gradients, ``b q x (n + p d)``.
        among_candidates: k(Z, Z), ``b x q x q``. For q = 1 it may be ``1 x 1 x 1``.
    """

    with_known: Tensor
    among_candidates: Tensor

    def pull_back(self, weights: Tensor, M: Tensor) -> Tensor:
        """Return half of a gradient in Z, ``b q x d``.

        Args:
            weights: Half of the derivative in ``with_known``, ``b q x (n + p d)``.
            M: Minus the derivative in ``among_candidates``, ``b x q x q``.
        """
        ...


class KnownPoints(Protocol):
    """Points D and centres, of which the candidates' covariances are wanted."""

    def covariances(self, Z: Tensor, q: int) -> Covariances:
        """Return the covariances of candidates.

        Args:
            Z: The candidates, ``b q x d``.
            q: The number of candidates in a set.
        """
        ...


@dataclass(frozen=True)
class PlainPoints:
    """Points and centres, for any kernel.

    Attributes:
        kernel: The kernel.
        inputs: The points D, ``n x d``.
        centers: The points whose gradients count, ``p x d``.
    """

    kernel: Kernel
    inputs: Tensor
    centers: Tensor

    def covariances(self, Z: Tensor, q: int) -> Covariances:
        return _KernelCovariances(self, Z.unflatten(0, (-1, q)))


class _KernelCovariances:
    """Covariances of any kernel, in O(N q d) memory."""

    def __init__(self, known: PlainPoints, Z: Tensor) -> None:
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
        return gradient.flatten(0, 1)


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
        repeated = self.centers.repeat_interleave(d, dim=0)
        every = torch.cat([points, repeated])
        self.columns = every.mT.contiguous()
        self.halves = every.square().sum(dim=-1).mul_(-0.5)
        identity = torch.eye(d, dtype=every.dtype, device=every.device)
        self.pull = torch.cat([points, identity.repeat(p, 1)])
        self.turn = torch.cat([torch.zeros_like(points), repeated])
        self.ones = every.new_ones(max(self.size, d), 1)
        self.variance = every.new_ones(1, 1, 1)

    def covariances(self, Z: Tensor, q: int) -> Covariances:
        return _RadialCovariances(self, Z, q)


class _RadialCovariances:
    r"""Covariances of a radial kernel, in O(N q) memory: sums are matrix products.

    In whitened coordinates the gradient of k(z, x) in z is - rho (z - x), so that a
    weighted sum over many x is sum a x - (sum a) z with a = weight * rho. That of
    rho (z - x) e is rho e - tau (z - x) (z - x) e for a direction e.
    """

    def __init__(self, known: WhitenedPoints, Z: Tensor, q: int) -> None:
        n = known.num_points
        self._known, self._q = known, q
        self._z = z = torch.addcmul(known.shift, Z, known.inverse)
        rows, d = z.shape
        norms = torch.mm(z * z, known.ones[:d])
        halves = torch.addmm(known.halves, z, known.columns)  # b q x (n + p d)
        self.among_candidates = known.variance
        if q > 1:
            sets = z.view(-1, q, d)
            among = torch.baddbmm(norms.view(-1, 1, q), sets, sets.mT, beta=-0.5)
            halves = torch.cat([halves, among.view(-1, q)], dim=-1)
        halves.sub_(norms, alpha=0.5)  # minus half of the squared distances
        if known.profile is rbf_profile:
            phi = rho = tau = halves.exp_()
        else:
            phi, rho, tau = known.profile(halves.mul_(-2.0).clamp_(min=0.0))[:3]
        if q > 1:
            size = known.size
            self.among_candidates = phi[:, size:].view(-1, q, q)
            self._rho_among = rho[:, size:].view(-1, q, q)
            phi, rho, tau = (part[:, :size] for part in (phi, rho, tau))
        delta = z
        if known.num_centers > 1:
            delta = (z.unsqueeze(-2) - known.centers).flatten(1)
        self._rho = rho
        self.with_known = torch.cat([phi[:, :n], rho[:, n:] * delta], dim=-1)
        self._slopes = self.with_known
        if known.profile is not rbf_profile:
            self._slopes = torch.cat([rho[:, :n], tau[:, n:] * delta], dim=-1)

    def pull_back(self, weights: Tensor, M: Tensor) -> Tensor:
        known, z = self._known, self._z
        gradient = torch.mm(self._rho * weights, known.pull)
        turns = self._slopes * weights
        total = torch.mm(turns, known.ones)
        if known.num_centers > 1:
            gradient.addmm_(turns, known.turn)
        if self._q > 1:
            among = self._rho_among * M
            total -= among.sum(dim=-1).view(-1, 1)
            sets = z.view(-1, self._q, z.shape[-1])
            gradient.view(sets.shape).baddbmm_(among, sets, alpha=-1)
        return gradient.addcmul_(total, z, value=-1)
