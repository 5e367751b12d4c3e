r"""Gradient information: where to look to learn the most about a gradient.

With :math:`Z` the candidates, D the points seen so far and :math:`x` the point whose
gradient is wanted, observing Z lowers the trace of the gradient's covariance by

.. math::
    \mathrm{tr}\big( C S^{-1} C^\top \big), \qquad
    C = \nabla_1 k(x, Z) - \nabla_1 k(x, D) K^{-1} k(D, Z), \quad
    S = k(Z, Z) + s^2 I - k(Z, D) K^{-1} k(D, Z).

Targets do not appear: the choice depends on public points only. For q candidates among
N points in d dimensions this costs :math:`O(N^2 q + N q d + q d^2)`, its gradient
included, which is written out below; no Nd x Nd matrix is ever built.

References:
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021. Equation 8.
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Algorithm 1.
"""

from typing import Any, Protocol

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.utils.transforms import (
    concatenate_pending_points,
    t_batch_mode_transform,
)
from gpytorch.kernels import Kernel
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.gradient_gp import GradientGP
from botorch_dp.models.kernel_gradients import (
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from botorch_dp.models.radial import RadialKernel, radial_kernel


class GradientInformation(AcquisitionFunction):
    r"""Minus the trace of the gradient's posterior covariance after q observations.

    Drop-in for ``optimize_acqf``; all q candidates count jointly, pending points too.
    Made for one state of the model: make a new one when the model has changed.

    Args:
        model: A :class:`GradientGP` without batch dimensions.
        X_at: The point whose gradient is wanted, ``d`` or ``1 x d``; of several points
            (``p x d``) the traces are added up.
        X_pending: Points under evaluation, ``m x d``.

    Attributes:
        prior_covariance: The covariances of the gradients at ``X_at`` given the model,
            before any candidate is observed, ``p x d x d``.
        radial: The kernel in radial form, or None if it has none.

    Example:
        >>> from botorch.optim import optimize_acqf
        >>> X = torch.rand(20, 2, dtype=torch.float64)
        >>> model = GradientGP(X, X.square().sum(dim=-1, keepdim=True))
        >>> acqf = GradientInformation(model, X_at=torch.full((2,), 0.5).double())
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> candidates, value = optimize_acqf(
        ...     acqf, bounds=bounds, q=3, num_restarts=2, raw_samples=16
        ... )
        >>> candidates.shape
        torch.Size([3, 2])
    """

    def __init__(
        self, model: GradientGP, X_at: Tensor, X_pending: Tensor | None = None
    ) -> None:
        if not isinstance(model, GradientGP):
            raise InvalidArgumentError(
                "model must be a GradientGP, got "
                f"{type(model).__name__}; GradientGP.from_model takes a SingleTaskGP."
            )
        if model.batch_shape:
            raise UnsupportedError(
                f"GradientInformation takes no batched model, got {model.batch_shape}."
            )
        super().__init__(model=model)
        X_at = (
            X_at.unsqueeze(0) if isinstance(X_at, Tensor) and X_at.dim() == 1 else X_at
        )
        model.check_points("X_at", X_at)
        if X_at.dim() != 2:
            raise InvalidArgumentError(
                f"X_at must be d or p x d, got shape {tuple(X_at.shape)}."
            )
        with torch.no_grad():
            self._prepare(model, X_at.detach())
        self.register_buffer("X_at", X_at.detach())
        self.set_X_pending(X_pending)

    def _prepare(self, model: GradientGP, X_at: Tensor) -> None:
        """Compute what does not depend on the candidates.

        Everything is in units of the output scale, if the kernel is radial: so its
        profiles need no scaling.
        """
        kernel = model.covar_module
        root, _ = model.geometry()  # puts the model into evaluation mode
        at, inputs = model.transform_inputs(X_at), model.train_inputs[0].detach()
        weight = torch.ones_like(at)
        if getattr(model, "input_transform", None) is not None:
            weight = weight / model.input_transform.coefficient
        identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
        inverse_root = torch.linalg.solve_triangular(root, identity, upper=False)
        cross = kernel_gradient(kernel, at, inputs) * weight.unsqueeze(-2)  # p x n x d
        projected = inverse_root @ cross.transpose(0, 1).flatten(1)  # n x p d
        prior = prior_gradient_covariance(kernel, at)  # p x d x d
        half = projected.unflatten(-1, at.shape).transpose(0, 1)  # p x n x d
        covariance = prior * weight.unsqueeze(-1) * weight.unsqueeze(-2)
        covariance = covariance - half.mT @ half
        trace = covariance.diagonal(dim1=-2, dim2=-1).sum()
        self.radial = radial = radial_kernel(kernel, inputs)
        scale = trace.new_ones(()) if radial is None else radial.outputscale
        self._kernel = [kernel]  # in a list: the model registers it already
        self.register_buffer("prior_covariance", covariance)
        self.register_buffer("_at", at)
        self.register_buffer("_weight", weight)
        self.register_buffer("_inputs", inputs)
        self.register_buffer("_scale", scale)
        inverse_root = (inverse_root * scale.sqrt()).contiguous()
        self.register_buffer("_inverse_root", inverse_root)  # n x n
        projected = (projected.mT / scale.sqrt()).contiguous()
        self.register_buffer("_projected", projected)  # p d x n
        self.register_buffer("_prior_trace", trace)
        self.register_buffer("_noise", model.noise_variance.detach().squeeze() / scale)
        if radial is not None:
            # What candidates are compared with, around the first point of X_at.
            inverse = radial.inverse_lengthscale
            whitened = (torch.cat([inputs, at]) - at[0]) * inverse
            self.register_buffer("_whitened", whitened)  # (n + p) x d
            self.register_buffer("_norms", whitened.square().sum(dim=-1))
            self.register_buffer("_whitened_at", whitened[len(inputs) :])
            self.register_buffer("_origin", at[0])
            self.register_buffer("_gradient_weight", weight * inverse)  # p x d

    @concatenate_pending_points
    @t_batch_mode_transform()
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the candidates.

        Args:
            X: A ``batch_shape x q x d`` tensor.

        Returns:
            A ``batch_shape`` tensor: the larger, the smaller the trace.
        """
        self.model.check_points("X", X)
        return _MinusTrace.apply(self.model.transform_inputs(X), self)

    def trace(self, X: Tensor) -> Tensor:
        """Return the trace itself: minus the acquisition value."""
        return -self(X)


class _MinusTrace(torch.autograd.Function):
    r"""tr(C S^-1 C^T) minus the trace before, and its gradient in Z, written out.

    With R = k(Z, D) L^-T and U = \nabla k(x, D) L^-T (L L^T = K) we have
    C^T = k(Z, x) \nabla^T - R U^T and S = k(Z, Z) + s^2 I - R R^T. With G = S^-1 C^T
    and M = G G^T,

        d tr = <2 G, d k(Z, x) \nabla^T> + <2 (M R - G U) L^-1, d k(Z, D)>
               - <M, d k(Z, Z)>.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, acqf: GradientInformation) -> Tensor:
        Z = X.reshape(-1, *X.shape[-2:])  # b x q x d
        k: _Covariances
        if acqf.radial is not None:
            k = _RadialCovariances(acqf.radial, Z, acqf)
        else:
            k = _KernelCovariances(acqf._kernel[0], Z, acqf)
        U, inverse_root, scale = acqf._projected, acqf._inverse_root, acqf._scale
        R = k.with_inputs @ inverse_root.mT  # b x q x n
        C = k.with_gradient - R @ U.mT  # b x q x p d, the transpose of C above
        S = torch.baddbmm(k.among_candidates, R, R.mT, alpha=-1)
        S.diagonal(dim1=-2, dim2=-1).add_(acqf._noise)
        G = torch.cholesky_solve(C, psd_safe_cholesky(S))  # b x q x p d
        if ctx.needs_input_grad[0]:
            M = G @ G.mT  # b x q x q
            to_inputs = (M @ R - G @ U) @ inverse_root  # b x q x n
            gradient = (2 * scale) * k.pull_back(G, to_inputs, M)
            ctx.save_for_backward(gradient.view(X.shape))
        reduction = scale * (C * G).sum(dim=(-2, -1))
        return (reduction - acqf._prior_trace).view(X.shape[:-2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return grad_output[..., None, None] * gradient, None


class _Covariances(Protocol):
    """Prior covariances of the candidates, and their derivatives.

    Attributes:
        with_inputs: k(Z, D), ``b x q x n``.
        with_gradient: The covariance of the values at Z with the p gradients wanted,
            ``b x q x p d``.
        among_candidates: k(Z, Z), ``b x q x q``.
    """

    with_inputs: Tensor
    with_gradient: Tensor
    among_candidates: Tensor

    def pull_back(self, G: Tensor, to_inputs: Tensor, M: Tensor) -> Tensor:
        """Return half of the gradient in Z: see :class:`_MinusTrace`."""
        ...


class _KernelCovariances:
    """For any kernel: O(N q d) memory."""

    def __init__(self, kernel: Kernel, Z: Tensor, acqf: GradientInformation) -> None:
        self._kernel, self._Z, self._acqf = kernel, Z, acqf
        self._weight = acqf._weight.unsqueeze(-2)  # p x 1 x d
        self.with_inputs = kernel_value(kernel, Z, acqf._inputs)
        gradient = kernel_gradient(kernel, acqf._at, Z) * self._weight  # b x p x q x d
        self.with_gradient = gradient.transpose(-2, -3).flatten(-2)
        self.among_candidates = kernel_value(kernel, Z, Z)

    def pull_back(self, G: Tensor, to_inputs: Tensor, M: Tensor) -> Tensor:
        kernel, Z = self._kernel, self._Z
        hessian = kernel_cross_hessian(kernel, self._acqf._at, Z)  # b x p x q x d x d
        G = G.unflatten(-1, (-1, Z.shape[-1])).transpose(-2, -3) * self._weight
        gradient = (G.unsqueeze(-2) @ hessian).squeeze(-2).sum(dim=-3)
        dk_inputs = kernel_gradient(kernel, Z, self._acqf._inputs)  # b x q x n x d
        gradient += (to_inputs.unsqueeze(-2) @ dk_inputs).squeeze(-2)
        dk_candidates = kernel_gradient(kernel, Z, Z)
        return gradient - (M.unsqueeze(-2) @ dk_candidates).squeeze(-2)


class _RadialCovariances:
    r"""For radial kernels: sums over points are matrix products, O(N q) memory.

    In whitened coordinates the gradient of k(z, x) in z is - rho (z - x), so that a
    weighted sum over many x is (sum a) z - sum a x with a = weight * rho. The origin is
    the (first) point whose gradient is wanted: near it, where candidates lie, squared
    distances lose no digits.
    """

    def __init__(
        self, radial: RadialKernel, Z: Tensor, acqf: GradientInformation
    ) -> None:
        self._inverse, self._weight = radial.inverse_lengthscale, acqf._gradient_weight
        self._fixed, at = acqf._whitened, acqf._whitened_at
        self._z = z = (Z - acqf._origin) * self._inverse  # b x q x d
        norms = z.square().sum(dim=-1, keepdim=True)  # b x q x 1
        to_fixed = linear(-2 * z, self._fixed, acqf._norms).add_(norms)
        among = torch.baddbmm(norms + norms.mT, z, z.mT, alpha=-2)
        squares = torch.cat([to_fixed, among], dim=-1).clamp_(min=0.0)
        phi, rho, tau = radial.unit_profile(squares)[:3]  # b x q x (n + p + q)
        sizes = (len(self._fixed) - len(at), len(at), Z.shape[-2])
        self.with_inputs, _, self.among_candidates = phi.split(sizes, dim=-1)
        self._rho_inputs, rho_at, self._rho_among = rho.split(sizes, dim=-1)
        self._tau_at = tau.narrow(-1, *sizes[:2])
        self._rho_at = rho_at.unsqueeze(-1)
        self._delta = z.unsqueeze(-2) - at  # b x q x p x d
        self.with_gradient = (self._rho_at * self._delta * self._weight).flatten(-2)

    def pull_back(self, G: Tensor, to_inputs: Tensor, M: Tensor) -> Tensor:
        g = G.view_as(self._delta) * self._weight  # b x q x p x d
        along = (g * self._delta).sum(dim=-1)
        a = torch.cat([self._rho_inputs * to_inputs, self._tau_at * along], dim=-1)
        b = self._rho_among * M
        total = a.sum(dim=-1, keepdim=True) - b.sum(dim=-1, keepdim=True)
        gradient = (self._rho_at * g).sum(dim=-2) - total * self._z
        gradient += a @ self._fixed
        return torch.baddbmm(gradient, b, self._z, alpha=-1) * self._inverse
