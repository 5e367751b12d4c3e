"""A simulated accelerator: a second device for machines that have only a CPU.

:func:`install` adds the device ``sim`` to torch. A tensor on it wraps a CPU tensor that
computes its values, so each operation gives the bits of the CPU. Everything else
follows CUDA:

* Tensors on different devices do not mix, except that CPU tensors without dimensions
  take part in elementwise operations, and that CPU indices may index a tensor on the
  device.
* ``.numpy()`` and ``numpy.asarray`` raise. A tensor that is created without ``device=``
  is on the CPU.
* Random numbers come from a stream of the device's own, which ``torch.manual_seed``
  seeds, or from a :class:`Generator` of the device. A CPU generator raises.
* ``copy.deepcopy``, ``pickle``, ``torch.save`` and ``torch.load`` (with
  ``map_location``), autograd, ``torch.inference_mode`` and ``torch.random.fork_rng``
  work.

:func:`count` counts what a program pays for on an accelerator (see :class:`Counts`).

The simulation differs from CUDA in these ways. ``torch.Generator(device="sim")`` is not
possible, so use :class:`Generator`; torch also takes that one for CPU tensors, where it
would refuse a CUDA generator. A tensor cannot change its shape in place (``resize_``,
``unsqueeze_``), which raises ``NotImplementedError``. Streams and pinned memory do not
exist. One call of an operation is one kernel, even if CUDA needs several.

Importing this module changes nothing; :func:`install` lasts as long as the process.

Example::

    install()
    X = torch.rand(10, 3).to("sim")
    with count() as counts:
        smallest = X.square().sum(dim=-1).min().item()
    counts  # Counts(operations=4, kernels=4, synchronizations=1, ...)
"""

import contextlib
import copy
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils import backend_registration

NAME = "sim"
_DEVICE = f"{NAME}:0"
_CPU = torch.device("cpu")

_COPIES = {"copy_", "_to_copy"}
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
# CUDA takes CPU tensors without dimensions in these, which have no tag "pointwise".
_TAKE_CPU_SCALARS = {"masked_fill", "masked_fill_", "fill", "fill_", "index_fill"}
# The tags of operations that the host cannot leave without a result of the device, and
# the operations that need such a tag.
_WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_WAITING = {
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "linalg_eig",
    "linalg_lstsq",
}


@dataclass
class Counts:
    """What a program asked the device to do.

    Attributes:
        operations: Calls that reached the device: kernels, views, allocations and
            copies. Each costs the host some microseconds.
        kernels: The operations that compute something on the device.
        synchronizations: How often the host waited for a result: ``item``, ``bool``,
            ``tolist``, ``equal``, ``nonzero``, boolean masks as indices, every other
            result whose shape depends on values, and copies to the host.
        to_device: Copies from the host to the device. Torch may wait for these too, but
            not for a result, so they are not among the synchronizations.
        to_host: Copies from the device to the host, except for ``item`` and ``bool``.
    """

    operations: int = 0
    kernels: int = 0
    synchronizations: int = 0
    to_device: int = 0
    to_host: int = 0

    @property
    def transfers(self) -> int:
        """Return the number of copies in both directions."""
        return self.to_device + self.to_host


_open_counts: list[Counts] = []


@contextlib.contextmanager
def count() -> Iterator[Counts]:
    """Count what happens on the device inside the block. Blocks may be nested."""
    counts = Counts()
    _open_counts.append(counts)
    try:
        yield counts
    finally:
        _open_counts[:] = [other for other in _open_counts if other is not counts]


def _note(**numbers: int) -> None:
    for counts in _open_counts:
        for name, number in numbers.items():
            setattr(counts, name, getattr(counts, name) + number)


_generators: set[int] = set()


class Generator(torch.Generator):
    """A generator of random numbers on the simulated device.

    It draws the same numbers as a CPU generator with the same seed.
    """

    def __new__(cls):
        generator = super().__new__(cls)
        # Torch passes generators on without their Python class.
        address = generator._cdata
        _generators.add(address)
        weakref.finalize(generator, _generators.discard, address)
        return generator

    @property
    def device(self) -> torch.device:
        return torch.device(_DEVICE)


