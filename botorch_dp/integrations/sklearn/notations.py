"""Short notations for dimensions: tuples, lists and distributions of scipy.stats."""

import math
from typing import Any

import numpy as np

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.dimensions import (
    Categorical,
    Dimension,
    Integer,
    Real,
    is_number,
)

_EXPECTED = (
    "Real(low, high), Integer(low, high), Categorical([...]), a tuple (low, high) or "
    '(low, high, "log"), a list of choices, or scipy.stats.uniform, loguniform or '
    "randint"
)


def dimension_of(name: Any, given: Any) -> Dimension:
    """Return the dimension that a notation stands for.

    Two whole numbers are the ends of an :class:`Integer`, other numbers those of a
    :class:`Real`. A distribution of scipy.stats stands for a range if it is uniform
    there, or uniform on a log scale.

    Args:
        name: The name of the parameter, for errors.
        given: The notation.

    Example:
        >>> dimension_of("C", (1e-4, 1e4, "log"))
        Real(low=0.0001, high=10000.0, log=True)
        >>> dimension_of("depth", (1, 10))
        Integer(low=1, high=10, log=False)
    """
    if isinstance(given, Dimension) and isinstance(name, str):
        return given
    try:
        if isinstance(name, str):
            if isinstance(given, list | np.ndarray):
                return Categorical(given)
            if isinstance(given, tuple):
                return _of_tuple(given)
            if hasattr(given, "dist") and hasattr(given, "support"):
                return _of_distribution(given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"space[{name!r}]: {error}") from None
    raise InvalidArgumentError(f"space[{name!r}] must be {_EXPECTED}, got {given!r}.")


def _of_tuple(given: tuple[Any, ...]) -> Dimension:
    ends, scale = given[:2], given[2:]
    if len(ends) < 2 or scale not in ((), ("log",)) or not all(map(is_number, ends)):
        raise InvalidArgumentError(
            'a tuple must be a range (low, high) or (low, high, "log"), got '
            f"{given!r}. Write choices as a list, {list(given)!r}."
        )
    low, high = ends
    is_log = bool(scale)
    if not all(isinstance(end, int | np.integer) for end in ends):
        return Real(low, high, is_log)
    if high - low == 1:
        raise InvalidArgumentError(
            f"{given!r} is ambiguous: write Real({low}, {high}) for the numbers in "
            f"between, or [{low}, {high}] for these two values."
        )
    return Integer(low, high, is_log)


def _of_distribution(given: Any) -> Dimension:
    kind = getattr(given.dist, "name", type(given.dist).__name__)
    low, high = (float(end) for end in given.support())
    if kind == "randint":  # its support leaves out the upper end, as randint does
        return Integer(int(low), int(high))
    if kind == "uniform":
        return Real(low, high)
    # The median of a distribution that is uniform on a log scale; loc moves it away.
    if kind in ("loguniform", "reciprocal") and math.isclose(
        float(given.median()) ** 2, low * high, rel_tol=1e-6
    ):
        return Real(low, high, log=True)
    raise InvalidArgumentError(
        "a distribution must be scipy.stats.uniform, loguniform (with loc=0) or "
        f"randint, got {kind!r}. Other distributions have no range that can be "
        "searched evenly: write Real(low, high), Integer(low, high) or a list."
    )
