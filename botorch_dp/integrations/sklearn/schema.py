"""A schema: the types of columns, fixed before a private cell is read.

A private cell is parsed by the type of its column alone. So an odd cell spoils its own
record and nothing else, whatever the container.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.cells import Cells, Mask, cells_of
from botorch_dp.integrations.sklearn.column_types import (
    ColumnType,
    checked_type,
    exact_reader,
    labels_of,
    reader_in_containers,
    series_of,
    type_of,
)
from botorch_dp.integrations.sklearn.plain import pandas, plain
from botorch_dp.integrations.sklearn.tables import (
    PrivateTable,
    categories_of,
    check_table,
    column_of,
    is_foreign,
    is_foreign_column,
    malformed_in,
    names_of,
)


class Schema(Mapping[str, ColumnType]):
    """The types of named columns, in order.

    ==================== =============================================================
    type                 a cell
    ==================== =============================================================
    ``"float"``          a number; anything else is missing
    ``"int"``            a whole number of 64 bits; anything else spoils its record
    ``"bool"``           true or false in any case, 1 or 0; anything else spoils its
                         record
    ``"text"``           a word
    ``"date"``           a day or a time in ISO 8601, in UTC if it has a zone; anything
                         else is missing
    ``"date:%d/%m/%Y"``  the same, in a format of ``datetime.strptime``
    ``"duration"``       a duration as pandas writes it, or a number of microseconds
    ``["I", "II"]``      one of these categories; another word is missing, and another
                         number spoils its record if the categories are not all words
    ==================== =============================================================

    A record that is spoiled has the largest loss. A missing cell is up to the model.

    Args:
        types: Maps the names of columns to their types.

    Example:
        >>> from botorch_dp.integrations.sklearn import Schema
        >>> schema = Schema({"age": "float", "stage": ["I", "II", "III"]})
        >>> schema["stage"]
        ('I', 'II', 'III')
        >>> Schema.from_json(schema.to_json()) == schema
        True
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        if not isinstance(types, Mapping):
            raise InvalidArgumentError(
                "schema must be a Schema or a dict from names of columns to types, got "
                f"{types!r}."
            )
        self._types = {name: checked_type(name, kind) for name, kind in types.items()}

    @classmethod
    def from_training(cls, X: Any, types: Mapping[str, Any] | None = None) -> "Schema":
        """Return the types of the columns of training data.

        Whole numbers and booleans with gaps have the type ``"float"``.

        Args:
            X: A pandas or polars data frame, or an Arrow table.
            types: The types of some columns, which replace those of ``X``.
        """
        given = {} if types is None else Schema(types)
        names = check_table("X", X)
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InvalidArgumentError(
                f"schema must name columns of the training data, which are {names}, "
                f"got {unknown}."
            )
        return cls(
            {
                name: given[name] if name in given else _type_in(X, name)
                for name in names
            }
        )

    def to_json(self) -> str:
        """Return the schema as JSON."""
        return json.dumps(self._types)

    @classmethod
    def from_json(cls, text: str) -> "Schema":
        """Return the schema that :meth:`to_json` wrote."""
        return cls(json.loads(text))

    def __getitem__(self, name: str) -> ColumnType:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return repr(self) == repr(other)  # 1, 1.0 and True are different categories

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        shown = {
            name: list(kind) if isinstance(kind, tuple) else kind
            for name, kind in self.items()
        }
        return f"Schema({shown!r})"


def schema_for(given: Any, X: Any, X_val: Any) -> Schema | None:
    """Return the schema of a fit, or None if columns are read by their own types.

    Args:
        given: The argument ``schema``.
        X: The training inputs.
        X_val: The private inputs, of which only the kind of container matters.
    """
    given = None if given is None else Schema(given)
    if isinstance(X_val, PrivateTable):
        own: Schema = X_val.schema
        if any(own.get(name) != kind for name, kind in (given or {}).items()):
            raise InvalidArgumentError(
                f"schema must agree with the one that the files were read with, {own}, "
                f"got {given}."
            )
        return own
    if given is None and not (is_foreign(X) or is_foreign(X_val)):
        return None
    if given is None and names_of(X) is None:
        raise InvalidArgumentError(
            f"X_val must have the type of X, {type(X).__name__}, got "
            f"{type(X_val).__name__}: columns are read by their names and types."
        )
    return Schema.from_training(X, given)


