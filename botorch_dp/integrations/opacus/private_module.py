"""Opacus's module that computes gradients of single records, and sees that it can.

Row i of a layer's gradients is taken for record i. Opacus does not look whether it is:
of a layer that a few records pass once more, it adds their rows to those of the first
ones, and a recurrent layer takes packed sequences in the order of their lengths, other
layers in that of the batch. Then no row is of one record, and clipping bounds nothing.

Nor is it where a layer's first dimension is time. If there are not as many times as
records, the step is refused. Where every batch has all records, the two numbers may
always agree: then a module is tried with batches of two other sizes first.
"""

from collections.abc import Callable, Hashable
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

# Two of them: the length of a sequence can be one of both only.
_DUMMY_SIZES = (2, 3)
# Errors say nothing of how many rows there are.
_NOT_BATCH_FIRST = (
    "module must have one gradient for each record of a batch: the first dimension of "
    "every layer's input must be the batch's, not that of time or of tokens. With "
    "copies of one record in batches of other sizes, the module failed, or its layers "
    "had other numbers of rows than records."
)
_AMBIGUOUS = (
    "module must have inputs whose first dimension is the batch's. One of them has "
    "another dimension as large, and does not begin with the record that comes first: "
    "it may have time first. Leave out a record, pad sequences by one step, or give "
    "the module what the loader gave."
)


class Passes:
    """How many records passed through layers, of the last batch that did: a secret.

    Args:
        batches: What draws them.
        read: Returns a batch of the record of this number alone.

    Attributes:
        tried: Which layers were tried with inputs of which shapes.
        num_added: How many records of a batch have been added up, of its first parts.
    """

    def __init__(
        self,
        batches: PoissonBatches | None = None,
        read: Callable[[int], Any] | None = None,
    ) -> None:
        self._batches = batches
        self._read = read
        self._batch = 0
        self._sizes: set[int] = set()
        self.tried: set[Hashable] = set()
        self.num_added = 0

    @property
    def has_batches(self) -> bool:
        """Whether there is a run: not for a module that was saved or copied."""
        return self._batches is not None

    @property
    def are_of_all_records(self) -> bool:
        """Whether every batch has all records, so that its size is no secret."""
        return self._batches is not None and self._batches.sample_rate == 1

    def next_record(self) -> Any:
        """Return a batch of the record that comes next, where all are in order."""
        if self._read is None or self._batches is None:
            return None
        if self.num_added >= self._batches.num_records:  # all of them had their step
            return None
        return self._read(self.num_added)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Passes, ())  # nothing of it is saved or copied

    def is_new_batch(self) -> bool:
        """Return whether there is another batch than at the last pass."""
        return self._batches is not None and self._batch != self._batches.num_given

    def begin(self) -> None:
        """Forget the passes of the batch before."""
        self._batch = 0 if self._batches is None else self._batches.num_given
        self._sizes.clear()

    def note(self, num_records: int) -> None:
        """Note a pass."""
        self._sizes.add(num_records)

    def sizes(self) -> set[int]:
        """Return the different numbers of records."""
        return set(self._sizes)

    def clear(self) -> None:
        """Forget all passes."""
        self._sizes.clear()


