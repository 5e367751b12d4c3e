"""The steps of one private training run: Opacus's, as many as were paid for.

Noise comes from a :class:`~botorch_dp.privacy.NoiseSource`, gradients are clipped and
added up in double precision, and none of them outlives its step.
"""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.opacus.batches import PoissonBatches
from botorch_dp.integrations.opacus.modules import (
    FixedState,
    forget_gradients,
    forget_rows,
    keep_activations_unsaved,
)
from botorch_dp.integrations.opacus.private_module import Passes
from botorch_dp.privacy import NoiseSource

# What is taken off the norm to clip to. A sum of n clipped gradients rounds by no more
# than n^2 2^-53 norms: of up to 60,000, two such errors are less than this.
_ROUNDING = 1e-6
# Entries that are converted to double at a time: a copy of all would take memory.
_CHUNK = 2**18
# Set on the optimizer that was given while a private step lets it move.
_MAY_MOVE = "_is_in_private_step"
# Errors say nothing of how many rows there are: sizes of batches are secret.
_WRONG_ROWS = (
    "module must have one gradient for each record of a batch: the first dimension of "
    "every layer's input must be the batch's, and every record must pass through every "
    "layer. Each batch must have its step(), an empty one too; after one without, "
    "begin another epoch."
)
_NO_GRADIENTS = (
    "Each step must have a batch's gradients for the parameters of the optimizer that "
    "require them: call backward() before step(), after one forward pass; make others "
    "under torch.no_grad()."
)
_NO_BATCH = (
    "Each step must have a Poisson batch of its own, which is what was paid for: "
    "iterate the loader that make_private returned, one step for each of its batches."
)


