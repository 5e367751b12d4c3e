"""Adding the device to torch."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import backend_registration

from tests.simulated_accelerator.counts import note
from tests.simulated_accelerator.randomness import DEVICE, NAME, backend
from tests.simulated_accelerator.tensor import (
    SimulatedStorage,
    inner_of,
    note_copy,
    run,
)

_libraries: list[torch.library.Library] = []


def is_available() -> bool:
    """Return whether this version of torch can have a device written in Python."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def install() -> None:
    """Add the device to torch. A second call does nothing."""
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=backend
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
    return run(torch.ops.aten._local_scalar_dense.default, (x,), {})


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy inside ``torch.tensor``, which goes past ``__torch_dispatch__``."""
    note(operations=1)
    note_copy(source, target.device)
    inner_of(target).copy_(inner_of(source))
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
    return lambda *args, **kwargs: run(func, args, {"device": NAME, **kwargs})


def _location(storage: torch.UntypedStorage) -> str | None:
    return DEVICE if isinstance(storage, SimulatedStorage) else None


def _restore(storage: torch.UntypedStorage, location: str) -> Any:
    if location not in (NAME, DEVICE):
        return None
    note(to_device=1)
    storage.__class__ = SimulatedStorage
    return storage
