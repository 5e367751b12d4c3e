"""What torch says about its operations."""

from functools import cache
from typing import Any

import torch

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


class Operation:
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
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.takes_cpu_scalars = (
            torch.Tag.pointwise in func.tags and self.name != "equal"
        ) or self.name in _TAKE_CPU_SCALARS | _INDEXING
        self.waits = not self.indexes and (
            self.name in _WAITING or not _WAITING_TAGS.isdisjoint(func.tags)
        )


operation_of = cache(Operation)