class BudgetedOptimizer(DPOptimizer):
    """Opacus's optimizer, for as many steps as were paid for.

    A step that is refused changes no parameter. After a step, refused or not, neither
    parameters nor layers hold anything of the records; between ``backward()`` and
    ``step()`` they do. An optimizer cannot be copied or saved, see ``state_dict()``.

    Args:
        optimizer: The ``torch.optim`` optimizer that follows the noisy gradients.
        module: The module that has its parameters.
        passes: What has noted the passes through its layers.
        batches: What draws the batches.
        num_prefetched: How many of them workers draw ahead.
        num_steps: How many steps were paid for.
        noise_source: Where the noise comes from.
        noise_multiplier: Standard deviation of the noise over ``max_grad_norm``.
        max_grad_norm: The norm to which a record's gradient is clipped.
        **kwargs: As for Opacus's ``DPOptimizer``.

    Attributes:
        steps_left: How many steps of those paid for were not taken.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        module: nn.Module,
        passes: Passes,
        batches: PoissonBatches,
        num_prefetched: int,
        num_steps: int,
        noise_source: NoiseSource,
        noise_multiplier: float,
        max_grad_norm: float,
        **kwargs: Any,
    ) -> None:
        planned = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}
        super().__init__(optimizer, **planned, **kwargs)
        self.steps_left = self._num_steps = num_steps
        self._planned = planned
        self._noise_source = noise_source
        self._module = module
        self._fixed = FixedState(module, self._followed())
        self._passes = passes
        # Here and not on the parameters, which other runs may train, too.
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._batches = batches
        self._num_prefetched = num_prefetched
        self._epoch = batches.epochs_begun
        self._num_rows = 0  # of gradients since the last noise
        optimizer.register_step_pre_hook(self._guard)
        keep_activations_unsaved(module)

    @property
    def accumulated_iterations(self) -> int:
        """One: more backward passes than one before a step are refused."""
        return 1

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What ``GradScaler.step`` asks for before anything else: refused."""
        self.discard()
        raise InvalidArgumentError(
            "optimizer must be used without torch.amp.GradScaler, which leaves out "
            "steps where a record's gradient is not finite, and its scale tells so: "
            "use torch.autocast without a scaler. Nothing was drawn and no parameter "
            "changed."
        )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step, on the batch that was drawn for it.

        Args:
            closure: Computes the gradients, if they are not there yet.

        Returns:
            None.
        """
        if closure is not None:
            with torch.enable_grad():
                closure()
        if self.pre_step():
            setattr(self.original_optimizer, _MAY_MOVE, True)
            try:
                self.original_optimizer.step()
            finally:
                setattr(self.original_optimizer, _MAY_MOVE, False)
        return None

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Turn the gradients of a batch into noisy ones, or raise.

        Args:
            closure: Not used; ``step`` calls it.

        Returns:
            Whether the noisy gradients are there, or the batch has further parts.
        """
        del closure
        self._notice_epoch()
        # Off the queue whatever happens, or later batches would get this one's signal.
        is_part = bool(self._check_skip_next_step())
        try:
            self.clip_and_accumulate()
            if not is_part:
                self.add_noise()
                self.scale_grad()
        except BaseException:
            self.discard()
            raise
        finally:
            # Used up, also if refused: the next step has the next batch.
            if not is_part and self._batches.sizes:
                self._batches.sizes.popleft()
        # A parameter frozen since backward() has no noise on its gradient.
        self._forget_gradients(keep=[] if is_part else self.params)
        if is_part:
            self._is_last_step_skipped = True
            return False
        self._forget_sums()
        if self.step_hook:
            self.step_hook(self)
        return True

    def clip_and_accumulate(self) -> None:
        """Clip every record's gradient and add up; refuse what was not paid for."""
        self._check_step()
        parameters = self.params
        if not parameters:
            raise InvalidArgumentError(
                "optimizer must have a parameter that requires a gradient: all of them "
                "are frozen, so that there is nothing to add noise to."
            )
        gradients = [self._rows_of(p) for p in parameters]
        used = [rows for rows in gradients if rows is not None]
        if not used:
            raise InvalidArgumentError(_NO_GRADIENTS)
        sizes = {len(rows) for rows in used}
        if len(sizes) != 1 or self._passes.sizes() != sizes:
            raise InvalidArgumentError(_WRONG_ROWS)
        self._num_rows += len(used[0])
        self._check_rows(is_whole=False)
        norms = torch.stack([_norms(rows) for rows in used]).norm(dim=0)
        # One over infinity is zero, and one over zero is cut off: never not a number.
        factors = ((1 - _ROUNDING) * self.max_grad_norm / norms).clamp(max=1.0)
        for parameter, rows in zip(parameters, gradients, strict=True):
            if rows is None:  # no record has used it: zeros
                total = torch.zeros(
                    parameter.numel(), dtype=torch.float64, device=parameter.device
                )
            else:
                total = _weighted_sum(factors, rows)
            before = self._sums.get(parameter)
            self._sums[parameter] = total if before is None else before + total
            parameter.grad_sample = None  # counted once
        self._passes.num_added = self._num_rows

    def add_noise(self) -> None:
        """Turn the sums of clipped gradients into what a step may follow."""
        self._check_rows(is_whole=True)
        self.steps_left -= 1  # whatever happens next
        std = self.noise_multiplier * self.max_grad_norm
        for parameter in self.params:
            noisy = self._noise_source.add_gaussian(self._sums.pop(parameter), std)
            parameter.grad = noisy.to(parameter.dtype).view_as(parameter)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear gradients, except the sum over those parts of a batch that had a step.

        Args:
            set_to_none: As in torch.
        """
        forget_rows(self._module, self._parameters())
        if not self._is_last_step_skipped:
            self._forget_sums()
        self.original_optimizer.zero_grad(set_to_none)

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Say whether the next batch is a part of one; for ``BatchMemoryManager``.

        Args:
            do_skip: Whether further parts follow.
        """
        self._notice_epoch()
        if len(self._step_skip_queue) > self._num_prefetched:
            self.discard()
            self._step_skip_queue.clear()
            raise InvalidArgumentError(
                "Each batch of a BatchMemoryManager must have its step(), an empty one "
                "too: without it, parts of two batches become one step. All gradients "
                "were dropped; begin another epoch."
            )
        super().signal_skip_step(do_skip)

    def discard(self) -> None:
        """Forget everything that was computed from records and not released."""
        self._forget_gradients(keep=[])
        self._forget_sums()

    def __reduce__(self) -> NoReturn:
        raise InvalidArgumentError(
            "This optimizer cannot be copied or saved: a copy would take steps that "
            "nobody paid for. Save module.state_dict() and optimizer.state_dict()."
        )

    def _check_step(self) -> None:
        """Raise unless the next step is one of those paid for, on what was planned."""
        if self.steps_left < 1:
            raise BudgetExceededError(
                f"All {self._num_steps} steps of this run have been taken. Nothing was "
                "drawn and no parameter changed: plan more steps_per_run."
            )
        for name, value in self._planned.items():
            if getattr(self, name) != value:
                raise InvalidArgumentError(
                    f"{name} must stay {value!r}, which was paid for, got "
                    f"{getattr(self, name)!r}."
                )
        changed = self._fixed.changed(self._followed())
        if changed is not None:
            raise InvalidArgumentError(
                f"module must not change {changed!r} in training, which has no noise "
                "on it: use layers without running statistics (GroupNorm, LayerNorm). "
                "What is made at first use: run the module once before make_private."
            )

    def _check_rows(self, *, is_whole: bool) -> None:
        """Raise unless the gradients so far can be those of the batch, or are all."""
        if not self._batches.sizes:
            raise InvalidArgumentError(_NO_BATCH)
        size = self._batches.sizes[0]
        if self._num_rows > size or (is_whole and self._num_rows < size):
            raise InvalidArgumentError(_WRONG_ROWS)

    def _guard(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Raise unless a private step lets the optimizer that was given move."""
        del args, kwargs
        if not getattr(optimizer, _MAY_MOVE, False):
            self.discard()
            raise InvalidArgumentError(
                "step() must be that of the optimizer that make_private returned: the "
                "one that it was given would follow gradients without noise. All "
                "gradients were dropped. For other training, make another optimizer."
            )

    def _rows_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return one row for each record; what is not finite is zero.

        None is for a parameter of a layer that was not used.
        """
        gradient = getattr(parameter, "grad_sample", None)
        if isinstance(gradient, list):
            raise InvalidArgumentError(
                "Each step must have one Poisson batch, which is what was paid for: "
                "call step() after every backward()."
            )
        if gradient is None:
            if hasattr(parameter, "_current_grad_sample"):  # of some passes of more
                raise InvalidArgumentError(_NO_GRADIENTS)
            if not hasattr(parameter, "_forward_counter"):
                raise InvalidArgumentError(
                    "optimizer must have parameters of module alone, as they were in "
                    "make_private: of others there are no gradients of single records."
                )
            return None
        # Clipping bounds what is finite only: infinity times zero is not a number.
        gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return gradient.reshape(len(gradient), parameter.numel())

    def _notice_epoch(self) -> None:
        """Forget the parts of a batch that the epoch before left undone."""
        if self._epoch != self._batches.epochs_begun:
            self._epoch = self._batches.epochs_begun
            self._step_skip_queue.clear()
            self._forget_sums()

    def _forget_gradients(self, keep: list[nn.Parameter]) -> None:
        forget_gradients(self._module, self._parameters(), keep=set(keep))
        self._passes.clear()

    def _forget_sums(self) -> None:
        self._sums.clear()
        self._num_rows = self._passes.num_added = 0
        self._is_last_step_skipped = False

    def _parameters(self) -> list[Any]:
        """Return all parameters of the module, and the optimizer's if others."""
        return list(dict.fromkeys([*self._module.parameters(), *self._followed()]))

    def _followed(self) -> set[Any]:
        return {p for group in self.param_groups for p in group["params"]}


def _norms(rows: Tensor) -> Tensor:
    """Return the norm of every row, in double precision."""
    return torch.cat([part.norm(dim=-1) for part in _in_double(rows)])


def _weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted sum of the rows, in double precision."""
    total = torch.zeros(rows.shape[-1], dtype=torch.float64, device=rows.device)
    start = 0
    for part in _in_double(rows):
        total += weights[start : start + len(part)] @ part
        start += len(part)
    return total


def _in_double(rows: Tensor) -> Iterator[Tensor]:
    """Give some rows after the others, each time in the same place."""
    size = max(1, _CHUNK // max(1, rows.shape[-1]))
    shape = min(size, len(rows)), rows.shape[-1]
    place = torch.empty(shape, dtype=torch.float64, device=rows.device)
    for part in rows.split(size):
        yield place[: len(part)].copy_(part)
