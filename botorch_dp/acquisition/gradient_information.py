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

from botorch_dp._deprecated import renamed_argument, renamed_attribute
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.gradient_gp import GradientGP
from botorch_dp.models.kernels.derivatives import (
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
)
from botorch_dp.models.kernels.radial import RadialKernel, radial_kernel


class GradientInformation(AcquisitionFunction):
    r"""Minus the trace of the gradient's posterior covariance after q observations.

    It works inside ``optimize_acqf``. All q candidates and all pending points count
    jointly. Create a new one when the model has changed.

    Args:
        model: A :class:`GradientGP` without batch dimensions.
        X_center: The point whose gradient is wanted, ``d`` or ``1 x d``. With several
            points, ``p x d``, the value is the sum of their traces.
        X_pending: Points under evaluation, ``m x d``.

    Attributes:
        prior_covariance: The ``p x d x d`` covariances of the gradients at ``X_center``
            given the model, before any candidate is observed.
        radial: The kernel in radial form, or None if it has none.

    Example:
        >>> from botorch.optim import optimize_acqf
        >>> X = torch.rand(20, 2, dtype=torch.float64)
        >>> model = GradientGP(X, X.square().sum(dim=-1, keepdim=True))
        >>> acqf = GradientInformation(model, X_center=torch.full((2,), 0.5).double())
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> candidates, value = optimize_acqf(
        ...     acqf, bounds=bounds, q=3, num_restarts=2, raw_samples=16
        ... )
        >>> candidates.shape
        torch.Size([3, 2])
    """

    X_at = renamed_attribute("X_at", "X_center")

    @renamed_argument("X_at", "X_center")
    def __init__(
        self, model: GradientGP, X_center: Tensor, X_pending: Tensor | None = None
    ) -> None:
        if not isinstance(model, GradientGP):
            raise InvalidArgumentError(
                "model must be a GradientGP, got "
                f"{type(model).__name__}; GradientGP.from_model takes a SingleTaskGP."
            )
        if model.batch_shape:
            raise UnsupportedError(
                "GradientInformation does not support batched models, got batch_shape "
                f"{tuple(model.batch_shape)}."
            )
        super().__init__(model=model)
        if isinstance(X_center, Tensor) and X_center.dim() == 1:
            X_center = X_center.unsqueeze(0)
        model.check_points("X_center", X_center)
        if X_center.dim() != 2:
            raise InvalidArgumentError(
                f"X_center must be d or p x d, got shape {tuple(X_center.shape)}."
            )
        with torch.no_grad():
            self._prepare(model, X_center.detach())
        self.register_buffer("X_center", X_center.detach())
        self.set_X_pending(X_pending)

    def _prepare(self, model: GradientGP, X_center: Tensor) -> None:
        """Compute what does not depend on the candidates.

        With a radial kernel, covariances are in units of the output scale and
        gradients in units of the length scales, so that profiles need no scaling.
        """
        kernel = model.covar_module
        root, _ = model.geometry()  # puts the model into evaluation mode
        at, inputs = model.transform_inputs(X_center), model.train_inputs[0].detach()
        # The chain rule: gradients count in the original coordinates.
        weight = torch.ones_like(at)
        if getattr(model, "input_transform", None) is not None:
            weight = weight / model.input_transform.coefficient
        _, half, covariance = model.gradient_covariance(at, root)  # p x n x d
        covariance = covariance * weight.unsqueeze(-1) * weight.unsqueeze(-2)
        trace = covariance.diagonal(dim1=-2, dim2=-1).sum()
        self.radial = radial = radial_kernel(kernel, inputs)
        scale, inverse = trace.new_ones(()), at.new_ones(at.shape[-1])
        if radial is not None:
            scale, inverse = radial.outputscale, radial.inverse_lengthscale
            # Candidates lie near the first centre. With that point as the origin,
            # squared distances as |z|^2 + |x|^2 - 2 z x lose no digits.
            whitened = (torch.cat([inputs, at]) - at[0]) * inverse
            self.register_buffer("_whitened", whitened)  # (n + p) x d
            self.register_buffer("_shift", -at[0] * inverse)
            self.register_buffer("_factors", (-2 * whitened).mT.contiguous())
            self.register_buffer("_norms", whitened.square().sum(dim=-1))
        self._kernel = [kernel]  # in a list: the model registers it already
        self.register_buffer("prior_covariance", covariance)
        self.register_buffer("_prior_trace", trace)
        self.register_buffer("_at", at)
        self.register_buffer("_inputs", inputs)
        self.register_buffer("_inverse", inverse.contiguous())
        self.register_buffer("_twice_inverse", 2 * inverse)
        self.register_buffer("_noise", model.noise_variance.detach().squeeze() / scale)
        self.register_buffer("_weight", (weight * inverse).square().flatten() * scale)
        # One triangular solve per evaluation instead of two: the rows of the gradients
        # stand below those of the training points.
        half = (half / inverse).transpose(0, 1).flatten(1)  # n x p d
        self.register_buffer("_root", _joint_root(root, half) / scale.sqrt())
        # The block of the gradients is the identity in any units.
        self._root[len(root) :, len(root) :].fill_diagonal_(1.0)

    @concatenate_pending_points
    @t_batch_mode_transform()
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the candidates.

        Args:
            X: A ``batch_shape x q x d`` tensor.

        Returns:
            A ``batch_shape`` tensor: minus the traces.
        """
        self.model.check_points("X", X)
        return _MinusTrace.apply(self.model.transform_inputs(X), self)

    def trace(self, X: Tensor) -> Tensor:
        """Return the trace itself, which is minus the acquisition value."""
        return -self(X)


def _joint_root(root: Tensor, half: Tensor) -> Tensor:
    """Return [[L, 0], [U, I]], which eliminates D from values and gradients at once."""
    n, size = len(root), sum(half.shape)
    joint = torch.eye(size, dtype=root.dtype, device=root.device)
    joint[:n, :n] = root
    joint[n:, :n] = half.mT
    return joint


class _MinusTrace(torch.autograd.Function):
    r"""tr(C S^-1 C^T) minus the trace before, and its gradient in Z, written out.

    With K = L L^T and U = \nabla k(x, D) L^-T, solving [[L, 0], [U, I]] [R; C] =
    [k(D, Z); \nabla k(x, Z)] gives R with S = k(Z, Z) + s^2 I - R^T R, and C. With
    G = C S^-1 and M = G^T G,

        d tr = <2 G, d \nabla k(x, Z)> + <2 T, d k(D, Z)> - <M, d k(Z, Z)>,

    where T = L^-T (R M - U^T G) comes from the transposed system. Below, candidates are
    in rows: everything is transposed.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, acqf: GradientInformation) -> Tensor:
        # The gradient is computed now, while its parts are at hand. Inference mode
        # saves a fifth of the time on small problems.
        with torch.inference_mode():
            Z = X.reshape(-1, *X.shape[-2:])  # b x q x d
            value, ctx.gradient = _evaluate(acqf, Z, ctx.needs_input_grad[0])
        return value.view(X.shape[:-2]).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        gradient = ctx.gradient.view(*grad_output.shape, *ctx.gradient.shape[-2:])
        return grad_output[..., None, None] * gradient, None


