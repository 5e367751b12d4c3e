"""The space of hyperparameters: real numbers, integers and categories."""

import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp.exceptions import InvalidArgumentError

Params = dict[str, Any]

# Up to this many integers, losses are interpolated between them.
_MOST_INTERPOLATED = 2


@dataclass(frozen=True)
class Real:
    """A real number between two bounds.

    Args:
        low: The smallest value.
        high: The largest value.
        log: Whether to search on a log scale, e.g. for a regularization strength.

    Example:
        >>> Real(1e-3, 1e3, log=True)
        Real(low=0.001, high=1000.0, log=True)
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_interval(self)


@dataclass(frozen=True)
class Integer:
    """An integer between two bounds, both included.

    Args:
        low: The smallest value.
        high: The largest value.
        log: Whether to search on a log scale.
    """

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if not _is_number(value) or value % 1 != 0:  # also infinity and NaN
                raise InvalidArgumentError(
                    f"{name} of an Integer must be a whole number, got {value!r}."
                )
            object.__setattr__(self, name, int(value))
        _check_interval(self)


class Categorical:
    """One of several values without an order.

    Args:
        choices: At least two different values.
    """

    def __init__(self, choices: Sequence[Any] | np.ndarray) -> None:
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
        if any(a is b or a == b for a, b in itertools.combinations(choices, 2)):
            raise InvalidArgumentError(f"choices must be different, got {choices!r}.")
        self.choices = tuple(choices)

    def __repr__(self) -> str:
        return f"Categorical({list(self.choices)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Categorical) and self.choices == other.choices

    __hash__ = None  # type: ignore[assignment]  # choices may be lists


Dimension = Real | Integer | Categorical


class SearchSpace:
    """Named dimensions, with conversions between parameters and coordinates.

    Args:
        space: Maps each name to a :class:`Real`, :class:`Integer` or
            :class:`Categorical`; a list stands for a Categorical.

    Attributes:
        numbers: The Real and Integer dimensions, by name.
        choices: The Categorical dimensions, by name.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        if not isinstance(space, Mapping) or not space:
            raise InvalidArgumentError(
                "space must be a dict from parameter names to Real, Integer or "
                f"Categorical, got {space!r}."
            )
        self._dimensions = {name: _dimension(name, dim) for name, dim in space.items()}
        self.numbers: dict[str, Real | Integer] = {}
        self.choices: dict[str, Categorical] = {}
        for name, dimension in self._dimensions.items():
            if isinstance(dimension, Categorical):
                self.choices[name] = dimension
            else:
                self.numbers[name] = dimension

    @property
    def bounds(self) -> Tensor:
        """The ``2 x d`` bounds of the numbers."""
        ends = [[dim.low, dim.high] for dim in self.numbers.values()]
        return torch.tensor(ends, dtype=torch.float64, device="cpu").mT.contiguous()

    @property
    def transform(self) -> tuple[str, ...]:
        """The search coordinates of each number: log or linear."""
        return tuple("log" if d.log else "linear" for d in self.numbers.values())

    @property
    def num_points(self) -> float:
        """The number of points: infinite if there is a Real."""
        sizes: list[float] = [len(dim.choices) for dim in self.choices.values()]
        for dim in self.numbers.values():
            sizes.append(math.inf if isinstance(dim, Real) else dim.high - dim.low + 1)
        return math.prod(sizes)

    @property
    def models_per_point(self) -> int:
        """The largest number of models that :meth:`models_at` returns."""
        count = sum(isinstance(dim, Integer) for dim in self.numbers.values())
        return count + 1 if count <= _MOST_INTERPOLATED else 1

    def models_at(self, x: Sequence[float]) -> list[tuple[float, Params]]:
        """Return the parameters whose weighted losses are those of a point.

        Losses are interpolated between one or two integers. Further ones would need
        too many models, so all integers are rounded then.
        """
        if self.models_per_point == 1:
            return [(1.0, self.rounded(x))]
        return self.corners(x)

    def rounded(self, x: Sequence[float]) -> Params:
        """Return the numbers at a point, with integers rounded."""
        return {
            name: round(value) if isinstance(dim, Integer) else float(value)
            for (name, dim), value in zip(self.numbers.items(), x, strict=True)
        }

    def corners(self, x: Sequence[float]) -> list[tuple[float, Params]]:
        """Return the parameters that represent a point, with their weights.

        Losses are interpolated linearly between integers, on the simplices of the
        Lovász extension: k + 1 corners for k integer dimensions, and only the point
        itself if all its coordinates are integers.
        """
        # From the lower corner of the cube, each step raises one coordinate by one, in
        # the order of falling fractional parts; the weights are their differences.
        values = dict(zip(self.numbers, map(float, x), strict=True))
        whole = [n for n, dim in self.numbers.items() if isinstance(dim, Integer)]
        at = {name: math.floor(values[name]) for name in whole}
        rest = {name: values[name] - at[name] for name in whole}
        found, above = [], 1.0
        for name in sorted(whole, key=lambda name: -rest[name]):
            found.append((above - rest[name], {**values, **at}))
            above, at = rest[name], {**at, name: at[name] + 1}
        found.append((above, {**values, **at}))
        return [(weight, params) for weight, params in found if weight > 0]

    def candidates(
        self, count: int, *, first: Params | None, seed: int
    ) -> list[Params]:
        """Return different candidates: all if there are few, or Sobol points.

        Args:
            count: The largest number of candidates.
            first: The first candidate, if any.
            seed: The seed of the Sobol sequence.
        """
        found = []
        if first is not None:
            found.append({name: first[name] for name in self._dimensions})
        for params in self._enumerated(count) or self._sobol(count, seed):
            if len(found) < count and params not in found:
                found.append(params)
        return found

    def encoded(self, candidates: Sequence[Params]) -> Tensor:
        """Return candidates as points: numbers in [0, 1], and one column per choice.

        Constant columns are left out.
        """
        rows = [
            [
                *(_unit(dim, params[name]) for name, dim in self.numbers.items()),
                *(
                    float(i == _index(dim, params[name]))
                    for name, dim in self.choices.items()
                    for i in range(len(dim.choices))
                ),
            ]
            for params in candidates
        ]
        points = torch.tensor(rows, dtype=torch.float64, device="cpu")
        return points[:, points.amin(dim=0) < points.amax(dim=0)]

    def start(self, values: Mapping[str, Any]) -> Params:
        """Return the values that are in the space, with defaults for the others.

        The default is the middle of a range, or the first choice.

        Args:
            values: The estimator's own parameters.
        """
        return {
            name: values[name]
            if name in values and _is_inside(dim, values[name])
            else _value(dim, 0.0 if name in self.choices else 0.5)
            for name, dim in self._dimensions.items()
        }

    def point(self, params: Mapping[str, Any]) -> Tensor:
        """Return the numbers among the parameters as a ``d`` tensor."""
        values = [float(params[name]) for name in self.numbers]
        return torch.tensor(values, dtype=torch.float64, device="cpu")

    def _enumerated(self, count: int) -> list[Params]:
        """Return all combinations, or none if there are more than ``count``."""
        values: list[Sequence[Any]] = []
        for dim in self._dimensions.values():
            if isinstance(dim, Real):
                return []
            if isinstance(dim, Categorical):
                values.append(dim.choices)
            else:
                values.append(range(dim.low, dim.high + 1))
        if math.prod(map(len, values)) > count:
            return []
        rows = itertools.product(*values)
        return [dict(zip(self._dimensions, row, strict=True)) for row in rows]

    def _sobol(self, count: int, seed: int) -> list[Params]:
        with torch.device("cpu"):
            engine = SobolEngine(len(self._dimensions), scramble=True, seed=seed)
            # More than needed, because integers and choices repeat.
            points = engine.draw(4 * count, dtype=torch.float64).tolist()
        return [
            {
                name: _value(dim, u)
                for (name, dim), u in zip(self._dimensions.items(), row, strict=True)
            }
            for row in points
        ]


