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

from collections.abc import Callable
from typing import Self

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.utils.transforms import (
    concatenate_pending_points,
    t_batch_mode_transform,
)
from torch import Tensor

from botorch_dp._deprecated import renamed_argument, renamed_attribute
from botorch_dp.acquisition._covariances import (
    KnownPoints,
    PlainPoints,
    WhitenedPoints,
)
from botorch_dp.acquisition._trace import Geometry, MinusTrace
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.gradient_gp import GradientGP
from botorch_dp.models.kernels.radial import radial_kernel


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
        self.register_buffer("X_center", X_center.detach())
        self._prepare()
        self.set_X_pending(X_pending)

    @torch.no_grad()
    def _prepare(self) -> None:
        """Compute what does not depend on the candidates."""
        model, X_center = self.model, self.X_center
        root, _ = model.geometry()  # puts the model into evaluation mode
        at, inputs = model.transform_inputs(X_center), model.train_inputs[0].detach()
        # The chain rule: gradients count in the original coordinates.
        weight = torch.ones_like(at)
        self._transforms = getattr(model, "input_transform", None) is not None
        if self._transforms:
            weight = weight / model.input_transform.coefficient
        _, half, covariance = model.gradient_covariance(at, root)  # p x n x d
        covariance = covariance * weight.unsqueeze(-1) * weight.unsqueeze(-2)
        self.register_buffer("prior_covariance", covariance)
        self.radial = radial = radial_kernel(model.covar_module, inputs)
        known: KnownPoints
        if radial is None:
            scale, inverse = root.new_ones(()), torch.ones_like(at[0])
            known = PlainPoints(model.covar_module, inputs, at)
        else:
            scale, inverse = radial.outputscale, radial.inverse_lengthscale
            known = WhitenedPoints(radial, inputs, at)
        self._geometry = Geometry(
            known=known,
            root=_joint_root(root / scale.sqrt(), half / (inverse * scale.sqrt())),
            noise=model.noise_variance.detach().squeeze() / scale,
            weights=(weight * inverse).square().flatten() * scale,
            trace=covariance.diagonal(dim1=-2, dim2=-1).sum(),
            scale=inverse,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._prepare()  # with the new dtype, on the new device
        return self

    @concatenate_pending_points
    @t_batch_mode_transform(assert_output_shape=False)
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the candidates.

        Args:
            X: A ``batch_shape x q x d`` tensor.

        Returns:
            A ``batch_shape`` tensor: minus the traces.
        """
        like = self.X_center
        if (
            X.shape[-1] != like.shape[-1]
            or X.shape[-2] == 0
            or X.dtype != like.dtype
            or X.device != like.device
        ):
            self.model.check_points("X", X)  # says what is wrong
        if self._transforms:
            X = self.model.transform_inputs(X)
        return MinusTrace.apply(X, self._geometry)

    def trace(self, X: Tensor) -> Tensor:
        """Return the trace itself, which is minus the acquisition value."""
        return -self(X)


def _joint_root(root: Tensor, half: Tensor) -> Tensor:
    """Return [[L, 0], [U, I]], which eliminates D from values and gradients at once.

    Args:
        root: L, ``n x n``.
        half: U^T for each centre, ``p x n x d``.
    """
    n, half = len(root), half.transpose(0, 1).flatten(1)  # n x p d
    joint = torch.eye(sum(half.shape), dtype=root.dtype, device=root.device)
    joint[:n, :n] = root
    joint[n:, :n] = half.mT
    return joint
