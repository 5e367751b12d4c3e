"""Checks of public arguments: each error names the argument and its value."""

import math
from numbers import Integral, Real

import torch
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError

_RELEASABLE_DTYPES = (torch.float32, torch.float64)
# Sums of as many values as any machine holds stay finite.
_LARGEST_END = 1e100
# A sum that overflows is released as zero, and one record more or less decides whether
# it does. Below the smallest norm rounding errors are no longer relative.
LARGEST_CLIP_NORM = _LARGEST_END
SMALLEST_CLIP_NORM = 1 / LARGEST_CLIP_NORM


def check_positive(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number above zero."""
    number = _check_real(name, value)
    if not (math.isfinite(number) and number > 0):
        raise InvalidArgumentError(
            f"{name} must be a finite number above 0, got {value!r}."
        )
    return number


def check_clip_norm(name: str, value: float) -> float:
    """Return ``value`` as a float if values clipped to this norm can be summed."""
    number = check_positive(name, value)
    if not SMALLEST_CLIP_NORM <= number <= LARGEST_CLIP_NORM:
        raise InvalidArgumentError(
            f"{name} must lie between {SMALLEST_CLIP_NORM:g} and "
            f"{LARGEST_CLIP_NORM:g}, where sums of clipped values are finite, got "
            f"{value!r}."
        )
    return number


def check_nonnegative(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a finite number, zero or above."""
    number = _check_real(name, value)
    if not (math.isfinite(number) and number >= 0):
        raise InvalidArgumentError(
            f"{name} must be a finite number, 0 or above, got {value!r}."
        )
    return number


def check_probability(name: str, value: float) -> float:
    """Return ``value`` as a float if it lies strictly between zero and one."""
    number = _check_real(name, value)
    if not 0 < number < 1:
        raise InvalidArgumentError(
            f"{name} must lie strictly between 0 and 1, got {value!r}."
        )
    return number


def check_count(name: str, value: int, *, minimum: int = 1) -> int:
    """Return ``value`` as an int if it is a whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise InvalidArgumentError(
            f"{name} must be a whole number of at least {minimum}, got {value!r}."
        )
    return int(value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        raise InvalidArgumentError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}."
        )
    return value


def check_private_tensor(name: str, value: Tensor, *, min_dim: int = 0) -> Tensor:
    """Return ``value`` if its type, dtype and shape are usable.

    Its values are private and are not looked at.
    """
    if not isinstance(value, Tensor):
        raise InvalidArgumentError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}; make one, "
            f"e.g. with torch.as_tensor({name})."
        )
    if value.dtype not in _RELEASABLE_DTYPES:
        raise InvalidArgumentError(
            f"{name} must have dtype torch.float32 or torch.float64, got "
            f"{value.dtype}; convert it first, e.g. with {name}.double()."
        )
    if value.layout != torch.strided:
        raise InvalidArgumentError(
            f"{name} must be a dense tensor, got layout {value.layout}."
        )
    if value.dim() < min_dim:
        raise InvalidArgumentError(
            f"{name} must have at least {min_dim} dimension(s), got shape "
            f"{tuple(value.shape)}."
        )
    if value.numel() == 0:
        raise InvalidArgumentError(
            f"{name} must not be empty, got shape {tuple(value.shape)}."
        )
    return value


def check_range(name: str, value: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of a range whose values can be summed without overflow."""
    try:
        low, high = (float(end) for end in value)
    except (TypeError, ValueError, OverflowError):
        low = high = math.nan
    if not (low < high and max(abs(low), abs(high)) <= _LARGEST_END):
        raise InvalidArgumentError(
            f"{name} must be (low, high), finite with low below high (and neither "
            f"beyond {_LARGEST_END:g}), got {value!r}."
        )
    return low, high


def describe_private(value: object) -> str:
    """Return what an error may say of a private value: all but the value."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _check_real(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgumentError(
            f"{name} must be a number, got {value!r} of type {type(value).__name__}."
        )
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(f"{name} is too large for a float.") from None
