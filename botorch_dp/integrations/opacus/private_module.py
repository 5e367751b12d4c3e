"""Opacus's module for gradients of single records, with checks of its assumptions.

Row i of a layer's gradients must belong to record i, but Opacus does not check this. If
a few records pass through a layer again, it adds their rows to those of the first
records. A recurrent layer takes packed sequences in the order of their lengths, other
layers in the order of the batch. Then no row belongs to one record, and clipping bounds
nothing.

The same happens if the first dimension of a layer is time. The step is rejected if the
number of times differs from the number of records. If every batch has all records, the
two numbers may always agree, so the module is first called with two other batch sizes.
With a criterion this happens at every sample rate. The size of a sampled batch is
secret, so whether a batch counts must not depend on it: one record more or less would
decide about all others. So a batch counts even if it has as many records as times, and
inputs with time first are rejected at the first batch that has not.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers.dp_rnn import DPRNNBase
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.batches import PoissonBatches
from botorch_dp.integrations.opacus.losses import LossGuard, unwatched, watched
from botorch_dp.integrations.opacus.modules import forget_passes, is_equal
from botorch_dp.integrations.opacus.rows import RowSamplers

# Two sizes, because the length of a sequence can equal only one of them.
_DUMMY_SIZES = (2, 3)
# These errors must not reveal the number of rows.
_NOT_BATCH_FIRST = (
    "module must have one gradient for each record of a batch: the first dimension of "
    "every layer's input must be the batch, not time or tokens. With copies of one "
    "record in batches of other sizes, the module failed, or its layers did not have "
    "one row for each record."
)
_AMBIGUOUS = (
    "module must have inputs whose first dimension is the batch. One of them has "
    "another dimension of the same size and does not start with the first record, so "
    "it may have time first. Leave out a record, pad sequences by one step, or pass "
    "the batch of the loader to the module unchanged."
)


class Passes:
    """The secret numbers of records of the last batch that passed through layers.

    Args:
        batches: The Poisson batches of the run.
        read: Returns a batch with only the record at a position.
        has_criterion: Whether only a :class:`PrivateLoss` may be differentiated.

    Attributes:
        tried: The layers and input shapes that were tried with other batch sizes.
        num_added: The number of records of the current batch whose gradients are
            already added up.
        other_outputs: The positions of outputs whose first dimension is not the batch.
    """

    def __init__(
        self,
        batches: PoissonBatches | None = None,
        read: Callable[[int], Any] | None = None,
        *,
        has_criterion: bool = False,
    ) -> None:
        self._batches = batches
        self._read = read
        self._has_criterion = has_criterion
        self._is_in_backward = False
        self._batch = 0
        self._sizes: set[int] = set()
        self.tried: set[Hashable] = set()
        self.num_added = 0
        self.other_outputs: set[int] = set()

    @property
    def has_batches(self) -> bool:
        """Whether there is a run; a saved or copied module has none."""
        return self._batches is not None

    @property
    def are_of_all_records(self) -> bool:
        """Whether every batch has all records, so its size is public."""
        return self._batches is not None and self._batches.sample_rate == 1

    @property
    def are_sampled_for_a_criterion(self) -> bool:
        """Whether batches have secret sizes, and a criterion computes the loss."""
        return self._has_criterion and self.has_batches and not self.are_of_all_records

    @property
    def may_differentiate(self) -> bool:
        """Whether the loss that is differentiated now has a term for each record."""
        return self._is_in_backward or not self._has_criterion

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Allow gradients of a loss of the criterion."""
        self._is_in_backward = True
        try:
            yield
        finally:
            self._is_in_backward = False

    def next_record(self) -> Any:
        """Return a batch of the next record, where all records come in order."""
        if self._read is None or self._batches is None:
            return None
        if self.num_added >= self._batches.num_records:  # all had their step
            return None
        return self._read(self.num_added)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Passes, ())  # saves and copies are empty

    def is_new_batch(self) -> bool:
        """Return whether the batch has changed since the last pass."""
        return self._batches is not None and self._batch != self._batches.num_given

    def begin(self) -> None:
        """Forget the passes of the previous batch."""
        self._batch = 0 if self._batches is None else self._batches.num_given
        self._sizes.clear()

    def note(self, num_records: int) -> None:
        """Record a pass with this number of records."""
        self._sizes.add(num_records)

    def sizes(self) -> set[int]:
        """Return the different numbers of records of the passes."""
        return set(self._sizes)

    def clear(self) -> None:
        """Forget all passes."""
        self._sizes.clear()


