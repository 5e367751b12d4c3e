"""Read private records independently of each other.

A container has one type for all of its cells: a single word among numbers makes an
array of text, and a missing value turns whole numbers into floats. The loss of a record
would then depend on the other records. Therefore records are read cell by cell, by the
types of the training data (:mod:`~botorch_dp.integrations.sklearn.cells`). A cell that
cannot be read in this way is missing, or makes its whole record unreadable.
"""

import copy
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import _num_samples

from botorch_dp.integrations.sklearn.cells import Reader, cells_of, codes_in, reader_of
from botorch_dp.integrations.sklearn.people import People
from botorch_dp.integrations.sklearn.plain import contained, is_missing
from botorch_dp.integrations.sklearn.quiet import quiet
from botorch_dp.integrations.sklearn.schema import Schema, read_inputs, read_targets
from botorch_dp.integrations.sklearn.tables import (
    PrivateTable,
    is_foreign,
    is_foreign_column,
    objects_in,
)

Mask = npt.NDArray[np.bool_]

# The training records that are scored together with every batch of private ones.
_COMPANY = slice(0, 8)
# How many training records, spread over all of them, also show whether records mix.
_NUM_SPREAD = 16


@dataclass(frozen=True)
class Records:
    """Inputs and targets, as :func:`read_alike` reads them.

    Attributes:
        X: The inputs, one row for each record.
        y: The targets, one for each record, or None.
        unreadable: A mask of the records that cannot be scored; None if all can.
        company: A few training records, read in the same way; None if these records
            are themselves training records.
        people: The persons whom the records belong to; None if every record is
            protected by itself.
        witnesses: The company and some more training records, which show whether
            a model mixes records.
        numbers: The positions of witnesses among the training records.
    """

    X: Any = field(repr=False)
    y: Any = field(repr=False)
    unreadable: Mask | None = field(default=None, repr=False)
    company: "Records | None" = field(default=None, repr=False)
    people: People | None = None
    witnesses: "Records | None" = field(default=None, repr=False)
    numbers: npt.NDArray[np.intp] = field(
        default_factory=lambda: np.arange(0), repr=False
    )

    def __len__(self) -> int:
        return int(_num_samples(self.X))

    @property
    def of_training(self) -> "Records":
        """The company, which is public."""
        assert self.company is not None
        return self.company

    @property
    def persons(self) -> npt.NDArray[np.intp]:
        """The number of each record's person, which is private."""
        return np.arange(len(self)) if self.people is None else self.people.persons

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The weight of each record, 1 in sum for each person; private."""
        return np.ones(len(self)) if self.people is None else self.people.weights

    @property
    def num_persons(self) -> int:
        """The number of persons, or of records if these are protected; public."""
        return len(self) if self.people is None else self.people.num_persons

    @property
    def unit(self) -> str:
        """Who is protected."""
        return "record" if self.people is None else "person"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the certificate says about the persons."""
        return () if self.people is None else self.people.assumptions

    @property
    def are_like_company(self) -> bool:
        """Whether the company has the containers and types of these records.

        They are plain arrays of numbers then. This is public: all is read by the types
        of the training records.
        """
        company = self.of_training
        if not _are_alike(self.X, company.X):
            return False
        return self.y is company.y is None or _are_alike(self.y, company.y)

    @property
    def readable(self) -> Mask:
        """A mask of the records that can be read."""
        if self.unreadable is None:
            return np.ones(len(self), dtype=bool)
        return ~self.unreadable

    def rows(self, index: npt.NDArray[np.intp]) -> tuple[Any, Any]:
        """Return copies of some records, which a model may modify.

        The rows of data frames are numbered from 0. Their own names could occur twice,
        because a training record may take the place of several private ones.

        Args:
            index: The positions of the records. The company follows the records.
        """
        return self._part("X", index), self._part("y", index)

    def _part(self, name: str, index: npt.NDArray[np.intp]) -> Any:
        ours, company = getattr(self, name), getattr(self.company, name, None)
        if ours is None:
            return None
        if _are_alike(ours, ours if company is None else company):
            return _numbers_at(ours, company, index)
        is_company = index >= len(self)
        rows = _safe_indexing(ours, index[~is_company])
        if is_company.any():
            others = _safe_indexing(company, index[is_company] - len(self))
            rows = _joined(rows, others)
            if (is_company[:-1] > is_company[1:]).any():
                # Joining puts the company last. The double argsort is the inverse of
                # that stable partition and restores the order of ``index``.
                place = np.argsort(np.argsort(is_company, kind="stable"), kind="stable")
                rows = _safe_indexing(rows, place)
        if isinstance(rows, np.ndarray) and not rows.dtype.hasobject:
            return rows  # indexing by numbers has made a copy
        return copied(_numbered(rows))


