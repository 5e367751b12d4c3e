"""Opacus's module that computes gradients of single records, and sees that it can.

Row i of a layer's gradients is taken for record i. Opacus does not look whether it is:
of a layer that a few records pass once more, it adds their rows to those of the first
ones, and a recurrent layer takes packed sequences in the order of their lengths, other
layers in that of the batch. Then no row is of one record, and clipping bounds nothing.
"""

from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.batches import PoissonBatches


class Passes:
    """How many records passed through layers since the last step: a secret.

    Args:
        batches: What draws them. Passes of an epoch before its last do not count.
    """

    def __init__(self, batches: PoissonBatches | None = None) -> None:
        self._batches = batches
        self._seen: set[tuple[int, int]] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Passes, ())  # nothing of it is saved or copied

    def note(self, num_records: int) -> None:
        """Note a pass."""
        self._seen.add((self._epoch(), num_records))

    def sizes(self) -> set[int]:
        """Return the different numbers of records."""
        return {size for epoch, size in self._seen if epoch == self._epoch()}

    def clear(self) -> None:
        """Forget all passes."""
        self._seen.clear()

    def _epoch(self) -> int:
        return 0 if self._batches is None else self._batches.epochs_begun


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
        self.forbid_grad_accumulation()
        for layer in module.modules():
            if isinstance(layer, DPRNNBase):
                handle = layer.register_forward_pre_hook(self._see_sequences)
                self.autograd_grad_sample_hooks.append(handle)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, which must not change its own parameters meanwhile."""
        before = self._versions()
        outputs = super().forward(*args, **kwargs)
        if self._versions() != before:
            raise InvalidArgumentError(
                "module must not change its parameters when it is called, which would "
                "let them follow records without noise."
            )
        return outputs

    def capture_activations_hook(
        self, module: nn.Module, forward_input: Any, _forward_output: Any
    ) -> None:
        """Keep the inputs of a layer, and note how many records they are of."""
        super().capture_activations_hook(module, forward_input, _forward_output)
        # Those of one step of a recurrent layer are of the sequences that are so long.
        if self._has_gradients(module) and not isinstance(module, RNNLinear):
            self.passes.note(len(forward_input[-1]))

    def _see_sequences(self, layer: Any, inputs: tuple[Any, ...]) -> None:
        if not self._has_gradients(layer):
            return
        sequences = inputs[0]
        if not isinstance(sequences, PackedSequence):
            self.passes.note(sequences.shape[0 if layer.batch_first else 1])
            return
        if sequences.sorted_indices is not None:  # in whatever order they were
            raise InvalidArgumentError(
                "Sequences must be packed with enforce_sorted=True, of records that "
                "were sorted by length, longest first, before any layer: otherwise "
                "layers have them in different orders."
            )
        self.passes.note(int(sequences.batch_sizes[0]))

    def _versions(self) -> list[int]:
        trained = (p for p in self._module.parameters() if p.requires_grad)
        return [parameter._version for parameter in trained]

    def _has_gradients(self, layer: nn.Module) -> bool:
        return (
            layer.training
            and self.hooks_enabled
            and torch.is_grad_enabled()
            and any(parameter.requires_grad for parameter in layer.parameters())
        )
