r"""Private gradient descent: clipped per-record gradients, averaged, noised, followed.

With :math:`g_i` the gradient of record i, a step releases

.. math::
    \frac{1}{n} \sum_{i=1}^n g_i \min(1, B / \|g_i\|) + N(0, \sigma^2 I), \qquad
    \sigma = \frac{2 B \sqrt{T}}{n \mu},

which replacing one record moves by at most 2 B / n. For ``zero_out`` neighbours, of
which one lacks a record (its gradient counts as zero, n stays the same), it moves by at
most B / n, and half the noise gives the same mu. Everything after it is
post-processing: any update rule, projections and averages. Where the gradients come
from is up to subclasses.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from botorch_dp._validation import (
    check_choice,
    check_clip_norm,
    check_positive,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.charging import (
    ASSUMPTIONS,
    ChargingOptimizer,
    RunLedger,
    check_affordable,
    check_gaussian,
    mean_sensitivity,
    share_of_a_step,
    warn_of_large_delta,
)
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import Losses
from botorch_dp.privacy import (
    Certificate,
    GaussianMechanism,
    Guarantee,
    Ledger,
    PrivacyEvent,
    SecureNoise,
    clip_rows,
)

Update = str | Callable[..., Optimizer]

# In unit-cube coordinates; DP-GIBO's experiments were flat from 0.1 to 0.3 (AdaGrad).
_UPDATES: dict[str, tuple[Callable[..., Optimizer], float]] = {
    "adagrad": (Adagrad, 0.2),
    "sgd": (SGD, 0.1),
}
# How far a record clipped to 1 can move the sum of all.
_MOVES = {"replace_one": 2.0, "zero_out": 1.0}


class PrivateGradientDescent(ChargingOptimizer):
    """Follows noisy means of clipped per-record gradients.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number n of records.
        guarantee: What the whole run has to meet: ``GDP``, ``ApproxDP`` or ``RDP``.
        num_steps: The number T of steps, which share the budget equally.
        clip_norm: The bound B on a record's gradient, in search coordinates.
        transform: The search coordinates, see :class:`Coordinates`.
        update: ``"adagrad"``, ``"sgd"``, or a ``torch.optim`` class.
        step_size: Its learning rate, in search coordinates; 0.2 for AdaGrad and 0.1
            for SGD by default.
        initial_x: Where to start, a ``d`` tensor; the centre of the box by default. It
            must not depend on private data.
        adjacency: For which neighbours the guarantee holds: ``"replace_one"``, or
            ``"zero_out"``, where one record contributes nothing, to share a ledger with
            training steps of Opacus.
        ledger: What is charged; by default one with the guarantee as its cap.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise; with ``ApproxDP`` or ``RDP``.
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
        initial_x: Tensor | None = None,
        adjacency: str = "replace_one",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            guarantee=check_gaussian(guarantee, secure),
            num_steps=num_steps,
            transform=transform,
            ledger=ledger,
        )
        warn_of_large_delta(guarantee, self.num_records, stacklevel=4)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        self.adjacency = check_choice("adjacency", adjacency, tuple(_MOVES))
        self.secure = secure
        width = _MOVES[self.adjacency] * self.clip_norm
        sensitivity = mean_sensitivity(width, self.num_records)
        share = share_of_a_step(
            guarantee,
            self.num_steps,
            sensitivity=sensitivity,
            size=self.coordinates.dim,
            secure=secure,
        )
        self._mechanism = GaussianMechanism(
            share,
            sensitivity=sensitivity,
            adjacency=self.adjacency,
            generator=generator,
            secure=secure,
        )
        self._set_update(update, step_size)
        self._parameter = self.coordinates.box.mean(dim=0)
        if initial_x is not None:
            initial_x = self.coordinates.check_inside("initial_x", initial_x)
            start = self.coordinates.to_search(initial_x)
            self._parameter = self.coordinates.project(start)
        self._check_update(update)
        self._optimized, self._optimizer = self._make_update(self._parameter)

    @property
    def x(self) -> Tensor:
        """The current point, a ``d`` tensor."""
        return self.coordinates.from_search(self._parameter)

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each coordinate of a step."""
        return self._mechanism.noise_std

    @property
    def done(self) -> bool:
        """Whether all steps have been taken, or paid for.

        A run that was killed between charging and drawing has paid for a step that it
        did not take: it ends a step earlier.
        """
        return self._num_charged >= self.num_steps

    def ask(self) -> Tensor:
        """Return the points to evaluate next, from public state alone.

        Returns:
            A ``b x d`` tensor; the same one until :meth:`tell` is called.

        Raises:
            BudgetExceededError: Before the first step, if all of them do not fit under
                the ledger's cap.
        """
        if not self._num_charged:
            check_affordable(self.ledger, self.planned_releases(), self.adjacency)
        return super().ask()

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, and how many there are of it."""
        return [(self._mechanism.event(self.coordinates.dim), self.num_steps)]

    def certificate(self) -> Certificate:
        """Return what is guaranteed of everything charged to the ledger."""
        return Certificate.from_ledger(
            self.ledger,
            assumptions=ASSUMPTIONS,
            parameters={
                **self._to_certify(),
                "noise_std": float(f"{self.noise_std:.6g}"),
            },
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "clip_norm": self.clip_norm,
            "adjacency": self.adjacency,
            "update": self._update_name,
            "step_size": self._step_size,
        }

    @abstractmethod
    def _private_gradients(self, losses: Losses, points: Tensor) -> Iterator[Tensor]:
        """Yield the gradients of consecutive records, ``n_i x d``, after checks."""

    def _trace(self) -> float | None:
        """Return what is unknown of the gradient, if that can be said."""
        return None

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        # Line 7: clip every record's gradient to B, and average.
        total = torch.zeros_like(self._parameter, dtype=torch.float64)
        for gradients in self._private_gradients(losses, points):
            total += clip_rows(gradients, self.clip_norm).sum(dim=0, dtype=total.dtype)
        # Line 8: charged, then noised; what follows is post-processing.
        gradient = self._release(total / self.num_records).to(self._parameter)
        self._follow(gradient)
        return Step(
            number=len(self._history) + 1,
            x=self.x,
            num_evaluations=self.num_evaluations + len(points),
            noise_std=self.noise_std,
            trace=self._trace(),
        )

    def _release(self, private_mean: Tensor) -> Tensor:
        return self._mechanism.release(private_mean, ledger=RunLedger(self))

    def _follow(self, gradient: Tensor) -> None:
        self._optimized.grad = gradient
        with gradient.device:  # torch.optim makes its counters on the default device
            self._optimizer.step()
        with torch.no_grad():
            self._optimized.copy_(self.coordinates.project(self._optimized))
        self._parameter = self._optimized.detach().clone()

    def _set_update(self, update: Update, step_size: float | None) -> None:
        if isinstance(update, str):
            if update not in _UPDATES:
                raise InvalidArgumentError(
                    f"update must be one of {', '.join(map(repr, _UPDATES))} or a "
                    f"torch.optim class, got {update!r}."
                )
            self._update, default = _UPDATES[update]
            self._update_name = update
            step_size = default if step_size is None else step_size
        else:
            if not callable(update):
                raise InvalidArgumentError(
                    f"update must be a name or a torch.optim class, got {update!r}."
                )
            self._update, self._update_name = update, getattr(update, "__name__", "")
        self._step_size = (
            None if step_size is None else check_positive("step_size", step_size)
        )

    def _make_update(
        self, start: Tensor, state: dict[str, Any] | None = None
    ) -> tuple[torch.nn.Parameter, Optimizer]:
        """Return a parameter, and what updates it."""
        parameter = torch.nn.Parameter(start.clone())
        rate = {} if self._step_size is None else {"lr": self._step_size}
        with start.device:
            optimizer = self._update([parameter], **rate)
            if state is not None:
                optimizer.load_state_dict(state)
        return parameter, optimizer

    def _check_update(self, update: Update) -> None:
        """Take a step that goes nowhere, before a real one has been paid for."""
        try:
            parameter, optimizer = self._make_update(self._parameter)
            parameter.grad = torch.zeros_like(parameter)
            with parameter.device:
                optimizer.step()
        except Exception as error:
            raise InvalidArgumentError(
                "update must be a torch.optim class that steps without a closure, got "
                f"{update!r}, which fails: {error!r}."
            ) from error

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "parameter": self._parameter,
            "update": self._optimizer.state_dict(),
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        parameter = state["parameter"].to(self.bounds)
        if not torch.equal(parameter, self.coordinates.project(parameter)):
            raise ValueError("a parameter outside the box")
        self._make_update(parameter, state["update"])

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._parameter = state["parameter"].to(self.bounds)
        self._optimized, self._optimizer = self._make_update(
            self._parameter, state["update"]
        )
        self._skip_noise(self._mechanism, self.coordinates.dim)
