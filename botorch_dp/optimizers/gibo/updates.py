"""How a point follows released gradients: post-processing, by rules of torch.optim."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from botorch_dp._validation import check_nonnegative, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.gibo.sparse_updates import SparseAdagrad

Update = str | Callable[..., Optimizer]

# In unit-cube coordinates; DP-GIBO's experiments were flat from 0.1 to 0.3 (AdaGrad).
_UPDATES: dict[str, tuple[Callable[..., Optimizer], float]] = {
    "adagrad": (Adagrad, 0.2),
    "sparse-adagrad": (SparseAdagrad, 0.2),
    "sgd": (SGD, 0.1),
}
#: The rules whose learning rate a plan sets.
ADAGRADS = ("adagrad", "sparse-adagrad")


class UpdateRule:
    """A rule of torch.optim for one point.

    Args:
        update: ``"adagrad"``, ``"sparse-adagrad"`` (which shrinks coordinates where the
            releases show only noise), ``"sgd"``, or a ``torch.optim`` class.
        step_size: The learning rate; 0.2 for AdaGrad and 0.1 for SGD by default.
        initial_accumulator: The value at which AdaGrad's sums of squares start. From 0,
            each coordinate of the first step is as long as the learning rate, whatever
            the gradient.

    Attributes:
        name: The name of the rule.
        step_size: The learning rate; None for that of a class given by the user.
    """

    def __init__(
        self,
        update: Update,
        step_size: float | None,
        initial_accumulator: float | None = None,
    ) -> None:
        if isinstance(update, str) and update in _UPDATES:
            self._make, default = _UPDATES[update]
            self.name = update
            step_size = default if step_size is None else step_size
        elif callable(update):
            self._make, self.name = update, getattr(update, "__name__", "")
        else:
            raise InvalidArgumentError(
                f"update must be one of {', '.join(map(repr, _UPDATES))} or a "
                f"torch.optim class, got {update!r}."
            )
        self.step_size = (
            None if step_size is None else check_positive("step_size", step_size)
        )
        if initial_accumulator is not None and self.name not in ADAGRADS:
            raise InvalidArgumentError(
                "initial_accumulator needs update='adagrad', got "
                f"{initial_accumulator!r} with {self.name!r}."
            )
        self.initial_accumulator = check_nonnegative(
            "initial_accumulator", initial_accumulator or 0.0
        )

    def start(self, point: Tensor, state: dict[str, Any] | None = None) -> "Follower":
        """Return a follower of a ``d`` tensor, from the beginning or from a state."""
        return Follower(point, self._optimizer, state)

    def _optimizer(self, parameter: torch.nn.Parameter) -> Optimizer:
        options = {} if self.step_size is None else {"lr": self.step_size}
        if self.initial_accumulator:
            options["initial_accumulator_value"] = self.initial_accumulator
        return self._make([parameter], **options)

    def check(self, point: Tensor) -> None:
        """Take a step with no effect, before a real step has been paid for."""
        try:
            self.start(point).follow(torch.zeros_like(point), lambda moved: moved)
        except Exception as error:
            raise InvalidArgumentError(
                "update must be a torch.optim class that steps without a closure, got "
                f"{self.name!r}, which fails: {error!r}."
            ) from error


class Follower:
    """A point and the state of the rule that moves it.

    Args:
        point: Where to start, a ``d`` tensor.
        make_optimizer: A function from a parameter to its ``torch.optim`` optimizer.
        state: The state of that optimizer, if the point has moved before.
    """

    def __init__(
        self,
        point: Tensor,
        make_optimizer: Callable[[torch.nn.Parameter], Optimizer],
        state: dict[str, Any] | None = None,
    ) -> None:
        self._parameter = torch.nn.Parameter(point.clone())
        with _on(point.device):  # torch.optim makes its counters on the default device
            self._optimizer = make_optimizer(self._parameter)
            if state is not None:
                self._optimizer.load_state_dict(state)

    def follow(
        self,
        gradient: Tensor,
        project: Callable[[Tensor], Tensor],
        noise_std: float = 0.0,
    ) -> Tensor:
        """Return where a gradient leads, after a projection.

        Args:
            gradient: A released gradient, a ``d`` tensor.
            project: Returns the nearest point of the box.
            noise_std: The standard deviation of its noise, for rules that use it.
        """
        self._parameter.grad = gradient
        if isinstance(self._optimizer, SparseAdagrad):
            self._optimizer.param_groups[0]["noise_std"] = noise_std
        with _on(gradient.device):
            self._optimizer.step()
        with torch.no_grad():
            self._parameter.copy_(project(self._parameter))
        return self._parameter.detach().clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rule."""
        return self._optimizer.state_dict()


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make a device the default, which slows down every operation, if it is not yet."""
    if torch.get_default_device() == device:
        return contextlib.nullcontext()
    return device
