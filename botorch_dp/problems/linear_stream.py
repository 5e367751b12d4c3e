r"""Linear regression on a stream: Example 5.1 of [LDPBO2025]_, and its appendix D.3.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
"""

import math
from typing import Unpack

import torch
from botorch.exceptions import UnsupportedError
from scipy.special import ndtr
from torch import Tensor

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems._stream_losses import huber_gradients, huber_losses
from botorch_dp.problems.stream_regression import (
    RegressionSettings,
    RegressionStream,
)
from botorch_dp.problems.streams import Record

_DRIFTS = ("abrupt", "smooth")
# Appendix D.3: three regimes, or a straight path from the first to the last one.
_REGIMES = (
    (1.0, 2.0, 1.0, 0.0, 0.0),
    (0.0, -1.0, -2.0, -1.0, 0.0),
    (0.0, 0.0, 1.0, 2.0, 1.0),
)
_DRIFT_DIM = len(_REGIMES[0])


class LinearStream(RegressionStream):
    r"""Robust linear regression, with parameters that may drift.

    Responses are :math:`y_t = x_t^\top \theta^* + e_t` with standard normal
    :math:`e_t`, and with the Huber loss :math:`\rho_c` and the Mallows weights

    .. math:: \ell_t(\theta) = w_t\, \rho_c(y_t - x_t^\top \theta), \qquad
        \nabla \ell_t(\theta) = -w_t\, \rho_c'(y_t - x_t^\top \theta)\, x_t.

    **The gradient's bound** is :math:`c \sqrt 2`, as :math:`|\rho_c'| \le c`.

    **Asymptotics**: at the optimum the residual is :math:`e_t`, so that

    .. math:: H = P(|e| \le c)\, E[w x x^\top], \qquad
        S = E[\min(|e|, c)^2]\, E[w^2 x x^\top],

    multiples of the identity.

    **Drift** (appendix D.3, p = 5): ``"abrupt"`` switches between (1, 2, 1, 0, 0),
    (0, -1, -2, -1, 0) and (0, 0, 1, 2, 1) after one and two thirds of the T steps;
    ``"smooth"`` moves from the first to the last of them on a straight line,
    :math:`\theta_t = (1 - a_t) \theta_1 + a_t \theta_T` with
    :math:`a_t = (t - 1) / (T - 1)`. Then ``optimal_x`` is None; use
    :meth:`optimal_x_at`.

    The paper sets p = 2, 5 and 20, c = 1, and T = 20,000.

    Args:
        dim: The number of parameters p.
        c: The residual at which the Huber loss changes from quadratic to linear.
        drift: ``"abrupt"``, ``"smooth"`` or None. It needs ``num_steps`` and p = 5, and
            sets ``theta``.
        **settings: ``theta``, ``mallows``, ``seed``, ``num_replications``,
            ``num_steps``, ``dtype`` and ``device`` of :class:`RegressionStream`.

    Attributes:
        gradient_bound: :math:`c \sqrt 2` with weights, None without.

    Example:
        >>> stream = LinearStream(2, num_replications=3)
        >>> stream.losses(1, torch.zeros(4, 2, dtype=torch.float64)).shape
        torch.Size([3, 4])
        >>> x = torch.zeros(3, 2, dtype=torch.float64)
        >>> bool((stream.gradients(1, x).norm(dim=-1) <= stream.gradient_bound).all())
        True
        >>> drifting = LinearStream(5, drift="abrupt", num_steps=20000)
        >>> drifting.optimal_x_at(6666).tolist(), drifting.optimal_x_at(6667).tolist()
        ([1.0, 2.0, 1.0, 0.0, 0.0], [0.0, -1.0, -2.0, -1.0, 0.0])
    """

    def __init__(
        self,
        dim: int = 5,
        *,
        c: float = 1.0,
        drift: str | None = None,
        **settings: Unpack[RegressionSettings],
    ) -> None:
        super().__init__(dim, c=c, **settings)
        self.drift = drift
        if drift is not None:
            check_choice("drift", drift, _DRIFTS)
            theta, num_steps = settings.get("theta"), self.num_steps
            if self.dim != _DRIFT_DIM or theta is not None:
                raise InvalidArgumentError(
                    f"drift={drift!r} sets the parameters: pass dim={_DRIFT_DIM} and "
                    f"no theta, got dim={self.dim} and theta={theta!r}."
                )
            if num_steps is None or num_steps < len(_REGIMES):
                raise InvalidArgumentError(
                    f"drift={drift!r} needs num_steps, at least {len(_REGIMES)}, got "
                    f"{num_steps!r}."
                )
            self.optimal_x = None
            self._regimes = torch.tensor(_REGIMES, dtype=torch.float64, device="cpu")

    def optimal_x_at(self, step: int) -> Tensor:
        """Return the true parameters of a step, a ``p`` tensor, for measuring only.

        Args:
            step: The step, from 1.
        """
        if self.drift is None:
            return super().optimal_x_at(step)
        return self._path(self._check_step(step), 1)[0].to(self.initial_x)

    def _path(self, first_step: int, length: int) -> Tensor:
        """Return the drifting parameters of some steps, ``length x p``."""
        assert self.num_steps is not None
        steps = torch.arange(first_step, first_step + length, device="cpu")
        if self.drift == "abrupt":
            # The third of t in 1 <= t <= T/3 < t <= 2T/3 < t <= T, without rounding.
            thirds = (3 * steps - 1).div(self.num_steps, rounding_mode="floor")
            return self._regimes[thirds.clamp(max=len(_REGIMES) - 1)]
        progress = (steps.double() - 1).unsqueeze(-1) / (self.num_steps - 1)
        return (1 - progress) * self._regimes[0] + progress * self._regimes[-1]

    def _predictors(self, inputs: Tensor, number: int) -> Tensor:
        if self.drift is None:
            return super()._predictors(inputs, number)
        path = self._path(number * self.chunk_size + 1, len(inputs))
        return (inputs * path.unsqueeze(1)).sum(dim=-1)

    def _responses(self, predictors: Tensor, noise: Tensor) -> Tensor:
        return predictors + noise

    def _losses(self, record: Record, X: Tensor) -> Tensor:
        return huber_losses(record, X, self.c)

    def _gradients(self, record: Record, x: Tensor) -> Tensor:
        return huber_gradients(record, x, self.c)

    def _asymptotics(self) -> tuple[Tensor, Tensor]:
        if self.drift is not None:
            raise UnsupportedError(
                "A drifting optimum has no asymptotic variance; pass drift=None."
            )
        within = float(2 * ndtr(self.c) - 1)
        density = math.exp(-(self.c**2) / 2) / math.sqrt(2 * math.pi)
        clipped = within - 2 * self.c * density + self.c**2 * (1 - within)
        return within * self._second_moment(1), clipped * self._second_moment(2)
