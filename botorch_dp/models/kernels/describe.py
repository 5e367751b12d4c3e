"""Kernels as plain values, to compare them."""

from typing import Any

from gpytorch.kernels import Kernel


def describe_kernel(kernel: Kernel) -> list[dict[str, Any]]:
    """Return the types, settings and parameters of a kernel and of all its parts."""
    return [
        {
            "type": type(part).__name__,
            "active_dims": (
                None if part.active_dims is None else part.active_dims.tolist()
            ),
            "values": {
                name: value
                for name, value in sorted(vars(part).items())
                if isinstance(value, int | float | str) and not name.startswith("_")
            },
            "parameters": {
                name: parameter.tolist()
                for name, parameter in part.named_parameters(recurse=False)
            },
        }
        for part in (kernel, *kernel.sub_kernels())
    ]
