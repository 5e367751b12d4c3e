"""Columns of cells: each cell is read by itself, as the training column says."""

import datetime
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from botorch_dp.integrations.sklearn.plain import (
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
    """Reads cells of private data, each by itself.

    Attributes:
        read: From cells to values, and to which of them cannot be read.
        kinds: The kinds of numpy types whose arrays ``read`` takes as they are.
        dtype: A type of pandas' own that columns of the values have, if any.
    """

    read: Callable[[Cells], tuple[Cells, Mask]]
    kinds: str = "biuf"
    dtype: Any = None

    def __call__(self, cells: Any) -> tuple[Cells, Mask]:
        """Return values, and which cells cannot be read."""
        dtype = getattr(cells, "dtype", None)
        is_typed = isinstance(dtype, np.dtype) and dtype.kind in self.kinds
        return self.read(np.asarray(cells) if is_typed else cells_of(cells))


def cells_of(values: Any) -> Cells:
    """Return an array of what is there, element by element."""
    if hasattr(values, "to_numpy"):
        try:
            return np.asarray(values.to_numpy(dtype=object))
        except TypeError:  # not pandas
            values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "Mm":
        found = np.empty(values.shape, dtype=object)
        for place in np.ndindex(values.shape):  # astype would lose digits and units
            found[place] = values[place]
        return found
    if isinstance(values, np.ndarray):
        return values.astype(object)
    elements = [*values]
    array = np.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):  # numpy would look into lists
        array[index] = element
    return array


def reader_of(training: Any) -> Reader:
    """Return how to read cells of which these are the training data's.

    Numbers with a fraction are read as such, and what is none is missing. Whole numbers
    and truths stay such, and text stays text: what is neither cannot be read. Times and
    durations are read as such, and what is none is missing. In a column of various
    objects a cell becomes the one of the training data that says the same.
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
    """Return where each value is among categories, -1 for one that is not.

    Args:
        categories: An index of pandas.
        reader: How cells were read.
        values: What it made of the cells.
    """
    known: dict[Any, int] = {}
    for code, category in enumerate(reader(categories)[0]):
        known.setdefault(category, code)
    is_range = hasattr(categories, "overlaps")  # intervals, in which numbers are
    codes = [_code(known, value, categories if is_range else None) for value in values]
    return np.array(codes, dtype=np.intp)


def _code(known: dict[Any, int], value: Any, intervals: Any) -> int:
    try:
        if value in known:
            return known[value]
        place = -1 if intervals is None else intervals.get_loc(value)
    except Exception:
        return -1
    return int(place) if isinstance(place, numbers.Integral) else -1


def _reader_of_objects(training: Cells, *, are_words: bool = False) -> Reader:
    """Return how to read cells that become objects.

    A private cell becomes the training cell that says the same, the first if there are
    several. So ``1``, ``1.0``, ``"1"`` and ``"01"`` are the same word in a column of
    words: which of them a container holds depends on the cells beside it.
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
        said = plain(cell)
        # Other words are themselves: there may be many.
        if isinstance(said, float) or not are_words:
            _remember(known, said, cell)
    other = word_of if are_words else _other_objects(there, gap)
    return Reader(lambda cells: _objects(cells, known, other, gap), "")


def _other_objects(there: list[Any], gap: Any) -> Callable[[Any], Any]:
    """Return what becomes of a cell that says what no training cell does."""
    if there and all(isinstance(cell, bytes) for cell in there):
        return _bytes
    if there and all(is_truth(cell) for cell in there):
        return lambda said: gap
    if there and all(is_number(cell) or is_truth(cell) for cell in there):
        return lambda said: said if isinstance(said, float) else gap
    return _whole_if_it_is


def _remember(known: dict[Any, Any], said: Any, cell: Any) -> None:
    try:
        known.setdefault(said, cell)
    except TypeError:  # a list, a dict: nothing is looked up by it
        return


def _objects(
    cells: Cells, known: dict[Any, Any], other: Callable[[Any], Any], gap: Any
) -> tuple[Cells, Mask]:
    def read(cell: Any) -> Any:
        try:
            said = plain(cell)
            if said is None:
                return gap
            return known[said] if _holds(known, said) else other(said)
        except Exception:  # an object that cannot be shown as text
            return gap

    values = cells_of([read(cell) for cell in cells.flat])
    return values.reshape(cells.shape), np.zeros(cells.shape, dtype=bool)


def _holds(known: dict[Any, Any], said: Any) -> bool:
    try:
        return said in known
    except Exception:  # it cannot be looked up
        return False


def _bytes(said: Any) -> bytes:
    return said if isinstance(said, bytes) else word_of(said).encode()


def _whole_if_it_is(said: Any) -> Any:
    return int(said) if isinstance(said, float) and said.is_integer() else said


def _floats(cells: Cells, dtype: np.dtype[Any]) -> tuple[Cells, Mask]:
    if cells.dtype.kind not in "biuf":
        values = np.array([number_of(cell) for cell in cells.flat], dtype=np.float64)
        cells = values.reshape(cells.shape)
    # By way of doubles without -0, as cells that are not numbers yet.
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
        cells = cells.astype(np.int64)  # durations that numpy counts from 1970 on
    return cells.astype(dtype), np.zeros(cells.shape, dtype=bool)


def _pandas_own(cells: Cells, dtype: Any) -> tuple[Cells, Mask]:
    """Read cells of a type of pandas' own: times with a zone, periods, intervals."""
    array = dtype.construct_array_type()

    def read(cell: Any) -> Any:
        try:
            return array._from_sequence([time_of(cell)], dtype=dtype)[0]
        except Exception:  # whatever it is
            return dtype.na_value

    values = cells_of([read(cell) for cell in cells.flat])
    return values, np.zeros(len(values), dtype=bool)
