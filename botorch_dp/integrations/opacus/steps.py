"""The optimizer of one private training run, limited to the steps that were paid for.

Noise comes from a :class:`~botorch_dp.privacy.NoiseSource`. Gradients are clipped and
added up in double precision (see :mod:`~botorch_dp.integrations.opacus.sums`), and
dropped after the step.
"""

from collections.abc import Callable
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
from botorch_dp.integrations.opacus.rows import OuterRows, Rows
from botorch_dp.integrations.opacus.sums import (
    CompensatedSum,
    clip_factors,
    norm_with_room,
)
from botorch_dp.privacy import NoiseSource

# This attribute of the given optimizer is True during a private step only.
_MAY_MOVE = "_is_in_private_step"
# These errors must not reveal the number of rows: sizes of batches are secret.
_WRONG_ROWS = (
    "module must have one gradient for each record of a batch: the first dimension of "
    "every layer's input must be the batch, and every record must pass through every "
    "layer. Each batch, even an empty one, needs its step(); after a batch without a "
    "step, start another epoch."
)
_NO_GRADIENTS = (
    "Each step needs gradients of a batch for the parameters of the optimizer that "
    "require them: call backward() before step(), after one forward pass. Use "
    "torch.no_grad() for other forward passes."
)
_NO_BATCH = (
    "Each step needs a Poisson batch of its own, because only that was paid for: "
    "iterate the loader that make_private returned, one step for each of its batches."
)