class PrivateModule(GradSampleModule):
    """A module whose passes tell how many records they had.

    Args:
        module: What to train.
        loss_reduction: How the loss sums up a batch: ``"mean"`` or ``"sum"``.
        passes: Takes note of passes through layers.
    """

    def __init__(
        self, module: nn.Module, *, loss_reduction: str, passes: Passes
    ) -> None:
        super().__init__(module, loss_reduction=loss_reduction)
        self.passes = passes
        self._tried_rows: set[int] | None = None  # of layers, while a batch is tried
        self.forbid_grad_accumulation()
        recurrent = [m for m in module.modules() if isinstance(m, DPRNNBase)]
        # Their cells have fewer records where short sequences have ended.
        self._cells = {cell for layer in recurrent for cell in layer.modules()}
        for layer in recurrent:
            handle = layer.register_forward_pre_hook(
                self._see_sequences, with_kwargs=True
            )
            self.autograd_grad_sample_hooks.append(handle)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, which must not change its own parameters meanwhile."""
        before = self._versions()
        args, kwargs = unwatched((args, kwargs))
        learns = torch.is_grad_enabled() and self.hooks_enabled
        if learns and self.passes.are_of_all_records:
            self._check_first_dimensions(args, kwargs)
        with LossGuard():
            outputs = super().forward(*args, **kwargs)
        if self._versions() != before:
            raise InvalidArgumentError(
                "module must not change its parameters when it is called, which would "
                "let them follow records without noise."
            )
        return watched(outputs) if learns and self.passes.has_batches else outputs

    def capture_activations_hook(
        self, module: nn.Module, forward_input: Any, _forward_output: Any
    ) -> None:
        """Keep the inputs of a layer, and note how many records they are of."""
        if self._tried_rows is not None:
            if self._is_trained(module) and module not in self._cells:
                self._tried_rows.add(len(forward_input[-1]))
            return
        has_gradients = self._has_gradients(module)
        if has_gradients:
            self._notice_batch()
        super().capture_activations_hook(module, forward_input, _forward_output)
        if has_gradients and module not in self._cells:
            self.passes.note(len(forward_input[-1]))

    def capture_backprops_hook(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        """Compute the gradients of single records, if they are of the last batch."""
        if self.hooks_enabled and not getattr(module, "activations", None):
            self.passes.clear()  # no step can follow
            raise InvalidArgumentError(
                "backward() must be of a loss of one batch, the one that was given "
                "last, through layers in training mode, and once."
            )
        super().capture_backprops_hook(module, *args, **kwargs)

    def _notice_batch(self) -> None:
        """Let go of passes of a batch before that no backward pass has followed."""
        if self.passes.is_new_batch():
            self.passes.begin()
            forget_passes(self._module)

    def _check_first_dimensions(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Raise unless the rows of all layers are as many as the records of a batch.

        Args:
            args: The inputs of the module.
            kwargs: The inputs by name.
        """
        leaves, tree = tree_flatten((args, kwargs))
        trained = tuple(self._is_trained(layer) for layer in self._module.modules())
        shapes = tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor))
        is_packed = any(isinstance(leaf, PackedSequence) for leaf in leaves)
        # Packed sequences say themselves how many there are.
        if not any(trained) or is_packed or (trained, shapes) in self.passes.tried:
            return
        sizes = self._rows_of_layers(args, kwargs)
        # If there are several, the step is refused. One row is of one record.
        if len(sizes) == 1 and max(sizes) > 1:
            self._try_other_sizes(leaves, tree, size=sizes.pop())
            self.passes.tried.add((trained, shapes))

    def _try_other_sizes(self, leaves: list[Any], tree: Any, *, size: int) -> None:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        ambiguous = [leaf for leaf in tensors if list(leaf.shape).count(size) > 1]
        if ambiguous:
            records = tree_leaves(self.passes.next_record())
            if not all(_begins_with_one_of(leaf, records) for leaf in ambiguous):
                raise InvalidArgumentError(_AMBIGUOUS)
        for dummy_size in _DUMMY_SIZES:
            dummies = [_resized(leaf, size, dummy_size) for leaf in leaves]
            args, kwargs = tree_unflatten(dummies, tree)
            try:
                sizes = self._rows_of_layers(args, kwargs)
            except Exception:  # its text may hold values of records
                sizes = set()
            if sizes != {dummy_size}:
                raise InvalidArgumentError(_NOT_BATCH_FIRST)

    def _rows_of_layers(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> set[int]:
        """Call the module, and return the first dimensions of its layers' inputs."""
        rows: set[int] = set()
        self._tried_rows = rows
        cuda = {p.device for p in self._module.parameters() if p.device.type == "cuda"}
        try:
            # Dropout and the like draw what they would have drawn.
            with torch.no_grad(), torch.random.fork_rng(devices=list(cuda)):
                self._module(*args, **kwargs)
        finally:
            self._tried_rows = None
        return rows

    def _see_sequences(
        self, layer: Any, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        is_tried = self._tried_rows is not None and self._is_trained(layer)
        if not is_tried and not self._has_gradients(layer):
            return
        sequences = inputs[0] if inputs else named["input"]
        if isinstance(sequences, PackedSequence):
            if sequences.sorted_indices is not None:  # in whatever order they were
                raise InvalidArgumentError(
                    "Sequences must be packed with enforce_sorted=True, of records "
                    "that were sorted by length, longest first, before any layer: "
                    "otherwise layers have them in different orders."
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
    """Return copies of the first record of an input, if it is of records."""
    if not isinstance(leaf, Tensor) or size not in leaf.shape:
        return leaf
    dim = list(leaf.shape).index(size)
    return leaf.narrow(dim, 0, 1).repeat_interleave(dummy_size, dim)


def _begins_with_one_of(leaf: Tensor, records: list[Any]) -> bool:
    """Return whether the first row of an input is a record."""
    return any(
        isinstance(record, Tensor)
        and record.shape == (1, *leaf.shape[1:])
        and is_equal(record.to(leaf), leaf[:1])
        for record in records
    )
