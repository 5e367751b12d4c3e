"""Opacus's module that computes gradients of single records, and sees that it can.

Row i of a layer's gradients is taken for record i. Opacus does not look whether it is:
of a layer that a few records pass once more, it adds their rows to those of the first
ones, and a recurrent layer takes packed sequences in the order of their lengths, other
layers in that of the batch. Then no row is of one record, and clipping bounds nothing.
"""

from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.batches import PoissonBatches
from botorch_dp.integrations.opacus.modules import forget_passes


class Passes:
    """How many records passed through layers, of the last batch that did: a secret.

    Args:
        batches: What draws them.
    """

    def __init__(self, batches: PoissonBatches | None = None) -> None:
        self._batches = batches
        self._batch = 0
        self._sizes: set[int] = set()

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

    def _see_sequences(
        self, layer: Any, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        if not self._has_gradients(layer):
            return
        self._notice_batch()
        sequences = inputs[0] if inputs else named["input"]
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
