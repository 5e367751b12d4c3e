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
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.gradient_gp import GradientGP
from botorch_dp.models.kernel_gradients import (
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
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
            posterior = model.gradient_posterior(X_at)
            at = model.transform_inputs(X_at)
            inputs = model.train_inputs[0]
            root, _ = model.geometry()
            identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
            inverse_root = torch.linalg.solve_triangular(root, identity, upper=False)
            weight = torch.ones_like(at)
            if getattr(model, "input_transform", None) is not None:
                weight = weight / model.input_transform.coefficient
            cross = kernel_gradient(model.covar_module, at, inputs)  # p x n x d
            cross = cross * weight.unsqueeze(-2)
            projected = inverse_root @ cross.transpose(0, 1).flatten(1)  # n x p d
        self.register_buffer("X_at", X_at.detach())
        self.register_buffer("_at", at)
        self.register_buffer("_weight", weight)
        self.register_buffer("_inputs", inputs.detach())
        self.register_buffer("_inverse_root", inverse_root)
        self.register_buffer("_projected", projected)
        self.register_buffer("_prior_trace", posterior.variance.sum())
        self.register_buffer("_noise", model.noise_variance.detach().reshape(()))
        self._kernel = [model.covar_module]  # in a list: the model registers it already
        self._radial = radial_kernel(model.covar_module, inputs)
        if self._radial is not None:
            whitened = (inputs.detach() - at[0]) * self._radial.inverse_lengthscale
            self.register_buffer("_whitened_inputs", whitened)
            self.register_buffer("_whitened_norms", whitened.square().sum(dim=-1))
        self.set_X_pending(X_pending)

    @concatenate_pending_points
    @t_batch_mode_transform()
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the candidates.

        Args:
            X: A ``batch_shape x q x d`` tensor.

        Returns:
            A ``batch_shape`` tensor: the larger, the smaller the trace.
        """
        Z = self.model.transform_inputs(X)
        if self._radial is not None:
            covariances: _Covariances = _RadialCovariances(
                self._radial, Z.detach(), self
            )
        else:
            covariances = _KernelCovariances(self._kernel[0], Z.detach(), self)
        reduction = _TraceReduction.apply(Z, covariances, self)
        return reduction - self._prior_trace

    def trace(self, X: Tensor) -> Tensor:
        """Return the trace itself: minus the acquisition value."""
        return -self(X)


class _TraceReduction(torch.autograd.Function):
    r"""tr(C S^-1 C^T) and its gradient in Z, written out.

    With R = L^-1 k(D, Z) and U = L^-1 k(D, x) \nabla^T (L L^T = K) we have
    C = \nabla_1 k(x, Z) - U^T R and S = k(Z, Z) + s^2 I - R^T R. With G = S^-1 C^T and
    M = G G^T,

        d tr = <2 G^T, d \nabla_1 k(x, Z)> + <2 L^-T (R M - U G^T), d k(D, Z)>
               - <M, d k(Z, Z)>.
    """

    @staticmethod
    def forward(
        ctx: Any, Z: Tensor, k: "_Covariances", acqf: GradientInformation
    ) -> Tensor:
        U, inverse_root = acqf._projected, acqf._inverse_root
        R = inverse_root @ k.with_inputs  # b x n x q
        C = k.with_gradient - R.mT @ U  # b x q x p d, the transpose of C above
        S = k.among_candidates - R.mT @ R
        S.diagonal(dim1=-2, dim2=-1).add_(acqf._noise)
        root = torch.linalg.cholesky(S)
        half = torch.linalg.solve_triangular(root, C, upper=False)
        if ctx.needs_input_grad[0]:
            G = torch.linalg.solve_triangular(root.mT, half, upper=True)  # b x q x p d
            M = G @ G.mT  # b x q x q
            to_inputs = inverse_root.mT @ (R @ M - U @ G.mT)  # b x n x q
            ctx.save_for_backward(2 * k.pull_back(G, to_inputs, M))
        return half.square().sum(dim=(-2, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad_output[..., None, None] * gradient, None, None


class _Covariances(Protocol):
    """Prior covariances of the candidates, and their derivatives.

    Attributes:
        with_inputs: k(D, Z), ``b x n x q``.
        with_gradient: The covariance of the values at Z with the p gradients wanted,
            ``b x q x p d``.
        among_candidates: k(Z, Z), ``b x q x q``.
    """

    with_inputs: Tensor
    with_gradient: Tensor
    among_candidates: Tensor

    def pull_back(self, G: Tensor, to_inputs: Tensor, M: Tensor) -> Tensor:
        """Return half of the gradient in Z: see :class:`_TraceReduction`."""
        ...


class _KernelCovariances:
    """For any kernel: O(N q d) memory."""

    def __init__(self, kernel: Kernel, Z: Tensor, acqf: GradientInformation) -> None:
        self._kernel, self._Z, self._acqf = kernel, Z, acqf
        self._weight = acqf._weight.unsqueeze(-2)  # p x 1 x d
        self.with_inputs = kernel_value(kernel, acqf._inputs, Z)
        gradient = kernel_gradient(kernel, acqf._at, Z) * self._weight  # b x p x q x d
        self.with_gradient = gradient.transpose(-2, -3).flatten(-2)
        self.among_candidates = kernel_value(kernel, Z, Z)

    def pull_back(self, G: Tensor, to_inputs: Tensor, M: Tensor) -> Tensor:
        kernel, Z = self._kernel, self._Z
        hessian = kernel_cross_hessian(kernel, self._acqf._at, Z)  # b x p x q x d x d
        G = G.unflatten(-1, (-1, Z.shape[-1])).transpose(-2, -3) * self._weight
        gradient = (G.unsqueeze(-2) @ hessian).squeeze(-2).sum(dim=-3)
        dk_inputs = kernel_gradient(kernel, Z, self._acqf._inputs)  # b x q x n x d
        gradient += (to_inputs.mT.unsqueeze(-2) @ dk_inputs).squeeze(-2)
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
        self._inverse = radial.inverse_lengthscale
        self._x = acqf._whitened_inputs  # n x d
        self._z = (Z - acqf._at[0]) * self._inverse  # b x q x d
        self._weight = acqf._weight * self._inverse  # p x d
        z_norms = self._z.square().sum(dim=-1)  # b x q
        norms = acqf._whitened_norms.expand(*z_norms.shape[:-1], -1)
        everything = self._x.expand(*Z.shape[:-2], -1, -1)
        everything = torch.cat([everything, self._z], dim=-2)  # b x (n + q) x d
        norms = torch.cat([norms, z_norms], dim=-1).unsqueeze(-1) + z_norms.unsqueeze(
            -2
        )
        squares = norms - 2 * everything @ self._z.mT
        phi, self._rho, _ = radial.profile(squares.clamp_(min=0.0))  # b x (n + q) x q
        n = len(self._x)
        self.with_inputs, self.among_candidates = phi[..., :n, :], phi[..., n:, :]
        self._everything = everything
        at = (acqf._at - acqf._at[0]) * self._inverse
        self._delta = at - self._z.unsqueeze(-2)  # b x q x p x d
        _, self._rho_at, self._tau_at = radial.profile(
            self._delta.square().sum(dim=-1, keepdim=True)
        )
        self.with_gradient = (-self._rho_at * self._delta * self._weight).flatten(-2)

    def pull_back(self, G: Tensor, to_inputs: Tensor, M: Tensor) -> Tensor:
        delta = self._delta
        g = G.unflatten(-1, delta.shape[-2:]) * self._weight  # b x q x p x d
        along = (g * delta).sum(dim=-1, keepdim=True)
        gradient = (self._rho_at * g - self._tau_at * along * delta).sum(dim=-2)
        a = self._rho * torch.cat([to_inputs, -M], dim=-2)  # b x (n + q) x q
        gradient -= a.sum(dim=-2).unsqueeze(-1) * self._z
        gradient += a.mT @ self._everything
        return gradient * self._inverse
