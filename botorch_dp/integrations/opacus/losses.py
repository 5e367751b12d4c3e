"""Reject losses of torch that are not a mean over records.

A mean over records divides by their number, which is known. With class weights torch
divides by the sum of the weights of all targets, and with an ``ignore_index`` by the
number of remaining targets. Then the gradient of each record depends on the targets of
other records, and clipping does not bound the influence of one record.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

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
_DEFAULT_IGNORED = -100
_REMEDY = (
    "which makes every record's gradient depend on the other records. Use "
    "reduction='none', add up the losses of each record separately and take the mean "
    "over records; or use reduction='sum' and loss_reduction='sum'."
)


class PrivateOutput(Tensor):
    """An output of a private module that checks every loss computed from it."""

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
        return super().__torch_function__(func, types, args, given)


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
    call = inspect.signature(func).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
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
    return func(*call.args, **call.kwargs).mean()


def watched(outputs: Any) -> Any:
    """Return outputs that check every loss computed from them."""
    return tree_map(
        lambda leaf: (
            leaf.as_subclass(PrivateOutput)
            if type(leaf) is Tensor and leaf.requires_grad
            else leaf
        ),
        outputs,
    )


def unwatched(inputs: Any) -> Any:
    """Return inputs as plain tensors."""
    return tree_map(
        lambda leaf: leaf.as_subclass(Tensor) if type(leaf) is PrivateOutput else leaf,
        inputs,
    )


def _reduction(given: Mapping[str, Any]) -> str:
    old = given.get("size_average"), given.get("reduce")
    if old != (None, None):
        return legacy_get_string(*old, emit_warning=False)
    return str(given["reduction"])
