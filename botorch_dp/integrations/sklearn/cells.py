"""Read columns cell by cell, by the types of the training columns."""

import contextlib
import datetime
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from botorch_dp.integrations.sklearn.plain import (
    contained,
    in_numpy,
    is_missing,
    is_number,
    is_truth,
    number_of,
    numpys_duration_of,
    numpys_time_of,
    plain,
    time_of,
    whole_of,
    word_of,
)

Cells = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Reader:
    """Reads cells of private data independently of each other.

    Attributes:
        read: Maps cells to their values and to a mask of the unreadable ones.
        kinds: The kinds of numpy arrays that ``read`` accepts without conversion.
        dtype: The pandas extension type of columns of the values, if any.
    """

    read: Callable[[Cells], tuple[Cells, Mask]]
    kinds: str = "biuf"
    dtype: Any = None

    def __call__(self, cells: Any) -> tuple[Cells, Mask]:
        """Return the values of the cells and a mask of the unreadable ones."""
        dtype = getattr(cells, "dtype", None)
        is_typed = isinstance(dtype, np.dtype) and dtype.kind in self.kinds
        return self.read(np.asarray(cells) if is_typed else cells_of(cells))


def cells_of(values: Any) -> Cells:
    """Return an array of objects with the elements of any container."""
    if hasattr(values, "to_numpy"):
        try:
            return np.asarray(values.to_numpy(dtype=object))
        except TypeError:  # not pandas
            values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "Mm":
        found = np.empty(values.shape, dtype=object)
        for place in np.ndindex(values.shape):  # astype loses digits and units
            found[place] = values[place]
        return found
    if isinstance(values, np.ndarray):
        return values.astype(object)
    elements = [*values]
    array = np.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):  # np.array would unpack lists
        array[index] = element
    return array


def reader_of(training: Any) -> Reader:
    """Return the reader for private cells of a training column.

    In a column of floats, times or durations, a cell of another kind is missing. In a
    column of whole numbers or booleans, such a cell is unreadable. In a column of text,
    every cell becomes text. In a column of other objects, a cell becomes the training
    cell with the same content.
    """
    dtype = getattr(training, "dtype", None)
    if dtype is None:
        training = np.asarray(training)
        dtype = training.dtype
    categories = getattr(dtype, "categories", None)
    if categories is not None:
        is_time = categories.dtype.kind in "Mm" or hasattr(categories, "freq")
        if is_time:
            return reader_of(categories)
        return _reader_of_objects(cells_of(categories))
    kind = getattr(dtype, "kind", "O")
    if kind in "biu" and isinstance(dtype, np.dtype):
        return Reader(lambda cells: _whole(cells, dtype))
    if kind in "biuf":
        wanted = dtype if isinstance(dtype, np.dtype) else np.dtype(np.float64)
        return Reader(lambda cells: _floats(cells, wanted))
    if kind in "Mm" and isinstance(dtype, np.dtype):
        return Reader(lambda cells: _times(cells, dtype), "M" if kind == "M" else "Mm")
    cells = cells_of(training).ravel()
    if isinstance(dtype, np.dtype):
        return _reader_of_objects(cells)
    if all(isinstance(cell, str) or is_missing(cell) for cell in cells):
        return Reader(_reader_of_objects(cells, are_words=True).read, "", dtype)
    return Reader(lambda cells: _pandas_own(cells, dtype), "", dtype)


def codes_in(categories: Any, reader: Reader, values: Cells) -> npt.NDArray[np.intp]:
    """Return the index of each value among the categories, or -1.

    Args:
        categories: A pandas index.
        reader: The reader of the column.
        values: The values that it returned.
    """
    known: dict[Any, int] = {}
    for code, category in enumerate(reader(categories)[0]):
        known.setdefault(category, code)
    is_range = hasattr(categories, "overlaps")  # intervals that contain numbers
    codes = [_code(known, value, categories if is_range else None) for value in values]
    return np.array(codes, dtype=np.intp)


def _code(known: dict[Any, int], value: Any, intervals: Any) -> int:
    with contained:
        if value in known:
            return known[value]
        place = -1 if intervals is None else intervals.get_loc(value)
        return int(place) if isinstance(place, numbers.Integral) else -1
    return -1


