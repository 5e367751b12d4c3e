"""What local searches share: a centre, a model of the points near it, and their moves.

Each step evaluates the centre and points that are informative about the gradient there
(a design in closed form), fits the model and moves the centre. Subclasses say how.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_box, check_count
from botorch_dp.acquisition import optimal_design
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import GradientGP
from botorch_dp.optimizers.baselines.local.surrogate import (
    Hyperparameters,
    fit_local_model,
)
from botorch_dp.optimizers.baselines.searches import BestOfMeans
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import Losses, with_record_dim

# A fit is repeated when the number of points has grown by this factor.
_REFIT = 1.1


class LocalSearch(BestOfMeans):
    """Moves a centre by a model of the points near it: not private.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number of records; 1 for a function without records, whose
            ``b`` values may then be told as they are.
        num_steps: The number of steps.
        batch_size: The number of points a step: the centre, unless it is known, and
            others around it. By default d + 2, at most 12.
        window: How many of the nearest points the model is fitted to.
        transform: ``"linear"`` or ``"log"``, for all or for each dimension.
        initial_x: Where to start; the centre of the box by default.
    """

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        *,
        batch_size: int | None = None,
        window: int = 500,
        transform: str | Sequence[str] = "linear",
        initial_x: Tensor | None = None,
    ) -> None:
        bounds = check_box("bounds", bounds)
        if batch_size is None:
            batch_size = min(bounds.shape[-1] + 2, 12)
        super().__init__(
            bounds, num_records, num_steps, batch_size=batch_size, transform=transform
        )
        if "identity" in self.search_box.transform:
            raise InvalidArgumentError(
                "transform must be 'linear' or 'log' for a local search, whose model "
                "is for the unit cube, got 'identity'."
            )
        check_count("batch_size", self.batch_size, minimum=2)
        self.window = check_count("window", window, minimum=2)
        # In double precision, whatever the bounds are: points are close to each other.
        self._box = self.search_box.box.double()
        self._points, self._means = self._box[:0], self._box[:0, 0]
        self._center = self._box.mean(dim=0)
        if initial_x is not None:
            initial_x = self.search_box.check_inside("initial_x", initial_x)
            self._center = self._project(self.search_box.to_search(initial_x).double())
        self._hyperparameters: Hyperparameters | None = None
        self._fitted_to = 0

    @property
    def center(self) -> Tensor:
        """The point around which the next step looks, a ``d`` tensor."""
        return self._points_of(self._center)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "window": self.window}

    @abstractmethod
    def _move(self, model: GradientGP) -> Tensor:
        """Return the next centre, in search coordinates."""

    def _propose(self) -> Tensor:
        center = self._center.unsqueeze(0)
        if (self._points == center).all(dim=-1).any():
            return self._design(self.batch_size)
        return torch.cat([center, self._design(self.batch_size - 1)])

    def _design(self, size: int) -> Tensor:
        """Return points that are informative about the gradient at the centre."""
        model = self._model(also=self._center)
        return optimal_design(
            model, self._center, batch_size=size, bounds=self._box
        ).points

    def _model(self, also: Tensor | None = None) -> GradientGP:
        """Return the model of the nearest points.

        Args:
            also: A point that the model knows as well, with a value of no consequence:
                the choice of points does not depend on values.
        """
        distances = (self._points - self._center).square().sum(dim=-1)
        nearest = distances.argsort(stable=True)[: self.window].sort().values
        X, values = self._points[nearest], self._means[nearest]
        if also is not None and not bool((distances == 0).any()):
            X = torch.cat([X, also.unsqueeze(0)])
            fill = values.mean() if len(values) else self._means.new_zeros(())
            values = torch.cat([values, fill.reshape(1)])
        refit = also is None and len(self._points) >= _REFIT * self._fitted_to
        model, found = fit_local_model(X, values, self._hyperparameters, refit=refit)
        if refit:
            self._hyperparameters, self._fitted_to = found, len(self._points)
        return model

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        losses = with_record_dim(losses, self.num_records, len(points))
        step = super()._learn(losses, points)
        self._center = self._project(self._move(self._model()).detach())
        return step

    def _project(self, U: Tensor) -> Tensor:
        return U.clamp(min=self._box[0], max=self._box[1])

    def _points_of(self, pending: Tensor) -> Tensor:
        return self.search_box.from_search(pending.to(self.bounds))

    def _best_known(self) -> tuple[Tensor, Tensor]:
        """Return the best point and its value."""
        values = self._means.nan_to_num(torch.inf)
        best = values.argmin()
        return self._points[best], values[best]

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "center": self._center,
            "hyperparameters": self._hyperparameters,
            "fitted_to": self._fitted_to,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        center = state["center"].to(self._center)
        if not torch.equal(center, self._project(center)):
            raise ValueError("a center outside the box")
        if not isinstance(state["fitted_to"], int):
            raise ValueError(f"fitted_to {state['fitted_to']!r}")
        dict(state["hyperparameters"] or {})

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._center = state["center"].to(self._center)
        self._fitted_to = state["fitted_to"]
        self._hyperparameters = state["hyperparameters"]
