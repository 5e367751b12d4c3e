"""What a module may hold of the records while Opacus trains it: nothing that is kept.

Opacus leaves what it computes for every record on the module's layers and parameters,
and all of it is saved with the module: inputs in ``activations``, gradients in
``grad_sample``, a batch's size in ``max_batch_len``. So does a layer with running
statistics.
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
    """A list that is empty wherever it is saved or copied to."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return (list, ())


def keep_activations_unsaved(module: nn.Module) -> None:
    """Give layers the lists in which Opacus keeps inputs from forward to backward.

    Those of a forward pass that no backward pass follows stay there.
    """
    for _, layer in trainable_modules(module):
        if getattr(layer, "activations", []) == []:  # else it is not Opacus's
            layer.activations = UnsavedList()


def forget_rows(module: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
    """Drop the gradients of single records, and how many there were."""
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
    """Drop what Opacus and autograd computed from records.

    Args:
        module: Whose layers forget.
        parameters: The parameters that forget.
        keep: The parameters with a noisy gradient.
    """
    forget_rows(module, parameters)
    forget_passes(module)
    for parameter in parameters:
        if parameter not in keep:
            parameter.grad = None


def forget_passes(module: nn.Module) -> None:
    """Drop the inputs of forward passes that wait for a backward pass."""
    for parameter in module.parameters():
        if hasattr(parameter, "_forward_counter"):
            parameter._forward_counter = 0
    for layer in module.modules():
        activations = getattr(layer, "activations", None)
        if isinstance(activations, UnsavedList):
            activations.clear()


class FixedState:
    """Buffers, and parameters that no optimizer follows: what training must not change.

    Args:
        module: Which has them.
        followed: The parameters that an optimizer follows.
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
        """Return the name of a tensor that is new or has changed, or None.

        Args:
            followed: The parameters that an optimizer follows.
        """
        for name, tensor in self._tensors():
            if tensor in followed:
                continue
            first, version = self._first.get(name, (None, 0))
            if tensor is not first or tensor._version != version:
                return name
            # Writing through .data makes no version: only values tell.
            if name in self._values and not is_equal(tensor, self._values[name]):
                return name
        return None

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_buffers()
        yield from self._module.named_parameters()


def is_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same, including what is not a number."""
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    if a.layout != torch.strided:
        return True  # what is sparse is not compared
    if torch.equal(a, b):
        return True
    return bool(torch.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True).all())


def check_module(module: nn.Module, optimizer: Optimizer) -> torch.device:
    """Raise unless these two can be made private; return the parameters' device."""
    if not isinstance(module, nn.Module) or _is_wrapped(module):
        raise InvalidArgumentError(
            "module must be a plain torch.nn.Module, neither private yet nor "
            "distributed, and no part or whole of one that is, got "
            f"{type(module).__name__}; to_standard_module() undoes Opacus's wrapper."
        )
    errors = [*ModuleValidator.validate(module), *GradSampleHooks.validate(module)]
    if errors:
        raise InvalidArgumentError(
            f"module must be one that Opacus can train, see its ModuleValidator: "
            f"{'; '.join(map(str, errors))}"
        )
    for name, layer in module.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            raise InvalidArgumentError(
                f"module must have no max_norm, which {name!r} has: it changes weights "
                "whenever a record uses them, without noise."
            )
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, DPOptimizer):
        raise InvalidArgumentError(
            "optimizer must be a torch.optim optimizer that is not private yet, got "
            f"{type(optimizer).__name__}."
        )
    followed = [p for group in optimizer.param_groups for p in group["params"]]
    if not set(module.parameters()).issuperset(followed):
        raise InvalidArgumentError(
            "optimizer must have parameters of module alone: make it from "
            "module.parameters()."
        )
    dtypes = {parameter.dtype for parameter in followed}
    if not dtypes.issubset(_DTYPES):
        raise InvalidArgumentError(
            "optimizer must have parameters of dtype torch.float32 or torch.float64, "
            f"got {sorted(map(str, dtypes))}; convert them first, e.g. with "
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
