r"""Local searches that minimize the model near the best point: MinUCB, trust region.

References:
    .. [Fan2024minucb] Z. Fan, W. Wang, S. H. Ng and Q. Hu. Minimizing UCB: a Better
        Local Search Strategy in Local Bayesian Optimization. NeurIPS 2024.
    .. [Eriksson2019turbo] D. Eriksson, M. Pearce, J. R. Gardner, R. Turner and
        M. Poloczek. Scalable Global Optimization via Local Bayesian Optimization.
        NeurIPS 2019.
"""

import warnings
from typing import Any

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.warnings import BotorchWarning
from botorch.optim import optimize_acqf
from torch import Tensor

from botorch_dp._validation import check_nonnegative, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientGP
from botorch_dp.optimizers.baselines.local.search import LocalSearch
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import Losses

_MAX_ITERATIONS = 100


class _PessimisticValue(UpperConfidenceBound):
    r"""Minus the upper confidence bound, :math:`-(\mu + \sqrt{\beta} \sigma)`."""

    def __init__(self, model: GradientGP, beta: float) -> None:
        super().__init__(model, beta=beta, maximize=False)

    def forward(self, X: Tensor) -> Tensor:
        mean, sigma = self._mean_and_sigma(X)
        return -(mean + self.beta.sqrt() * sigma)


def least_confidence_bound(
    model: GradientGP, start: Tensor, box: Tensor, beta: float
) -> Tensor:
    r"""Return a local minimizer of :math:`\mu + \sqrt{\beta} \sigma` in a box.

    Args:
        model: The model.
        start: Where to start, a ``d`` tensor in the box.
        box: A ``2 x d`` tensor of lower and upper bounds.
        beta: The weight of the variance.
    """
    with start.device, warnings.catch_warnings():
        warnings.simplefilter("ignore", BotorchWarning)
        acqf = _PessimisticValue(model, beta)
        found, value = optimize_acqf(
            acqf,
            box,
            q=1,
            num_restarts=1,
            batch_initial_conditions=start.reshape(1, 1, -1),
            options={"maxiter": _MAX_ITERATIONS},
        )
    with torch.no_grad():
        return found.squeeze(0) if value >= acqf(start.unsqueeze(0)) else start


class MinUCB(LocalSearch):
    r"""Local Bayesian optimization that minimizes a confidence bound [Fan2024minucb]_.

    A step evaluates the centre and points that are informative about the gradient
    there. Then the centre moves to the minimum of :math:`\mu + \sqrt{\beta} \sigma`,
    which uses the whole posterior and needs no step size.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records; 1 for a function without records.
        num_steps: The number of steps.
        beta: The weight of the variance.
        **kwargs: The arguments of :class:`LocalSearch`.

    Example:
        >>> bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
        >>> opt = MinUCB(bounds, num_records=1, num_steps=4)
        >>> result = opt.run(lambda X: (X - 0.3).square().sum(dim=-1), progress=False)
        >>> bool((result.x - 0.3).norm() < 0.1)
        True
    """

    name = "minucb"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        *,
        beta: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(bounds, num_records, num_steps, **kwargs)
        self.beta = check_nonnegative("beta", beta)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "beta": self.beta}

    def _move(self, model: GradientGP) -> Tensor:
        start, _ = self._best_known()
        return least_confidence_bound(model, start, self._box, self.beta)


class GradientTrustRegion(LocalSearch):
    r"""A trust region that learns gradients: TuRBO's counters, GIBO's points.

    The region is a cube around the best point. A step evaluates the minimum of
    :math:`\mu + \sqrt{\beta} \sigma` in it, and points that are informative about the
    gradient there. The region grows when a step finds a better value and shrinks when
    it does not [Eriksson2019turbo]_.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records; 1 for a function without records.
        num_steps: The number of steps.
        beta: The weight of the variance.
        length: The side of the first region, as a share of the box.
        min_length: The least side.
        **kwargs: The arguments of :class:`LocalSearch`.

    Attributes:
        length: The side of the region.

    Example:
        >>> bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
        >>> opt = GradientTrustRegion(bounds, num_records=1, num_steps=4)
        >>> result = opt.run(lambda X: (X - 0.3).square().sum(dim=-1), progress=False)
        >>> bool((result.x - 0.3).norm() < 0.1)
        True
    """

    name = "gradient trust region"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        *,
        beta: float = 0.0,
        length: float = 0.4,
        min_length: float = 0.5**7,
        **kwargs: Any,
    ) -> None:
        super().__init__(bounds, num_records, num_steps, **kwargs)
        self.beta = check_nonnegative("beta", beta)
        self.length = self.first_length = check_positive("length", length)
        self.min_length = check_positive("min_length", min_length)
        if self.min_length > self.length:
            raise InvalidArgumentError(
                f"min_length must be at most length={length!r}, got {min_length!r}."
            )
        self._best_value = torch.inf

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "beta": self.beta,
            "length": self.first_length,
            "min_length": self.min_length,
        }

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        step = super()._learn(losses, points)
        self._best_value = float(self._best_known()[1])
        return step

    def _move(self, model: GradientGP) -> Tensor:
        best, value = self._best_known()
        self._resize(float(value))
        half = self.length / 2
        low, high = self._box
        region = torch.stack(
            [(best - half).clamp(min=low), (best + half).clamp(max=high)]
        )
        return least_confidence_bound(model, best, region, self.beta)

    def _resize(self, value: float) -> None:
        if not self._history:
            return
        factor = 2.0 if value < self._best_value else 0.5
        self.length = min(max(self.length * factor, self.min_length), 1.0)

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "length": self.length,
            "best_value": self._best_value,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if not self.min_length <= state["length"] <= 1.0:
            raise ValueError(f"a region of length {state['length']!r}")
        float(state["best_value"])

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.length = float(state["length"])
        self._best_value = float(state["best_value"])