class SimulatedStorage(torch.UntypedStorage):
    """The bytes of a simulated tensor on their way to a file or back."""

    @property
    def device(self) -> torch.device:
        return torch.device(_DEVICE)


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
            device=torch.device(_DEVICE),
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents=None):
        return f"{repr(self.inner)[:-1]}, device='{_DEVICE}')"

    def numpy(self, *, force=False):
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {_DEVICE} device type tensor to numpy. Use Tensor.cpu() to "
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
        _note(synchronizations=1, to_host=1)
        storage = self.inner.untyped_storage().clone()
        storage.__class__ = SimulatedStorage
        typed = torch.storage.TypedStorage(
            wrap_storage=storage, dtype=self.dtype, _internal=True
        )
        layout = self.storage_offset(), tuple(self.shape), self.stride()
        arguments = typed, *layout, self.requires_grad, OrderedDict()
        return torch._utils._rebuild_tensor_v2, arguments


class _Operation:
    """What the schema and the tags of a torch operation say about it."""

    def __init__(self, func: Any) -> None:
        self.name = func._overloadpacket.__name__
        aliases = [argument.alias_info for argument in func._schema.arguments]
        names = [argument.name for argument in func._schema.arguments]
        self.written = [
            key
            for pair, alias in zip(enumerate(names), aliases, strict=True)
            if alias is not None and alias.is_write
            for key in pair
        ]
        self.is_view = not self.written and any(alias is not None for alias in aliases)
        self.is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
        self.copies = self.name in _COPIES
        self.indexes = self.name in _INDEXING
        self.computes = not (
            self.is_view or self.copies or self.name.startswith(("empty", "new_empty"))
        )
        self.changes_shapes = torch.Tag.inplace_view in func.tags or (
            torch.Tag.out in func.tags if hasattr(torch.Tag, "out") else False
        )
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.takes_cpu_scalars = (
            torch.Tag.pointwise in func.tags and self.name != "equal"
        ) or self.name in _TAKE_CPU_SCALARS | _INDEXING
        self.waits = not self.indexes and (
            self.name in _WAITING or not _WAITING_TAGS.isdisjoint(func.tags)
        )


_operation = cache(_Operation)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out an operation that takes or returns tensors on the device."""
    operation = _operation(func)
    if operation.is_composite:
        return func.decompose(*args, **kwargs)  # only happens in inference mode
    tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
    ours = {id(x.inner): x for x in tensors if isinstance(x, SimulatedTensor)}
    device = kwargs.get("device")
    returns_ours = device is None or torch.device(device).type == NAME
    _note(operations=1, kernels=int(operation.computes))
    if operation.name == "_to_copy":
        _note_copy(tensors[0], torch.device(device or NAME))
    elif operation.name == "copy_":
        _note_copy(tensors[1], tensors[0].device)
    elif len(ours) < len(tensors):
        _check_devices(func, operation, args, kwargs, tensors)
    if (operation.waits and kwargs.get("output_size") is None) or (
        operation.indexes and _reads_a_mask(*args)
    ):
        _note(synchronizations=1)
    if device is not None and returns_ours:
        kwargs = {**kwargs, "device": _CPU}
    result = _call(func, operation, args, kwargs)
    if operation.changes_shapes:
        for x in ours.values():
            if x.shape != x.inner.shape or x.stride() != x.inner.stride():
                torch.Tensor.data.__set__(x, SimulatedTensor(x.inner))
    if not returns_ours:
        return result
    if not operation.is_view:
        return _outer(result, ours)
    # In inference mode, a view of an ordinary tensor is an ordinary tensor.
    with torch.inference_mode(tensors[0].is_inference()):
        return _outer(result, ours)


def _note_copy(source: torch.Tensor, target: torch.device) -> None:
    if source.device.type == target.type:
        _note(kernels=1)
    elif target.type == NAME:
        _note(to_device=1)
    elif target.type == "cpu":
        _note(synchronizations=1, to_host=1)


def _check_devices(
    func: Any,
    operation: _Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[torch.Tensor],
) -> None:
    """Raise if an operation mixes devices in a way that CUDA refuses."""
    strangers = [x for x in tensors if not isinstance(x, SimulatedTensor)]
    if operation.indexes and isinstance(args[0], SimulatedTensor):
        moved = [x for x in _tensors(args[1]) if x.device == _CPU]
        _note(to_device=sum(not isinstance(x, SimulatedTensor) for x in moved))
        strangers = [x for x in strangers if not any(x is index for index in moved)]
    given = {**dict(enumerate(args)), **kwargs}
    written = [x for key in operation.written for x in _tensors(given.get(key))]
    for x in strangers:
        is_scalar = x.dim() == 0 and x.device == _CPU
        is_written = any(x is other for other in written)
        if is_written or not (is_scalar and operation.takes_cpu_scalars):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {_DEVICE} and {x.device}, in {func}."
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
    func: Any, operation: _Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compute on the CPU, with the random numbers of the device."""
    generators = [
        x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)
    ]
    for generator in generators:
        if generator._cdata not in _generators:
            raise RuntimeError(
                f"Expected a '{NAME}' device type for generator but found "
                f"'{generator.device.type}'."
            )
    inner = {key: _inner(value) for key, value in kwargs.items()}
    if generators or not operation.is_random:
        return func(*_inner(args), **inner)
    state = torch.get_rng_state()
    torch.set_rng_state(_backend.state)
    try:
        return func(*_inner(args), **inner)
    finally:
        _backend.state = torch.get_rng_state()
        torch.set_rng_state(state)


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for part in x:
            yield from _tensors(part)


