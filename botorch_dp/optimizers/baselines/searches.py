"""Searches that keep exact mean losses: they are not private.

References:
    .. [Srinivas2010gpucb] N. Srinivas, A. Krause, S. Kakade and M. Seeger. Gaussian
        Process Optimization in the Bandit Setting. ICML 2010.
"""

from collections.abc import Sequence
from typing import Any

import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_dp._validation import check_count, check_positive
from botorch_dp.optimizers.core.optimizer import Optimizer, Step
from botorch_dp.optimizers.core.private_values import Losses, checked_chunks
from botorch_dp.privacy import Certificate


class BestOfMeans(Optimizer):
    """Keeps the exact mean loss of every point: not private.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records.
        num_steps: The number of steps.
        batch_size: The number of points a step.
        transform: The search coordinates.
        generator: Seeds the choice of random points.
    """

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        *,
        batch_size: int = 1,
        transform: str | Sequence[str] = "linear",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            num_steps=num_steps,
            transform=transform,
        )
        self.batch_size = check_count("batch_size", batch_size)
        self._generator = generator
        self._points = self.search_box.box[:0]  # search coordinates
        self._means = self._points[:, 0]

    def certificate(self) -> Certificate:
        """Say that nothing is guaranteed."""
        return not_private(self)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "batch_size": self.batch_size}

    def _state(self) -> dict[str, Any]:
        drawn = None if self._generator is None else self._generator.get_state()
        return {
            **super()._state(),
            "points": self._points,
            "means": self._means,
            "generator": drawn,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        shape = (len(state["means"]), self.search_box.dim)
        if state["points"].shape != shape or "generator" not in state:
            raise ValueError("points and means do not match, or there is no generator")

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._points = state["points"].to(self._points)
        self._means = state["means"].to(self._means)
        if self._generator is not None and state["generator"] is not None:
            self._generator.set_state(state["generator"].cpu())

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        X = self._points_of(points)
        chunks = checked_chunks(losses, X, self.num_records, len(points), self.noun)
        total = torch.stack([chunk.sum(dim=0) for chunk in chunks]).sum(dim=0)
        self._points = torch.cat([self._points, points])
        self._means = torch.cat([self._means, total / self.num_records])
        best = self._points[self._means.nan_to_num(torch.inf).argmin()]
        return Step(
            number=len(self._history) + 1,
            x=self._points_of(best),
            num_evaluations=len(self._points),
        )

    def _random_points(self) -> Tensor:
        low, high = self.search_box.box
        uniform = torch.rand(
            self.batch_size,
            len(low),
            generator=self._generator,
            dtype=low.dtype,
            device=low.device,
        )
        return low + (high - low) * uniform


class RandomSearch(BestOfMeans):
    """Evaluates random points and keeps the best: not private."""

    name = "random search"

    def _propose(self) -> Tensor:
        return self._random_points()


class GPUCB(BestOfMeans):
    """BoTorch's upper confidence bound [Srinivas2010gpucb]_: not private.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records.
        num_steps: The number of steps; random until there are two points.
        batch_size: The number of points a step.
        beta: The weight of the variance.
        transform: The search coordinates.
        generator: Seeds the choice of random points.
    """

    name = "gp-ucb"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        *,
        batch_size: int = 1,
        beta: float = 2.0,
        transform: str | Sequence[str] = "linear",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            bounds,
            num_records,
            num_steps,
            batch_size=batch_size,
            transform=transform,
            generator=generator,
        )
        self.beta = check_positive("beta", beta)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "beta": self.beta}

    def _propose(self) -> Tensor:
        if len(self._points) < 2:
            return self._random_points()
        model = SingleTaskGP(self._points, -self._means.unsqueeze(-1))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        points, _ = optimize_acqf(
            qUpperConfidenceBound(model, beta=self.beta),
            self.search_box.box,
            q=self.batch_size,
            num_restarts=2,
            raw_samples=64,
            options={"maxiter": 100},
        )
        return points.detach()


def not_private(optimizer: Optimizer) -> Certificate:
    """Return a certificate that guarantees nothing."""
    return Certificate.not_private(
        f"{optimizer.name} sees the private losses without noise",
        parameters={
            "num_records": optimizer.num_records,
            "num_steps": optimizer.num_steps,
        },
    )