def _evaluate(
    acqf: GradientInformation, Z: Tensor, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the ``b`` values and ``b x q x d`` gradients: see :class:`_MinusTrace`."""
    (b, q, _), n, root = Z.shape, len(acqf._inputs), acqf._root
    k: _Covariances
    if acqf.radial is not None:
        k = _RadialCovariances(acqf.radial, Z, acqf)
    else:
        k = _KernelCovariances(acqf._kernel[0], Z, acqf)
    prior = torch.cat([k.with_inputs, k.with_gradient], dim=-1)  # b q x (n + p d)
    solved = torch.linalg.solve_triangular(root, prior.mT, upper=False).mT
    solved = solved.view(b, q, -1)
    R, C = solved[..., :n], solved[..., n:]
    S = torch.baddbmm(k.among_candidates, R, R.mT, alpha=-1)
    S.diagonal(dim1=-2, dim2=-1).add_(acqf._noise)
    half, info = torch.linalg.cholesky_ex(S)
    if info.any():  # candidates coincide: only then pay for adding jitter
        half = psd_safe_cholesky(S)
    unweighted = torch.cholesky_solve(C, half)
    G = unweighted * acqf._weight  # b x q x p d
    value = (C * G).sum(dim=(-2, -1)) - acqf._prior_trace
    if not needs_gradient:
        return value, None
    M = torch.bmm(G, unweighted.mT)  # b x q x q
    # One solve with the transposed joint root subtracts U^T G and then applies L^-T.
    prior = torch.cat([torch.bmm(M, R), G], dim=-1).view(b * q, -1)
    solved = torch.linalg.solve_triangular(root.mT, prior.mT, upper=True).mT
    return value, k.pull_back(G, solved[:, :n], M).mul_(acqf._twice_inverse)


class _Covariances(Protocol):
    """Prior covariances of the candidates, and their derivatives.

    Attributes:
        with_inputs: k(Z, D), ``b q x n``.
        with_gradient: The covariance of the values at Z with the p gradients wanted,
            ``b q x p d``.
        among_candidates: k(Z, Z), ``b x q x q``.
    """

    with_inputs: Tensor
    with_gradient: Tensor
    among_candidates: Tensor

    def pull_back(self, G: Tensor, T: Tensor, M: Tensor) -> Tensor:
        """Return half of the gradient in Z: see :class:`_MinusTrace`.

        Args:
            G: The weights of ``with_gradient``, ``b x q x p d``.
            T: The weights of ``with_inputs``, ``b q x n``.
            M: The weights of ``among_candidates``, ``b x q x q``.
        """
        ...


class _KernelCovariances:
    """Covariances of any kernel, in O(N q d) memory."""

    def __init__(self, kernel: Kernel, Z: Tensor, acqf: GradientInformation) -> None:
        self._kernel, self._Z, self._acqf = kernel, Z, acqf
        self.with_inputs = kernel_value(kernel, Z, acqf._inputs).flatten(0, 1)
        gradient = kernel_gradient(kernel, acqf._at, Z)  # b x p x q x d
        self.with_gradient = gradient.transpose(-2, -3).flatten(-2).flatten(0, 1)
        self.among_candidates = kernel_value(kernel, Z, Z)

    def pull_back(self, G: Tensor, T: Tensor, M: Tensor) -> Tensor:
        kernel, Z = self._kernel, self._Z
        hessian = kernel_cross_hessian(kernel, self._acqf._at, Z)  # b x p x q x d x d
        G = G.unflatten(-1, (-1, Z.shape[-1])).transpose(-2, -3)
        gradient = (G.unsqueeze(-2) @ hessian).squeeze(-2).sum(dim=-3)
        dk_inputs = kernel_gradient(kernel, Z, self._acqf._inputs)  # b x q x n x d
        T = T.reshape(*Z.shape[:2], 1, -1)
        gradient += (T @ dk_inputs).squeeze(-2)
        dk_candidates = kernel_gradient(kernel, Z, Z)
        return gradient - (M.unsqueeze(-2) @ dk_candidates).squeeze(-2)


class _RadialCovariances:
    r"""Covariances of a radial kernel, in O(N q) memory: sums are matrix products.

    In whitened coordinates the gradient of k(z, x) in z is - rho (z - x), so that a
    weighted sum over many x is (sum a) z - sum a x with a = weight * rho.
    """

    def __init__(
        self, radial: RadialKernel, Z: Tensor, acqf: GradientInformation
    ) -> None:
        (b, q, d), n, p = Z.shape, len(acqf._inputs), len(acqf._at)
        self._fixed = acqf._whitened
        self._z = torch.addcmul(acqf._shift, Z, acqf._inverse)  # b x q x d
        z = self._rows = self._z.view(-1, d)
        norms = (z * z).sum(dim=-1, keepdim=True)
        to_fixed = torch.addmm(acqf._norms, z, acqf._factors).add_(norms)
        norms = norms.view(b, q, 1)
        among = torch.baddbmm(norms + norms.mT, self._z, self._z.mT, alpha=-2)
        squares = torch.cat([to_fixed, among.view(-1, q)], dim=-1).clamp_(min=0.0)
        phi, rho, tau = radial.unit_profile(squares)[:3]  # b q x (n + p + q)
        self.with_inputs = phi[:, :n]
        self.among_candidates = phi[:, n + p :].view(b, q, q)
        self._rho_inputs, self._tau_at = rho[:, :n], tau[:, n : n + p]
        self._rho_among = rho[:, n + p :].view(b, q, q)
        self._rho_at = rho[:, n : n + p, None]
        self._delta = z.unsqueeze(-2) - self._fixed[n:]  # b q x p x d
        self.with_gradient = (self._rho_at * self._delta).view(b * q, p * d)

    def pull_back(self, G: Tensor, T: Tensor, M: Tensor) -> Tensor:
        g = G.reshape(self._delta.shape)  # b q x p x d
        along = (g * self._delta).sum(dim=-1)
        a = torch.cat([self._rho_inputs * T, self._tau_at * along], dim=-1)
        among = self._rho_among * M
        total = a.sum(dim=-1, keepdim=True) - among.sum(dim=-1).view(-1, 1)
        gradient = torch.addmm((self._rho_at * g).sum(dim=-2), a, self._fixed)
        gradient = gradient.addcmul_(total, self._rows, value=-1).view_as(self._z)
        return torch.baddbmm(gradient, among, self._z, alpha=-1)
