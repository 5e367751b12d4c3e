"""A criterion whose terms depend on one record each, by construction.

Torch's means with class weights, and means over tokens, divide by a number that depends
on all records of a batch. Then the gradient of every record depends on the others, and
clipping does not bound what one record changes. :class:`PrivateCriterion` calls the
loss for each record on its own, as a batch of one, and adds up the results. Nothing of
another record can enter. The optimizer divides by the expected size of a batch.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.losses import unwatched
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
    "weights, must be part of the criterion."
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
        with self._passes.in_backward():
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
        leaves, tree = tree_flatten(unwatched((args, kwargs)))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[i] for i in places]
        self._check_first_dimensions(tensors)

        def loss_of_one(*record: Tensor) -> Tensor:
            given = list(leaves)
            for place, value in zip(places, record, strict=True):
                given[place] = value.unsqueeze(0)
            one_args, one_kwargs = tree_unflatten(given, tree)
            terms = self._criterion(*one_args, **one_kwargs)
            if not isinstance(terms, Tensor) or not terms.dim() or len(terms) != 1:
                raise InvalidArgumentError(_NOT_PER_RECORD)
            return terms.mean()

        return PrivateLoss(
            self._terms(loss_of_one, tensors),
            passes=self._passes,
            expected_batch_size=self._size,
        )

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

    def _check_first_dimensions(self, tensors: list[Tensor]) -> None:
        if not tensors or not all(tensor.dim() for tensor in tensors):
            raise InvalidArgumentError(_NOT_BATCH_FIRST)
        sizes = {len(tensor) for tensor in tensors}
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if len(sizes) != 1 or (learns and self._passes.sizes() != sizes):
            raise InvalidArgumentError(_NOT_BATCH_FIRST)


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
    return criterion