def _reader_of_objects(training: Cells, *, are_words: bool = False) -> Reader:
    """Return the reader for a column of objects.

    A private cell becomes the first training cell with the same content. So ``1``,
    ``1.0``, ``"1"`` and ``"01"`` are the same word in a column of words, because the
    other cells of a container decide which of them it stores.
    """
    there = [cell for cell in training if not is_missing(cell)]
    kinds = datetime.timedelta | np.timedelta64
    if there and all(isinstance(cell, kinds) for cell in there):
        durations = np.array([in_numpy(cell) for cell in there]).dtype
        return Reader(lambda cells: _times(cells, durations), "Mm")
    gap = next((cell for cell in training if is_missing(cell)), math.nan)
    are_words = are_words or (
        bool(there) and all(isinstance(cell, str) for cell in there)
    )
    known: dict[Any, Any] = {}
    for cell in there:
        content = plain(cell)
        # Words need no entry: ``word_of`` returns them unchanged.
        if isinstance(content, float) or not are_words:
            with contextlib.suppress(TypeError):  # lists and dicts are not hashable
                known.setdefault(content, cell)
    other = word_of if are_words else _other_objects(there, gap)
    return Reader(lambda cells: _objects(cells, known, other, gap), "")


def _other_objects(there: list[Any], gap: Any) -> Callable[[Any], Any]:
    """Return the function for contents that are not in the training column."""
    if there and all(isinstance(cell, bytes) for cell in there):
        return _bytes
    if there and all(is_truth(cell) for cell in there):
        return lambda content: gap
    if there and all(is_number(cell) or is_truth(cell) for cell in there):
        return lambda content: content if isinstance(content, float) else gap
    return _whole_if_it_is


def _objects(
    cells: Cells, known: dict[Any, Any], other: Callable[[Any], Any], gap: Any
) -> tuple[Cells, Mask]:
    def read(cell: Any) -> Any:
        content = plain(cell)
        with contained:
            if content is not None:
                return known[content] if _contains(known, content) else other(content)
        return gap

    values = cells_of([read(cell) for cell in cells.flat])
    return values.reshape(cells.shape), np.zeros(cells.shape, dtype=bool)


def _contains(known: dict[Any, Any], content: Any) -> bool:
    with contained:  # it may not be hashable or comparable
        return content in known
    return False


def _bytes(content: Any) -> bytes:
    return content if isinstance(content, bytes) else word_of(content).encode()


def _whole_if_it_is(content: Any) -> Any:
    is_whole = isinstance(content, float) and content.is_integer()
    return int(content) if is_whole else content


def _floats(cells: Cells, dtype: np.dtype[Any]) -> tuple[Cells, Mask]:
    if cells.dtype.kind not in "biuf":
        values = np.array([number_of(cell) for cell in cells.flat], dtype=np.float64)
        cells = values.reshape(cells.shape)
    # Through doubles and without -0, as for cells that are not stored as numbers.
    values = cells.astype(np.float64) + 0.0
    return values.astype(dtype), np.zeros(cells.shape, dtype=bool)


def _whole(cells: Cells, dtype: np.dtype[Any]) -> tuple[Cells, Mask]:
    if cells.dtype == dtype:
        return cells, np.zeros(cells.shape, dtype=bool)
    is_bool = dtype.kind == "b"
    low, high = (0, 1) if is_bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    found = [whole_of(cell) for cell in cells.flat]
    bad = np.array([n is None or not low <= n <= high for n in found], dtype=bool)
    values = [0 if unread else n for n, unread in zip(found, bad, strict=True)]
    shape = cells.shape
    return np.array(values, dtype=dtype).reshape(shape), bad.reshape(shape)


def _times(cells: Cells, dtype: np.dtype[Any]) -> tuple[Cells, Mask]:
    if cells.dtype.kind not in "Mm":
        values = np.full(cells.shape, np.array("NaT", dtype=dtype), dtype=dtype)
        for place in np.ndindex(cells.shape):
            values[place] = (
                numpys_time_of(cells[place])
                if dtype.kind == "M"
                else numpys_duration_of(cells[place], dtype)
            )
        cells = values
    if cells.dtype.kind != dtype.kind:
        cells = cells.astype(np.int64)  # numpy turned durations into times since 1970
    return cells.astype(dtype), np.zeros(cells.shape, dtype=bool)


def _pandas_own(cells: Cells, dtype: Any) -> tuple[Cells, Mask]:
    """Read cells of a pandas extension type: times with a zone, periods, intervals."""
    array = dtype.construct_array_type()

    def read(cell: Any) -> Any:
        with contained:
            return array._from_sequence([time_of(cell)], dtype=dtype)[0]
        return dtype.na_value

    values = cells_of([read(cell) for cell in cells.flat])
    return values, np.zeros(len(values), dtype=bool)