def typed_training(given: Any, X: Any, y: Any, X_val: Any) -> tuple[Any, Any, Any]:
    """Return the schema of a fit, if any, and the training data with its types.

    Args:
        given: The argument ``schema``.
        X: The training inputs.
        y: The training targets.
        X_val: The private inputs, of which only the kind of container matters.
    """
    schema = schema_for(given, X, X_val)
    y = np.asarray(y) if is_foreign_column(y) else y
    return schema, X if schema is None else typed(X, schema), y


def typed(
    X: Any,
    schema: Schema,
    *,
    argument: str = "X",
    first_row: int = 0,
    is_training: bool = True,
) -> Any:
    """Return public data as a pandas frame with the types of a schema.

    Args:
        X: A pandas or polars data frame, or an Arrow table.
        schema: The types of its columns.
        argument: The name of ``X`` in messages; errors name row and column.
        first_row: The number of the first row in messages.
        is_training: Whether a cell that would be missing, such as a category that is
            not in the schema, is an error.
    """
    names = check_table(argument, X)
    if isinstance(X, PrivateTable):
        raise InvalidArgumentError(
            f"{argument} must be public, got the private records of read_csv: what a "
            "model predicts for them, or scores, would be a release that nobody pays "
            "for. private_score(X_val=..., y_val=..., guarantee=...) pays for a score."
        )
    if not set(schema) <= set(names):
        raise InvalidArgumentError(f"{argument} must have the columns {list(schema)}.")
    columns = {}
    for name, kind in schema.items():
        cells = column_of(X, name)
        values = typed_column(
            name, kind, cells, argument, first_row, is_training=is_training
        )
        columns[name] = series_of(kind, values)
    frame = pandas().DataFrame(columns)
    if hasattr(X, "iloc"):
        frame.index = X.index
    return frame


def typed_column(
    name: str,
    kind: ColumnType,
    cells: Any,
    argument: str,
    first_row: int,
    *,
    is_training: bool = True,
) -> Cells:
    """Read public cells, and raise if one does not have the type of its column."""
    values, bad = exact_reader(kind)(cells)
    column = series_of(kind, values)
    lost = bad | np.asarray(column.isna())
    for place in np.flatnonzero(lost):
        cell = cells_of(cells)[place]
        if bad[place] or (is_training and plain(cell) is not None):
            raise InvalidArgumentError(
                f"{argument} must have cells of the type "
                f"{list(kind) if isinstance(kind, tuple) else kind!r} in column "
                f"{name!r}, got {cell!r} in row {first_row + int(place)}. Change the "
                "cell, or give the column another type in schema."
            )
    return values


def read_inputs(X: Any, schema: Schema, training: Any) -> tuple[Any, Mask]:
    """Read private inputs cell by cell, in a container of any kind.

    Args:
        X: The private inputs.
        schema: The types of the columns.
        training: The training inputs, from :func:`typed`.

    Returns:
        A pandas frame with the types of the schema, and a mask of unreadable records.
    """
    unreadable = malformed_in(X)
    columns = {}
    for name, kind in schema.items():
        is_exact = isinstance(X, PrivateTable)
        reader = (
            exact_reader(kind)
            if is_exact
            else reader_in_containers(kind, training[name])
        )
        values, bad = reader(column_of(X, name))
        unreadable |= bad
        columns[name] = series_of(kind, values)
    return pandas().DataFrame(columns), unreadable


def read_targets(y: PrivateTable) -> tuple[Cells, Mask]:
    """Read the private targets of a file; a record without a target is unreadable."""
    (name,) = y.schema
    kind = y.schema[name]
    values, bad = exact_reader(kind)(column_of(y, name))
    missing = np.asarray(series_of(kind, values).isna())
    return labels_of(kind, values), bad | missing | malformed_in(y)


def _type_in(X: Any, name: str) -> ColumnType:
    found = categories_of(X, name) or type_of(column_of(X, name))
    if found is None:
        raise InvalidArgumentError(
            f"column {name!r} of the training data has no type that a schema knows: "
            f"name it in schema, e.g. schema={{{name!r}: 'text'}}, or convert it."
        )
    return checked_type(name, found)
