"""Resolve the conditions of a search space into branches without conditions."""

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from botorch_dp._validation import suggestion
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.branch import Branch, Params
from botorch_dp.integrations.sklearn.dimensions import Categorical, Dimension, is_same


def resolve_conditions(
    dimensions: Mapping[str, Dimension], fixed: Mapping[str, Any]
) -> list[Branch]:
    """Return a branch for each combination of values that conditions name.

    A parameter is set if its whole condition holds. A condition on a parameter that is
    not set does not hold.

    Args:
        dimensions: The dimensions, some of which have conditions.
        fixed: The values of further parameters, by name.

    Example:
        >>> from botorch_dp.integrations.sklearn.dimensions import Real
        >>> kernel = Categorical(["linear", "rbf"])
        >>> gamma = Real(0.1, 1.0, when={"kernel": "rbf"})
        >>> resolve_conditions({"kernel": kernel, "gamma": gamma}, {})
        [{'kernel': 'linear'}, {'kernel': 'rbf', 'gamma': Real(low=0.1, high=1.0, ...)}]
    """
    parents: dict[str, tuple[Any, ...]] = {}
    for name, dim in dimensions.items():
        for parent, wanted in (dim.when or {}).items():
            parents[parent] = _choices(name, parent, dimensions, fixed)
            _check_wanted(name, parent, wanted, parents[parent])
    found: list[Branch] = []
    for values in itertools.product(*parents.values()):
        chosen = {**fixed, **dict(zip(parents, values, strict=True))}
        names = _set_names(dimensions, chosen)
        branch = Branch(
            {
                name: _unconditional(dim)
                for name, dim in dimensions.items()
                if name in names and name not in chosen
            },
            {name: chosen[name] for name in chosen if name in names or name in fixed},
        )
        if branch not in found:  # values of parents that are not set make no difference
            found.append(branch)
    for name, dim in dimensions.items():
        if not any(name in branch.names for branch in found):
            raise InvalidArgumentError(
                f"space[{name!r}] is never set: when={dim.when!r} can never hold."
            )
    return found


def _choices(
    name: str,
    parent: str,
    dimensions: Mapping[str, Dimension],
    fixed: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Return the values of a parameter that a condition names."""
    if parent in fixed:
        return (fixed[parent],)
    dim = dimensions.get(parent)
    if isinstance(dim, Categorical):
        return dim.choices
    what = "has no such parameter" if dim is None else f"has {dim!r} there"
    raise InvalidArgumentError(
        f"when of space[{name!r}] must name a category of the same space, got "
        f"{parent!r}, but the space {what}."
        f"{suggestion(parent, [*dimensions, *fixed])}"
    )


def _check_wanted(name: str, parent: str, wanted: Any, values: tuple[Any, ...]) -> None:
    for value in _alternatives(wanted, values):
        if not any(is_same(value, known) for known in values):
            raise InvalidArgumentError(
                f"when of space[{name!r}] must name values of {parent!r}, which are "
                f"{', '.join(map(repr, values))}, got {value!r}."
                f"{suggestion(value, values)}"
            )


def _alternatives(wanted: Any, values: tuple[Any, ...]) -> list[Any]:
    """Return the values of which one is wanted; a value may itself be a list."""
    is_value = any(is_same(wanted, value) for value in values)
    return list(wanted) if isinstance(wanted, list) and not is_value else [wanted]


def _set_names(dimensions: Mapping[str, Dimension], chosen: Params) -> set[str]:
    """Return the names of the dimensions that are set, for values of all parents."""
    names: set[str] = set()
    while True:  # a parent may have a condition of its own
        more = {
            name
            for name, dim in dimensions.items()
            if all(
                (parent in names or parent not in dimensions)
                and any(
                    is_same(chosen[parent], value)
                    for value in _alternatives(wanted, _values(dimensions.get(parent)))
                )
                for parent, wanted in (dim.when or {}).items()
            )
        }
        if more == names:
            return names
        names = more


def _values(dim: Dimension | None) -> tuple[Any, ...]:
    return dim.choices if isinstance(dim, Categorical) else ()


def _unconditional(dim: Dimension) -> Dimension:
    if dim.when is None:
        return dim
    plain = copy.copy(dim)
    object.__setattr__(plain, "when", None)
    return plain
