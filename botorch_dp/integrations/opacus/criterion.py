"""A criterion whose terms depend on one record each, by construction.

Torch's means with class weights, and means over tokens, divide by a number that depends
on all records of a batch. Then the gradient of every record depends on the others, and
clipping does not bound what one record changes. :class:`PrivateCriterion` calls the
loss for each record on its own, as a batch of one, and adds up the results. Nothing of
another record can enter. Only torch's own cross entropy, whose terms have one record
each, is called for all records at once. The optimizer divides by the expected size of a
batch.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.losses import PrivateOutput, unwatched
from botorch_dp.integrations.opacus.modules import FixedState
from botorch_dp.integrations.opacus.private_module import Passes

_NOT_PER_RECORD = (
    "criterion must return a tensor whose first dimension is the batch: use "
    "reduction='none'. For a batch of one record it returned something else."
)
# This error must not reveal the number of rows: sizes of batches are secret.
_NOT_BATCH_FIRST = (
    "criterion must be given tensors whose first dimension is the batch, such as the "
    "outputs of the module and the targets of the loader. Keep tokens or pixels in a "
    "dimension of their own. Tensors that are the same for all records, such as class "
    "weights, must be part of the criterion. To evaluate the module, use "
    "torch.no_grad()."
)
_NOT_AS_RETURNED = (
    "criterion must be given outputs as the module returned them, with the batch as "
    "their first dimension. What is computed from them outside of the criterion may "
    "mix records: compute it in the criterion, which gets one record at a time, or in "
    "the module. Only squeeze(dim), float(), double() and indices such as [:, i] are "
    "recognized. The module must return tensors, or tuples, lists or dictionaries of "
    "them."
)


class PrivateLoss:
    """The loss of a batch, with a term for each record; everything in it is private.

    Losses can be added, and multiplied by a number. For anything else that should
    happen to the losses of records, write a criterion that does it.

    Args:
        terms: The losses of records, one for each.
        passes: The record of passes through the module's layers.
        expected_batch_size: The number that :meth:`item` divides by.
    """

    def __init__(
        self, terms: Tensor, *, passes: Passes, expected_batch_size: float
    ) -> None:
        self._terms = terms
        self._passes = passes
        self._size = expected_batch_size

    def backward(self) -> None:
        """Compute the gradients of all records."""
        with self._passes.in_backward(), warnings.catch_warnings():
            # Opacus's hooks need no gradients of inputs. The criterion changes filters
            # of warnings, after which Python repeats those that it would show once.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            self._terms.sum().backward()

    def detach(self) -> Tensor:
        """Return the sum of the losses over the expected size of a batch; private."""
        return self._terms.detach().sum() / self._size

    def item(self) -> float:
        """Return the same as a number; private."""
        return float(self.detach())

    def __add__(self, other: "PrivateLoss") -> "PrivateLoss":
        if not isinstance(other, PrivateLoss):
            return NotImplemented
        return self._with(self._terms + other._terms)

    def __mul__(self, factor: float) -> "PrivateLoss":
        # A tensor may have been computed from the records of the batch.
        if not isinstance(factor, int | float):
            return NotImplemented
        return self._with(factor * self._terms)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> "PrivateLoss":
        if not isinstance(divisor, int | float):
            return NotImplemented
        return self._with(self._terms / divisor)

    def _with(self, terms: Tensor) -> "PrivateLoss":
        return PrivateLoss(terms, passes=self._passes, expected_batch_size=self._size)


class PrivateCriterion:
    """A loss that is called for each record on its own.

    A record's loss is the mean of the terms that ``criterion`` returns for it: tokens
    or pixels are averaged within their record. For other weights within a record,
    return one number per record.

    Args:
        criterion: A loss module of torch with ``reduction="none"``, or a function whose
            result has the batch as its first dimension.
        passes: The record of passes through the module's layers.
        expected_batch_size: The expected number of records of a batch.
    """

    def __init__(
        self,
        criterion: Callable[..., Tensor],
        *,
        passes: Passes,
        expected_batch_size: float,
    ) -> None:
        self._criterion = check_criterion(criterion)
        self._passes = passes
        self._size = expected_batch_size
        self._can_batch = True

    def __call__(self, *args: Any, **kwargs: Any) -> PrivateLoss:
        """Return the loss of a batch.

        Args:
            *args: What the criterion takes: usually outputs and targets. The first
                dimension of every tensor is the batch.
            **kwargs: Further arguments of the criterion.
        """
        leaves, tree = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        _check_arguments(leaves)
        self._check_first_dimensions([leaves[i] for i in places])
        _check_outputs([leaves[i] for i in places])
        leaves = unwatched(leaves)
        tensors = [leaves[i] for i in places]

        def loss_of_one(*record: Tensor) -> Tensor:
            given = list(leaves)
            for place, value in zip(places, record, strict=True):
                given[place] = value.unsqueeze(0)
            one_args, one_kwargs = tree_unflatten(given, tree)
            terms = self._criterion(*one_args, **one_kwargs)
            if not isinstance(terms, Tensor) or not terms.dim() or len(terms) != 1:
                raise InvalidArgumentError(_NOT_PER_RECORD)
            return terms.mean()

        if is_cross_entropy_of_rows(self._criterion, leaves):
            terms = _cross_entropies(self._criterion, *tensors)
        else:
            with self._unchanged():
                terms = self._terms(loss_of_one, tensors)
        if terms.requires_grad and not any(t.requires_grad for t in tensors):
            raise InvalidArgumentError(_NOT_AS_RETURNED)  # it knows them otherwise
        return PrivateLoss(terms, passes=self._passes, expected_batch_size=self._size)

    def _terms(self, loss: Callable[..., Tensor], tensors: list[Tensor]) -> Tensor:
        """Return the losses of all records, each computed on its own."""
        if not len(tensors[0]):
            learned = [t for t in tensors if t.requires_grad]
            return (learned or tensors)[0].flatten()[:0]
        if self._can_batch:
            try:
                with warnings.catch_warnings():
                    # vmap warns of operations that it calls for one record at a time.
                    warnings.simplefilter("ignore", UserWarning)
                    return vmap(loss, randomness="different")(*tensors)
            except InvalidArgumentError:
                raise
            except Exception:  # vmap does not support some operations
                self._can_batch = False
        return torch.stack([loss(*record) for record in zip(*tensors, strict=True)])

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Raise if a loss module stores something of records."""
        if not isinstance(self._criterion, nn.Module):
            yield
            return
        state = FixedState(self._criterion, set())
        yield
        changed = state.changed(set())
        if changed is not None:
            raise InvalidArgumentError(
                f"criterion must not change {changed!r} when it is called: the losses "
                "of later records would depend on earlier ones."
            )

    def _check_first_dimensions(self, tensors: list[Tensor]) -> None:
        if not tensors or not all(tensor.dim() for tensor in tensors):
            raise InvalidArgumentError(_NOT_BATCH_FIRST)
        sizes = {len(tensor) for tensor in tensors}
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if len(sizes) != 1 or (learns and self._passes.sizes() != sizes):
            raise InvalidArgumentError(_NOT_BATCH_FIRST)


