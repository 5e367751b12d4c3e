"""What a single cell says, whichever container it comes from.

A container has one type for all of its cells, and one odd cell decides which. Beside a
word, pandas and numpy turn ``True`` into ``"True"``; beside a number into 1 or 1.0;
beside a duration of numpy into one second. The functions here return the same for all
of these, so that nobody can tell from one cell what was beside it.

Three things are lost before a cell arrives here: the digits of a whole number beyond
2^53 beside a gap, the order of day and month that pandas guesses from a first cell, and
the unit of a duration among whole numbers.
"""

import datetime
import decimal
import importlib
import math
import numbers
import re
from typing import Any

import numpy as np

# What read_csv takes for a number. Python's own float takes more, such as "1_000".
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE
)
_TRUTHS = {"true": 1.0, "false": 0.0}
# The digits of a year, a day and a second: 2020, 20201231, 20201231235959.
_DIGITS_OF_TIMES = (4, 8, 14)


def is_missing(cell: Any) -> bool:
    """Return whether a cell holds nothing, in one of the usual ways to say so."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return bool(np.isnat(cell))
    return isinstance(cell, float | np.floating) and bool(np.isnan(cell))


def is_truth(cell: Any) -> bool:
    """Return whether a cell is true or false, and not merely 1 or 0."""
    return isinstance(cell, bool | np.bool_)


def is_number(cell: Any) -> bool:
    """Return whether a cell is a real number."""
    if isinstance(cell, np.timedelta64):  # to numpy, these are whole numbers
        return False
    return isinstance(cell, numbers.Real) and not is_truth(cell)


def in_numpy(cell: Any) -> Any:
    """Return a time or a duration as a scalar of numpy, in its own unit."""
    if hasattr(cell, "to_numpy"):
        return cell.to_numpy()
    is_duration = isinstance(cell, datetime.timedelta | np.timedelta64)
    return np.timedelta64(cell) if is_duration else np.datetime64(cell)


def plain(cell: Any) -> Any:
    """Return what a cell says.

    Args:
        cell: Anything.

    Returns:
        None if there is nothing; a float for numbers, truths, durations (their count)
        and for text that says one of them; other text; a timestamp; or the cell.
    """
    try:
        return _said(cell)
    except Exception:  # an object may raise whatever is asked of it
        return None


def _said(cell: Any) -> Any:
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
    """Return the number that a cell says, NaN if it says none."""
    said = plain(cell)
    if said is None or isinstance(said, str):
        return math.nan
    try:
        return float(said)
    except Exception:  # whatever it is
        return math.nan


def whole_of(cell: Any) -> int | None:
    """Return the whole number that a cell says, None if it says none.

    All digits of it, which a float may not have.
    """
    try:
        cell = _decoded(cell)
        if is_number(cell) and isinstance(cell, numbers.Integral):
            return int(cell)
        if isinstance(cell, str) and _WHOLE.fullmatch(cell.strip()):
            return int(cell)
    except Exception:  # such as too many digits
        return None
    number = number_of(cell)
    return int(number) if math.isfinite(number) and number.is_integer() else None


def word_of(said: Any) -> str:
    """Return text for what :func:`plain` returns, a number without needless digits."""
    if isinstance(said, float) and said.is_integer():
        return str(int(said))
    return str(said)


def time_of(cell: Any) -> Any:
    """Return what pandas may read as a time, None if there is nothing.

    A number is one only if its digits are those of a year, a day or a second: as text,
    the same digits are.
    """
    said = plain(cell)
    if isinstance(said, float):
        digits = word_of(said)
        return digits if len(digits) in _DIGITS_OF_TIMES else None
    return said


def numpys_time_of(cell: Any) -> np.datetime64:
    """Return the time that a cell says, of a zone in UTC, or NaT."""
    said = time_of(cell)
    try:
        return np.datetime64("NaT") if said is None else in_numpy(_timestamp(said))
    except Exception:  # whatever it is
        return np.datetime64("NaT")


def numpys_duration_of(cell: Any, dtype: np.dtype[Any]) -> Any:
    """Return the duration that a cell says, or NaT.

    Args:
        cell: A number counts in the unit of the type. So does the number of units from
            1970 to a time: beside a time, numpy turns durations into such.
        dtype: A numpy type of durations.
    """
    try:
        if isinstance(cell, datetime.timedelta | np.timedelta64):
            return np.timedelta64(in_numpy(cell))
        if isinstance(cell, datetime.datetime | np.datetime64):
            cell = int(in_numpy(cell).astype(np.int64))
        number = whole_of(cell)
        if number is not None:
            return np.array(number).astype(dtype)[()]
        return np.timedelta64(in_numpy(_pandas().Timedelta(cell)))
    except Exception:  # whatever it is
        return np.timedelta64("NaT")


def _decoded(cell: Any) -> Any:
    """Return text for bytes of text, as numpy does beside other text."""
    if not isinstance(cell, bytes):
        return cell
    try:
        return cell.decode("ascii")
    except UnicodeDecodeError:
        return cell


def _plain_text(text: str) -> float | str | None:
    text = str(text).rstrip("\0")  # as numpy's text, which cannot end in zero bytes
    word = text.strip()
    if _NUMBER.fullmatch(word):
        return float(word) + 0.0  # no -0, which whole numbers do not have
    if word == "nan":  # numpy's text for it
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
        elif cell.imag == 0:  # in an array of complex numbers
            number = float(cell.real)
        else:
            return str(cell)
    except OverflowError:  # as the text of it is read
        number = math.inf if cell > 0 else -math.inf
    except Exception:  # a signalling NaN
        return None
    return None if math.isnan(number) else number + 0.0


def _timestamp(said: Any) -> Any:
    """Return pandas' timestamp for a time; without pandas, or beyond it, numpy's."""
    try:
        return _pandas().Timestamp(said)
    except Exception:
        return np.datetime64(said)


def _pandas() -> Any:
    return importlib.import_module("pandas")
