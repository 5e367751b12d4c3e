r"""Gradient descent on clipped per-record gradients, with noise and without.

With :math:`g_i` the gradient of record i, a private step releases

.. math::
    \frac{1}{n} \sum_{i=1}^n g_i \min(1, B / \|g_i\|) + N(0, \sigma^2 I), \qquad
    \sigma = \frac{2 B \sqrt{T}}{n \mu},

which replacing one record moves by at most 2 B / n. ``zero_out`` neighbours, one of
which lacks a record (its gradient counts as zero and n stays the same), move it by at
most B / n, so half the noise gives the same mu. Everything after the release is
post-processing: the update rule, projections and averages. Subclasses compute the
gradients.

Gradients are computed where the losses are. What is public is small but takes many
operations, so it stays on the CPU: the iterate, the update rule and, unless a generator
on another device is given, the noise. A step then copies d numbers from the device.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_clip_norm, check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.optimizer import Optimizer, Step
from botorch_dp.optimizers.core.private_optimizer import PrivateOptimizer
from botorch_dp.optimizers.gibo.updates import Update, UpdateRule
from botorch_dp.privacy import (
    GaussianMechanism,
    Guarantee,
    Ledger,
    PrivacyEvent,
    SecureNoise,
    clipped_row_sum,
)
from botorch_dp.privacy.budget import (
    check_gaussian,
    mean_sensitivity,
    share_of_a_step,
    warn_of_large_delta,
)
from botorch_dp.privacy.clipping import check_bound

# How far a record that is clipped to 1 can move the sum of all records.
MOVES = {"replace_one": 2.0, "zero_out": 1.0}


class GradientDescent(Optimizer):
    """Follows means of clipped per-record gradients.

    Args:
        clip_norm: The bound B on a record's gradient, in search coordinates.
        update: ``"adagrad"``, ``"sgd"``, or a ``torch.optim`` class.
        step_size: Its learning rate, in search coordinates; 0.2 for AdaGrad and 0.1
            for SGD by default.
        initial_accumulator: The value at which AdaGrad's sums of squares start.
        initial_x: Where to start, a ``d`` tensor; the centre of the box by default. It
            must not depend on private data.
        num_directions: How many coordinates of the gradient a step releases; all by
            default.
        **kwargs: The arguments of :class:`Optimizer`.
    """

    def __init__(
        self,
        *,
        clip_norm: float,
        update: Update = "adagrad",
        step_size: float | None = None,
        initial_accumulator: float | None = None,
        initial_x: Tensor | None = None,
        num_directions: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        check_bound(self.clip_norm, self.bounds.dtype)
        self.num_directions = _check_directions(num_directions, self.search_box.dim)
        self._rule = UpdateRule(update, step_size, initial_accumulator)
        self._box = self.search_box.on_cpu()
        self._parameter = self._box.box.mean(dim=0)
        if initial_x is not None:
            initial_x = self.search_box.check_inside("initial_x", initial_x)
            self._parameter = self._box.project(self._box.to_search(initial_x.cpu()))
        self._rule.check(self._parameter)
        self._follower = self._rule.start(self._parameter)

    @property
    def x(self) -> Tensor:
        """The current point, a ``d`` tensor."""
        return self._points_of(self._parameter)

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each coordinate of a step."""
        return 0.0

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "clip_norm": self.clip_norm,
            "update": self._rule.name,
            "step_size": self._rule.step_size,
            "initial_accumulator": self._rule.initial_accumulator,
        }

    @abstractmethod
    def _release(self, private_mean: Tensor) -> Tensor:
        """Return what the optimizer learns about the mean gradient."""

    def _points_of(self, pending: Tensor) -> Tensor:
        return self._box.from_search(pending).to(self.bounds.device)

    def _clipped_mean(self, private_gradients: Iterable[Tensor]) -> Tensor:
        """Return the mean of the clipped gradients of all records, in chunks."""
        total = self.bounds.new_zeros(self.num_directions, dtype=torch.float64)
        for gradients in private_gradients:
            total += clipped_row_sum(gradients, self.clip_norm)
        return total / self.num_records

    def _follow(
        self, gradient: Tensor, *, num_points: int, trace: float | None = None
    ) -> Step:
        """Take a step along a released gradient."""
        self._parameter = self._follower.follow(
            gradient.to(self._parameter), self._box.project, self.noise_std
        )
        return Step(
            number=len(self._history) + 1,
            x=self._box.from_search(self._parameter),
            num_evaluations=self.num_evaluations + num_points,
            noise_std=self.noise_std,
            trace=trace,
        )

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "parameter": self._parameter,
            "update": self._follower.state_dict(),
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        parameter = state["parameter"].to(self._parameter)
        if not torch.equal(parameter, self._box.project(parameter)):
            raise ValueError("a parameter outside the box")
        self._rule.start(parameter, state["update"])

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._parameter = state["parameter"].to(self._parameter)
        self._follower = self._rule.start(self._parameter, state["update"])


