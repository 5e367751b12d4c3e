"""Private records, each read by itself.

A container has one type for all: a single word among numbers makes an array of text,
and a missing value turns whole numbers into others. What a record loses would then
depend on the records beside it. So records are read cell by cell, as the training data
says (:mod:`~botorch_dp.integrations.sklearn.cells`), and what cannot be read so is
missing, or makes its record one that cannot be scored.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from botorch_dp.integrations.sklearn.cells import Reader, cells_of, codes_in, reader_of
from botorch_dp.integrations.sklearn.quiet import quiet

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Records:
    """Inputs and targets, as :func:`read_alike` reads them.

    Attributes:
        X: A row for each record.
        y: A target for each record, or None.
        unreadable: Which records cannot be scored; None if all can.
    """

    X: Any = field(repr=False)
    y: Any = field(repr=False)
    unreadable: Mask | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(_num_samples(self.X))

    @property
    def readable(self) -> npt.NDArray[np.intp]:
        """The indices of the records that can be scored."""
        everyone = np.arange(len(self))
        return everyone if self.unreadable is None else everyone[~self.unreadable]

    def rows(self, index: npt.NDArray[np.intp]) -> tuple[Any, Any]:
        """Return some of the records: copies, which a model may do anything with.

        Rows of data frames are numbered from 0: where some records stand in for others,
        names would be there twice.

        Args:
            index: Which ones, in which order.
        """
        X, y = (
            None if part is None else copied(_numbered(_safe_indexing(part, index)))
            for part in (self.X, self.y)
        )
        return X, y


def read_alike(X: Any, y: Any, *, training: tuple[Any, Any]) -> Records:
    """Read each record by itself, as the training data says.

    Args:
        X: Inputs: an array, a sparse matrix, a data frame or a list.
        y: Targets, or None.
        training: Inputs and targets of the training records.
    """
    X, y = _unflagged(X), _unflagged(y)
    with quiet(), np.errstate(all="ignore"):
        unreadable = np.zeros(_num_samples(X), dtype=bool)
        return Records(
            _inputs(X, training[0], unreadable),
            _targets(y, training[1], unreadable),
            unreadable,
        )


def copied(data: Any) -> Any:
    """Return a copy that shares nothing with the data."""
    if hasattr(data, "iloc"):  # pandas copies no objects
        data = data.copy()
        if not hasattr(data, "columns"):
            is_object = data.dtype == np.dtype(object)
            return _column_like(data, _deep(data)) if is_object else data
        for index, dtype in enumerate(data.dtypes):
            if dtype == np.dtype(object):
                column = data.iloc[:, index]
                data.isetitem(index, _column_like(column, _deep(column)))
        return data
    # Elements of a list or an array of objects may be changed in place themselves.
    if isinstance(data, list) or getattr(
        getattr(data, "dtype", None), "hasobject", False
    ):
        return copy.deepcopy(data)
    return data.copy() if hasattr(data, "copy") else copy.deepcopy(data)


def _column_like(column: Any, values: npt.NDArray[Any]) -> Any:
    """Return a column of pandas of just these values, which it would convert itself."""
    return type(column)(values, index=column.index, dtype=values.dtype)


def _numbered(data: Any) -> Any:
    """Return data whose rows have no names."""
    return data.reset_index(drop=True) if hasattr(data, "reset_index") else data


def _unflagged(data: Any) -> Any:
    """Return data in which rows may be there twice."""
    if hasattr(data, "set_flags"):
        return data.set_flags(allows_duplicate_labels=True)
    return data


def _deep(column: Any) -> npt.NDArray[Any]:
    return copy.deepcopy(cells_of(column))


def _inputs(X: Any, like: Any, unreadable: Mask) -> Any:
    """Read inputs, and note the records that cannot be."""
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        return _frame(X, like, unreadable)
    kind = getattr(getattr(like, "dtype", None), "kind", None)
    if kind == "V":  # records with named fields, of types of their own
        return X
    if hasattr(X, "tocsr"):
        return _sparse(X, reader_of(like) if kind else None, unreadable)
    shape = _shape(like)
    if isinstance(X, np.ndarray) and kind is not None and kind in "biuf":
        values, bad = reader_of(like)(X)
        unreadable |= bad.reshape(len(bad), -1).any(axis=1)
        return values
    if shape is None or not isinstance(X, np.ndarray | Sequence):
        return _series(X, like, unreadable)
    if len(shape) == 1:
        read = _column(X, reader_of(like), unreadable)
        return read.tolist() if isinstance(X, Sequence) else read
    return _table(X, like, unreadable) if len(shape) == 2 else X


def _targets(y: Any, like: Any, unreadable: Mask) -> Any:
    shape = None if y is None or like is None else _shape(like)
    if shape is None or len(shape) > 2:
        return y
    if len(shape) == 2 and shape[1] > 1:
        return _table(y, like, unreadable)
    reader = reader_of(np.ravel(cells_of(like)) if len(shape) == 2 else like)
    values, bad = reader([_only(cell) for cell in cells_of(y)])
    unreadable |= bad
    if reader.is_words:
        unreadable |= np.array([not isinstance(value, str) for value in values])
    return values


def _only(cell: Any) -> Any:
    """Return the only element of a row that has one."""
    return cell[0] if _is_row(cell, 1) else cell


def _frame(X: Any, like: Any, unreadable: Mask) -> Any:
    """Read a data frame column by column."""
    frame = X.copy()
    for index in range(X.shape[1]):
        wanted = like.iloc[:, index] if hasattr(like, "iloc") else like
        column = _series(X.iloc[:, index], wanted, unreadable)
        frame.isetitem(index, column)
    return frame


def _series(X: Any, like: Any, unreadable: Mask) -> Any:
    """Read a column of data; leave whatever else there is."""
    if not hasattr(X, "iloc"):
        return X
    reader = reader_of(like)
    dtype: Any = getattr(like, "dtype", None)
    values = _column(X, reader, unreadable)
    if hasattr(dtype, "categories"):
        # Not astype, which looks at all cells before it decides how to read one.
        codes = codes_in(dtype.categories, values)
        if dtype.categories.dtype.kind in "biu" and not like.isna().any():
            unreadable |= codes < 0  # as in columns of whole numbers
        array = dtype.construct_array_type().from_codes(codes, dtype=dtype)
        return type(X)(array, index=X.index)
    if reader.is_as_it_is and not isinstance(dtype, np.dtype | None):
        return _alike(X, like)
    column = _column_like(X, values)
    is_text = reader.is_words and not isinstance(dtype, np.dtype | None)
    return column.astype(dtype) if is_text else column


def _alike(X: Any, like: Any) -> Any:
    """Read a column of a type of pandas' own: times with a zone, periods, intervals."""
    if X.dtype == like.dtype:
        return X

    def read(cell: Any) -> Any:
        try:
            return type(X)([cell], dtype=like.dtype).iloc[0]
        except Exception:
            return like.dtype.na_value

    cells = [read(cell) for cell in cells_of(X)]
    return type(X)(cells, index=X.index, dtype=like.dtype)


