"""Remove everything about records from a module that Opacus trains.

Opacus stores its results for every record on the module's layers and parameters, and
saving the module saves them too: inputs in ``activations``, gradients in
``grad_sample``, the size of a batch in ``max_batch_len``. Layers with running
statistics also store values of records.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule, GradSampleHooks
from opacus.optimizers import DPOptimizer
from opacus.utils.module_utils import trainable_modules
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from botorch_dp.exceptions import InvalidArgumentError

_WRAPPERS = (
    AbstractGradSampleModule,
    DistributedDataParallel,
    DifferentiallyPrivateDistributedDataParallel,
)
_DTYPES = (torch.float32, torch.float64)


class UnsavedList(list[Any]):
    """A list whose copies and saved versions are empty."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (list, ())


def keep_activations_unsaved(module: nn.Module) -> None:
    """Replace the lists in which Opacus stores the inputs of layers until backward().

    The inputs of a forward pass without a backward pass remain in these lists.
    """
    for _, layer in trainable_modules(module):
        if getattr(layer, "activations", []) == []:  # otherwise it is the layer's own
            layer.activations = UnsavedList()


def forget_rows(module: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
    """Drop the gradients of single records and their number."""
    for layer in module.modules():
        if isinstance(getattr(layer, "activations", None), UnsavedList):
            vars(layer).pop("max_batch_len", None)
    for parameter in parameters:
        parameter.grad_sample = None  # type: ignore[attr-defined]
        if hasattr(parameter, "_current_grad_sample"):
            del parameter._current_grad_sample


def forget_gradients(
    module: nn.Module, parameters: list[nn.Parameter], *, keep: set[nn.Parameter]
) -> None:
    """Drop everything that Opacus and autograd computed from records.

    The parameters in ``keep`` have a noisy gradient, which they keep.
    """
    forget_rows(module, parameters)
    forget_passes(module)
    for parameter in parameters:
        if parameter not in keep:
            parameter.grad = None


def forget_passes(module: nn.Module) -> None:
    """Drop the inputs of forward passes without a backward pass."""
    for parameter in module.parameters():
        if hasattr(parameter, "_forward_counter"):
            parameter._forward_counter = 0
    for layer in module.modules():
        activations = getattr(layer, "activations", None)
        if isinstance(activations, UnsavedList):
            activations.clear()


class FixedState:
    """The buffers and untrained parameters, which training must not change.

    Args:
        module: The module to watch.
        followed: The parameters that an optimizer trains.
    """

    def __init__(self, module: nn.Module, followed: set[Tensor]) -> None:
        self._module = module
        self._first = {
            name: (tensor, tensor._version) for name, tensor in self._tensors()
        }
        self._values = {
            name: tensor.detach().clone()
            for name, tensor in self._tensors()
            if tensor not in followed
        }

    def changed(self, followed: set[Tensor]) -> str | None:
        """Return the name of a tensor that is new or has changed, or None."""
        for name, tensor in self._tensors():
            if tensor in followed:
                continue
            first, version = self._first.get(name, (None, 0))
            if tensor is not first or tensor._version != version:
                return name
            # Writing through .data leaves the version unchanged, so compare values.
            if name in self._values and not is_equal(tensor, self._values[name]):
                return name
        return None

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_buffers()
        yield from self._module.named_parameters()


def is_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    if a.layout != torch.strided:
        return True  # sparse tensors are not compared
    if torch.equal(a, b):
        return True
    return bool(torch.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True).all())


def check_module(module: nn.Module, optimizer: Optimizer) -> torch.device:
    """Return the device of the parameters; raise if training cannot be private."""
    if not isinstance(module, nn.Module) or _is_wrapped(module):
        raise InvalidArgumentError(
            "module must be a plain torch.nn.Module, neither already private nor "
            "distributed, and neither a part nor a container of such a module, got "
            f"{type(module).__name__}. to_standard_module() removes Opacus's wrapper."
        )
    errors = [*ModuleValidator.validate(module), *GradSampleHooks.validate(module)]
    if errors:
        raise InvalidArgumentError(
            "module must pass the ModuleValidator of Opacus: "
            f"{'; '.join(map(str, errors))}"
        )
    for name, layer in module.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            raise InvalidArgumentError(
                f"module must not use max_norm, but {name!r} does: it changes weights "
                "without noise whenever a record uses them."
            )
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, DPOptimizer):
        raise InvalidArgumentError(
            "optimizer must be a torch.optim optimizer that is not private yet, got "
            f"{type(optimizer).__name__}."
        )
    followed = [p for group in optimizer.param_groups for p in group["params"]]
    if not set(module.parameters()).issuperset(followed):
        raise InvalidArgumentError(
            "optimizer must only have parameters of module: create it from "
            "module.parameters()."
        )
    dtypes = {parameter.dtype for parameter in followed}
    if not dtypes.issubset(_DTYPES):
        raise InvalidArgumentError(
            "optimizer must have parameters of dtype torch.float32 or torch.float64, "
            f"got {sorted(map(str, dtypes))}. Convert them first, e.g. with "
            "module.float()."
        )
    devices = {parameter.device for parameter in followed}
    if len(devices) != 1:
        raise InvalidArgumentError(
            "optimizer must have its parameters on one device, got "
            f"{sorted(map(str, devices))}."
        )
    return devices.pop()


def _is_wrapped(module: nn.Module) -> bool:
    return any(
        isinstance(part, _WRAPPERS) or hasattr(part, "autograd_grad_sample_hooks")
        for part in module.modules()
    ) or any(hasattr(p, "_forward_counter") for p in module.parameters())
