"""Tables with named columns, of any library, as columns of separate cells."""

from typing import Any

import numpy as np

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.cells import Cells, Mask, cells_of


class PrivateTable:
    """Private records as they stand in a file: every cell is text, or missing.

    :func:`~botorch_dp.integrations.sklearn.read_csv` creates it. ``PrivateSearch``
    parses each cell by the type of its column. The cells are not shown.

    Args:
        schema: The types of the columns.
        cells: The cells, ``n x k`` for n records and k columns. None is missing.
        malformed: Which of the n records cannot be read at all.
    """

    def __init__(self, schema: Any, cells: Cells, malformed: Mask) -> None:
        self.schema = schema
        self._cells, self._malformed = cells, malformed

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of records and columns."""
        return len(self), len(self.schema)

    def __len__(self) -> int:
        return len(self._malformed)

    def __repr__(self) -> str:
        return f"PrivateTable({len(self)} records, {self.schema!r})"


def is_foreign(X: Any) -> bool:
    """Return whether this is a polars frame, an Arrow table or a private table."""
    return isinstance(X, PrivateTable) or _is_polars(X) or _is_arrow(X)


def is_foreign_column(y: Any) -> bool:
    """Return whether this is a column of polars or Arrow."""
    return _is_of(y, "polars", "Series") or any(
        _is_of(y, "pyarrow", name) for name in ("Array", "ChunkedArray")
    )


def names_of(X: Any) -> list[str] | None:
    """Return the names of a table's columns, or None if it has none."""
    if _is_arrow(X):
        return list(X.schema.names)
    return list(X.columns) if is_foreign(X) or hasattr(X, "iloc") else None


def malformed_in(X: Any) -> Mask:
    """Return which private records cannot be read at all."""
    if isinstance(X, PrivateTable):
        return X._malformed.copy()
    return np.zeros(len(X), dtype=bool)


def column_of(X: Any, name: str) -> Any:
    """Return a column: a pandas column, or an array of objects."""
    if isinstance(X, PrivateTable):
        return X._cells[:, X.columns.index(name)]
    if hasattr(X, "iloc"):
        return X.iloc[:, list(X.columns).index(name)]
    return objects_in(X.column(name) if _is_arrow(X) else X.get_column(name))


def objects_in(column: Any) -> Cells:
    """Return the cells of a column of polars or Arrow as objects of Python.

    A cell for which there is no such object, as for a date in the year 15,000, is
    missing.
    """
    convert = getattr(column, "to_pylist", getattr(column, "to_list", None))
    assert convert is not None
    try:
        return cells_of(convert())
    except BaseException as error:  # polars may panic
        if isinstance(error, KeyboardInterrupt):
            raise
        return cells_of([_cell(column, place) for place in range(len(column))])


def categories_of(X: Any, name: str) -> list[Any] | None:
    """Return the categories of a training column of polars or Arrow, if it has any."""
    if _is_polars(X):
        dtype = X.schema[name]
        if str(dtype).startswith("Enum"):
            return list(dtype.categories)
        is_category = str(dtype).startswith("Categorical")
    else:
        dtype = X.schema.field(name).type if _is_arrow(X) else None
        is_category = str(dtype).startswith("dictionary")
    if not is_category:
        return None
    return [*dict.fromkeys(cell for cell in column_of(X, name) if cell is not None)]


def check_table(argument: str, X: Any) -> list[str]:
    """Return the names of a table's columns, or raise if they do not name them."""
    names = names_of(X)
    if names is None:
        raise InvalidArgumentError(
            f"{argument} must have named columns if there is a schema: a pandas or "
            f"polars DataFrame or an Arrow table, got {type(X).__name__}."
        )
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"{argument} must have columns of different names.")
    return names


def _cell(column: Any, place: int) -> Any:
    try:
        cell = column[place]
        return cell.as_py() if hasattr(cell, "as_py") else cell
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _is_polars(X: Any) -> bool:
    return _is_of(X, "polars", "DataFrame")


def _is_arrow(X: Any) -> bool:
    return _is_of(X, "pyarrow", "Table") or _is_of(X, "pyarrow", "RecordBatch")


def _is_of(X: Any, package: str, name: str) -> bool:
    return any(
        kind.__module__.split(".")[0] == package and kind.__name__ == name
        for kind in type(X).__mro__
    )