def read_alike(
    X: Any,
    y: Any,
    *,
    training: Iterable[Any],
    schema: Schema | None = None,
    people: People | None = None,
) -> Records:
    """Read every record by itself, by the types of the training data.

    Args:
        X: The inputs: an array, a sparse matrix, a data frame or a list; with a schema,
            a table of any kind.
        y: The targets, or None.
        training: The inputs and targets of the training records.
        schema: The types of the training inputs, if these have the types of a schema.
        people: The persons whom the records belong to, if these are protected.
    """
    if schema is None:
        X, y = indexable(X, y)
    like_X, like_y = (_in_numpy(part) for part in training)
    num_training = _num_samples(like_X)
    spread = np.linspace(0, num_training - 1, _NUM_SPREAD).astype(np.intp)
    numbers = np.unique(np.concatenate([np.arange(num_training)[_COMPANY], spread]))
    few_X, few_y = (
        part if part is None else _safe_indexing(part, numbers)
        for part in (like_X, like_y)
    )
    # Conversions may warn or overflow because of a private cell. The company goes
    # through the same code, so that both have the same types and can be joined.
    with quiet(), np.errstate(all="ignore"):
        witnesses = _read(few_X, few_y, (like_X, like_y), schema)
        records = _read(_in_numpy(X), _in_numpy(y), (like_X, like_y), schema)
    return replace(
        records,
        company=_first(witnesses),
        people=people,
        witnesses=replace(witnesses, numbers=numbers),
    )


def _first(witnesses: Records) -> Records:
    """Return the company."""
    X, y = (
        part if part is None else _safe_indexing(part, _COMPANY)
        for part in (witnesses.X, witnesses.y)
    )
    unreadable = witnesses.unreadable
    return Records(X, y, None if unreadable is None else unreadable[_COMPANY])


def _read(X: Any, y: Any, training: tuple[Any, Any], schema: Schema | None) -> Records:
    X, y = _unflagged(X), _unflagged(y)
    # The functions below fill in this mask. An unreadable record keeps its place, with
    # any values, because the number of records is public and their order matters.
    unreadable = np.zeros(_num_samples(X), dtype=bool)
    if schema is None:
        X = _inputs(X, training[0], unreadable)
    else:
        X, bad = read_inputs(X, schema, training[0])
        unreadable |= bad
    return Records(X, _targets(y, training[1], unreadable), unreadable)


def _in_numpy(data: Any) -> Any:
    """Return an array for array-like data of other libraries, such as a tensor."""
    if is_foreign_column(data):
        return objects_in(data)
    is_known = isinstance(data, np.ndarray) or any(
        hasattr(data, name) for name in ("iloc", "tocsr")
    )
    is_known = is_known or is_foreign(data)
    return np.asarray(data) if hasattr(data, "__array__") and not is_known else data


def _are_alike(rows: Any, others: Any) -> bool:
    """Return whether both are plain arrays of numbers of one type and shape."""
    if type(rows) is not np.ndarray or type(others) is not np.ndarray:
        return False
    same_type = rows.dtype == others.dtype and rows.dtype.kind in "biuf"
    return same_type and rows.shape[1:] == others.shape[1:] and len(rows) > 0


def _numbers_at(
    ours: npt.NDArray[Any],
    company: npt.NDArray[Any] | None,
    index: npt.NDArray[np.intp],
) -> npt.NDArray[Any]:
    """Return rows of ours, or of the company behind them, without joining all."""
    is_company = index >= len(ours)
    if company is None or not is_company.any():
        return np.asarray(ours[index], order="C")
    rows = np.empty((len(index), *ours.shape[1:]), dtype=ours.dtype)
    np.take(ours, np.where(is_company, 0, index), axis=0, out=rows, mode="clip")
    rows[is_company] = company[index[is_company] - len(ours)]
    return rows


def _joined(rows: Any, others: Any) -> Any:
    """Return the rows followed by the others, in the container of the rows."""
    if hasattr(rows, "tocsr"):
        return sparse.vstack([rows, sparse.csr_matrix(others)], format="csr")
    if hasattr(others, "toarray"):
        others = others.toarray()
    if hasattr(rows, "iloc"):
        concat = importlib.import_module("pandas").concat
        if not hasattr(others, "iloc"):
            others = type(rows)(others, dtype=rows.dtype)
        return concat([rows, others], ignore_index=True)
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.asarray(others, dtype=rows.dtype)])
    return [*rows, *others]


