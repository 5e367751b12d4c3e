"""The space of hyperparameters, whose parameters may depend on each other.

A conditional space is a list of branches, in each of which the same parameters are
always set. A list of dicts is one already. Conditions (``when=``) are resolved into
one (:mod:`~botorch_dp.integrations.sklearn.conditions`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.branch import Branch, Params
from botorch_dp.integrations.sklearn.conditions import resolve_conditions
from botorch_dp.integrations.sklearn.dimensions import Dimension, is_same, unit_of
from botorch_dp.integrations.sklearn.notations import dimension_of

__all__ = ["Branch", "Params", "SearchSpace"]

# The coordinate of a number that is not set.
_UNSET = 0.5


class SearchSpace:
    """Named dimensions, with conversions between parameters and points.

    Args:
        space: Maps each name to a :class:`Real`, :class:`Integer` or
            :class:`Categorical`, or to a notation for one
            (:mod:`~botorch_dp.integrations.sklearn.notations`); or a list of such
            dicts, in which a list with one value is a fixed value.

    Attributes:
        branches: The parts in which the same parameters are set: one if there are no
            conditions.
    """

    def __init__(self, space: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        is_list = isinstance(space, Sequence) and not isinstance(space, str)
        parts: list[Any] = list(space) if is_list else [space]
        if not parts or not all(isinstance(part, Mapping) and part for part in parts):
            raise InvalidArgumentError(
                "space must be a dict from parameter names to Real, Integer or "
                f"Categorical, or a list of such dicts, got {space!r}."
            )
        self.branches: list[Branch] = []
        for part in parts:
            for branch in resolve_conditions(*_read(part, allow_fixed=is_list)):
                if branch not in self.branches:
                    self.branches.append(branch)
        if self.num_points < 2:
            raise InvalidArgumentError(
                f"space must have at least two points to choose from, got {space!r}."
            )

    def __repr__(self) -> str:
        return f"SearchSpace({self.branches!r})"

    @property
    def widest(self) -> Branch:
        """The first branch with the most numbers."""
        return max(self.branches, key=lambda branch: len(branch.numbers))

    @property
    def names(self) -> list[str]:
        """The names of all parameters, those with numbers first."""
        names = [name for branch in self.branches for name in branch.numbers]
        names += [name for branch in self.branches for name in branch.names]
        return list(dict.fromkeys(names))

    @property
    def chosen_names(self) -> list[str]:
        """The names that only a choice among points can set, not gradients."""
        if len(self.branches) == 1:
            return [*self.branches[0].choices]
        everywhere = set.intersection(*(set(b.numbers) for b in self.branches))
        return [name for name in self.names if name not in everywhere]

    @property
    def needs_choice(self) -> bool:
        """Whether gradients must follow a choice among points of the whole space."""
        return len(self.branches) > 1 or bool(self.branches[0].choices)

    @property
    def num_points(self) -> float:
        """The number of points: infinite if there is a Real."""
        return sum(branch.num_points for branch in self.branches)

    @property
    def models_per_point(self) -> int:
        """The largest number of models that a point of any branch needs."""
        return max(branch.models_per_point for branch in self.branches)

    def branch_of(self, params: Mapping[str, Any]) -> Branch:
        """Return the first branch that contains a point."""
        return next(branch for branch in self.branches if params in branch)

    def kind_of(self, params: Params) -> Params:
        """Return the parameters of a point that are not numbers, which gradients keep.

        Points of one kind differ in numbers alone.
        """
        # A number may be outside its range by a rounding error.
        branches = (branch for branch in self.branches if params in branch)
        numbers = next(branches, self.widest).numbers
        return {name: params[name] for name in params if name not in numbers}

    def candidates(
        self, count: int, *, first: Params | None, seed: int
    ) -> list[Params]:
        """Return different candidates: all if there are few, or Sobol points.

        Every branch has the same chance.

        Args:
            count: The largest number of candidates.
            first: The first candidate, if any.
            seed: The seed of the Sobol sequence.
        """
        found = [] if first is None else [first]
        for params in self._enumerated(count) or self._sobol(count, seed):
            if len(found) < count and params not in found:
                found.append(params)
        return found

    def encoded(self, candidates: Sequence[Params]) -> Tensor:
        """Return candidates as points: numbers in [0, 1], and one column per choice.

        Each branch has a column as well, and numbers that are not set are in the
        middle. Constant columns are left out.
        """
        points = torch.tensor(
            [self._encoded(params) for params in candidates],
            dtype=torch.float64,
            device="cpu",
        )
        return points[:, points.amin(dim=0) < points.amax(dim=0)]

    def start(self, values: Mapping[str, Any]) -> Params:
        """Return the values that are in the space, with defaults for the others.

        The branch is the one that contains the values, or the first one of those that
        disagree with the fewest: categories count before numbers.

        Args:
            values: The estimator's own parameters, or a point of the space.
        """

        def disagreement(branch: Branch) -> tuple[bool, int, int]:
            start = branch.start(values)
            different = [
                name
                for name in branch.names
                if name not in values or not is_same(start[name], values[name])
            ]
            num_numbers = sum(name in branch.numbers for name in different)
            return values not in branch, len(different) - num_numbers, num_numbers

        return min(self.branches, key=disagreement).start(values)

    def _encoded(self, params: Params) -> list[float]:
        branch = self.branch_of(params)
        row = [
            unit_of(branch.numbers[name], params[name])
            if name in branch.numbers
            else _UNSET
            for name in self._numbers
        ]
        for name, choices in self._choices.items():
            is_set = name in branch.choices
            row += [float(is_set and is_same(c, params[name])) for c in choices]
        return row + [float(branch is other) for other in self.branches]

    @property
    def _numbers(self) -> dict[str, None]:
        """The names of all numbers, in order."""
        return {name: None for branch in self.branches for name in branch.numbers}

    @property
    def _choices(self) -> dict[str, list[Any]]:
        """The choices of all categories, in all branches together."""
        found: dict[str, list[Any]] = {}
        for branch in self.branches:
            for name, dim in branch.choices.items():
                known = found.setdefault(name, [])
                known += [
                    c for c in dim.choices if not any(is_same(c, k) for k in known)
                ]
        return found

    def _enumerated(self, count: int) -> list[Params]:
        """Return all points, or none if there are more than ``count``."""
        if self.num_points > count:
            return []
        return [params for branch in self.branches for params in branch.all_params()]

    def _sobol(self, count: int, seed: int) -> list[Params]:
        branches = self.branches
        # With several branches, the first coordinate says which.
        num_first = int(len(branches) > 1)
        dim = num_first + max(len(branch.dimensions) for branch in branches)
        with torch.device("cpu"):
            engine = SobolEngine(dim, scramble=True, seed=seed)
            # More than needed, because integers and choices repeat.
            points = engine.draw(4 * count, dtype=torch.float64).tolist()
        found = []
        for row in points:
            index = min(int(row[0] * len(branches)), len(branches) - 1)
            branch = branches[index if num_first else 0]
            end = num_first + len(branch.dimensions)
            found.append(branch.params_at(row[num_first:end]))
        return found


def _read(
    part: Mapping[str, Any], *, allow_fixed: bool
) -> tuple[dict[str, Dimension], Params]:
    """Return the dimensions and the fixed values of a dict."""
    dimensions: dict[str, Dimension] = {}
    fixed: Params = {}
    for name, given in part.items():
        is_list = isinstance(given, list | np.ndarray)
        if allow_fixed and is_list and isinstance(name, str) and len(given) == 1:
            fixed[name] = given[0]
        else:
            dimensions[name] = dimension_of(name, given)
    return dimensions, fixed
