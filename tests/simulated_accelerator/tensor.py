"""Tensors on the device, and how their operations are carried out."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from tests.simulated_accelerator.counts import note
from tests.simulated_accelerator.randomness import (
    CPU,
    DEVICE,
    NAME,
    addresses,
    backend,
)
from tests.simulated_accelerator.schema import Operation, operation_of


class SimulatedStorage(torch.UntypedStorage):
    """The bytes of a simulated tensor on their way to a file or back."""

    @property
    def device(self) -> torch.device:
        return torch.device(DEVICE)


class SimulatedTensor(torch.Tensor):
    """A tensor on the simulated device.

    Args:
        inner: The CPU tensor that contains its values.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(DEVICE),
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents=None):
        return f"{repr(self.inner)[:-1]}, device='{DEVICE}')"

    def numpy(self, *, force=False):
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )

    def __array__(self, *args, **kwargs):
        return self.numpy()

    def tolist(self):
        return self.detach().cpu().tolist()

    def __format__(self, spec):
        return (
            format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)
        )

    def data_ptr(self):
        return self.inner.data_ptr()

    def untyped_storage(self):
        return self.inner.untyped_storage()

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, new):
        torch.Tensor.data.__set__(self, new)  # refuses tensors of another device
        self.inner = new.inner

    def set_(self, storage, *layout):
        # For torch.load, which goes on with what this returns.
        storage.__class__ = torch.UntypedStorage
        return SimulatedTensor(self.inner.new_empty(0).set_(storage, *layout))

    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("deepcopy needs a leaf of the graph: detach it first.")
        result = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = result
        for name, value in vars(self).items():
            if name != "inner":
                setattr(result, name, copy.deepcopy(value, memo))
        result.grad = copy.deepcopy(self.grad, memo)
        return result

    def __reduce_ex__(self, protocol):
        if getattr(self, "_is_param", False):
            arguments = self.detach(), self.requires_grad, OrderedDict()
            return torch._utils._rebuild_parameter, arguments
        note(synchronizations=1, to_host=1)
        storage = self.inner.untyped_storage().clone()
        storage.__class__ = SimulatedStorage
        typed = torch.storage.TypedStorage(
            wrap_storage=storage, dtype=self.dtype, _internal=True
        )
        layout = self.storage_offset(), tuple(self.shape), self.stride()
        arguments = typed, *layout, self.requires_grad, OrderedDict()
        return torch._utils._rebuild_tensor_v2, arguments


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out an operation that takes or returns tensors on the device."""
    operation = operation_of(func)
    if operation.is_composite:
        return func.decompose(*args, **kwargs)  # only happens in inference mode
    tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
    ours = {id(x.inner): x for x in tensors if isinstance(x, SimulatedTensor)}
    device = kwargs.get("device")
    returns_ours = device is None or torch.device(device).type == NAME
    note(operations=1, kernels=int(operation.computes))
    if operation.name == "_to_copy":
        note_copy(tensors[0], torch.device(device or NAME))
    elif operation.name == "copy_":
        note_copy(tensors[1], tensors[0].device)
    elif len(ours) < len(tensors):
        _check_devices(func, operation, args, kwargs, tensors)
    if (operation.waits and kwargs.get("output_size") is None) or (
        operation.indexes and _reads_a_mask(*args)
    ):
        note(synchronizations=1)
    if device is not None and returns_ours:
        kwargs = {**kwargs, "device": CPU}
    result = _call(func, operation, args, kwargs)
    if operation.written:
        for x in ours.values():  # unsqueeze_ and out= change shapes
            if x.shape != x.inner.shape or x.stride() != x.inner.stride():
                torch.Tensor.data.__set__(x, SimulatedTensor(x.inner))
    if not returns_ours:
        return result
    if not operation.is_view:
        return _outer(result, ours)
    # In inference mode, a view of an ordinary tensor is an ordinary tensor.
    with torch.inference_mode(tensors[0].is_inference()):
        return _outer(result, ours)


def note_copy(source: torch.Tensor, target: torch.device) -> None:
    if source.device.type == target.type:
        note(kernels=1)
    elif target.type == NAME:
        note(to_device=1)
    elif target.type == "cpu":
        note(synchronizations=1, to_host=1)


def _check_devices(
    func: Any,
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[torch.Tensor],
) -> None:
    """Raise if an operation mixes devices in a way that CUDA refuses."""
    strangers = [x for x in tensors if not isinstance(x, SimulatedTensor)]
    if operation.indexes and isinstance(args[0], SimulatedTensor):
        moved = [x for x in _tensors(args[1]) if x.device == CPU]
        note(to_device=sum(not isinstance(x, SimulatedTensor) for x in moved))
        strangers = [x for x in strangers if not any(x is index for index in moved)]
    given = {**dict(enumerate(args)), **kwargs}
    written = [x for key in operation.written for x in _tensors(given.get(key))]
    for x in strangers:
        is_scalar = x.dim() == 0 and x.device == CPU
        is_written = any(x is other for other in written)
        if is_written or not (is_scalar and operation.takes_cpu_scalars):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {DEVICE} and {x.device}, in {func}."
            )


def _reads_a_mask(*args: Any) -> bool:
    masks = [
        x
        for x in _tensors(args[1])
        if isinstance(x, SimulatedTensor) and x.dtype in (torch.bool, torch.uint8)
    ]
    fills = len(args) > 2 and args[2].numel() == 1 and len(args[1]) == 1
    return bool(masks) and not fills  # CUDA writes one number with masked_fill


def _call(
    func: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compute on the CPU, with the random numbers of the device."""
    generators = [
        x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)
    ]
    for generator in generators:
        if generator._cdata not in addresses:
            raise RuntimeError(
                f"Expected a '{NAME}' device type for generator but found "
                f"'{generator.device.type}'."
            )
    inner = {key: inner_of(value) for key, value in kwargs.items()}
    if generators or not operation.is_random:
        return func(*inner_of(args), **inner)
    state = torch.get_rng_state()
    torch.set_rng_state(backend.state)
    try:
        return func(*inner_of(args), **inner)
    finally:
        backend.state = torch.get_rng_state()
        torch.set_rng_state(state)


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for part in x:
            yield from _tensors(part)


def inner_of(x: Any) -> Any:
    if isinstance(x, SimulatedTensor):
        return x.inner
    return type(x)(map(inner_of, x)) if isinstance(x, list | tuple) else x


def _outer(x: Any, ours: dict[int, SimulatedTensor]) -> Any:
    if isinstance(x, torch.Tensor):
        return ours[id(x)] if id(x) in ours else SimulatedTensor(x)
    return (
        type(x)(_outer(part, ours) for part in x) if isinstance(x, list | tuple) else x
    )