class BudgetedOptimizer(DPOptimizer):
    """Opacus's optimizer, limited to the steps that were paid for.

    A step that raises changes no parameter. After a step, even one that raises,
    neither parameters nor layers store anything about records; between ``backward()``
    and ``step()`` they do. The optimizer cannot be copied or saved; use its
    ``state_dict()``.

    Args:
        optimizer: The ``torch.optim`` optimizer that uses the noisy gradients.
        module: The module with the parameters.
        passes: The record of passes through its layers.
        batches: The Poisson batches of the run.
        num_prefetched: The number of batches that workers draw ahead.
        num_steps: The number of steps that were paid for.
        noise_source: The source of the noise.
        noise_multiplier: The standard deviation of the noise over ``max_grad_norm``.
        max_grad_norm: The norm to which a record's gradient is clipped.
        **kwargs: Further arguments of Opacus's ``DPOptimizer``.

    Attributes:
        steps_left: The number of paid steps that are left.
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
        # Not on the parameters, because other runs may train them as well.
        self._sums: dict[nn.Parameter, CompensatedSum] = {}
        self._batches = batches
        self._num_prefetched = num_prefetched
        self._epoch = batches.epochs_begun
        self._num_rows = 0  # the number of gradients since the last noise
        optimizer.register_step_pre_hook(self._guard)
        keep_activations_unsaved(module)

    @property
    def accumulated_iterations(self) -> int:
        """One: a second backward pass before a step raises."""
        return 1

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Raise when ``GradScaler.step`` reads this attribute, which it does first."""
        self.discard()
        raise InvalidArgumentError(
            "optimizer must be used without torch.amp.GradScaler, which skips a step "
            "and changes its scale if a record's gradient is not finite. Use "
            "torch.autocast without a scaler. Nothing was drawn and no parameter "
            "changed."
        )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step on the batch that was drawn for it.

        Args:
            closure: A function that computes the gradients, if they do not exist yet.

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
            closure: Not used, because ``step`` calls it.

        Returns:
            True if the noisy gradients are ready, False if the batch has further parts.
        """
        del closure
        self._notice_epoch()
        # Always take it off the queue, or it would be applied to a later batch.
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
            # The batch is used up even if the step raises.
            if not is_part and self._batches.sizes:
                self._batches.sizes.popleft()
        # The gradient of a parameter frozen since backward() has no noise: drop it.
        self._forget_gradients(keep=[] if is_part else self.params)
        if is_part:
            self._is_last_step_skipped = True
            return False
        self._forget_sums()
        if self.step_hook:
            self.step_hook(self)
        return True

    def clip_and_accumulate(self) -> None:
        """Clip every record's gradient and add them up; raise if not paid for."""
        self._check_step()
        parameters = self.params
        if not parameters:
            raise InvalidArgumentError(
                "optimizer must have a parameter that requires a gradient, but all of "
                "them are frozen."
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
        clip_norm = norm_with_room(self.max_grad_norm, self._batches.num_records)
        factors = clip_factors(used, clip_norm)
        for parameter, rows in zip(parameters, gradients, strict=True):
            total = self._sums.setdefault(parameter, CompensatedSum())
            if rows is None:  # no record used this parameter
                total.add(torch.zeros_like(parameter, dtype=torch.float64).flatten())
            else:
                total.add_weighted(factors, rows)
            parameter.grad_sample = None  # must not be added twice
        self._passes.num_added = self._num_rows

    def add_noise(self) -> None:
        """Add noise to the sums of clipped gradients."""
        self._check_rows(is_whole=True)
        self.steps_left -= 1  # even if something fails afterwards
        std = self.noise_multiplier * self.max_grad_norm
        parameters = self.params
        totals = [self._sums.pop(parameter).value() for parameter in parameters]
        noisy = self._noise_source.add_gaussian_to_all(totals, std)
        for parameter, gradient in zip(parameters, noisy, strict=True):
            parameter.grad = gradient.to(parameter.dtype).view_as(parameter)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Clear gradients, except the sum over earlier parts of a batch.

        Args:
            set_to_none: Passed on to the ``torch.optim`` optimizer.
        """
        forget_rows(self._module, self._parameters())
        if not self._is_last_step_skipped:
            self._forget_sums()
        self.original_optimizer.zero_grad(set_to_none)

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Set whether the next batch is a part of one; for ``BatchMemoryManager``.

        Args:
            do_skip: Whether further parts follow.
        """
        self._notice_epoch()
        if len(self._step_skip_queue) > self._num_prefetched:
            self.discard()
            self._step_skip_queue.clear()
            raise InvalidArgumentError(
                "Each batch of a BatchMemoryManager, even an empty one, needs its "
                "step(); otherwise parts of two batches would become one step. All "
                "gradients were dropped. Start another epoch."
            )
        super().signal_skip_step(do_skip)

    def discard(self) -> None:
        """Drop everything that was computed from records and not released."""
        self._forget_gradients(keep=[])
        self._forget_sums()

    def end(self) -> None:
        """End the run: refuse further steps, and drop what was not released."""
        self.steps_left = 0
        self.discard()

    def __reduce__(self) -> NoReturn:
        raise InvalidArgumentError(
            "This optimizer cannot be copied or saved: a copy could take steps that "
            "were not paid for. Save module.state_dict() and optimizer.state_dict()."
        )

    def _check_step(self) -> None:
        """Raise unless the next step is paid for and follows the plan."""
        if self.steps_left < 1:
            raise BudgetExceededError(
                f"All {self._num_steps} steps of this run have been taken, or it has "
                "ended. Nothing was drawn and no parameter changed: plan more "
                "steps_per_run."
            )
        for name, value in self._planned.items():
            if getattr(self, name) != value:
                raise InvalidArgumentError(
                    f"{name} must stay {value!r}, as paid for, got "
                    f"{getattr(self, name)!r}."
                )
        changed = self._fixed.changed(self._followed())
        if changed is not None:
            raise InvalidArgumentError(
                f"module must not change {changed!r} in training, because the change "
                "has no noise. Use layers without running statistics (GroupNorm, "
                "LayerNorm). If the first call creates it, call the module once before "
                "make_private."
            )

    def _check_rows(self, *, is_whole: bool) -> None:
        """Raise if there are more gradients than records, or fewer at the end."""
        if not self._batches.sizes:
            raise InvalidArgumentError(_NO_BATCH)
        size = self._batches.sizes[0]
        if self._num_rows > size or (is_whole and self._num_rows < size):
            raise InvalidArgumentError(_WRONG_ROWS)

    def _guard(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Raise unless the given optimizer is called by a private step."""
        del args, kwargs
        if not getattr(optimizer, _MAY_MOVE, False):
            self.discard()
            raise InvalidArgumentError(
                "step() must be called on the optimizer that make_private returned: "
                "the given optimizer would use gradients without noise. All gradients "
                "were dropped. For other training, create another optimizer."
            )

    def _get_flat_grad_sample(self, p: nn.Parameter) -> Tensor:
        """Return what Opacus calls ``grad_samples``, from factors as well."""
        gradient = getattr(p, "grad_sample", None)
        if isinstance(gradient, OuterRows):
            return gradient.dense().to(p.dtype)
        return super()._get_flat_grad_sample(p)

    def _rows_of(self, parameter: nn.Parameter) -> Rows | None:
        """Return one row for each record, with zeros for entries that are not finite.

        The result is None for a parameter of a layer that was not used.
        """
        gradient = getattr(parameter, "grad_sample", None)
        if isinstance(gradient, list):
            raise InvalidArgumentError(
                "Each step needs exactly one Poisson batch, because only that was paid "
                "for: call step() after every backward()."
            )
        if gradient is None:
            if hasattr(parameter, "_current_grad_sample"):  # passes are left
                raise InvalidArgumentError(_NO_GRADIENTS)
            if not hasattr(parameter, "_forward_counter"):
                raise InvalidArgumentError(
                    "optimizer must only have parameters that module had in "
                    "make_private: others have no gradients of single records."
                )
            return None
        if isinstance(gradient, OuterRows):  # their factors are finite
            return gradient
        # Clipping bounds only finite values: infinity times zero is NaN.
        gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return gradient.reshape(len(gradient), parameter.numel())

    def _notice_epoch(self) -> None:
        """Drop the parts of a batch that the previous epoch left unfinished."""
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
        """Return all parameters of the module and of the optimizer."""
        return list(dict.fromkeys([*self._module.parameters(), *self._followed()]))

    def _followed(self) -> set[Any]:
        return {p for group in self.param_groups for p in group["params"]}
