r"""Robust linear regression: section 4.2 of [Sopa2025dpgibo]_.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025.
"""

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import huber_loss

from botorch_dp._validation import check_count, check_positive
from botorch_dp.privacy import mallows_weights
from botorch_dp.problems._stream_losses import MALLOWS_CONSTANT
from botorch_dp.problems.base import (
    PerRecordProblem,
    ProblemSettings,
    RowLosses,
    check_bounds,
    normal,
    seeded_generator,
)


class HuberRegression(PerRecordProblem):
    r"""Fit a linear model with a bounded gradient per record.

    Records are :math:`y_i = x_i^\top \theta^* + e_i` with standard normal :math:`x_i`
    and :math:`e_i` and :math:`\theta^* = 1`. With the Huber loss :math:`\rho_c` and the
    Mallows weight :math:`w_i = \min(1, 2 / \|x_i\|^2)`,

    .. math:: \ell_i(\theta) = w_i \, \rho_c(y_i - x_i^\top \theta), \qquad
        \nabla \ell_i(\theta) = -w_i \, \rho_c'(y_i - x_i^\top \theta) \, x_i.

    **The gradient's bound** is :math:`c \sqrt 2`: as :math:`|\rho_c'| \le c`,

    .. math:: \|\nabla \ell_i\| \le c \, \|x_i\| \min(1, 2 / \|x_i\|^2)
        = c \min(\|x_i\|, 2 / \|x_i\|) \le c \sqrt 2,

    with equality at :math:`\|x_i\| = \sqrt 2`. The paper states B = 1 for c = 1.
    Clipping at 1 keeps the guarantee but changes the gradients of records with
    :math:`1 < \|x_i\| < 2` and large residuals.

    The paper sets n = 100, d = 4, c = 1 and starts at 0.

    Args:
        num_records: The number of records n.
        dim: The number of coefficients d.
        c: The residual at which the Huber loss changes from quadratic to linear.
        bounds: A (lower, upper) pair for each dimension; [-2, 4] by default.
        seed: The seed of the records.
        **settings: ``negate``, ``dtype`` and ``device`` of :class:`PerRecordProblem`.

    Attributes:
        gradient_bound: The bound :math:`c \sqrt 2` on the norm of a record's gradient.

    Example:
        >>> problem = HuberRegression()
        >>> problem.losses(torch.zeros(3, 4, dtype=torch.float64)).shape
        torch.Size([100, 3])
        >>> norms = problem.gradients(torch.zeros(4, dtype=torch.float64)).norm(dim=-1)
        >>> bool(norms.max() > 1.0), bool(norms.max() <= problem.gradient_bound)
        (True, True)
    """

    def __init__(
        self,
        num_records: int = 100,
        dim: int = 4,
        *,
        c: float = 1.0,
        bounds: Sequence[tuple[float, float]] | None = None,
        seed: int = 0,
        **settings: Unpack[ProblemSettings],
    ) -> None:
        num_records = check_count("num_records", num_records)
        dim = check_count("dim", dim)
        self.c = check_positive("c", c)
        self.gradient_bound = self.c * math.sqrt(MALLOWS_CONSTANT)
        super().__init__(
            num_records=num_records,
            bounds=check_bounds(bounds, dim, default=(-2.0, 4.0)),
            transform=("identity",) * dim,
            **settings,
        )
        generator = seeded_generator(seed)
        inputs = normal(num_records, dim, generator=generator)
        targets = inputs.sum(dim=-1) + normal(num_records, generator=generator)
        weights = mallows_weights(inputs, constant=MALLOWS_CONSTANT)
        self._inputs = inputs.to(self.bounds)  # n x d
        self._targets = targets.to(self.bounds)  # n
        self._weights = weights.to(self.bounds)  # n
        self._set_optimum(_minimize(inputs, targets, weights, self.c, self.bounds))

    def _loss_function(self, X: Tensor) -> RowLosses:
        def losses(rows: slice) -> Tensor:
            fitted = self._inputs[rows] @ X.T  # rows x b
            targets = self._targets[rows].unsqueeze(-1).expand_as(fitted)
            values = huber_loss(fitted, targets, reduction="none", delta=self.c)
            return self._weights[rows].unsqueeze(-1) * values

        return losses

    def _gradients(self, x: Tensor) -> Tensor:
        residuals = self._targets - self._inputs @ x
        slopes = self._weights * residuals.clamp(min=-self.c, max=self.c)
        return -slopes.unsqueeze(-1) * self._inputs


def _minimize(
    inputs: Tensor, targets: Tensor, weights: Tensor, c: float, bounds: Tensor
) -> Tensor:
    """Return the minimizer of the convex mean loss in the box, in double precision."""
    x, y, w = inputs.numpy(), targets.numpy(), weights.numpy()

    def value_and_gradient(theta: np.ndarray) -> tuple[float, np.ndarray]:
        residuals = y - x @ theta
        slopes = np.clip(residuals, -c, c)
        # Equals r^2 / 2 for |r| <= c, and c |r| - c^2 / 2 otherwise.
        values = slopes * (residuals - slopes / 2)
        return (w @ values) / len(y), -(w * slopes) @ x / len(y)

    box = bounds.detach().cpu().double().numpy()
    solution = minimize(
        value_and_gradient,
        box.mean(axis=0),
        jac=True,
        method="L-BFGS-B",
        bounds=box.T,
        options={"ftol": 0.0, "gtol": 1e-12, "maxiter": 1000},
    )
    return torch.from_numpy(solution.x)
