"""Reject losses of torch that are not a mean over records.

A mean over records divides by their number, which is known. With class weights torch
divides by the sum of the weights of all targets, and with an ``ignore_index`` by the
number of remaining targets. Then the gradient of each record depends on the targets of
other records, and clipping does not bound the influence of one record.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

from botorch_dp.exceptions import InvalidArgumentError

# Only the means of these losses divide by the sum of the weights.
_LOSSES = {
    getattr(functional, name)
    for name in (
        "cross_entropy",
        "nll_loss",
        "linear_cross_entropy",
        "mse_loss",
        "l1_loss",  # torch 2.13 drops its weight before this code sees it
        "huber_loss",
    )
    if hasattr(functional, name)  # older versions of torch lack some
}
# Changes of an output that are usual before a loss and keep row i for record i.
_ROW_BY_ROW = {
    Tensor.float,
    Tensor.double,
    Tensor.squeeze,
    torch.squeeze,
    Tensor.__getitem__,
}
_DEFAULT_IGNORED = -100
_REMEDY = (
    "which makes every record's gradient depend on the other records. Use "
    "reduction='none', add up the losses of each record separately and take the mean "
    "over records; or use reduction='sum' and loss_reduction='sum'."
)


class PrivateOutput(Tensor):
    """An output of a private module that checks every loss computed from it.

    Attributes:
        version: The version of the tensor if row i surely belongs to record i, as in
            what the module returned. None for what was computed from it, because that
            may mix records.
    """

    version: int | None = None

    @property
    def has_rows_of_records(self) -> bool:
        """Whether row i belongs to record i, and nothing was written to it."""
        return self.version is not None and self.version == self._version

    def with_rows_of_records(self) -> "PrivateOutput":
        """Return the tensor, and note that row i belongs to record i."""
        self.version = self._version
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, unless it is a loss that mixes records."""
        given = dict(kwargs or {})
        if func in _LOSSES:
            args, given = (func, args, given), {}
            func = call_loss
        result = super().__torch_function__(func, types, args, given)
        if func in _ROW_BY_ROW and _keeps_rows(func, args, given):
            return result.with_rows_of_records()
        return result


class LossGuard(TorchFunctionMode):
    """Checks the losses that a module computes internally."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, unless it is a loss that mixes records."""
        del types
        given = dict(kwargs or {})
        return call_loss(func, args, given) if func in _LOSSES else func(*args, **given)


def call_loss(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a loss of torch, or raise if it is not a mean over records.

    By default torch ignores targets of -100. Whether there are any is private, so they
    do not raise; they count as zeros in a mean over all targets.
    """
    names, defaults = _arguments(func)
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    if _reduction(given) != "mean":
        return func(*args, **kwargs)
    has_classes = "ignore_index" in given
    # With class probabilities as targets, torch divides by the number of records.
    of_indices = has_classes and not given["target"].is_floating_point()
    if given.get("weight") is not None and (of_indices or not has_classes):
        raise InvalidArgumentError(
            f"{func.__name__} must have weight=None with reduction='mean': it divides "
            f"by the sum of the weights, {_REMEDY}"
        )
    if not of_indices:
        return func(*args, **kwargs)
    if given["ignore_index"] not in (None, _DEFAULT_IGNORED):
        raise InvalidArgumentError(
            f"{func.__name__} must not have an ignore_index with reduction='mean', got "
            f"{given['ignore_index']!r}: it divides by the number of other targets, "
            f"{_REMEDY}"
        )
    for name in ("size_average", "reduce"):
        if name in given:
            given[name] = None
    given["reduction"] = "none"
    return func(**given).mean()


@cache
def _arguments(func: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of a function's arguments, and the defaults they have."""
    arguments = signature(func).parameters
    defaults = {
        name: argument.default
        for name, argument in arguments.items()
        if argument.default is not Parameter.empty
    }
    return tuple(arguments), defaults


def watched(outputs: Any, other_rows: Collection[int] = ()) -> Any:
    """Return outputs that check every loss computed from them.

    Args:
        outputs: What a module returned.
        other_rows: The positions of outputs whose first dimension is not the batch.
    """
    leaves, tree = tree_flatten(outputs)
    for i, leaf in enumerate(leaves):
        if type(leaf) is Tensor and leaf.requires_grad:
            output = leaf.as_subclass(PrivateOutput)
            leaves[i] = output if i in other_rows else output.with_rows_of_records()
    return tree_unflatten(leaves, tree)


def unwatched(inputs: Any) -> Any:
    """Return inputs as plain tensors."""
    if not any(type(leaf) is PrivateOutput for leaf in tree_leaves(inputs)):
        return inputs
    return tree_map(
        lambda leaf: leaf.as_subclass(Tensor) if type(leaf) is PrivateOutput else leaf,
        inputs,
    )


def _keeps_rows(func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """Return whether the result has the rows of an output, in their order."""
    output = args[0] if args else None
    if not isinstance(output, PrivateOutput) or not output.has_rows_of_records:
        return False
    if func is Tensor.__getitem__:
        index = args[1]  # such as [:, 0]
        return isinstance(index, tuple) and all(
            (type(part) is int and place > 0)
            or (isinstance(part, slice) and (place > 0 or part == slice(None)))
            for place, part in enumerate(index)
        )
    if func in (Tensor.float, Tensor.double):
        return True
    dim = args[1] if len(args) > 1 else given.get("dim")
    return type(dim) is int and dim % max(1, output.dim()) != 0


def _reduction(given: Mapping[str, Any]) -> str:
    old = given.get("size_average"), given.get("reduce")
    if old != (None, None):
        return legacy_get_string(*old, emit_warning=False)
    return str(given["reduction"])
