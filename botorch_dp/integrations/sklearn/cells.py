"""Single cells: how one is read as the training data's are."""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Reader:
    """Reads cells of private data, each by itself.

    Attributes:
        read: From cells to values, and to which of them cannot be read.
        is_words: Whether values are text.
        is_times: Whether values are times.
        is_as_it_is: Whether values are whatever cells are.
    """

    read: Callable[[Cells], tuple[Cells, Mask]]
    is_words: bool = False
    is_times: bool = False
    is_as_it_is: bool = False

    def __call__(self, cells: Any) -> tuple[Cells, Mask]:
        """Return values, and which cells cannot be read."""
        dtype = getattr(cells, "dtype", None)
        kinds = "biufMm" if self.is_times else "biuf"
        is_typed = isinstance(dtype, np.dtype) and dtype.kind in kinds
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
        found[...] = values.astype(f"{values.dtype.kind}8[us]")  # of others: integers
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
    stay whole, and text stays text: what is neither cannot be read. Anything else is
    left as it is.
    """
    dtype = getattr(training, "dtype", None)
    if dtype is None:
        training = np.asarray(training)
        dtype = training.dtype
    categories = getattr(dtype, "categories", None)
    if categories is not None:
        cells, dtype = cells_of(categories), np.dtype(object)
    kind = getattr(dtype, "kind", "O")
    if kind in "biu" and isinstance(dtype, np.dtype):
        return Reader(lambda cells: _whole(cells, dtype))
    if kind in "biuf":
        wanted = dtype if isinstance(dtype, np.dtype) else np.dtype(np.float64)
        return Reader(lambda cells: _floats(cells, wanted))
    if kind in "Mm" and isinstance(dtype, np.dtype):
        return Reader(lambda cells: _times(cells, dtype), is_times=True)
    if categories is None:
        cells = cells_of(training).ravel()
    there = [cell for cell in cells if not is_missing(cell)]
    if kind == "U" or (there and all(isinstance(cell, str) for cell in there)):
        return Reader(_words, is_words=True)
    if there and all(_is_number(cell) for cell in there):
        return Reader(_objects_of_floats)
    return Reader(
        lambda cells: (cells_of(cells), np.zeros(len(cells), dtype=bool)),
        is_as_it_is=True,
    )


def codes_in(categories: Any, cells: Cells) -> npt.NDArray[np.intp]:
    """Return where each cell is among categories, -1 for one that is not.

    Args:
        categories: An index of pandas.
        cells: What to look up, one by one.
    """
    known = {category: code for code, category in enumerate(categories)}
    return np.array([_code(categories, known, cell) for cell in cells], dtype=np.intp)


def _code(categories: Any, known: dict[Any, int], cell: Any) -> int:
    try:
        if cell in known:
            return known[cell]
        place = categories.get_loc(cell)  # a date as text, a number in an interval
    except Exception:
        return -1
    return int(place) if isinstance(place, numbers.Integral) else -1


def is_missing(cell: Any) -> bool:
    """Return whether a cell holds nothing, in one of the usual ways to say so."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float | np.floating) and bool(np.isnan(cell))


def _is_number(cell: Any) -> bool:
    return isinstance(cell, numbers.Real) and not isinstance(cell, bool | np.bool_)


def _floats(cells: Cells, dtype: np.dtype[Any]) -> tuple[Cells, Mask]:
    if cells.dtype.kind not in "biuf":
        values = np.array([_float(cell) for cell in cells.flat], dtype=np.float64)
        cells = values.reshape(cells.shape)
    return cells.astype(dtype), np.zeros(cells.shape, dtype=bool)


def _objects_of_floats(cells: Cells) -> tuple[Cells, Mask]:
    values, bad = _floats(cells, np.dtype(np.float64))
    return values.astype(object), bad


def _whole(cells: Cells, dtype: np.dtype[Any]) -> tuple[Cells, Mask]:
    if cells.dtype == dtype:
        return cells, np.zeros(cells.shape, dtype=bool)
    is_bool = dtype.kind == "b"
    low, high = (0, 1) if is_bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    found = [_int(cell) for cell in cells.flat]
    bad = np.array([n is None or not low <= n <= high for n in found], dtype=bool)
    values = [0 if unread else n for n, unread in zip(found, bad, strict=True)]
    shape = cells.shape
    return np.array(values, dtype=dtype).reshape(shape), bad.reshape(shape)


def _words(cells: Cells) -> tuple[Cells, Mask]:
    return cells_of([_word(c) for c in cells]), np.zeros(len(cells), dtype=bool)


def _times(cells: Cells, dtype: np.dtype[Any]) -> tuple[Cells, Mask]:
    values = np.full(cells.shape, np.array("NaT", dtype=dtype), dtype=dtype)
    for index, cell in enumerate(cells):
        try:
            values[index] = np.array(getattr(cell, "to_numpy", lambda c=cell: c)())
        except Exception:  # not a time
            continue
    return values, np.zeros(cells.shape, dtype=bool)


def _float(cell: Any) -> float:
    """Return a number, or that it is missing."""
    try:
        return float(cell)
    except Exception:
        pass
    try:  # an array of complex numbers, of which most are not
        number = complex(cell)
        return number.real if number.imag == 0 else math.nan
    except Exception:
        return math.nan


def _int(cell: Any) -> int | None:
    """Return a whole number, None if it is none."""
    try:
        if isinstance(cell, numbers.Integral | np.bool_):
            return int(cell)
        if isinstance(cell, str):
            return int(cell)
    except Exception:
        pass
    number = _float(cell)
    return int(number) if math.isfinite(number) and number.is_integer() else None


def _word(cell: Any) -> Any:
    """Return text, or that it is missing."""
    try:
        if is_missing(cell):
            return math.nan
        if isinstance(cell, complex | np.complexfloating) and cell.imag == 0:
            cell = cell.real  # in an array of complex numbers
        if _is_number(cell) and float(cell).is_integer():
            return str(int(cell))
        return str(cell)
    except Exception:
        return math.nan
