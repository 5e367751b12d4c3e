"""Checks of public arguments: each error names the argument and its value."""

import difflib
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import TypeVar

import torch
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError

_T = TypeVar("_T")
_SPOKEN_WITH_A_VOWEL = tuple("AEFHILMNORSXaefhilmnorsx8")
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
            f"{suggestion(value, choices)}"
        )
    return value


def suggestion(value: object, known: Iterable[object]) -> str:
    """Return a question that names the most similar known word, or nothing.

    Example:
        >>> suggestion("dpgibo", ("auto", "dp-gibo"))
        " Did you mean 'dp-gibo'?"
    """
    words = {word.lower(): word for word in known if isinstance(word, str)}
    if not isinstance(value, str):
        return ""
    found = difflib.get_close_matches(value.lower(), words, n=1, cutoff=0.7)
    return f" Did you mean {words[found[0]]!r}?" if found else ""


def check_instance(
    name: str, value: _T, kind: type | tuple[type, ...], *, expected: str | None = None
) -> _T:
    """Return ``value`` if it is an instance of ``kind``.

    Args:
        name: The name of the argument.
        value: The argument.
        kind: One type or several. Include ``type(None)`` to allow None.
        expected: What the error says that the argument must be; by default the names
            of the types.
    """
    if isinstance(value, kind):
        return value
    if expected is None:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = ["None" if one is type(None) else f"a {one.__name__}" for one in kinds]
        expected = " or ".join(names)
    raise InvalidArgumentError(f"{name} must be {expected}, got {describe(value)}.")


def check_callable(name: str, value: _T, *, expected: str = "a function") -> _T:
    """Return ``value`` if it can be called.

    Args:
        name: The name of the argument.
        value: The argument.
        expected: What the error says that the argument must be.
    """
    if not callable(value):
        raise InvalidArgumentError(
            f"{name} must be {expected}, got a {type(value).__name__}."
        )
    return value


def check_tensor(
    name: str,
    value: Tensor,
    shape: Sequence[int | str] | None = None,
    *,
    dtype: torch.dtype | None = None,
    finite: bool = False,
    allow_empty: bool = False,
    meaning: str = "",
) -> Tensor:
    """Return a public tensor if its type, dtype, shape and entries are usable.

    Args:
        name: The name of the argument.
        value: The argument.
        shape: The shape that it must have. A number is a size; a letter stands for any
            size above zero; ``"..."`` at the beginning for any number of dimensions.
        dtype: The dtype that it must have; by default float32 or float64.
        finite: Whether all entries must be finite.
        allow_empty: Whether a letter may also stand for zero.
        meaning: What the tensor holds, for the error.

    Example:
        >>> check_tensor("X", torch.zeros(4, 2), ("n", 2)).shape
        torch.Size([4, 2])
        >>> check_tensor("X", torch.zeros(4, 3), ("n", 2), meaning="one row a point")
        Traceback (most recent call last):
        botorch_dp.exceptions.InvalidArgumentError: X must be an n x 2 tensor of ...
    """
    allowed = _RELEASABLE_DTYPES if dtype is None else (dtype,)
    if (
        not isinstance(value, Tensor)
        or value.dtype not in allowed
        or not _has_shape(value, shape, least=0 if allow_empty else 1)
    ):
        raise InvalidArgumentError(
            f"{name} must be {_expected(shape, dtype, meaning)}, got {describe(value)}."
        )
    if finite and not value.isfinite().all():
        raise InvalidArgumentError(
            f"{name} must be finite, got {_short(value.tolist())}."
        )
    return value


def check_like(
    name: str,
    value: Tensor,
    shape: Sequence[int | str],
    like: Tensor,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return a tensor if it has a shape, and the dtype and device of another tensor.

    Its values may be private and are not looked at.

    Args:
        name: The name of the argument.
        value: The argument.
        shape: The shape that it must have, as for :func:`check_tensor`; a letter may
            also stand for zero.
        like: The tensor whose dtype and device it must have.
        dtype: The dtype that it must have instead of that of ``like``.
    """
    dtype = like.dtype if dtype is None else dtype
    if (
        not isinstance(value, Tensor)
        or value.dtype != dtype
        or value.device != like.device
        or not _has_shape(value, shape, least=0)
    ):
        where = f" on {value.device}" if isinstance(value, Tensor) else ""
        raise InvalidArgumentError(
            f"{name} must be a {dtype} tensor of shape "
            f"{' x '.join(map(str, shape)) or '()'} on {like.device}, got "
            f"{describe_private(value)}{where}."
        )
    return value


def check_box(
    name: str, bounds: Tensor, *, dim: int | None = None, finite: bool = True
) -> Tensor:
    """Return a copy of ``2 x d`` bounds if they are finite and lower is below upper.

    Args:
        name: The name of the argument.
        bounds: A tensor with lower bounds first.
        dim: The number d that it must have; any if None.
        finite: Whether all bounds must be finite.
    """
    check_tensor(
        name, bounds, (2, "d" if dim is None else dim), meaning="lower bounds first"
    )
    if (finite and not bounds.isfinite().all()) or not (bounds[0] < bounds[1]).all():
        raise InvalidArgumentError(
            f"{name} must {'be finite with' if finite else 'have'} every lower bound "
            f"below its upper bound, got {_short(bounds.tolist())}."
        )
    return bounds.detach().clone()


def check_inside(name: str, X: Tensor, bounds: Tensor) -> Tensor:
    """Return public ``... x d`` points if all of them lie within ``2 x d`` bounds."""
    check_tensor(name, X, ("...", bounds.shape[-1]))
    if not ((bounds[0] <= X) & (bounds[1] >= X)).all():
        raise InvalidArgumentError(
            f"{name} must lie within bounds {bounds.tolist()}, got "
            f"{_short(X.tolist())}."
        )
    return X.detach().to(bounds)


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


def describe(value: object) -> str:
    """Return a public value as an error shows it: tensors by dtype and shape."""
    return describe_private(value) if isinstance(value, Tensor) else repr(value)


def describe_private(value: object) -> str:
    """Return what an error may say of a private value: all but the value."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _has_shape(
    value: Tensor, shape: Sequence[int | str] | None, *, least: int = 1
) -> bool:
    if shape is None:
        return True
    sizes = list(value.shape)
    if shape and shape[0] == "...":
        shape = shape[1:]
        sizes = sizes[len(sizes) - len(shape) :] if len(sizes) >= len(shape) else []
    return len(sizes) == len(shape) and all(
        size == wanted if isinstance(wanted, int) else size >= least
        for size, wanted in zip(sizes, shape, strict=True)
    )


def _expected(
    shape: Sequence[int | str] | None, dtype: torch.dtype | None, meaning: str
) -> str:
    kind = "torch.float32 or torch.float64" if dtype is None else str(dtype)
    sizes = "" if shape is None else " x ".join(map(str, shape)) + " "
    article = "an" if sizes[:1] in _SPOKEN_WITH_A_VOWEL else "a"
    return f"{article} {sizes}tensor of {kind}{f' ({meaning})' if meaning else ''}"


def _short(value: object) -> str:
    """Return the repr of a public value, cut where it would fill a screen."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _check_real(name: str, value: float) -> float:
    if type(value) is float:  # asking whether it is a Real takes longer
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgumentError(
            f"{name} must be a number, got {value!r} of type {type(value).__name__}."
        )
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgumentError(f"{name} is too large for a float.") from None