def _check_directions(num_directions: int | None, dim: int) -> int:
    count = check_count(
        "num_directions", dim if num_directions is None else num_directions
    )
    if count > dim:
        raise InvalidArgumentError(
            f"num_directions must be at most {dim}, the number of dimensions, got "
            f"{num_directions!r}."
        )
    return count


class PrivateGradientDescent(GradientDescent, PrivateOptimizer):
    """Follows noisy means of clipped per-record gradients.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number n of records.
        guarantee: What the whole run has to meet: ``GDP``, ``ApproxDP`` or ``RDP``.
        num_steps: The number T of steps, which share the budget equally.
        clip_norm: The bound B on a record's gradient, in search coordinates.
        transform: The search coordinates, see :class:`SearchBox`.
        update: ``"adagrad"``, ``"sgd"``, or a ``torch.optim`` class.
        step_size: Its learning rate, in search coordinates; 0.2 for AdaGrad and 0.1
            for SGD by default.
        initial_accumulator: The value at which AdaGrad's sums of squares start.
        initial_x: Where to start, a ``d`` tensor; the centre of the box by default. It
            must not depend on private data.
        adjacency: The neighbours for which the guarantee holds: ``"replace_one"``, or
            ``"zero_out"``, where one record contributes nothing, to share a ledger with
            training steps of Opacus.
        unit: Who a row of losses belongs to, and is protected: ``"record"``, or
            ``"person"`` if every row combines all records of one person.
        ledger: The ledger to charge; by default one with the guarantee as its cap.
        generator: Seeds the noise, for experiments only.
        secure: Whether to draw exact discrete noise; with ``ApproxDP`` or ``RDP``.
        **kwargs: The arguments of a subclass.
    """

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        guarantee: Guarantee,
        num_steps: int,
        clip_norm: float,
        *,
        transform: str | Sequence[str] = "linear",
        update: Update = "adagrad",
        step_size: float | None = None,
        initial_accumulator: float | None = None,
        initial_x: Tensor | None = None,
        adjacency: str = "replace_one",
        unit: str = "record",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            guarantee=check_gaussian(guarantee, secure),
            num_steps=num_steps,
            clip_norm=clip_norm,
            transform=transform,
            update=update,
            step_size=step_size,
            initial_accumulator=initial_accumulator,
            initial_x=initial_x,
            adjacency=check_choice("adjacency", adjacency, tuple(MOVES)),
            unit=unit,
            ledger=ledger,
            secure=secure,
            **kwargs,
        )
        warn_of_large_delta(guarantee, self.num_records, stacklevel=4)
        sensitivity = mean_sensitivity(
            MOVES[adjacency] * self.clip_norm, self.num_records
        )
        share = share_of_a_step(
            guarantee,
            self.num_steps,
            sensitivity=sensitivity,
            size=self.num_directions,
            secure=secure,
        )
        self._mechanism = GaussianMechanism(
            share,
            sensitivity=sensitivity,
            adjacency=adjacency,
            generator=generator,
            secure=secure,
            unit=unit,
        )
        self._noise_device = torch.device(
            "cpu" if generator is None else generator.device
        )

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each coordinate of a step."""
        return self._mechanism.noise_std

    @property
    def done(self) -> bool:
        """Whether all steps have been taken, or paid for.

        A run that was killed between charging and drawing has paid for a step that it
        did not take, so it ends one step earlier.
        """
        return self.account.num_charged >= self.num_steps

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, and how many there are of it."""
        return [(self._mechanism.event(self.num_directions), self.num_steps)]

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "adjacency": self.adjacency}

    def _certified_parameters(self) -> dict[str, Any]:
        noise_std = float(f"{self.noise_std:.6g}")
        return {**super()._certified_parameters(), "noise_std": noise_std}

    def _release(self, private_mean: Tensor) -> Tensor:
        private_mean = private_mean.to(self._noise_device)
        return self._mechanism.release(private_mean, ledger=self.account)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.account.skip_noise(
            self._mechanism, size=self.num_directions, device=self._noise_device
        )
