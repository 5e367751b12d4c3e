"""Read training and private records from CSV files, as text and line by line.

A private line is one record, whatever it contains: a line with a broken quote, a byte
that is not in the encoding or another number of fields spoils its own record and
raises nothing. Therefore a field of a private file cannot contain a line break. What a
delimiter or a quote is does not depend on the file.
"""

import codecs
import csv
import io
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.cells import Cells, Mask
from botorch_dp.integrations.sklearn.column_types import (
    labels_of,
    type_of_texts,
)
from botorch_dp.integrations.sklearn.plain import pandas
from botorch_dp.integrations.sklearn.schema import Schema, typed, typed_column
from botorch_dp.integrations.sklearn.tables import PrivateTable

File = str | os.PathLike[str] | IO[bytes] | IO[str]

# The usual ways to write that a value is missing.
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>")
_HEADER = 1  # lines are numbered from 1, and the first one has the names


@dataclass(frozen=True)
class PrivateData:
    """Training and private records from two files, as ``fit`` takes them.

    Attributes:
        X: The training inputs, a pandas frame with the types of the schema.
        y: The training targets.
        X_val: The private inputs, as text.
        y_val: The private targets, as text.
        groups: The person of each private record, as text; None if no column names
            them. It is empty if a malformed line has no such field.
        schema: The types of the inputs.
    """

    X: Any = field(repr=False)
    y: Any = field(repr=False)
    X_val: PrivateTable
    y_val: PrivateTable
    groups: Cells | None = field(repr=False)
    schema: Schema = field(repr=False)

    @property
    def training(self) -> dict[str, Any]:
        """The arguments ``X`` and ``y``."""
        return {"X": self.X, "y": self.y}

    @property
    def private(self) -> dict[str, Any]:
        """The arguments ``X_val`` and ``y_val``, and ``groups`` if there are any."""
        found: dict[str, Any] = {"X_val": self.X_val, "y_val": self.y_val}
        return found if self.groups is None else {**found, "groups": self.groups}


def read_csv(
    train: File,
    private: File,
    *,
    target: str,
    person: str | None = None,
    schema: Mapping[str, Any] | None = None,
    drop: Collection[str] = (),
    missing: Collection[str] = MISSING,
    delimiter: str = ",",
    encoding: str = "utf-8",
) -> PrivateData:
    r"""Read the records of a search from two CSV files.

    The training file alone decides the types of columns: whole numbers, numbers,
    booleans, ISO dates or text. Codes with leading zeros are text. ``schema`` replaces
    some types, or all. Each private cell is then parsed by the type of its column.

    Both files have the names of columns in their first line, which are public, in any
    order. Each further line is one record, also an empty line. In the private file, a
    line that is malformed spoils its own record. In the training file it is an error.

    Args:
        train: The training file, which is not protected: a path or an open file.
        private: The private file. The number of its lines is public. Columns that the
            training file does not have are not read.
        target: The column of targets.
        person: The column that names the person of each private record. It is not an
            input.
        schema: A :class:`Schema`, or a dict from names of columns to types. The types
            of other columns are those of the training file.
        drop: The columns that are not inputs.
        missing: The words that mean that a value is missing.
        delimiter: The character between two fields.
        encoding: The encoding of both files, in which a line ends with the byte 10.

    Returns:
        The records, for ``search.fit(**data.training, **data.private)``.

    Example:
        >>> import io
        >>> from botorch_dp.integrations.sklearn import read_csv
        >>> train = io.StringIO("age,ward,ill\n41,01,yes\n,02,no\n")
        >>> private = io.StringIO("age,ward,ill\n52,01,no\nunknown,1,yes\n")
        >>> data = read_csv(train, private, target="ill")
        >>> data.schema
        Schema({'age': 'float', 'ward': 'text'})
        >>> data.X_val
        PrivateTable(2 records, Schema({'age': 'float', 'ward': 'text'}))
    """
    encoding = _checked_format(delimiter, encoding)
    settings = (frozenset(missing), delimiter, encoding)
    public, malformed = _Lines(train, "train", *settings).table()
    for place in np.flatnonzero(malformed):
        raise InvalidArgumentError(
            f"train must have {len(public)} fields in every line, without line breaks "
            f"in quotes, got another line {_HEADER + 1 + int(place)}."
        )
    given = Schema({} if schema is None else schema)
    wanted = [target, *given, *drop]
    _check_columns("train", wanted, list(public))
    kinds = {
        name: given[name] if name in given else type_of_texts(cells)
        for name, cells in public.items()
        if name not in (person, *drop)
    }
    target_schema = Schema({target: kinds.pop(target)})
    inputs = Schema(kinds)
    if not inputs:
        raise InvalidArgumentError(f"train must have columns besides {wanted}.")
    rows: dict[str, Any] = {"argument": "train", "first_row": _HEADER + 1}
    X = typed(pandas().DataFrame(public, dtype=object), inputs, **rows)
    kind = target_schema[target]
    y = labels_of(kind, typed_column(target, kind, public[target], **rows))

    lines = _Lines(private, "private", *settings)
    needed = [*inputs, target, *([] if person is None else [person])]
    _check_columns("private", needed, lines.names)
    columns, unread = lines.table()
    groups = None if person is None else lines.texts(person)
    return PrivateData(
        X,
        y,
        _private_table(inputs, columns, unread),
        _private_table(target_schema, columns, unread),
        groups,
        inputs,
    )


