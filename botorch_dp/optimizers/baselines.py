"""Baselines with the same interface, to compare private optimizers with.

Only :class:`NoisyGradientDescent` is private. The others see private data without
noise, and their certificates say so.

References:
    .. [Avella2023noisy] M. Avella-Medina, C. Bradshaw and P.-L. Loh. Differentially
        Private Inference via Noisy Optimization. Annals of Statistics, 2023.
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021. GIBO.
    .. [Srinivas2010gpucb] N. Srinivas, A. Krause, S. Kakade and M. Seeger. Gaussian
        Process Optimization in the Bandit Setting. ICML 2010.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_dp._checks import check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.base import PrivateOptimizer, Step
from botorch_dp.optimizers.dp_gibo import DPGIBO
from botorch_dp.optimizers.gradient_descent import PrivateGradientDescent
from botorch_dp.optimizers.private_losses import Losses, checked_chunks
from botorch_dp.privacy import GDP, Certificate, PrivacyEvent

# A bound that no gradient reaches, for optimizers that do not clip.
_NO_CLIPPING = 1e30


class NoisyGradientDescent(PrivateGradientDescent):
    """Private gradient descent on true per-record gradients [Avella2023noisy]_.

    What DP-GIBO would do if gradients could be had: ``ask`` returns the current point
    and ``tell`` takes an ``n x d`` tensor of gradients in the original coordinates.
    See :class:`PrivateGradientDescent` for the arguments.

    Example:
        >>> records = torch.rand(1000, 2, dtype=torch.float64)  # private
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> opt = NoisyGradientDescent(
        ...     bounds, 1000, GDP(mu=1.0), num_steps=10, clip_norm=1.0
        ... )
        >>> result = opt.run(lambda x: x - records, progress=False)
        >>> result.certificate.guarantee
        GDP(mu=1)
    """

    name = "noisy gradient descent"
    noun: ClassVar[str] = "the gradient of each record"

    def _propose(self) -> Tensor:
        return self._parameter.unsqueeze(0)

    def _private_gradients(self, losses: Losses, points: Tensor) -> Iterator[Tensor]:
        slope = self.coordinates.slope(self._parameter)
        for gradients in checked_chunks(
            losses,
            self.coordinates.from_search(points),
            self.num_records,
            self.coordinates.dim,
            self.noun,
        ):
            yield gradients * slope


class GIBO(DPGIBO):
    """Gradient-information Bayesian optimization without privacy [Mueller2021local]_.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records.
        num_steps: The number of steps.
        clip_norm: A bound on a record's gradient, as DP-GIBO has it; none by default.
        **kwargs: As for :class:`DPGIBO`.
    """

    name = "gibo"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        clip_norm: float = _NO_CLIPPING,
        **kwargs: Any,
    ) -> None:
        refused = {"guarantee", "ledger", "generator", "secure"} & set(kwargs)
        if refused:
            raise InvalidArgumentError(
                f"GIBO releases nothing, and takes no {', '.join(sorted(refused))}."
            )
        # The guarantee is never used.
        super().__init__(bounds, num_records, GDP(1.0), num_steps, clip_norm, **kwargs)

    @property
    def noise_std(self) -> float:
        """Zero: there is no noise."""
        return 0.0

    def certificate(self) -> Certificate:
        """Say that nothing is guaranteed."""
        return _not_private(self)

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, and how many there are of it."""
        return []

    def _release(self, private_mean: Tensor) -> Tensor:
        self._num_charged += 1
        return private_mean

    def _keep_ledger_at(self, path: str) -> None:
        del path

    def _num_due(self, num_steps: int) -> int:
        return 0

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._num_charged = len(self._history)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "guarantee": None}


class _BestOfMeans(PrivateOptimizer):
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
        self._points = self.coordinates.box[:0]  # search coordinates
        self._means = self._points[:, 0]

    def certificate(self) -> Certificate:
        """Say that nothing is guaranteed."""
        return _not_private(self)

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

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._points = state["points"].to(self.bounds)
        self._means = state["means"].to(self.bounds)
        if self._generator is not None and state["generator"] is not None:
            self._generator.set_state(state["generator"].cpu())

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        X = self.coordinates.from_search(points)
        chunks = checked_chunks(losses, X, self.num_records, len(points), self.noun)
        total = torch.stack([chunk.sum(dim=0) for chunk in chunks]).sum(dim=0)
        self._points = torch.cat([self._points, points])
        self._means = torch.cat([self._means, total / self.num_records])
        best = self._points[self._means.nan_to_num(torch.inf).argmin()]
        return Step(
            number=len(self._history) + 1,
            x=self.coordinates.from_search(best),
            num_evaluations=len(self._points),
        )

    def _random_points(self) -> Tensor:
        low, high = self.coordinates.box
        uniform = torch.rand(
            self.batch_size,
            len(low),
            generator=self._generator,
            dtype=low.dtype,
            device=low.device,
        )
        return low + (high - low) * uniform


class RandomSearch(_BestOfMeans):
    """Evaluates random points and keeps the best: not private."""

    name = "random search"

    def _propose(self) -> Tensor:
        return self._random_points()


class GPUCB(_BestOfMeans):
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
            self.coordinates.box,
            q=self.batch_size,
            num_restarts=2,
            raw_samples=64,
            options={"maxiter": 100},
        )
        return points.detach()


def _not_private(optimizer: PrivateOptimizer) -> Certificate:
    return Certificate.not_private(
        f"{optimizer.name} sees the private losses without noise",
        parameters={
            "num_records": optimizer.num_records,
            "num_steps": optimizer.num_steps,
        },
    )
