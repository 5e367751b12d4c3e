"""The private parts of one training run: module, optimizer, criterion and loader."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from botorch_dp._validation import check_choice, check_clip_norm
from botorch_dp.integrations.opacus.batches import (
    PoissonBatches,
    check_loader,
    num_prefetched,
    poisson_loader,
    read_record,
)
from botorch_dp.integrations.opacus.criterion import PrivateCriterion, check_criterion
from botorch_dp.integrations.opacus.modules import check_module
from botorch_dp.integrations.opacus.private_module import Passes, PrivateModule
from botorch_dp.integrations.opacus.steps import BudgetedOptimizer
from botorch_dp.privacy import Guarantee, PoissonGaussianEvent
from botorch_dp.privacy.budget import warn_of_large_delta
from botorch_dp.privacy.noise import make_noise_source

Criterion: TypeAlias = Callable[..., Tensor]
Parts: TypeAlias = tuple[PrivateModule, BudgetedOptimizer, DataLoader[Any]]
PartsWithCriterion: TypeAlias = tuple[
    PrivateModule, BudgetedOptimizer, PrivateCriterion, DataLoader[Any]
]
_REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class PlannedRun:
    """What one training run was planned to cost.

    Args:
        noise_multiplier: The standard deviation of the noise of a step over the norm
            to which gradients are clipped.
        sample_rate: The probability that a record is in a batch.
        num_steps: The number of steps.
        guarantee: The guarantee of everything together, for a warning if its delta is
            large; None if that was checked before. The number of warnings must not
            tell the number of runs of a selection.
    """

    noise_multiplier: float
    sample_rate: float
    num_steps: int
    guarantee: Guarantee | None = None

    @property
    def step_event(self) -> PoissonGaussianEvent:
        """What one step costs."""
        return PoissonGaussianEvent(self.noise_multiplier, self.sample_rate)


class MakesPrivate(ABC):
    """Something that pays for training runs and prepares them."""

    _generator: torch.Generator | None = None  # of runs that are given none

    @abstractmethod
    def planned_run(self) -> PlannedRun:
        """Return what one training run costs."""

    @abstractmethod
    def pay_for_run(self, noise: str) -> None:
        """Charge one training run, or raise.

        Args:
            noise: The name of the source of noise and batches.
        """

    @overload
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Criterion,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        loss_reduction: str = ...,
        generator: torch.Generator | None = ...,
    ) -> PartsWithCriterion: ...

    @overload
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: None = ...,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        loss_reduction: str = ...,
        generator: torch.Generator | None = ...,
    ) -> Parts: ...

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Criterion | None = None,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        loss_reduction: str = "mean",
        generator: torch.Generator | None = None,
    ) -> Parts | PartsWithCriterion:
        """Pay for one training run and return its private parts.

        See :func:`~botorch_dp.integrations.opacus.training.make_private` for what
        these parts do and require. The whole run is charged first.

        Args:
            module: The model to train. Its parameters may depend on private data only
                through releases, and it must not store anything of a batch: a buffer
                that changes raises at the next step.
            optimizer: A ``torch.optim`` optimizer of its parameters, in single or
                double precision.
            criterion: The loss, with ``reduction="none"``: a loss module of torch, or a
                function of outputs and targets whose result has the batch as its first
                dimension. With None, you compute a loss that is a sum or mean over
                records yourself.
            data_loader: A loader over all training records, with batches that match
                ``sample_rate``. For a part of a data set, use a ``Subset``.
            max_grad_norm: The norm to which a record's gradient is clipped.
            loss_reduction: The reduction of the loss over a batch: ``"mean"`` or
                ``"sum"``.
            generator: Seeds noise and batches, for experiments only.

        Returns:
            The module, the optimizer, the criterion if one was given, and the loader to
            train with.

        Raises:
            BudgetExceededError: If no run is left; nothing is charged.
        """
        parts = make_private(
            module=module,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=data_loader,
            max_grad_norm=max_grad_norm,
            loss_reduction=loss_reduction,
            generator=self._generator if generator is None else generator,
            plan=self.planned_run(),
            pay=self.pay_for_run,
        )
        self._notice_optimizer(parts[1])
        return parts

    def _notice_optimizer(self, optimizer: BudgetedOptimizer) -> None:
        """Learn the optimizer of a run that was paid for."""
        del optimizer


def make_private(
    *,
    module: nn.Module,
    optimizer: Optimizer,
    criterion: Criterion | None,
    data_loader: DataLoader[Any],
    max_grad_norm: float,
    loss_reduction: str,
    generator: torch.Generator | None,
    plan: PlannedRun,
    pay: Callable[[str], None],
) -> Parts | PartsWithCriterion:
    """Check the parts of a training run, pay for it and return private parts.

    This works as Opacus's ``PrivacyEngine.make_private`` with flat clipping in a
    single process, with these differences. The whole run is charged first. Noise
    and batches use entropy of the operating system. Entries of a gradient that are
    not finite count as zero. A step after the last planned one, or with visibly
    other noise, norm or batches than planned, raises before any parameter changes.
    No gradient of a record remains on the module after a step. Between
    ``backward()`` and ``step()`` gradients are there, so save the module's
    ``state_dict()`` then, not the module.

    The loader has as many batches per epoch as the given one. Each batch, even an
    empty one, needs one ``step()``. Other batches, and the given optimizer's own
    ``step()``, raise. ``signal_skip_step`` is only for Opacus's
    ``BatchMemoryManager``, each of whose batches needs its step. All records must pass
    through every layer in the order of the batch. Learning rates and stopping must not
    depend on training losses.

    With a ``criterion``, the loss is computed for each record on its own, and only
    such a loss can be differentiated. The first call of the module also calls it with
    other batch sizes, to check that the batch is the first dimension of every layer.
    Without one, the loss must be a sum or mean over records; losses of torch that
    divide by class weights, or by the number of targets that are not ignored, raise,
    and the first dimension is only checked with ``sample_rate=1``.

    Args:
        module: The model to train.
        optimizer: A ``torch.optim`` optimizer of its parameters.
        criterion: The loss with ``reduction="none"``, or None.
        data_loader: A loader over all training records.
        max_grad_norm: The norm to which a record's gradient is clipped.
        loss_reduction: ``"mean"`` or ``"sum"``.
        generator: Seeds noise and batches, for experiments only.
        plan: What the run costs.
        pay: Charges the run, given the name of the noise source, or raises.

    Returns:
        The module, the optimizer, the criterion if one was given, and the loader.
    """
    check_choice("loss_reduction", loss_reduction, _REDUCTIONS)
    device = check_module(module, optimizer)
    if criterion is not None:
        check_criterion(criterion)
    num_records = check_loader(data_loader, sample_rate=plan.sample_rate)
    if plan.guarantee is not None:
        warn_of_large_delta(plan.guarantee, num_records, stacklevel=4)
    max_grad_norm = check_clip_norm("max_grad_norm", max_grad_norm)
    source = make_noise_source(generator, secure=False)
    source.check_device(device)
    batches = PoissonBatches(
        num_records=num_records,
        sample_rate=plan.sample_rate,
        num_batches=len(data_loader),
        noise_source=source,
        device=device,
    )
    loader = poisson_loader(data_loader, batches)
    pay(source.name)
    passes = Passes(
        batches,
        read=partial(read_record, loader),
        has_criterion=criterion is not None,
    )
    # A criterion adds up the losses of records; the optimizer divides by their number.
    private_module = PrivateModule(
        module,
        loss_reduction=loss_reduction if criterion is None else "sum",
        passes=passes,
    )
    expected_batch_size = plan.sample_rate * num_records
    private_optimizer = BudgetedOptimizer(
        optimizer,
        module=module,
        passes=passes,
        batches=batches,
        num_prefetched=num_prefetched(loader),
        num_steps=plan.num_steps,
        noise_source=source,
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=max_grad_norm,
        expected_batch_size=expected_batch_size,
        loss_reduction=loss_reduction,
    )
    if criterion is None:
        return private_module, private_optimizer, loader
    private_criterion = PrivateCriterion(
        criterion, passes=passes, expected_batch_size=expected_batch_size
    )
    return private_module, private_optimizer, private_criterion, loader
