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
from botorch.acquisition.objective import PosteriorTransform
from botorch.models import ModelListGP
from botorch.utils.transforms import (
    concatenate_pending_points,
    t_batch_mode_transform,
)
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp._deprecated import renamed_argument, renamed_attribute
from botorch_dp.acquisition._members import Members, members_of, output_weights
from botorch_dp.acquisition._trace import Geometry, MinusTrace
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.gradients import check_points, gradient_posterior
from botorch_dp.models.kernels.radial import RadialKernel
from botorch_dp.models.latent_gp import check_exact


class GradientInformation(AcquisitionFunction):
    r"""Minus the trace of the gradient's posterior covariance after q observations.

    It works inside ``optimize_acqf``. All q candidates and all pending points count
    jointly. Create a new one when the model has changed.

    Args:
        model: Any exact model that :func:`~botorch_dp.models.gradient_posterior`
            supports. The value is the mean over batch dimensions, fantasies and members
            of an ensemble, and the sum over outputs.
        X_center: The point whose gradient is wanted, ``d`` or ``1 x d``. With several
            points, ``p x d``, the value is the sum of their traces.
        X_pending: Points under evaluation, ``m x d``.
        posterior_transform: A ``ScalarizedPosteriorTransform``: the gradient that
            counts is then that of the weighted sum of the outputs.

    Attributes:
        prior_covariance: The covariances of the gradients at ``X_center`` given the
            model, before any candidate is observed: ``p x d x d``, with the batch
            dimensions of :func:`~botorch_dp.models.gradient_posterior` in front.
        radial: The kernel in radial form in the units of the outcome, or None if it
            has none, or if there are several kernels.

    Example:
        >>> from botorch.models import SingleTaskGP
        >>> from botorch.optim import optimize_acqf
        >>> X = torch.rand(20, 2, dtype=torch.float64)
        >>> model = SingleTaskGP(X, X.square().sum(dim=-1, keepdim=True))
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
        self,
        model: ExactGP | ModelListGP,
        X_center: Tensor,
        X_pending: Tensor | None = None,
        posterior_transform: PosteriorTransform | None = None,
    ) -> None:
        models = model.models if isinstance(model, ModelListGP) else [model]
        for part in models:
            check_exact(part)
        super().__init__(model=model)
        self._weights = output_weights(model, posterior_transform)
        if isinstance(X_center, Tensor) and X_center.dim() == 1:
            X_center = X_center.unsqueeze(0)
        check_points("X_center", X_center, models[0])
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
        X_center = self.X_center
        self._all_members: list[Members] = members_of(
            self.model, X_center, self._weights
        )
        self.register_buffer(
            "prior_covariance", gradient_posterior(self.model, X_center).covariance
        )
        first = self._all_members[0]
        alone = len(self._all_members) == 1 and len(first.geometries) == 1
        self.radial: RadialKernel | None = first.radial if alone else None

    @property
    def _geometry(self) -> Geometry:
        """The geometry of a model that is a single process."""
        ((_, geometry),) = self._all_members[0].geometries
        return geometry

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
            check_points("X", X, self._all_members[0].model)  # says what is wrong
        values = [
            MinusTrace.apply(Z, geometry)
            for members in self._all_members
            for Z, geometry in members.at(X)
        ]
        return values[0] if len(values) == 1 else torch.stack(values).sum(dim=0)

    def trace(self, X: Tensor) -> Tensor:
        """Return the trace itself, which is minus the acquisition value."""
        return -self(X)
