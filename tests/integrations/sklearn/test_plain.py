"""The content of single cells."""

import datetime
import decimal
import math

import numpy as np
import pandas as pd
import pytest

from botorch_dp.integrations.sklearn.plain import (
    contained,
    is_missing,
    is_number,
    number_of,
    numpys_duration_of,
    numpys_time_of,
    plain,
    time_of,
    whole_of,
    word_of,
)
from tests.integrations.sklearn.hostile import HOSTILE


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("True", 1.0),
        ("FALSE", 0.0),
        (np.True_, 1.0),
        (" 1.50 ", 1.5),
        ("1e3", 1000.0),
        ("-INF", -np.inf),
        ("1_000", "1_000"),  # Python takes it for a number, read_csv does not
        ("1,5", "1,5"),
        ("\u0661", "\u0661"),  # so with digits of other scripts
        ("nan", None),
        (decimal.Decimal("sNaN"), None),
        (2**5000, np.inf),
        (-(2**5000), -np.inf),
        (3 + 0j, 3.0),
        ("(3+0j)", 3.0),
        (1j, "1j"),
        ("Bolj", "Bolj"),
        (b"1", 1.0),
        (b"\xff", b"\xff"),
        ("a\0", "a"),
        (np.array(2.0), 2.0),
        (np.timedelta64(5, "s"), 5.0),
        (np.timedelta64("NaT"), None),
        (np.datetime64("NaT"), None),
        (np.datetime64("2020-01-01"), pd.Timestamp("2020-01-01")),
        (np.datetime64(10**12, "Y"), np.datetime64(10**12, "Y")),
    ],
)
def test_content(cell, said):
    found = plain(cell)
    assert type(found) is type(said)
    assert found == said


def test_zero_has_no_sign():
    """Whole numbers have no -0, and a column of them may become one of floats."""
    assert not np.signbit([plain(cell) for cell in ("-0", -0.0, "-0.0")]).any()


def test_missing():
    for cell in (None, np.nan, pd.NA, pd.NaT, np.datetime64("NaT"), np.float32("nan")):
        assert is_missing(cell)
    for cell in (0, "", "nan", False, [], np.datetime64(0, "s")):
        assert not is_missing(cell)


def test_numbers():
    assert is_number(1.5)
    assert is_number(np.int8(1))
    for cell in (True, np.True_, "1", 1j, np.timedelta64(1, "s")):
        assert not is_number(cell)
    assert number_of("1.5") == 1.5
    assert number_of(True) == 1.0
    for cell in ("a", None, [1], {}):
        assert math.isnan(number_of(cell))


def test_whole_numbers_keep_all_digits():
    large = 2**53 + 1
    for cell in (large, str(large), f" {large} ", str(large).encode()):
        assert whole_of(cell) == large
    assert whole_of(2.0) == whole_of("2.0") == 2
    assert whole_of(True) == 1
    for cell in (2.5, "2.5", "a", None, np.inf, "9" * 5000):
        assert whole_of(cell) is None


def test_words():
    assert [word_of(content) for content in (1.0, 1.5, "a")] == ["1", "1.5", "a"]


def test_times():
    day = np.datetime64("2020-12-31")
    for cell in (day, 20201231, 20201231.0, "2020-12-31", datetime.date(2020, 12, 31)):
        assert numpys_time_of(cell) == day
    assert time_of(2020) == "2020"
    assert time_of(5) is None
    assert numpys_time_of("2020-01-01T02:00+02:00") == np.datetime64("2020-01-01")
    for cell in (5, "never", None):
        assert np.isnat(numpys_time_of(cell))


def test_durations():
    seconds = np.dtype("timedelta64[s]")
    for cell in (
        np.timedelta64(90, "s"),
        pd.Timedelta(90, "s"),
        datetime.timedelta(seconds=90),
        90,
        "90",
        "1min 30s",
        np.datetime64(90, "s"),  # numpy makes this of a duration next to a time
    ):
        assert numpys_duration_of(cell, seconds) == np.timedelta64(90, "s")
    for cell in (None, "never"):
        assert np.isnat(numpys_duration_of(cell, seconds))
    years = np.array([5], dtype="timedelta64[Y]")  # like a column in years
    assert numpys_duration_of(years[0], seconds) == years.astype(seconds)[0]


def test_contained():
    with contained:
        raise SystemExit
    with pytest.raises(KeyboardInterrupt), contained:
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore")  # records are read in silence
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_raises(name):
    cell = HOSTILE[name]
    plain(cell)
    number_of(cell)
    whole_of(cell)
    numpys_time_of(cell)
    numpys_duration_of(cell, np.dtype("timedelta64[s]"))
