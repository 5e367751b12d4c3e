r"""Regression on a stream: Example 5.1 of [LDPBO2025]_, and its appendix D.1.

The linear model, whose parameters may drift, is in
:mod:`botorch_dp.problems.linear_stream`.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from botorch_dp._validation import check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems._stream_losses import (
    MALLOWS_CONSTANT,
    huber_gradients,
    huber_losses,
    logistic_gradients,
    logistic_losses,
    regression_records,
    signed_records,
)
from botorch_dp.problems.stream_asymptotics import (
    Array,
    mallows_power,
    mean_outer_product,
    mean_square,
)
from botorch_dp.problems.streams import (
    Record,
    StreamProblem,
    StreamSettings,
    check_seed,
    chunk_normals,
)

_RELU_START = 0.1


class RegressionSettings(StreamSettings, total=False):
    """Keyword arguments that models pass on to :class:`RegressionStream`."""

    theta: Sequence[float] | Tensor | None
    mallows: bool
    seed: int


class RegressionStream(StreamProblem):
    r"""The base class of three models with covariates :math:`x_t \sim N(0, I)`.

    The Mallows weight :math:`w_t = \min(1, 2 / \|x_t\|^2)` bounds a user's gradient. If
    the derivative of the loss by the linear predictor is at most c in absolute value,

    .. math:: \|\nabla \ell_t\| \le c\, w_t \|x_t\|
        = c \min(\|x_t\|, 2 / \|x_t\|) \le c \sqrt 2.

    The weight does not depend on the response, so the expected loss is still minimal at
    :math:`\theta^*`. Clipping would move the minimizer; ``mallows=False`` allows that
    comparison (Table 12 of the paper).

    Args:
        dim: The number of parameters p.
        c: The bound c above.
        theta: The p true parameters; ones if None.
        initial_x: A public point to start from, a ``p`` tensor; zero if None.
        mallows: Whether losses are weighted.
        seed: The seed of the records.
        **settings: ``num_replications``, ``num_steps``, ``dtype`` and ``device`` of
            :class:`StreamProblem`.

    Attributes:
        gradient_bound: :math:`c \sqrt 2` with weights, None without.
    """

    def __init__(
        self,
        dim: int,
        *,
        c: float = 1.0,
        theta: Sequence[float] | Tensor | None = None,
        initial_x: Tensor | None = None,
        mallows: bool = True,
        seed: int = 0,
        **settings: Unpack[StreamSettings],
    ) -> None:
        dim = check_count("dim", dim)
        values = torch.ones(dim, dtype=torch.float64, device="cpu")
        if theta is not None:
            values = torch.as_tensor(theta, dtype=torch.float64, device="cpu")
        if values.shape != (dim,) or not values.isfinite().all():
            raise InvalidArgumentError(
                f"theta must be dim = {dim} finite numbers, got {theta!r}."
            )
        super().__init__(dim, initial_x=initial_x, optimal_x=values, **settings)
        self.seed = check_seed(seed)
        self.c = check_positive("c", c)
        self.mallows = bool(mallows)
        if self.mallows:
            self.gradient_bound = self.c * math.sqrt(MALLOWS_CONSTANT)
        # Records are generated on the CPU in double precision.
        self._theta = values

    def asymptotics(self) -> tuple[Tensor, Tensor]:
        r"""Return the matrices of the asymptotic variance at the optimum.

        They are exact to about ten digits: closed forms, with quadrature over the norm
        of :math:`x_t` and, in the logistic model, over its angle to :math:`\theta^*`.
        See :func:`botorch_dp.problems.stream_asymptotics.variance_floor`.

        Returns:
            The Hessian :math:`H = E\,\nabla^2 \ell(\theta^*)` of the expected loss and
            the covariance :math:`S = E\,\nabla \ell \nabla \ell^\top(\theta^*)` of a
            user's gradient, ``p x p`` tensors.
        """
        hessian, covariance = self._asymptotics()
        return hessian.to(self.initial_x), covariance.to(self.initial_x)

    @abstractmethod
    def _asymptotics(self) -> tuple[Tensor, Tensor]:
        """Return H and S in double precision."""

    @abstractmethod
    def _responses(self, predictors: Tensor, noise: Tensor) -> Tensor:
        """Return the ``C x R`` responses, given a standard normal number for each."""

    def _chunk(self, number: int) -> Record:
        draws = chunk_normals(
            self.seed,
            number,
            num_replications=self.num_replications,
            num_steps=self.chunk_size,
            size=self.dim + 1,
        )
        inputs, noise = draws[..., :-1].contiguous(), draws[..., -1]
        targets = self._responses(self._predictors(inputs, number), noise)
        return regression_records(
            inputs, targets, mallows=self.mallows, like=self.initial_x
        )

    def _predictors(self, inputs: Tensor, number: int) -> Tensor:
        """Return the ``C x R`` values of x theta in chunk ``number``."""
        return inputs @ self._theta

    def _second_moment(self, power: int) -> Tensor:
        """Return the mean of x x^T times a power of the weight."""
        factor = mean_square(mallows_power(power * self.mallows), self.dim)
        return factor * torch.eye(self.dim, dtype=torch.float64, device="cpu")


class LogisticStream(RegressionStream):
    r"""Logistic regression.

    Labels are 1 with probability :math:`1 / (1 + \exp(-x_t^\top \theta^*))` and -1
    otherwise, and

    .. math:: \ell_t(\theta) = w_t \log(1 + \exp(-y_t x_t^\top \theta)), \qquad
        \nabla \ell_t(\theta) = -w_t\, \frac{y_t x_t}{1 + \exp(y_t x_t^\top \theta)}.

    The paper prints the cross entropy for labels 0 and 1, but its labels are -1 and 1,
    for which that loss has no minimum. This must be a misprint.

    **The gradient's bound** is :math:`\sqrt 2`, as the derivative of
    :math:`\log(1 + e^{-u})` lies between -1 and 0.

    **Asymptotics**: with :math:`h(u) = 1 / (2 + e^u + e^{-u})`, the variance of a label
    given x (as 0 or 1),

    .. math:: H = E[w\, h(x^\top \theta^*)\, x x^\top], \qquad
        S = E[w^2 h(x^\top \theta^*)\, x x^\top].

    Args:
        dim: The number of parameters p.
        **settings: ``theta``, ``mallows``, ``seed``, ``num_replications``,
            ``num_steps``, ``dtype`` and ``device`` of :class:`RegressionStream`.

    Attributes:
        gradient_bound: :math:`\sqrt 2` with weights, None without.

    Example:
        >>> stream = LogisticStream(2)
        >>> stream.losses(1, stream.initial_x.expand(1, 1, 2)) <= 0.6932  # log 2
        tensor([[True]])
    """

    def __init__(self, dim: int = 5, **settings: Unpack[RegressionSettings]) -> None:
        super().__init__(dim, c=1.0, **settings)

    def _responses(self, predictors: Tensor, noise: Tensor) -> Tensor:
        uniform = torch.special.ndtr(noise)
        return (uniform < predictors.sigmoid()).double() * 2 - 1

    def _chunk(self, number: int) -> Record:
        return signed_records(super()._chunk(number))

    def _losses(self, record: Record, X: Tensor) -> Tensor:
        return logistic_losses(record, X)

    def _gradients(self, record: Record, x: Tensor) -> Tensor:
        return logistic_gradients(record, x)

    def _asymptotics(self) -> tuple[Tensor, Tensor]:
        def variance(u: Array) -> Array:
            return np.asarray(expit(u) * expit(-u))

        hessian, covariance = (
            mean_outer_product(
                mallows_power(power * self.mallows), variance, self._theta
            )
            for power in (1, 2)
        )
        return hessian, covariance


class ReLUStream(RegressionStream):
    r"""Regression with a rectified linear response, which is not convex.

    Responses are :math:`y_t = (x_t^\top \theta^*)_+`, without noise, and

    .. math:: \ell_t(\theta) = w_t\, \rho_c(y_t - (x_t^\top \theta)_+), \qquad
        \nabla \ell_t(\theta) = -w_t\, \rho_c'(y_t - (x_t^\top \theta)_+)\,
        1[x_t^\top \theta > 0]\, x_t,

    a subgradient where :math:`x_t^\top \theta = 0`.

    **The gradient's bound** is :math:`c \sqrt 2`, as :math:`|\rho_c'| \le c`.

    **The start** is 0.1 in the first coordinate and 0 in the others. At zero the
    subgradient is zero for every user, so descent would never move. This start is
    almost as near as that of the other models and, unlike a start on the diagonal, does
    not have the direction of the true parameters.

    **Asymptotics**: at the optimum all residuals are zero, so that

    .. math:: H = \tfrac12 E[w x x^\top], \qquad S = 0.

    Without noise for privacy, errors therefore decrease faster than 1/T.

    Args:
        dim: The number of parameters p.
        c: The residual at which the Huber loss changes from quadratic to linear.
        **settings: ``theta`` (not all zero), ``mallows``, ``seed``,
            ``num_replications``, ``num_steps``, ``dtype`` and ``device`` of
            :class:`RegressionStream`.

    Attributes:
        gradient_bound: :math:`c \sqrt 2` with weights, None without.

    Example:
        >>> stream = ReLUStream(3)
        >>> stream.initial_x.tolist()
        [0.1, 0.0, 0.0]
        >>> float(stream.losses(7, stream.optimal_x.expand(1, 1, 3))) < 1e-30
        True
    """

    def __init__(
        self, dim: int = 5, *, c: float = 1.0, **settings: Unpack[RegressionSettings]
    ) -> None:
        start = torch.zeros(
            check_count("dim", dim), dtype=torch.float64, device=settings.get("device")
        )
        start[0] = _RELU_START
        super().__init__(dim, c=c, initial_x=start, **settings)
        if not self._theta.any():
            raise InvalidArgumentError(
                "theta must not be zero, where the loss has a kink, got "
                f"{settings.get('theta')!r}."
            )

    def _responses(self, predictors: Tensor, noise: Tensor) -> Tensor:
        return predictors.relu()

    def _losses(self, record: Record, X: Tensor) -> Tensor:
        return huber_losses(record, X, self.c, relu=True)

    def _gradients(self, record: Record, x: Tensor) -> Tensor:
        return huber_gradients(record, x, self.c, relu=True)

    def _asymptotics(self) -> tuple[Tensor, Tensor]:
        hessian = self._second_moment(1) / 2
        return hessian, torch.zeros_like(hessian)
