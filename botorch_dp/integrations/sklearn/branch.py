"""A part of a search space in which the same parameters are always set."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp.integrations.sklearn.dimensions import (
    Categorical,
    Dimension,
    Integer,
    Real,
    is_inside,
    is_same,
    num_values,
    value_at,
    values_of,
)

Params = dict[str, Any]

# Up to this many integers, losses are interpolated between them.
_MOST_INTERPOLATED = 2


class Branch:
    """Named dimensions and fixed values.

    Args:
        dimensions: The dimensions, by name.
        fixed: The values of further parameters, by name.

    Attributes:
        numbers: The Real and Integer dimensions, by name.
        choices: The Categorical dimensions, by name.
        fixed: The fixed values, by name.
    """

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        fixed: Params | None = None,
    ) -> None:
        self.dimensions = dict(dimensions)
        self.fixed: Params = dict(fixed or {})
        self.numbers: dict[str, Real | Integer] = {}
        self.choices: dict[str, Categorical] = {}
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, Categorical):
                self.choices[name] = dimension
            else:
                self.numbers[name] = dimension

    def __repr__(self) -> str:
        return repr({**self.fixed, **self.dimensions})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branch) and (self.dimensions, self.fixed) == (
            other.dimensions,
            other.fixed,
        )

    __hash__ = None  # type: ignore[assignment]  # values may be lists

    def __contains__(self, params: object) -> bool:
        """Return whether parameters are exactly those of a point of this branch."""
        if not isinstance(params, Mapping) or params.keys() != set(self.names):
            return False
        return all(
            is_inside(dim, params[name]) for name, dim in self.dimensions.items()
        ) and all(is_same(params[name], value) for name, value in self.fixed.items())

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return [*self.fixed, *self.dimensions]

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
        return math.prod(map(num_values, self.dimensions.values()))

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

    def start(self, values: Mapping[str, Any]) -> Params:
        """Return the values that are in the branch, with defaults for the others.

        The default is the middle of a range, or the first choice.

        Args:
            values: The estimator's own parameters.
        """
        found = {
            name: values[name]
            if name in values and is_inside(dim, values[name])
            else value_at(dim, 0.0 if name in self.choices else 0.5)
            for name, dim in self.dimensions.items()
        }
        return {**self.fixed, **found}

    def point(self, params: Mapping[str, Any]) -> Tensor:
        """Return the numbers among the parameters as a ``d`` tensor."""
        values = [float(params[name]) for name in self.numbers]
        return torch.tensor(values, dtype=torch.float64, device="cpu")

    def params_at(self, u: Sequence[float]) -> Params:
        """Return the parameters at a point of the unit cube of all dimensions."""
        pairs = zip(self.dimensions.items(), u, strict=True)
        found = {name: value_at(dim, position) for (name, dim), position in pairs}
        return {**self.fixed, **found}

    def all_params(self) -> list[Params]:
        """Return all points of a branch with finitely many."""
        values = [
            values_of(dim)
            for dim in self.dimensions.values()
            if not isinstance(dim, Real)
        ]
        return [
            {**self.fixed, **dict(zip(self.dimensions, row, strict=True))}
            for row in itertools.product(*values)
        ]
