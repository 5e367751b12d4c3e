"""The types of a schema's columns, and how a single cell is read by each of them.

There are two readers for each type. The exact one is for cells whose content is as it
was written: training data, test data, and private files that
:func:`~botorch_dp.integrations.sklearn.read_csv` reads as text. The other one is for
private cells in a container that somebody else made. Such a container may turn ``01``
into 1 in a column without letters, so that ``01``, ``1`` and ``1.0`` must have the same
meaning there; otherwise a letter in one record would change how others are read.
"""

import datetime
import math
import numbers
import re
from typing import Any

import numpy as np

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.cells import (
    Cells,
    Mask,
    Reader,
    cells_of,
    codes_in,
    reader_of,
)
from botorch_dp.integrations.sklearn.plain import (
    contained,
    is_missing,
    is_number,
    is_truth,
    numpys_time_of,
    pandas,
    plain,
    word_of,
)

ColumnType = str | tuple[Any, ...]

_NUMPYS = {
    "float": np.dtype(np.float64),
    "int": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
    "duration": np.dtype("timedelta64[us]"),
}
_DATES = np.dtype("datetime64[us]")
_KINDS = (
    "'float', 'int', 'bool', 'text', 'date' (ISO 8601), 'date:%d/%m/%Y' (a format of "
    "strptime), 'duration' or a list of categories"
)
# A code such as 007 is not a number: its zeros would be lost.
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d*)", re.ASCII)
_CODE = re.compile(r"[+-]?0\d+", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def checked_type(name: str, given: Any) -> ColumnType:
    """Return the type of a column, or raise if it is none."""
    if isinstance(given, str):
        kind, _, layout = given.partition(":")
        has_layout = kind == "date" and "%" in layout
        if given in _NUMPYS or given in ("text", "date") or has_layout:
            return given
    elif isinstance(given, list | tuple):
        are_plain = all(isinstance(c, str | bool | int | float) for c in given)
        are_there = all(plain(category) is not None for category in given)
        are_different = len({str(category) for category in given}) == len(given)
        if given and are_plain and are_there and are_different:
            return tuple(given)
    raise InvalidArgumentError(
        f"schema[{name!r}] must be {_KINDS} (different words or numbers), got "
        f"{given!r}."
    )


def type_of(column: Any) -> ColumnType | None:
    """Return the type of a training column, or None if a schema has none for it.

    Args:
        column: A pandas column, or an array of objects.
    """
    dtype: Any = getattr(column, "dtype", None)
    categories = getattr(dtype, "categories", None)
    if categories is not None:
        found = tuple(getattr(c, "item", lambda c=c: c)() for c in categories)
        is_plain = found and all(isinstance(c, str | bool | int | float) for c in found)
        return found if is_plain else None
    if getattr(dtype, "kind", "O") in "biuf" and not isinstance(dtype, np.dtype):
        return "float"  # a nullable type: private records may have gaps
    cells = [cell for cell in cells_of(column) if not is_missing(cell)]
    has_gaps = len(cells) < len(column)
    if all(is_truth(cell) or is_number(cell) for cell in cells):
        if has_gaps or not cells:
            return "float"
        if all(is_truth(cell) for cell in cells):
            return "bool"
        is_whole = all(isinstance(cell, numbers.Integral) for cell in cells)
        return "int" if is_whole else "float"
    kinds: dict[ColumnType, Any] = {
        "text": str,
        "duration": datetime.timedelta | np.timedelta64,
        "date": datetime.date | np.datetime64,
    }
    for kind, classes in kinds.items():
        if all(isinstance(cell, classes) for cell in cells):
            return kind
    are_numbers = all(isinstance(plain(cell), float) for cell in cells)
    is_text = any(isinstance(cell, str | bytes) for cell in cells)
    return "float" if are_numbers and not is_text else None  # decimals


def type_of_texts(texts: Cells) -> ColumnType:
    """Return the type of a column of a training file.

    Args:
        texts: Words, with None for gaps.
    """
    there = [text.strip() for text in texts if text is not None]
    has_gaps = len(there) < len(texts)
    contents = [plain(text) for text in there]
    if all(isinstance(content, float) for content in contents):
        if any(_CODE.fullmatch(text) for text in there):
            return "text"
        are_truths = all(text.lower() in ("true", "false") for text in there)
        are_whole = all(_WHOLE.fullmatch(text) for text in there)
        if has_gaps or not there or not (are_truths or are_whole):
            return "float"
        return "bool" if are_truths else "int"
    are_days = all(_DAY.match(text) and not _isnat(text) for text in there)
    return "date" if are_days else "text"


def exact_reader(kind: ColumnType) -> Reader:
    """Return the reader for cells whose content is as it was written."""
    if isinstance(kind, tuple):
        return Reader(lambda cells: _codes(cells, kind), "")
    if kind in _NUMPYS:
        return reader_of(np.empty(0, dtype=_NUMPYS[kind]))
    if kind == "text":
        return Reader(_words, "")
    return Reader(lambda cells: _dates(cells, _layout(kind), is_exact=True), "")


def reader_in_containers(kind: ColumnType, training: Any) -> Reader:
    """Return the reader for private cells in a container of any kind.

    Args:
        kind: The type of the column.
        training: The training column, from :func:`series_of`.
    """
    if isinstance(kind, tuple):
        index = training.dtype.categories
        return Reader(lambda cells: _folded_codes(cells, index, _has_gap(kind)), "")
    if kind in _NUMPYS:
        return exact_reader(kind)
    if kind == "text":
        return reader_of(training)
    return Reader(lambda cells: _dates(cells, _layout(kind), is_exact=False), "")


def series_of(kind: ColumnType, values: Cells) -> Any:
    """Return what a reader returned as a pandas column."""
    if isinstance(kind, tuple):
        dtype = pandas().CategoricalDtype(list(kind))
        array = dtype.construct_array_type().from_codes(values, dtype=dtype)
        return pandas().Series(array)
    if kind == "text":
        return pandas().Series(values, dtype="str")
    return pandas().Series(values, dtype=values.dtype)


def labels_of(kind: ColumnType, values: Cells) -> Cells:
    """Return what a reader returned as targets; a category is its own label."""
    if not isinstance(kind, tuple):
        return values
    labels = cells_of([*kind, None])  # the code of a gap is -1
    return labels[values] if _has_gap(kind) else np.array(kind)[values]


def _has_gap(categories: tuple[Any, ...]) -> bool:
    """Return whether a missing cell leaves the others as they are.

    It would turn whole numbers and booleans into floats.
    """
    return all(isinstance(category, str) for category in categories)


def _layout(kind: str) -> str | None:
    return kind.partition(":")[2] or None


def _codes(cells: Cells, categories: tuple[Any, ...]) -> tuple[Cells, Mask]:
    words = {c: code for code, c in enumerate(categories) if isinstance(c, str)}
    others = {plain(c): n for n, c in enumerate(categories) if not isinstance(c, str)}

    def code(cell: Any) -> int:
        if isinstance(cell, str) and cell in words:
            return words[cell]
        content = plain(cell)
        if not isinstance(content, float):
            return -1
        return others.get(content, words.get(word_of(content), -1))

    return _coded([code(cell) for cell in cells], _has_gap(categories))


def _folded_codes(cells: Cells, index: Any, has_gap: bool) -> tuple[Cells, Mask]:
    reader = reader_of(pandas().Series(index))
    if not has_gap:
        reader = Reader(lambda cells: (_contents(cells), np.zeros(len(cells), bool)))
    return _coded([*codes_in(index, reader, reader(cells)[0])], has_gap)


def _contents(cells: Cells) -> Cells:
    return cells_of([plain(cell) for cell in cells])


def _coded(found: list[int], has_gap: bool) -> tuple[Cells, Mask]:
    codes = np.array(found, dtype=np.intp)
    bad = np.zeros(len(codes), dtype=bool) if has_gap else codes < 0
    return np.where(bad, 0, codes), bad


def _words(cells: Cells) -> tuple[Cells, Mask]:
    def word(cell: Any) -> Any:
        content = cell if isinstance(cell, str) else plain(cell)
        with contained:
            return math.nan if content is None else word_of(content)
        return math.nan

    return cells_of([word(cell) for cell in cells]), np.zeros(len(cells), dtype=bool)


def _dates(cells: Cells, layout: str | None, is_exact: bool) -> tuple[Cells, Mask]:
    values = np.full(len(cells), np.datetime64("NaT"), dtype=_DATES)
    for place, cell in enumerate(cells):
        values[place] = _date(cell, layout, is_exact)
    return values, np.zeros(len(cells), dtype=bool)


def _date(cell: Any, layout: str | None, is_exact: bool) -> np.datetime64:
    """Return the time in a cell, converted to UTC if it has a zone, or NaT.

    pandas would guess the order of day and month; here nothing is guessed.
    """
    nat = np.datetime64("NaT", "us")
    with contained:
        content = cell if is_exact and isinstance(cell, str) else plain(cell)
        if isinstance(content, str | float):
            text = word_of(content).strip()
            parse = datetime.datetime
            content = (
                parse.strptime(text, layout) if layout else parse.fromisoformat(text)
            )
        time = numpys_time_of(content)
        found = time.astype(_DATES)
        # The conversion may overflow: compare in seconds, which both can represent.
        seconds = "datetime64[s]"
        return found if found.astype(seconds) == time.astype(seconds) else nat
    return nat


def _isnat(text: str) -> bool:
    return bool(np.isnat(_date(text, None, is_exact=True)))
