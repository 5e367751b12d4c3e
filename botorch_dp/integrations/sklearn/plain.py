"""Read the content of a single cell, independently of its container.

A container has one type for all of its cells, and one odd cell can change that type.
In a column with a word, pandas and numpy turn ``True`` into ``"True"``; in a column
with a number, into 1 or 1.0; in an array with a numpy duration, into one second. The
functions here return the same value for all of these, so that a cell reveals nothing
about the other cells.

Three things are lost before a cell arrives here: the digits of a whole number beyond
2^53 if its column has a gap, the order of day and month that pandas guesses from the
first cell, and the unit of a duration among whole numbers.
"""

import contextlib
import datetime
import decimal
import importlib
import math
import numbers
import re
from typing import Any

import numpy as np

# The numbers that read_csv accepts. Python's float accepts more, such as "1_000".
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE
)
_TRUTHS = {"true": 1.0, "false": 0.0}
# The number of digits of a year, a day and a second: 2020, 20201231, 20201231235959.
_DIGITS_OF_TIMES = (4, 8, 14)


class Contained(contextlib.AbstractContextManager["Contained"]):
    """Suppresses whatever a private cell raises, also ``SystemExit``; only Ctrl-C ends.

    An object decides what its methods raise, and an exception would be a release.
    """

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and not issubclass(kind, KeyboardInterrupt)


contained = Contained()


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty: None, NaN, NaT or pandas.NA."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return bool(np.isnat(cell))
    return isinstance(cell, float | np.floating) and bool(np.isnan(cell))


def is_truth(cell: Any) -> bool:
    """Return whether a cell is a boolean, as opposed to the number 1 or 0."""
    return isinstance(cell, bool | np.bool_)


def is_number(cell: Any) -> bool:
    """Return whether a cell is a real number."""
    if isinstance(cell, np.timedelta64):  # numpy treats these as whole numbers
        return False
    return isinstance(cell, numbers.Real) and not is_truth(cell)


def in_numpy(cell: Any) -> Any:
    """Return a time or a duration as a numpy scalar, in its own unit."""
    if hasattr(cell, "to_numpy"):
        return cell.to_numpy()
    is_duration = isinstance(cell, datetime.timedelta | np.timedelta64)
    return np.timedelta64(cell) if is_duration else np.datetime64(cell)


def plain(cell: Any) -> Any:
    """Return the content of a cell.

    Args:
        cell: Any object.

    Returns:
        None for an empty cell; a float for numbers, booleans, durations (their count)
        and text that represents one of them; other text; a timestamp; or the cell.
    """
    with contained:
        return _content(cell)
    return None


def _content(cell: Any) -> Any:
    if isinstance(cell, np.ndarray) and cell.ndim == 0:
        cell = cell[()]
    if is_missing(cell):
        return None
    cell = _decoded(cell)
    if isinstance(cell, str):
        return _plain_text(cell)
    if isinstance(cell, datetime.timedelta | np.timedelta64):
        return float(in_numpy(cell).astype(np.int64))
    if isinstance(cell, datetime.datetime | np.datetime64):
        return _timestamp(cell)
    if isinstance(cell, numbers.Complex | decimal.Decimal | np.bool_):
        return _plain_number(cell)
    return cell


def number_of(cell: Any) -> float:
    """Return the number in a cell, or NaN if there is none."""
    content = plain(cell)
    if content is None or isinstance(content, str):
        return math.nan
    with contained:
        return float(content)
    return math.nan


def whole_of(cell: Any) -> int | None:
    """Return the whole number in a cell with all its digits, or None."""
    try:
        cell = _decoded(cell)
        if is_number(cell) and isinstance(cell, numbers.Integral):
            return int(cell)
        if isinstance(cell, str) and _WHOLE.fullmatch(cell.strip()):
            return int(cell)
    except KeyboardInterrupt:
        raise
    except BaseException:  # for example too many digits
        return None
    number = number_of(cell)
    return int(number) if math.isfinite(number) and number.is_integer() else None


def word_of(content: Any) -> str:
    """Return the result of :func:`plain` as text; 1.0 becomes ``"1"``.

    A lone surrogate becomes a question mark, because pandas cannot store it and would
    raise.
    """
    if isinstance(content, float) and content.is_integer():
        return str(int(content))
    return str(content).encode("utf-8", "replace").decode("utf-8")


def time_of(cell: Any) -> Any:
    """Return what pandas may read as a time, or None for an empty cell.

    A number counts as a time only if it has as many digits as a year, a day or a
    second, because pandas reads text with these digits as a time.
    """
    content = plain(cell)
    if isinstance(content, float):
        digits = word_of(content)
        return digits if len(digits) in _DIGITS_OF_TIMES else None
    return content


def numpys_time_of(cell: Any) -> np.datetime64:
    """Return the time in a cell, converted to UTC if it has a zone, or NaT."""
    time = time_of(cell)
    with contained:
        return np.datetime64("NaT") if time is None else in_numpy(_timestamp(time))
    return np.datetime64("NaT")


def numpys_duration_of(cell: Any, dtype: np.dtype[Any]) -> Any:
    """Return the duration in a cell as a scalar of this type, or NaT.

    Args:
        cell: Any object. A number is a duration in the unit of ``dtype``. A time is
            the duration since 1970, because numpy turns durations into times in an
            array that has a time.
        dtype: A numpy type of durations.
    """
    with contained:
        # Not by assignment, which refuses years and months.
        return np.array(_duration(cell, dtype)).astype(dtype)[()]
    return np.array("NaT", dtype=dtype)[()]


def _duration(cell: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(cell, datetime.timedelta | np.timedelta64):
        return in_numpy(cell)
    if isinstance(cell, datetime.datetime | np.datetime64):
        cell = int(in_numpy(cell).astype(np.int64))
    number = whole_of(cell)
    return in_numpy(pandas().Timedelta(cell)) if number is None else number


def _decoded(cell: Any) -> Any:
    """Return text for ASCII bytes, as numpy does in an array with text."""
    if not isinstance(cell, bytes):
        return cell
    try:
        return cell.decode("ascii")
    except UnicodeDecodeError:
        return cell


def _plain_text(text: str) -> float | str | None:
    text = str(text).rstrip("\0")  # numpy's text cannot end in zero bytes
    word = text.strip()
    if _NUMBER.fullmatch(word):
        return float(word) + 0.0  # turns -0 into 0: whole numbers have no -0
    if word == "nan":  # the text that numpy makes of NaN
        return None
    if word.endswith(("j", "j)")):
        try:
            return _plain_number(complex(word))
        except ValueError:
            return text
    return _TRUTHS.get(word.lower(), text)


def _plain_number(cell: Any) -> Any:
    try:
        if isinstance(cell, numbers.Real | decimal.Decimal | np.bool_):
            number = float(cell)
        elif cell.imag == 0:  # a real number in a complex array
            number = float(cell.real)
        else:
            return str(cell)
    except OverflowError:  # the text of this number is read as infinity
        number = math.inf if cell > 0 else -math.inf
    except Exception:  # a signalling NaN
        return None
    return None if math.isnan(number) else number + 0.0


def _timestamp(time: Any) -> Any:
    """Return a time as pandas' type, or numpy's if pandas cannot represent it."""
    try:
        return pandas().Timestamp(time)
    except Exception:
        return np.datetime64(time)


def pandas() -> Any:
    """Return pandas, which is optional."""
    return importlib.import_module("pandas")