def _dimension(name: str, given: Any) -> Dimension:
    if isinstance(given, list | np.ndarray):
        given = Categorical(given)
    if not isinstance(name, str) or not isinstance(given, Dimension):
        raise InvalidArgumentError(
            f"space[{name!r}] must be Real(low, high), Integer(low, high), "
            f"Categorical([...]) or a list of choices, got {given!r}."
        )
    return given


def _check_interval(dim: Real | Integer) -> None:
    if not (_is_number(dim.low) and _is_number(dim.high)):
        raise InvalidArgumentError(f"low and high must be numbers, got {dim!r}.")
    if not (math.isfinite(dim.low) and math.isfinite(dim.high) and dim.low < dim.high):
        raise InvalidArgumentError(
            f"low must be below high, and both must be finite, got {dim!r}."
        )
    if dim.log and dim.low <= 0:
        raise InvalidArgumentError(f"low must be above 0 with log=True, got {dim!r}.")


def _is_inside(dim: Dimension, value: Any) -> bool:
    if isinstance(dim, Categorical):
        return any(value is choice or value == choice for choice in dim.choices)
    if not _is_number(value) or not dim.low <= value <= dim.high:
        return False
    return isinstance(dim, Real) or value % 1 == 0


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def _value(dim: Dimension, u: float) -> Any:
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


def _unit(dim: Real | Integer, value: float) -> float:
    """Return the position of a value in [0, 1], in search coordinates."""
    low, high = dim.low, dim.high
    if dim.log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _index(dim: Categorical, value: Any) -> int:
    return next(i for i, c in enumerate(dim.choices) if c is value or c == value)