class PrivateModule(GradSampleModule):
    """A module that records the number of records in each of its passes.

    Args:
        module: The module to train.
        loss_reduction: The reduction of the loss over a batch: ``"mean"`` or ``"sum"``.
        passes: The record of passes through layers.
    """

    GRAD_SAMPLERS = RowSamplers(GradSampleModule.GRAD_SAMPLERS)

    def __init__(
        self, module: nn.Module, *, loss_reduction: str, passes: Passes
    ) -> None:
        super().__init__(module, loss_reduction=loss_reduction)
        self.passes = passes
        self._tried_rows: set[int] | None = None  # only while other sizes are tried
        self.forbid_grad_accumulation()
        recurrent = [m for m in module.modules() if isinstance(m, DPRNNBase)]
        # Their cells have fewer records after the end of short sequences.
        self._cells = {cell for layer in recurrent for cell in layer.modules()}
        for layer in recurrent:
            handle = layer.register_forward_pre_hook(
                self._see_sequences, with_kwargs=True
            )
            self.autograd_grad_sample_hooks.append(handle)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, which must not change its own parameters."""
        before = self._versions()
        args, kwargs = unwatched((args, kwargs))
        learns = torch.is_grad_enabled() and self.hooks_enabled
        if learns and self.passes.are_of_all_records:
            self._check_first_dimensions(args, kwargs)
        if learns and self.passes.are_sampled_for_a_criterion:
            self._check_sampled_inputs(args, kwargs)
        with LossGuard():
            outputs = super().forward(*args, **kwargs)
        if self._versions() != before:
            raise InvalidArgumentError(
                "module must not change its parameters when it is called: they would "
                "depend on records without noise."
            )
        if not (learns and self.passes.has_batches):
            return outputs
        return watched(outputs, self.passes.other_outputs)

    def capture_activations_hook(
        self, module: nn.Module, forward_input: Any, _forward_output: Any
    ) -> None:
        """Store the inputs of a layer and record their number of records."""
        if self._tried_rows is not None:
            if self._is_trained(module) and module not in self._cells:
                self._tried_rows.add(len(forward_input[-1]))
            return
        # Nothing here is a loss, and a guard slows down every operation.
        with torch._C.DisableTorchFunction():
            has_gradients = self._has_gradients(module)
            if has_gradients:
                self._notice_batch()
            super().capture_activations_hook(module, forward_input, _forward_output)
            if has_gradients and module not in self._cells:
                self.passes.note(len(forward_input[-1]))

    def capture_backprops_hook(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        """Compute the gradients of single records of the last batch."""
        if self.hooks_enabled and not getattr(module, "activations", None):
            self.passes.clear()  # no step can follow
            raise InvalidArgumentError(
                "backward() must be called once, on a loss of one batch, the last one "
                "of the loader, with layers in training mode."
            )
        if not self.passes.may_differentiate:
            self.passes.clear()
            raise InvalidArgumentError(
                "backward() must be called on what the criterion of make_private "
                "returned, because another loss may not be a mean over records."
            )
        super().capture_backprops_hook(module, *args, **kwargs)

    def _notice_batch(self) -> None:
        """Drop forward passes of an earlier batch that had no backward pass."""
        if self.passes.is_new_batch():
            self.passes.begin()
            forget_passes(self._module)

    def _check_first_dimensions(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Raise unless all layers have one row for each record of a batch."""
        leaves = tree_leaves((args, kwargs))
        shapes = tuple(leaf.shape for leaf in leaves if isinstance(leaf, Tensor))
        tried = (self._what_is_trained(), shapes)
        if tried in self.passes.tried or not self._can_try(leaves):
            return
        sizes = self._rows_of_layers(args, kwargs)
        # Several sizes make the step raise. A single row belongs to a single record.
        if len(sizes) == 1 and max(sizes) > 1:
            self._try_other_sizes(args, kwargs, size=sizes.pop())
            self.passes.tried.add(tried)

    def _check_sampled_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Raise unless the batch comes first, as :meth:`_check_first_dimensions`.

        The outcome must not depend on the secret size of the batch.
        """
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        tried = (self._what_is_trained(), tuple(tensor.dim() for tensor in tensors))
        if tried in self.passes.tried or not self._can_try(leaves):
            return
        sizes = self._rows_of_layers(args, kwargs)
        if len(sizes) != 1 or max(sizes) < 2:
            return
        size = sizes.pop()
        if any(list(tensor.shape).count(size) > 1 for tensor in tensors):
            return  # another batch will show which dimension is the batch
        is_first = any(tensor.dim() and len(tensor) == size for tensor in tensors)
        if not is_first and not self._cells:  # recurrent layers have their own rule
            raise InvalidArgumentError(_NOT_BATCH_FIRST)
        self._call_with_dummies(args, kwargs, size=size)
        self.passes.tried.add(tried)

    def _what_is_trained(self) -> Hashable:
        modules, parameters = self._module.modules(), self._module.parameters()
        return (
            tuple(layer.training for layer in modules),
            tuple(parameter.requires_grad for parameter in parameters),
        )

    def _can_try(self, leaves: list[Any]) -> bool:
        """Return whether something is trained, and inputs do not know their number."""
        is_packed = any(isinstance(leaf, PackedSequence) for leaf in leaves)
        return not is_packed and any(map(self._is_trained, self._module.modules()))

    def _try_other_sizes(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, size: int
    ) -> None:
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        ambiguous = [leaf for leaf in tensors if list(leaf.shape).count(size) > 1]
        if ambiguous:
            records = tree_leaves(self.passes.next_record())
            if not all(_begins_with_one_of(leaf, records) for leaf in ambiguous):
                raise InvalidArgumentError(_AMBIGUOUS)
        self._call_with_dummies(args, kwargs, size=size)

    def _call_with_dummies(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, size: int
    ) -> None:
        """Raise unless copies of one record have one row each in every layer."""
        leaves, tree = tree_flatten((args, kwargs))
        for dummy_size in _DUMMY_SIZES:
            dummies = [_resized(leaf, size, dummy_size) for leaf in leaves]
            try:
                sizes, outputs = self._try(*tree_unflatten(dummies, tree))
            except Exception:  # its text may contain values of records
                sizes, outputs = set(), []
            if sizes != {dummy_size}:
                raise InvalidArgumentError(_NOT_BATCH_FIRST)
            self.passes.other_outputs |= {
                i
                for i, output in enumerate(outputs)
                if not isinstance(output, Tensor) or output.shape[:1] != (dummy_size,)
            }

    def _rows_of_layers(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> set[int]:
        return self._try(args, kwargs)[0]

    def _try(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[set[int], list[Any]]:
        """Return the first dimensions of the inputs of layers, and the outputs."""
        rows: set[int] = set()
        self._tried_rows = rows
        cuda = {p.device for p in self._module.parameters() if p.device.type == "cuda"}
        try:
            # Random layers such as dropout must not draw different numbers later.
            with torch.no_grad(), torch.random.fork_rng(devices=list(cuda)):
                outputs = self._module(*args, **kwargs)
        finally:
            self._tried_rows = None
        return rows, tree_leaves(outputs)

    def _see_sequences(
        self, layer: Any, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        is_tried = self._tried_rows is not None and self._is_trained(layer)
        if not is_tried and not self._has_gradients(layer):
            return
        sequences = inputs[0] if inputs else named["input"]
        if isinstance(sequences, PackedSequence):
            if sequences.sorted_indices is not None:  # they were reordered
                raise InvalidArgumentError(
                    "Sequences must be packed with enforce_sorted=True, and records "
                    "must be sorted by length, longest first, before any layer. "
                    "Otherwise the order of records differs between layers."
                )
            num_records = int(sequences.batch_sizes[0])
        else:
            num_records = sequences.shape[0 if layer.batch_first else 1]
        if self._tried_rows is not None:
            self._tried_rows.add(num_records)
            return
        self._notice_batch()
        self.passes.note(num_records)

    def _versions(self) -> list[int]:
        trained = (p for p in self._module.parameters() if p.requires_grad)
        return [parameter._version for parameter in trained]

    def _has_gradients(self, layer: nn.Module) -> bool:
        return (
            self._is_trained(layer) and self.hooks_enabled and torch.is_grad_enabled()
        )

    @staticmethod
    def _is_trained(layer: nn.Module) -> bool:
        return layer.training and any(p.requires_grad for p in layer.parameters())


def _resized(leaf: Any, size: int, dummy_size: int) -> Any:
    """Return copies of the first record of an input, if it has records."""
    if not isinstance(leaf, Tensor) or size not in leaf.shape:
        return leaf
    dim = list(leaf.shape).index(size)
    return leaf.narrow(dim, 0, 1).repeat_interleave(dummy_size, dim)


def _begins_with_one_of(leaf: Tensor, records: list[Any]) -> bool:
    """Return whether the first row of an input is one of the records."""
    return any(
        isinstance(record, Tensor)
        and record.shape == (1, *leaf.shape[1:])
        and is_equal(record.to(leaf), leaf[:1])
        for record in records
    )
