"""The dimensions of a search space: real numbers, integers and categories."""

import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from botorch_dp.exceptions import InvalidArgumentError

When = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class _Interval:
    low: float
    high: float
    log: bool = False
    _: KW_ONLY
    when: When | None = field(default=None, hash=False)

    def __repr__(self) -> str:
        when = "" if self.when is None else f", when={self.when!r}"
        return (
            f"{type(self).__name__}(low={self.low!r}, high={self.high!r}, "
            f"log={self.log!r}{when})"
        )

    def __post_init__(self) -> None:
        if not (is_number(self.low) and is_number(self.high)):
            raise InvalidArgumentError(f"low and high must be numbers, got {self!r}.")
        is_finite = math.isfinite(self.low) and math.isfinite(self.high)
        if not (is_finite and self.low < self.high):
            raise InvalidArgumentError(
                f"low must be below high, and both must be finite, got {self!r}."
            )
        if self.log and self.low <= 0:
            raise InvalidArgumentError(
                f"low must be above 0 with log=True, got {self!r}."
            )
        check_when(self.when)


@dataclass(frozen=True, repr=False)
class Real(_Interval):
    """A real number between two bounds.

    Args:
        low: The smallest value.
        high: The largest value.
        log: Whether to search on a log scale, e.g. for a regularization strength.
        when: When to set this parameter: maps the names of categories to a value, or a
            list of values, that they must have. By default always.

    Example:
        >>> Real(1e-3, 1e3, log=True)
        Real(low=0.001, high=1000.0, log=True)
        >>> Real(1e-4, 1.0, log=True, when={"kernel": ["rbf", "sigmoid"]}).when
        {'kernel': ['rbf', 'sigmoid']}
    """


@dataclass(frozen=True, repr=False)
class Integer(_Interval):
    """An integer between two bounds, both included.

    Args:
        low: The smallest value.
        high: The largest value.
        log: Whether to search on a log scale.
        when: When to set this parameter, as for :class:`Real`.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if not is_number(value) or value % 1 != 0:  # also infinity and NaN
                raise InvalidArgumentError(
                    f"{name} of an Integer must be a whole number, got {value!r}."
                )
            object.__setattr__(self, name, int(value))
        super().__post_init__()


class Categorical:
    """One of several values without an order.

    Args:
        choices: At least two different values.
        when: When to set this parameter, as for :class:`Real`.
    """

    def __init__(
        self, choices: Sequence[Any] | np.ndarray, *, when: When | None = None
    ) -> None:
        if isinstance(choices, np.ndarray) and choices.ndim == 1:
            choices = choices.tolist()
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise InvalidArgumentError(
                f"choices must be a list or a tuple, got {choices!r}."
            )
        if len(choices) < 2:
            raise InvalidArgumentError(
                f"choices must have at least two values, got {choices!r}. Set a fixed "
                "value on the estimator itself."
            )
        if any(is_same(a, b) for a, b in itertools.combinations(choices, 2)):
            raise InvalidArgumentError(f"choices must be different, got {choices!r}.")
        check_when(when)
        self.choices = tuple(choices)
        self.when = when

    def __repr__(self) -> str:
        when = "" if self.when is None else f", when={self.when!r}"
        return f"Categorical({list(self.choices)!r}{when})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Categorical):
            return NotImplemented
        return self.choices == other.choices and self.when == other.when

    __hash__ = None  # type: ignore[assignment]  # choices may be lists


Dimension = Real | Integer | Categorical


def check_when(when: Any) -> None:
    """Raise unless a condition names parameters and their values."""
    is_given = isinstance(when, Mapping) and len(when) > 0
    if when is not None and not is_given:
        raise InvalidArgumentError(
            "when must map names of parameters to the values that they must have, such "
            f"as when={{'kernel': 'rbf'}}, got {when!r}."
        )


def is_inside(dim: Dimension, value: Any) -> bool:
    """Return whether a value belongs to a dimension."""
    if isinstance(dim, Categorical):
        return any(is_same(value, choice) for choice in dim.choices)
    if not is_number(value) or not dim.low <= value <= dim.high:
        return False
    return isinstance(dim, Real) or value % 1 == 0


def is_same(a: Any, b: Any) -> bool:
    """Return whether two values of a parameter are the same."""
    return a is b or bool(a == b)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, and not a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def value_at(dim: Dimension, u: float) -> Any:
    """Return the value at u in [0, 1]; every integer has an interval of its own."""
    if isinstance(dim, Categorical):
        return dim.choices[min(int(u * len(dim.choices)), len(dim.choices) - 1)]
    high = dim.high + 1 if isinstance(dim, Integer) else dim.high
    if dim.log:
        value = math.exp(math.log(dim.low) * (1 - u) + math.log(high) * u)
    else:
        value = dim.low * (1 - u) + high * u
    value = min(max(value, dim.low), dim.high)
    return int(value) if isinstance(dim, Integer) else value


def unit_of(dim: Real | Integer, value: float) -> float:
    """Return the position of a value in [0, 1], in search coordinates."""
    low, high = dim.low, dim.high
    if dim.log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def num_values(dim: Dimension) -> float:
    """Return how many values a dimension has."""
    if isinstance(dim, Categorical):
        return len(dim.choices)
    return math.inf if isinstance(dim, Real) else dim.high - dim.low + 1


def values_of(dim: Integer | Categorical) -> Sequence[Any]:
    """Return all values of a dimension that has finitely many."""
    if isinstance(dim, Categorical):
        return dim.choices
    return range(dim.low, dim.high + 1)
