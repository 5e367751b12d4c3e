"""Gradients of single records: how they are stored until the step.

Opacus stores a gradient for each record and parameter, ``n x outputs x inputs`` numbers
for a linear layer, and copies them once. Here the gradients of a linear layer stay in
two factors: the gradient of record i is the outer product of the gradient ``b_i`` of
its output and its input ``a_i`` [Goodfellow2015efficient]_. Its norm is
``|a_i| |b_i|``, and a weighted sum over records is one matrix product. Other layers
store what Opacus computes, without the copy.

References:
    .. [Goodfellow2015efficient] I. Goodfellow. Efficient Per-Example Gradient
        Computations. arXiv:1510.01799, 2015.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from opacus.grad_sample.linear import compute_linear_grad_sample
from torch import Tensor, nn

_CURRENT = "_current_grad_sample"  # where Opacus adds up the passes of one batch


class OuterRows:
    """One outer product for each record, ``outputs[i] inputs[i]^T``.

    Both factors were rounded to single precision or less, so that in double precision
    products are exact, and squares neither overflow nor underflow.

    Args:
        outputs: The ``n x p`` first factors, in double precision.
        inputs: The ``n x q`` second factors, in double precision.
    """

    def __init__(self, outputs: Tensor, inputs: Tensor) -> None:
        self.outputs = outputs
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.outputs)

    def dense(self) -> Tensor:
        """Return the ``n x p x q`` products, in double precision."""
        return self.outputs.unsqueeze(-1) * self.inputs.unsqueeze(-2)


Rows: TypeAlias = Tensor | OuterRows
Sampler: TypeAlias = Callable[[Any, list[Tensor], Tensor], Mapping[nn.Parameter, Any]]


class RowSamplers(Mapping[Any, Sampler]):
    """Opacus's functions for gradients of single records, which store their results.

    Args:
        samplers: Opacus's function for each type of layer.
    """

    def __init__(self, samplers: Mapping[Any, Sampler]) -> None:
        self._samplers = samplers

    def __getitem__(self, layer_type: Any) -> Sampler:
        return partial(_store, self._samplers[layer_type])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samplers)

    def __len__(self) -> int:
        return len(self._samplers)


def _store(
    sampler: Sampler, layer: Any, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Store the gradients of a pass, and return those that Opacus has to add."""
    found: Mapping[nn.Parameter, Any] | None
    found = _factors(sampler, layer, activations, backprops)
    if found is None:
        found = sampler(layer, activations, backprops)
    others = [*activations, backprops, *layer.parameters()]
    left: dict[nn.Parameter, Tensor] = {}
    for parameter, rows in found.items():
        current = getattr(parameter, _CURRENT, None)
        if current is not None or len(rows) != layer.max_batch_len:
            # A parameter with several passes, or with fewer records in this one.
            if isinstance(current, OuterRows):
                setattr(parameter, _CURRENT, current.dense())
            left[parameter] = rows.dense() if isinstance(rows, OuterRows) else rows
        elif parameter.requires_grad:
            setattr(parameter, _CURRENT, _owned(rows, others))
    return left


def _factors(
    sampler: Sampler, layer: Any, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Any] | None:
    """Return the gradients of a linear layer as factors, or None for other layers."""
    if (
        sampler is not compute_linear_grad_sample
        or backprops.dim() != 2
        or activations[0].dim() != 2  # a hook may have pooled the outputs
        or backprops.dtype == torch.float64
    ):
        return None
    outputs = _cleaned(backprops)
    found: dict[nn.Parameter, Any] = {}
    if layer.weight.requires_grad:
        inputs = _cleaned(activations[0].to(backprops.dtype))
        rows = OuterRows(outputs, inputs)
        # Opacus itself adds the passes of other layers that share this weight.
        is_only_pass = getattr(layer.weight, "_forward_counter", 1) == 1
        found[layer.weight] = rows if is_only_pass else rows.dense()
    if layer.bias is not None and layer.bias.requires_grad:
        found[layer.bias] = outputs.clone()  # Opacus may add to it
    return found


def _cleaned(values: Tensor) -> Tensor:
    """Return a copy in double precision, with zeros for what is not finite."""
    return values.double().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _owned(rows: Rows, others: list[Tensor]) -> Rows:
    """Return rows whose memory belongs to nothing else."""
    if isinstance(rows, OuterRows):
        return rows
    taken = {tensor.untyped_storage().data_ptr() for tensor in others}
    if rows.is_contiguous() and rows.untyped_storage().data_ptr() not in taken:
        return rows
    return rows.clone(memory_format=torch.contiguous_format)
