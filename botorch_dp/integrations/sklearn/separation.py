"""Whether private records are among those that a model was trained on.

Only what can be seen without comparing values: whether one would raise is a release.
Names of rows and columns, and types, are taken for public.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from botorch_dp.exceptions import InvalidArgumentError

# Beyond, whether two views of an array overlap is not worked out.
_WORK: Any = 10_000


def check_separate(X: Any, y: Any, X_val: Any, y_val: Any) -> None:
    """Raise if validation records are seen to be training records, too."""
    same = X_val is X or (y is not None and y_val is y)
    if same or _overlaps(X, X_val) or _shares_index(X, X_val):
        raise InvalidArgumentError(
            "X_val must hold records that the models are not trained on: these are "
            "(in part) the same as X. What is trained on is not protected, and losses "
            "of records that a model has seen say little. Split the data first, e.g. "
            "with train_test_split."
        )


def check_alike(X: Any, y: Any, X_val: Any, y_val: Any) -> None:
    """Raise if validation records do not look like training records, from outside."""
    if X_val is None or (y is not None and y_val is None):
        raise InvalidArgumentError(
            "fit needs X_val and y_val, the private validation records: "
            "fit(X, y, X_val=..., y_val=...). X and y are trained on and not protected."
        )
    if y_val is not None and _num_samples(X_val) != _num_samples(y_val):
        raise InvalidArgumentError(
            f"X_val and y_val must have equally many records, got "
            f"{_num_samples(X_val)} and {_num_samples(y_val)}."
        )
    if _num_samples(X_val) == 0:
        raise InvalidArgumentError("X_val must hold at least one record, got none.")
    for name, given in (("X", X), ("X_val", X_val)):
        if hasattr(given, "columns") and not hasattr(given, "iloc"):
            raise InvalidArgumentError(
                f"{name} must be a data frame of pandas, an array, a sparse matrix or "
                f"a list, got {type(given).__name__}, whose cells cannot be read one "
                "by one: convert it, e.g. with to_pandas()."
            )
    columns = _names(X), _names(X_val)
    if (columns[0] is None) != (columns[1] is None):
        raise InvalidArgumentError(
            f"X_val must be of the kind of X, {type(X).__name__}, got "
            f"{type(X_val).__name__}: columns are read by their names and types."
        )
    if columns[0] is not None and columns[1] is not None:
        ours, theirs = list(columns[0]), list(columns[1])
        if ours != theirs:
            # Not which ones it has: one that only a rare record brings is private.
            raise InvalidArgumentError(
                f"X_val must have the columns of X, {ours}, in this order, got others."
            )
    shapes = getattr(X, "shape", None), getattr(X_val, "shape", None)
    if shapes[0] is not None and shapes[1] is not None:
        ours, theirs = list(shapes[0][1:]), list(shapes[1][1:])
        if ours != theirs:
            raise InvalidArgumentError(
                f"X_val must have the features of X, {ours}, got {theirs}."
            )


def _names(X: Any) -> Any:
    """Return the names of columns, or of the fields of records, None without any."""
    dtype = getattr(X, "dtype", None)
    return getattr(X, "columns", getattr(dtype, "names", None))


def check_fit_params(fit_params: dict[str, Any], X_val: Any, y_val: Any) -> None:
    """Raise if an argument of ``fit`` is seen to hold validation records."""
    for name, given in fit_params.items():
        for part in _parts(given):
            if any(
                private is not None and (part is private or _overlaps(part, private))
                for private in (X_val, y_val)
            ):
                raise InvalidArgumentError(
                    f"{name} must not hold private records, (in part) the same as "
                    "X_val or y_val: fit is for training records, and what it sees is "
                    "not protected."
                )


def _parts(given: Any) -> Iterator[Any]:
    """Give an argument, and what lists, tuples and dicts in it hold."""
    yield given
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, list | tuple):
        for part in given:
            yield from _parts(part)


def _overlaps(X: Any, X_val: Any) -> bool:
    for a, b in itertools.product(_arrays(X), _arrays(X_val)):
        try:
            if np.shares_memory(a, b, max_work=_WORK):
                return True
        except np.exceptions.TooHardError:
            continue
    return False


def _arrays(X: Any) -> list[Any]:
    """Return an array that the data lies in, if one can be had without a copy."""
    if hasattr(X, "iloc"):  # a column of a data frame
        X = X.iloc[:, 0] if getattr(X, "ndim", 1) == 2 and X.shape[1] else X
        return (
            [column]
            if isinstance(column := getattr(X, "_values", None), np.ndarray)
            else []
        )
    if hasattr(X, "indptr"):  # a sparse matrix
        return [X.data]
    return [X] if isinstance(X, np.ndarray) else []


def _shares_index(X: Any, X_val: Any) -> bool:
    """Return whether two data frames have rows of the same name.

    Rows that are merely numbered from 0, as those of two files are, have no names.
    """
    ours: Any = getattr(X, "index", None)
    theirs: Any = getattr(X_val, "index", None)
    if not (hasattr(ours, "isin") and hasattr(theirs, "isin")):
        return False
    if _is_numbering(ours) and _is_numbering(theirs):
        return False
    return bool(theirs.isin(ours).any())


def _is_numbering(index: Any) -> bool:
    return getattr(index, "start", None) == 0 and getattr(index, "step", None) == 1