class _Lines:
    """The lines of a file, each parsed by itself."""

    def __init__(
        self,
        file: File,
        argument: str,
        missing: frozenset[str],
        delimiter: str,
        encoding: str,
    ) -> None:
        self._missing = missing
        content = _content_of(argument, file)
        if isinstance(content, str):
            encoding, content = "utf-8", content.encode("utf-8", "surrogatepass")
        lines = content.split(b"\n")
        if lines[-1] == b"":  # the last line ends with a line break as well
            lines.pop()
        first = lines[0].removeprefix(b"\xef\xbb\xbf") if lines else b""
        names = _fields(first, delimiter, encoding)
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"{argument} must have the different names of its columns in the first "
                "line."
            )
        if len(lines) < 2:
            raise InvalidArgumentError(f"{argument} must have at least one record.")
        self.names = names
        self._rows = [_fields(line, delimiter, encoding) for line in lines[1:]]

    def table(self) -> tuple[dict[str, Cells], Mask]:
        """Return the cells of each column, and a mask of the malformed lines."""
        width = len(self.names)
        good = [row is not None and len(row) == width for row in self._rows]
        cells = np.full((len(good), width), None, dtype=object)
        for place, row in enumerate(self._rows):
            if row is not None and good[place]:
                cells[place] = [
                    None if text.strip() in self._missing else text for text in row
                ]
        return dict(zip(self.names, cells.T, strict=True)), ~np.array(good)

    def texts(self, name: str) -> Cells:
        """Return a column as text, also for lines with another number of fields."""
        at = self.names.index(name)
        found = [row[at] if row and len(row) > at else "" for row in self._rows]
        return np.array(found, dtype=object)


def _content_of(argument: str, file: Any) -> bytes | str:
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as opened:
            return opened.read()
    # A file of text would raise at a byte that it cannot decode.
    file = getattr(file, "buffer", file)
    if not isinstance(file, io.RawIOBase | io.BufferedIOBase | io.StringIO):
        raise InvalidArgumentError(
            f"{argument} must be a path, a file that was opened with open(path, 'rb') "
            f"or a StringIO, got {type(file).__name__}."
        )
    return file.read() or b""


def _fields(line: bytes, delimiter: str, encoding: str) -> list[str] | None:
    """Return the fields of a line, or None if it is malformed."""
    try:
        text = line.removesuffix(b"\r").decode(encoding)
        if "\0" in text:
            return None
        rows = [*csv.reader([text], delimiter=delimiter, strict=True)]
    except Exception:  # a quote, a byte, or a field that is too long
        return None
    return (rows[0] or [""]) if len(rows) == 1 else None


def _private_table(
    schema: Schema, columns: dict[str, Cells], malformed: Mask
) -> PrivateTable:
    return PrivateTable(
        schema, np.stack([columns[name] for name in schema], axis=1), malformed
    )


def _check_columns(argument: str, needed: list[str], names: list[str]) -> None:
    absent = [name for name in needed if name not in names]
    if absent:
        raise InvalidArgumentError(
            f"{argument} must have the columns {needed} in its first line, but it has "
            f"no {absent}."
        )


def _checked_format(delimiter: str, encoding: str) -> str:
    """Return the encoding of a line, or raise."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise InvalidArgumentError(
            f"delimiter must be one character other than a quote, got {delimiter!r}."
        )
    try:
        if codecs.lookup(encoding).name == "utf-8-sig":
            return "utf-8"  # the mark at the start of a file is removed anyway
        is_suitable = "\n".encode(encoding) == b"\n"
    except (LookupError, TypeError):
        is_suitable = False
    if not is_suitable:
        raise InvalidArgumentError(
            "encoding must be one in which a line ends with the byte 10, such as "
            f"'utf-8' or 'latin-1', got {encoding!r}."
        )
    return encoding
