r"""Prior covariances of candidates Z with points D and gradients, and derivatives.

What an acquisition function needs in order to condition on candidates: k(Z, D), the
covariance of the values at Z with the gradients at p centres, and k(Z, Z). Candidates
are in rows.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp.acquisition._arrays import Array, Tensors
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
        among_candidates: k(Z, Z), ``b x q x q``. It may be ``1 x 1 x 1`` if q = 1.
    """

    with_known: Array
    among_candidates: Array

    def pull_back(self, weights: Array, M: Array) -> Array:
        """Return half of a gradient in Z, ``b q x d``.

        Args:
            weights: Half of the derivative in ``with_known``, ``b q x (n + p d)``.
            M: Minus the derivative in ``among_candidates``, ``b x q x q``.
        """
        ...


class KnownPoints(Protocol):
    """Points D and centres."""

    def covariances(self, Z: Array, q: int) -> Covariances:
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
        gradient = kernel_gradient(
            known.kernel, known.centers, Z, categories=True
        )  # b x p x q x d
        gradient = gradient.transpose(-2, -3).flatten(-2)
        self.with_known = torch.cat([with_inputs, gradient], dim=-1).flatten(0, 1)
        self.among_candidates = kernel_value(known.kernel, Z, Z)

    def pull_back(self, weights: Tensor, M: Tensor) -> Tensor:
        kernel, inputs, Z = self._known.kernel, self._known.inputs, self._Z
        T, G = weights.unflatten(0, Z.shape[:2]).tensor_split([len(inputs)], dim=-1)
        hessian = kernel_cross_hessian(kernel, self._known.centers, Z, categories=True)
        G = G.unflatten(-1, (-1, Z.shape[-1])).transpose(-2, -3)  # b x p x q x d
        gradient = (G.unsqueeze(-2) @ hessian).squeeze(-2).sum(dim=-3)
        dk_inputs = kernel_gradient(kernel, Z, inputs, categories=True)  # b x q x n x d
        gradient += (T.unsqueeze(-2) @ dk_inputs).squeeze(-2)
        dk_candidates = kernel_gradient(kernel, Z, Z, categories=True)
        gradient -= (M.unsqueeze(-2) @ dk_candidates).squeeze(-2)
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
        self.ops: Any = Tensors
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
        fixed = torch.cat([points, repeated])
        self.factors = fixed.mT.contiguous()
        self.minus_half_norms = fixed.square().sum(dim=-1).mul_(-0.5)
        identity = torch.eye(d, dtype=fixed.dtype, device=fixed.device)
        self.straight = torch.cat([points, identity.repeat(p, 1)])
        self.turned = torch.cat([torch.zeros_like(points), repeated])
        self.halves = fixed.new_full((d, 1), 0.5)
        self.minus_ones = fixed.new_full((self.size, 1), -1.0)
        self.variance = fixed.new_ones(1, 1, 1)

    def covariances(self, Z: Array, q: int) -> Covariances:
        return _RadialCovariances(self, Z, q)


class _RadialCovariances:
    r"""Covariances of a radial kernel, in O(N q) memory: sums are matrix products.

    In whitened coordinates the gradient of k(z, x) in z is - rho (z - x), so that a
    weighted sum over many x is sum a x - (sum a) z with a = weight * rho. The gradient
    of rho (z - x)_i is rho e_i - tau (z - x)_i (z - x).
    """

    def __init__(self, known: WhitenedPoints, Z: Array, q: int) -> None:
        n, size, ops = known.num_points, known.size, known.ops
        self._known, self._q = known, q
        self._z = z = ops.addcmul(known.shift, Z, known.inverse)
        half_norms = (z * z) @ known.halves
        # Minus half of the squared distances, b q x (n + p d) and b q x q.
        logs = ops.addmm(known.minus_half_norms, z, known.factors)
        if q > 1:
            self._sets = sets = z.reshape(-1, q, z.shape[-1])
            row = half_norms.reshape(-1, 1, q)
            among = ops.bmm_minus(sets, sets.mT, row)
            logs = ops.concatenate([logs, among.reshape(-1, q)], axis=-1)
        logs -= half_norms
        is_rbf = known.profile is rbf_profile
        if is_rbf:
            phi = rho = tau = ops.exp_(logs)
        else:
            phi, rho, tau = ops.profile(known.profile, ops.clamp_(-2.0 * logs))
        self.among_candidates = known.variance
        if q > 1:
            self.among_candidates = phi[:, size:].reshape(-1, q, q)
            self._rho_among = rho[:, size:].reshape(-1, q, q)
        delta = z
        if known.num_centers > 1:
            delta = (z[:, None] - known.centers).reshape(len(z), -1)
        self._rho = rho[:, :size]
        at_centers = rho[:, n:size] * delta
        self.with_known = ops.concatenate([phi[:, :n], at_centers], axis=-1)
        self._slopes = self.with_known
        if not is_rbf:
            at_centers = tau[:, n:size] * delta
            self._slopes = ops.concatenate([rho[:, :n], at_centers], axis=-1)

    def pull_back(self, weights: Array, M: Array) -> Array:
        known, z, ops = self._known, self._z, self._known.ops
        gradient = ops.mm(self._rho * weights, known.straight)
        turns = self._slopes * weights
        minus_total = turns @ known.minus_ones
        if known.num_centers > 1:  # the first centre is the origin
            gradient += ops.mm(turns, known.turned)
        if self._q > 1:
            among = self._rho_among * M
            minus_total += among.sum(axis=-1).reshape(-1, 1)
            sets = gradient.reshape(self._sets.shape)
            gradient = ops.minus_bmm(sets, among, self._sets).reshape(z.shape)
        return ops.addcmul(gradient, minus_total, z)