def copied(data: Any) -> Any:
    """Return a deep copy of the data."""
    if hasattr(data, "iloc"):  # pandas does not copy the objects in a column
        data = data.copy()
        if not hasattr(data, "columns"):
            is_object = data.dtype == np.dtype(object)
            return _column_like(data, _deep(data)) if is_object else data
        for index, dtype in enumerate(data.dtypes):
            if dtype == np.dtype(object):
                column = data.iloc[:, index]
                data.isetitem(index, _column_like(column, _deep(column)))
        return data
    # A model may modify the elements of a list or of an array of objects in place.
    if isinstance(data, list) or getattr(
        getattr(data, "dtype", None), "hasobject", False
    ):
        return copy.deepcopy(data)
    return data.copy() if hasattr(data, "copy") else copy.deepcopy(data)


def _column_like(column: Any, values: npt.NDArray[Any]) -> Any:
    """Return a pandas column of these values; the dtype keeps pandas from guessing."""
    return type(column)(values, index=column.index, dtype=values.dtype)


def _numbered(data: Any) -> Any:
    """Return data whose rows are numbered from 0."""
    return data.reset_index(drop=True) if hasattr(data, "reset_index") else data


def _unflagged(data: Any) -> Any:
    """Return data in which a row may occur twice."""
    if hasattr(data, "set_flags"):
        return data.set_flags(allows_duplicate_labels=True)
    return data


def _deep(column: Any) -> npt.NDArray[Any]:
    return copy.deepcopy(cells_of(column))


def _inputs(X: Any, like: Any, unreadable: Mask) -> Any:
    """Read inputs like the training inputs, and mark the unreadable records.

    Only the containers and the training data decide how; no private value does.
    """
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        return _frame(X, like, unreadable)
    kind = getattr(getattr(like, "dtype", None), "kind", None)
    if kind == "V":
        return _fields(X, like, unreadable)
    if hasattr(X, "tocsr"):
        return _sparse(X, reader_of(like) if kind else None, unreadable)
    shape = _shape(like)
    # All columns of a numeric array have one reader: this is fast, for any dimension.
    if isinstance(X, np.ndarray) and kind is not None and kind in "biuf":
        values, bad = reader_of(like)(X)
        unreadable |= _rows_with(bad)
        return values
    if shape is None or not isinstance(X, np.ndarray | Sequence):
        return _series(X, like, unreadable)
    if len(shape) == 1:
        read = _column(X, reader_of(like), unreadable)
        return read.tolist() if isinstance(X, Sequence) else read
    if len(shape) == 2:
        return _table(X, like, unreadable)
    return _blocks(X, like, unreadable)


def _targets(y: Any, like: Any, unreadable: Mask) -> Any:
    if isinstance(y, PrivateTable):
        values, bad = read_targets(y)
        unreadable |= bad
        return values
    shape = None if y is None or like is None else _shape(like)
    if shape is None:
        return y
    if len(shape) > 2:
        return _blocks(y, like, unreadable)
    if len(shape) == 2 and shape[1] > 1:
        return _table(y, like, unreadable)
    if len(shape) == 2:
        like = like.iloc[:, 0] if hasattr(like, "iloc") else np.ravel(like)
    # Targets may come as rows with one element, whatever the training targets are.
    cells = y
    if not (_is_numeric_column(y) and _is_numeric_column(like)):
        cells = cells_of([_only_cell(cell) for cell in cells_of(y)])
    values = _column(cells, reader_of(like), unreadable)
    # A missing number makes its own loss NaN. A missing object may raise when targets
    # are compared, so its record is left out beforehand.
    if values.dtype == object:
        unreadable |= np.array([is_missing(value) for value in values])
    return values


def _frame(X: Any, like: Any, unreadable: Mask) -> Any:
    """Read a data frame column by column."""
    frame = X.copy()
    for index in range(X.shape[1]):
        wanted = like.iloc[:, index] if hasattr(like, "iloc") else like
        frame.isetitem(index, _series(X.iloc[:, index], wanted, unreadable))
    return frame