def is_cross_entropy_of_rows(criterion: Any, leaves: list[Any]) -> bool:
    """Return whether torch's cross entropy computes term i from row i alone.

    This holds for a plain ``nn.CrossEntropyLoss`` with classes as targets, one for each
    record, or one for each token or pixel of a record.
    """
    if type(criterion) is not nn.CrossEntropyLoss or criterion.reduction != "none":
        return False
    hooks = (criterion._forward_hooks, criterion._forward_pre_hooks)
    if "forward" in vars(criterion) or any(hooks) or len(leaves) != 2:
        return False
    outputs, targets = leaves
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() > 1
        and targets.dtype == torch.long
        and targets.shape == outputs.shape[:1] + outputs.shape[2:]
    )


def _cross_entropies(criterion: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean term of each record."""
    terms = functional.cross_entropy(
        outputs,
        targets,
        weight=criterion.weight,
        ignore_index=criterion.ignore_index,
        label_smoothing=criterion.label_smoothing,
        reduction="none",
    )
    return terms if terms.dim() == 1 else terms.flatten(1).mean(dim=1)


def _check_arguments(leaves: list[Any]) -> None:
    """Raise if an argument may contain tensors of a batch that are not found."""
    for leaf in leaves:
        if not isinstance(leaf, Tensor | Number | str | None):
            raise InvalidArgumentError(
                "criterion must be given tensors, numbers or texts, or tuples, lists "
                f"or dictionaries of them, got {type(leaf).__name__}: it could not be "
                "divided into records."
            )


def _check_outputs(tensors: list[Tensor]) -> None:
    """Raise unless all outputs are those of the module."""
    for tensor in tensors:
        if isinstance(tensor, PrivateOutput):
            is_output = tensor.has_rows_of_records
        else:
            is_output = not (tensor.requires_grad and torch.is_grad_enabled())
        if not is_output:
            raise InvalidArgumentError(_NOT_AS_RETURNED)


def check_criterion(criterion: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a criterion; raise if it averages over a batch."""
    if not callable(criterion):
        raise InvalidArgumentError(
            "criterion must be a loss module of torch or a function, got "
            f"{type(criterion).__name__}."
        )
    reduction = getattr(criterion, "reduction", "none")
    if reduction != "none":
        raise InvalidArgumentError(
            f"criterion must have reduction='none', got reduction={reduction!r}. Each "
            "record's loss is averaged separately; the optimizer divides by the "
            "expected size of a batch."
        )
    if isinstance(criterion, nn.Module) and any(
        parameter.requires_grad for parameter in criterion.parameters()
    ):
        raise InvalidArgumentError(
            "criterion must not have parameters that require gradients, because their "
            "gradients have no noise: make them a part of the module, or call "
            "criterion.requires_grad_(False)."
        )
    return criterion