def _sparse(X: Any, reader: Reader | None, unreadable: Mask) -> Any:
    if reader is None:
        return X
    X = X.tocsr(copy=True)
    X.data, bad = reader(X.data)
    unreadable[np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[bad]] = True
    return X


def _table(X: Any, like: Any, unreadable: Mask) -> npt.NDArray[Any]:
    """Read rows of cells, column by column."""
    training = np.stack([cells_of(row) for row in _rows(like)])
    width = training.shape[1]
    rows = [cells_of(row) if _is_row(row, width) else None for row in _rows(X)]
    unreadable |= np.array([row is None for row in rows])
    cells = np.empty((len(rows), width), dtype=object)
    for index, row in enumerate(rows):
        cells[index] = training[0] if row is None else row
    # With one type for all, as numpy makes it.
    plain = like if isinstance(like, np.ndarray) else np.array(training.tolist())
    if plain.dtype.kind in "biuf" and plain.ndim == 2:
        readers = [reader_of(plain)] * width
    else:
        readers = [reader_of(column) for column in training.T]
    columns = [_column(c, r, unreadable) for c, r in zip(cells.T, readers, strict=True)]
    if any(column.dtype == object for column in columns):
        return np.stack([column.astype(object) for column in columns], axis=1)
    return np.stack(columns, axis=1)


def _column(cells: Any, reader: Reader, unreadable: Mask) -> npt.NDArray[Any]:
    values, bad = reader(cells)
    unreadable |= bad
    return values


def _rows(X: Any) -> Any:
    return cells_of(X) if hasattr(X, "to_numpy") else X


def _is_row(row: Any, width: int) -> bool:
    if isinstance(row, np.ndarray):
        return row.shape == (width,)
    is_list = isinstance(row, Sequence) and not isinstance(row, str | bytes)
    return is_list and len(row) == width


def _shape(like: Any) -> tuple[int, ...] | None:
    """Return the shape of training data, None if it is no table."""
    if hasattr(like, "shape"):
        return tuple(like.shape)
    if not isinstance(like, Sequence):
        return None
    try:
        return np.shape(like)
    except ValueError:  # ragged
        return None