def _inner(x: Any) -> Any:
    if isinstance(x, SimulatedTensor):
        return x.inner
    return type(x)(map(_inner, x)) if isinstance(x, list | tuple) else x


def _outer(x: Any, ours: dict[int, SimulatedTensor]) -> Any:
    if isinstance(x, torch.Tensor):
        return ours[id(x)] if id(x) in ours else SimulatedTensor(x)
    return (
        type(x)(_outer(part, ours) for part in x) if isinstance(x, list | tuple) else x
    )


class _Backend:
    """The module ``torch.sim``, with the state of the device's random numbers."""

    def __init__(self) -> None:
        self.state = torch.Generator(_CPU).get_state()

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        self.state = torch.Generator(_CPU).manual_seed(seed).get_state()

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        self.state = state.clone()

    def synchronize(self, device: Any = NAME) -> None:
        _note(synchronizations=1)


_backend = _Backend()
_libraries: list[torch.library.Library] = []


def is_available() -> bool:
    """Return whether this version of torch can have a device written in Python."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def install() -> None:
    """Add the device to torch. A second call does nothing."""
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=_backend
    )
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)  # an operation lives as long as its library
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    library.impl("_local_scalar_dense", _item, "PrivateUse1")
    for func in _factories():
        library.impl(func, _factory(func), "PrivateUse1")
    torch.serialization.register_package(5, _location, _restore)


def _item(x: torch.Tensor) -> Any:
    """Read a number inside ``torch.tensor``, as in :func:`_copy_from`."""
    return _run(torch.ops.aten._local_scalar_dense.default, (x,), {})


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy inside ``torch.tensor``, which goes past ``__torch_dispatch__``."""
    _note(operations=1)
    _note_copy(source, target.device)
    _inner(target).copy_(_inner(source))
    return target


def _factories() -> Iterator[Any]:
    """Yield the operations that create tensors on a device from numbers alone."""
    for schema in torch._C._jit_get_all_schemas():
        arguments = {argument.name: argument for argument in schema.arguments}
        if (
            schema.name.startswith("aten::")
            and "device" in arguments
            and not any("Tensor" in str(a.type) for a in arguments.values())
            and [str(result.type) for result in schema.returns] == ["Tensor"]
        ):
            packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
            yield getattr(packet, schema.overload_name or "default")


def _factory(func: Any) -> Any:
    if func is torch.ops.aten._efficientzerotensor.default:
        func = torch.ops.aten.zeros.default  # a wrapped one would have no memory
    return lambda *args, **kwargs: _run(func, args, {"device": NAME, **kwargs})


def _location(storage: torch.UntypedStorage) -> str | None:
    return _DEVICE if isinstance(storage, SimulatedStorage) else None


def _restore(storage: torch.UntypedStorage, location: str) -> Any:
    if location not in (NAME, _DEVICE):
        return None
    _note(to_device=1)
    storage.__class__ = SimulatedStorage
    return storage
