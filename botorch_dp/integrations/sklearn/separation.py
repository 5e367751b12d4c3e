"""Check that private records are not training records, and have the same form.

The checks never compare values, because an exception that depends on them would be a
release. Names of rows and columns, shapes and types count as public.
"""

import importlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.schema import Schema
from botorch_dp.integrations.sklearn.tables import check_table

# The effort limit of numpy's exact search for shared memory.
_WORK: Any = 10_000
_OLDEST_PANDAS = (3, 1)


def check_separate(X: Any, y: Any, X_val: Any, y_val: Any) -> None:
    """Raise if validation records are visibly also training records."""
    same = X_val is X or (y is not None and y_val is y)
    if same or overlaps(X, X_val) or _shares_index(X, X_val):
        raise InvalidArgumentError(
            "X_val must contain records that the models are not trained on, but some "
            "of them are also in X. Training records are not protected, and the loss "
            "of a record that a model was trained on says little about the model. "
            "Split the data first, e.g. with train_test_split."
        )


def check_alike(
    X: Any, y: Any, X_val: Any, y_val: Any, *, schema: Schema | None = None
) -> None:
    """Raise if validation records visibly differ in form from training records.

    Args:
        X: The training inputs.
        y: The training targets.
        X_val: The private inputs.
        y_val: The private targets.
        schema: The types of the training inputs, by which columns are found by name.
    """
    if X_val is None or (y is not None and y_val is None):
        raise InvalidArgumentError(
            "fit needs X_val and y_val, the private validation records: "
            "fit(X, y, X_val=..., y_val=...). X and y are not protected."
        )
    if y_val is not None and _num_samples(X_val) != _num_samples(y_val):
        raise InvalidArgumentError(
            f"X_val and y_val must have the same number of records, got "
            f"{_num_samples(X_val)} and {_num_samples(y_val)}."
        )
    if _num_samples(X_val) == 0:
        raise InvalidArgumentError("X_val must contain at least one record, got none.")
    _refuse_old_pandas(X, y, X_val, y_val)
    if schema is not None:
        if set(check_table("X_val", X_val)) != set(schema):
            raise InvalidArgumentError(
                f"X_val must have the columns of X, {list(schema)}, in any order."
            )
        return
    for name, given in (("X", X), ("X_val", X_val)):
        if hasattr(given, "columns") and not hasattr(given, "iloc"):
            raise InvalidArgumentError(
                f"{name} must be a pandas or polars DataFrame, an Arrow table, an "
                f"array, a sparse matrix or a list, got {type(given).__name__}, whose "
                "cells cannot be read one by one. Convert it first, e.g. with "
                "collect() or to_pandas()."
            )
    ours, theirs = _names(X), _names(X_val)
    if (ours is None) != (theirs is None):
        raise InvalidArgumentError(
            f"X_val must have the type of X, {type(X).__name__}, got "
            f"{type(X_val).__name__}: columns are read by their names and types."
        )
    if ours != theirs:
        # Not the names in X_val: a column that only a rare record has is private.
        raise InvalidArgumentError(
            f"X_val must have the columns of X, {ours}, in this order."
        )
    if hasattr(X, "shape") and hasattr(X_val, "shape"):
        features, private_features = list(X.shape[1:]), list(X_val.shape[1:])
        if features != private_features:
            raise InvalidArgumentError(
                f"X_val must have the features of X, {features}, got "
                f"{private_features}."
            )


def _refuse_old_pandas(*data: Any) -> None:
    """Raise if pandas may let one private cell change how others are read.

    Before 3.1, pandas parses columns of times, periods and durations as a whole, and
    one odd cell changes the others in ways that cannot be undone.
    """
    if not any(type(given).__module__.split(".")[0] == "pandas" for given in data):
        return
    version = importlib.import_module("pandas").__version__
    numbers = re.findall(r"\d+", version)
    if tuple(map(int, numbers[:2])) < _OLDEST_PANDAS:
        raise InvalidArgumentError(
            "X, y, X_val and y_val need pandas 3.1 or newer if they are data frames or "
            f"series, got pandas {version}, with which one odd cell in a column of "
            "times may change the losses of other records. Upgrade pandas, or pass "
            "numpy arrays."
        )


def _names(X: Any) -> list[Any] | None:
    """Return the names of columns or of the fields of a structured array, if any."""
    names = getattr(X, "columns", getattr(getattr(X, "dtype", None), "names", None))
    return None if names is None else list(names)


def check_fit_params(fit_params: dict[str, Any], X_val: Any, y_val: Any) -> None:
    """Raise if an argument of ``fit`` visibly contains validation records."""
    for name, given in fit_params.items():
        for part in _parts(given):
            if any(
                private is not None and (part is private or overlaps(part, private))
                for private in (X_val, y_val)
            ):
                raise InvalidArgumentError(
                    f"{name} must not contain private records, but it shares some with "
                    "X_val or y_val. Arguments of fit are for training and are not "
                    "protected."
                )


def check_no_folds(cv: Any) -> None:
    """Raise if somebody asks for cross-validation."""
    if cv is not None:
        raise InvalidArgumentError(
            f"cv must be None, got {cv!r}: a model that is trained on private records "
            "is itself a release, so folds of them cannot be used. Split off training "
            "records, and give the others to fit as X_val and y_val. To train on "
            "private records as well, use botorch_dp.integrations.opacus.JointBudget."
        )


def _parts(given: Any) -> Iterator[Any]:
    """Yield an argument and all elements of lists, tuples and dicts in it."""
    yield given
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, list | tuple):
        for part in given:
            yield from _parts(part)


def overlaps(X: Any, X_val: Any) -> bool:
    """Return whether two containers visibly share memory."""
    for a, b in itertools.product(_arrays(X), _arrays(X_val)):
        try:
            if np.shares_memory(a, b, max_work=_WORK):
                return True
        except np.exceptions.TooHardError:
            continue
    return False


def _arrays(X: Any) -> list[Any]:
    """Return the array that stores the data, if it is available without a copy."""
    if hasattr(X, "iloc"):  # the first column of a data frame
        X = X.iloc[:, 0] if getattr(X, "ndim", 1) == 2 and X.shape[1] else X
        X = getattr(X, "_values", None)
    elif hasattr(X, "indptr"):  # a sparse matrix
        X = X.data
    return [X] if isinstance(X, np.ndarray) else []


def _shares_index(X: Any, X_val: Any) -> bool:
    """Return whether two data frames share row names.

    Rows that are numbered from 0, as after reading a file, have no names.
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
