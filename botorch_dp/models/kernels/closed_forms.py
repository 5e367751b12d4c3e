r"""Derivatives of GPyTorch's kernels in closed form, exact at coincident points.

**Radial kernels** are :math:`k = \phi(q)` with :math:`q = \|z\|^2` and
:math:`z = (x_1 - x_2) / \ell`. With :math:`\rho = -2 \phi'` and
:math:`\tau = 4 \phi''`,

.. math::
    \nabla_1 k = -\rho \, z / \ell, \qquad
    \nabla_1 \nabla_2^\top k = \rho \, \mathrm{diag}(\ell)^{-2}
        - \tau \, (z / \ell)(z / \ell)^\top.

====================  ==================================  ==============================
kernel                :math:`\phi`                        :math:`\rho`
====================  ==================================  ==============================
RBF                   :math:`e^{-q/2}`                    :math:`e^{-q/2}`
Matern-5/2            :math:`(1 + s + s^2/3) e^{-s}`      :math:`5/3 (1 + s) e^{-s}`
(s = sqrt(5 q))
rational quadratic    :math:`(1 + q/2\alpha)^{-\alpha}`   :math:`\phi / (1 + q/2\alpha)`
cosine                :math:`\cos(\pi \sqrt q)`           :math:`\pi^2 \sin(s) / s`
(s = pi sqrt(q))
====================  ==================================  ==============================
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
)
from torch import Tensor

from botorch_dp.models.kernels.jets import Jet, Pairs, outer

Profile = Callable[[Tensor], Jet]  # q -> phi, rho, tau
ClosedForm = Callable[[Kernel, Pairs, int], Jet]


def closed_form(kernel: Kernel) -> ClosedForm | None:
    """Return the kernel's closed form, or None if it has none.

    A subclass that does not override the formula has the closed form of its parent.
    """
    cls = type(kernel)
    if cls.covar_dist is not Kernel.covar_dist:
        return None
    return _CLOSED_FORMS.get(cls.forward)


def _radial_jet(pairs: Pairs, order: int, lengthscale: Tensor, profile: Profile) -> Jet:
    inverse = lengthscale.to(pairs.X1.dtype).reciprocal()
    if order == 0:
        return profile(_squared_distances(pairs.X1 * inverse, pairs.X2 * inverse))[:1]
    weights = pairs.vectors(inverse)
    z = (pairs.left - pairs.right) * weights
    phi, rho, tau = profile(z.square().sum(dim=-1))
    z = z * weights
    first = -rho[..., None] * z
    if order == 1:
        return phi, first
    diagonal = rho[..., None] * weights.square()
    cross = _outer_plus_diagonal(-tau[..., None] * z, z, diagonal)
    return phi, first, -first, cross


def _squared_distances(X1: Tensor, X2: Tensor) -> Tensor:
    """Return squared distances in O(n m) memory, with exact derivatives.

    Rounding can make a distance negative. A constant lifts it to zero, because a clamp
    would lose the derivative there, and with it that of the kernel.
    """
    center = X2.detach().reshape(-1, X2.shape[-1]).mean(dim=0)
    X1, X2 = X1 - center, X2 - center
    norms1 = X1.square().sum(dim=-1, keepdim=True)  # ... x n x 1
    norms2 = X2.square().sum(dim=-1).unsqueeze(-2)  # ... x 1 x m
    q = norms1 + norms2 - 2 * X1 @ X2.transpose(-2, -1)
    return q + (q.clamp(min=0) - q).detach()


class _DistanceProfile(torch.autograd.Function):
    r"""A profile whose formula uses :math:`\sqrt q`, differentiable at q = 0.

    Autograd through the root gives nan there, or zero if it is guarded. Instead,
    :math:`\phi' = -\rho/2` and :math:`\rho' = -\tau/2` come from the formula, which
    returns phi, rho, tau and tau' and must be finite at 0.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, formula: Profile) -> Jet:
        return formula(q)[:3]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Jet) -> None:
        q, ctx.formula = inputs
        ctx.save_for_backward(q, *output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        q, rho, tau = ctx.saved_tensors
        grad_phi, grad_rho, grad_tau = grads
        tau_slope = ctx.formula(q)[3]
        return grad_tau * tau_slope - (grad_phi * rho + grad_rho * tau) / 2, None


def _root(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the root of q, 1 where q = 0, and whether q > 0."""
    positive = q > 0
    return torch.where(positive, q, torch.ones_like(q)).sqrt(), positive


def _matern_three_halves(q: Tensor) -> Jet:
    root, positive = _root(3 * q)
    s = root * positive
    decay = torch.exp(-s)
    # tau has a pole at 0, where the z z^T it multiplies vanishes faster.
    tau = 9 * decay / root * positive
    tau_slope = -13.5 * decay * (1 + s) / root**3 * positive
    return (1 + s) * decay, 3 * decay, tau, tau_slope


def matern_five_halves_profile(q: Tensor) -> Jet:
    """Return phi, rho and tau of the Matern-5/2 kernel, without autograd."""
    s = (5 * q).sqrt()
    tau = 25 / 3 * torch.exp(-s)
    rho = (s + 1) * tau / 5
    return rho * 0.6 + q * tau / 5, rho, tau


def _matern_five_halves(q: Tensor) -> Jet:
    root, positive = _root(5 * q)
    tau_slope = -125 / 6 * torch.exp(-root) / root * positive
    return *matern_five_halves_profile(q), tau_slope


def _cosine(q: Tensor) -> Jet:
    root, positive = _root(math.pi**2 * q)
    s = root * positive
    u = s.square()
    sin, cos = torch.sin(s), torch.cos(s)
    # Where s is small the quotients cancel and their Taylor series are exact.
    small = s < 0.1
    r = torch.where(small, torch.ones_like(s), s)
    tau = torch.where(
        small,
        1 / 3 - u / 30 + u**2 / 840 - u**3 / 45360,
        (sin - r * cos) / r**3,
    )
    tau_slope = torch.where(
        small,
        -1 / 15 + u / 210 - u**2 / 7560,
        (r**2 * sin - 3 * sin + 3 * r * cos) / r**5,
    )
    rho = math.pi**2 * torch.where(small, 1 - u / 6 + u**2 / 120 - u**3 / 5040, sin / r)
    return cos, rho, math.pi**4 * tau, math.pi**6 / 2 * tau_slope


def rbf_profile(q: Tensor) -> Jet:
    """Return phi, rho and tau of the RBF kernel."""
    phi = torch.exp(-0.5 * q)
    return phi, phi, phi


def rq_profile(q: Tensor, alpha: Tensor) -> Jet:
    """Return phi, rho and tau of the rational quadratic kernel."""
    base = 1 + q / (2 * alpha)
    phi = base.pow(-alpha)
    rho = phi / base
    return phi, rho, (1 + 1 / alpha) * rho / base


def _rbf_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    return _radial_jet(pairs, order, kernel.lengthscale, rbf_profile)


_MATERN_FORMULAS: dict[float, Profile] = {
    1.5: _matern_three_halves,
    2.5: _matern_five_halves,
}


def _matern_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    def profile(q: Tensor) -> Jet:
        if kernel.nu == 0.5:  # it has a value, but no derivatives
            root, positive = _root(q)
            return (torch.exp(-root * positive),)
        return _DistanceProfile.apply(q, _MATERN_FORMULAS[kernel.nu])

    return _radial_jet(pairs, order, kernel.lengthscale, profile)


def _rq_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    alpha = pairs.scalars(kernel.alpha)
    profile = functools.partial(rq_profile, alpha=alpha)
    return _radial_jet(pairs, order, kernel.lengthscale, profile)


def _cosine_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    def profile(q: Tensor) -> Jet:
        return _DistanceProfile.apply(q, _cosine)

    return _radial_jet(pairs, order, kernel.period_length, profile)


def _periodic_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    r"""Return the jet of :math:`\exp(-2 \sum_a \sin^2(\pi \delta_a / p_a) / \ell_a)`.

    GPyTorch divides by the length scale, not by its square.
    """
    frequency = math.pi / pairs.vectors(kernel.period_length)
    inverse = 1 / pairs.vectors(kernel.lengthscale)
    angle = (pairs.left - pairs.right) * frequency
    value = torch.exp(-2 * (angle.sin().square() * inverse).sum(dim=-1))
    if order == 0:
        return (value,)
    slope = -2 * torch.sin(2 * angle) * frequency * inverse
    first = value[..., None] * slope
    if order == 1:
        return value, first
    curvature = -4 * torch.cos(2 * angle) * frequency.square() * inverse
    cross = _outer_plus_diagonal(-first, slope, -value[..., None] * curvature)
    return value, first, -first, cross


def _polynomial_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    r"""Return the jet of :math:`(x_1^\top x_2 + c)^p`."""
    base = pairs.inner_products() + pairs.scalars(kernel.offset)
    power = kernel.power
    value = base.pow(power)
    if order == 0:
        return (value,)
    slope = _scaled_power(base, power, power - 1)[..., None]
    first = slope * pairs.right
    if order == 1:
        return value, first
    curvature = _scaled_power(base, power * (power - 1), power - 2)[..., None]
    cross = _outer_plus_diagonal(curvature * pairs.right, pairs.left, slope)
    return value, first, slope * pairs.left, cross


def _scaled_power(base: Tensor, factor: float, power: float) -> Tensor:
    # At base 0, a vanishing derivative would otherwise be 0 times infinity.
    return torch.zeros_like(base) if factor == 0 else factor * base.pow(power)


def _linear_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    r"""Return the jet of :math:`x_1^\top \mathrm{diag}(v) x_2`."""
    value = pairs.inner_products(kernel.variance)
    if order == 0:
        return (value,)
    variance = pairs.vectors(kernel.variance)
    first = variance * pairs.right
    if order == 1:
        return value, first
    diagonal = variance.expand(*variance.shape[:-1], pairs.X1.shape[-1])
    return value, first, variance * pairs.left, diagonal.diag_embed()


def _constant_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    value = pairs.scalars(kernel.constant)
    zeros = pairs.X1.new_zeros(pairs.X1.shape[-1])
    return (value, zeros, zeros, zeros.diag_embed())[: (1, 2, 4)[order]]


_CLOSED_FORMS: dict[Any, ClosedForm] = {
    RBFKernel.forward: _rbf_jet,
    MaternKernel.forward: _matern_jet,
    RQKernel.forward: _rq_jet,
    CosineKernel.forward: _cosine_jet,
    PeriodicKernel.forward: _periodic_jet,
    PolynomialKernel.forward: _polynomial_jet,
    LinearKernel.forward: _linear_jet,
    ConstantKernel.forward: _constant_jet,
}


def _outer_plus_diagonal(left: Tensor, right: Tensor, diagonal: Tensor) -> Tensor:
    matrix = outer(left, right)
    # In place, so that the largest tensor of this module is written once.
    matrix.diagonal(dim1=-2, dim2=-1).add_(diagonal)
    return matrix