def _series(X: Any, like: Any, unreadable: Mask) -> Any:
    """Read a pandas column; return any other container unchanged."""
    if not hasattr(X, "iloc"):
        return X
    reader = reader_of(like)
    dtype: Any = getattr(like, "dtype", None)
    values = _column(X, reader, unreadable)
    if hasattr(dtype, "categories"):
        # Series.astype looks at all cells before it decides how to convert one.
        codes = codes_in(dtype.categories, reader, values)
        if dtype.categories.dtype.kind in "biu" and not like.isna().any():
            unreadable |= codes < 0  # as in columns of whole numbers
        array = dtype.construct_array_type().from_codes(codes, dtype=dtype)
        return type(X)(array, index=X.index)
    return type(X)(values, index=X.index, dtype=reader.dtype or values.dtype)


def _sparse(X: Any, reader: Reader | None, unreadable: Mask) -> Any:
    if reader is None:
        return X
    X = X.tocsr(copy=True)
    X.data, bad = reader(X.data)
    # Stored entry j is in row i if indptr[i] <= j < indptr[i + 1].
    unreadable[np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[bad]] = True
    return X


def _table(X: Any, like: Any, unreadable: Mask) -> npt.NDArray[Any]:
    """Read rows of cells, column by column."""
    training = np.stack([cells_of(row) for row in _rows(like)])
    width = training.shape[1]
    rows = [_cells_of_row(row, width) for row in _rows(X)]
    unreadable |= np.array([row is None for row in rows])
    cells = np.empty((len(rows), width), dtype=object)
    for index, row in enumerate(rows):
        # A training row takes the place of an unreadable one: no reader fails on it.
        cells[index] = training[0] if row is None else row
    # A model that is fitted on lists sees the one type that numpy finds for them, so
    # numbers have that type here. Other columns are read by their own training cells.
    plain = like if isinstance(like, np.ndarray) else np.array(training.tolist())
    if plain.dtype.kind in "biufMm" and plain.ndim == 2:
        readers = [reader_of(plain)] * width
    else:
        readers = [reader_of(column) for column in training.T]
    columns = [_column(c, r, unreadable) for c, r in zip(cells.T, readers, strict=True)]
    if any(column.dtype == object for column in columns):
        return np.stack([column.astype(object) for column in columns], axis=1)
    return np.stack(columns, axis=1)


def _fields(X: Any, like: Any, unreadable: Mask) -> npt.NDArray[Any]:
    """Read a structured array field by field."""
    read = np.empty(X.shape, dtype=like.dtype)
    for name in like.dtype.names:
        read[name], bad = reader_of(like[name])(X[name])
        unreadable |= _rows_with(bad)
    return read


def _blocks(X: Any, like: Any, unreadable: Mask) -> Any:
    """Read records that are themselves arrays of numbers, such as images."""
    training = np.asarray(like)
    if training.dtype.kind not in "biuf":
        return X
    cells = np.empty((len(X), *training.shape[1:]), dtype=object)
    for index, block in enumerate(X):
        found = training[:0]
        with contained:  # it may be ragged
            found = np.array(block, dtype=object)
        is_like = found.shape == training.shape[1:]
        unreadable[index] |= not is_like
        cells[index] = found if is_like else training[0]
    values, bad = reader_of(training)(cells)
    unreadable |= _rows_with(bad)
    return values


def _column(cells: Any, reader: Reader, unreadable: Mask) -> npt.NDArray[Any]:
    values, bad = reader(cells)
    unreadable |= bad
    return values


def _rows_with(bad: Mask) -> Mask:
    """Return which rows have an unreadable cell."""
    return np.asarray(bad.reshape(len(bad), -1).any(axis=1))


def _rows(X: Any) -> Any:
    return cells_of(X) if hasattr(X, "to_numpy") else X


def _is_numeric_column(values: Any) -> bool:
    is_column = isinstance(values, np.ndarray) and values.ndim == 1
    return is_column and values.dtype.kind in "biuf"


def _cells_of_row(row: Any, width: int) -> Any:
    with contained:
        return cells_of(row) if _is_row(row, width) else None
    return None


def _only_cell(cell: Any) -> Any:
    """Return the element of a row with one, any other cell unchanged."""
    with contained:
        return cell[0] if _is_row(cell, 1) else cell
    return cell


def _is_row(row: Any, width: int) -> bool:
    if isinstance(row, np.ndarray):
        return row.shape == (width,)
    is_list = isinstance(row, Sequence) and not isinstance(row, str | bytes)
    return is_list and len(row) == width


def _shape(like: Any) -> tuple[int, ...] | None:
    """Return the shape of training data, or None if it is not an array or a list."""
    if hasattr(like, "shape"):
        return tuple(like.shape)
    if not isinstance(like, Sequence):
        return None
    try:
        return np.shape(like)
    except ValueError:  # ragged
        return None
