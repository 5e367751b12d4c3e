"""One odd cell of a private column does not change how other cells are read.

pandas and numpy choose one type for a whole column, and one odd cell decides which.
Every container below is built as users build it, with and without an odd cell: the
other cells must come out alike, and as the training column says.
"""

import datetime
import io
import warnings

import numpy as np
import pandas as pd
import pytest

from botorch_dp.integrations.sklearn.plain import is_missing
from botorch_dp.integrations.sklearn.records import Records, read_alike
from tests.integrations.sklearn.hostile import HOSTILE

DAYS = ["03/04/2020", "05/06/2020", "12/31/2020"]  # months first, as pandas has it
STAMPS = [pd.Timestamp(day) for day in DAYS]
SPANS = [np.timedelta64(span, "s") for span in (5, 7, 9)]
NUMBERS = [1.5, -2.0, 0.1]
WHOLE = [1, 2, 3]
TRUTHS = [True, False, True]
WORDS = ["north", "south", "west"]


def objects(cells):
    """A column of just these cells."""
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return pd.Series(array, dtype=object)


def categories(cells):
    return pd.Series(pd.Categorical(cells, categories=pd.unique(pd.Series(cells))))


# The training column, and private cells of the same kind: its own first cells.
COLUMNS = {
    "bool": (pd.Series(TRUTHS), TRUTHS),
    "int64": (pd.Series(WHOLE), WHOLE),
    "int8": (pd.Series(WHOLE, dtype="int8"), WHOLE),
    "uint16": (pd.Series(WHOLE, dtype="uint16"), WHOLE),
    "float64": (pd.Series(NUMBERS), NUMBERS),
    "float32": (pd.Series(NUMBERS, dtype="float32"), NUMBERS),
    "floats that are whole": (pd.Series([1.0, 2.0, 0.5]), [1, 2, 2]),
    "nullable Int64": (pd.Series([*WHOLE, None], dtype="Int64"), WHOLE),
    "nullable Float64": (pd.Series([*NUMBERS, None], dtype="Float64"), NUMBERS),
    "nullable boolean": (pd.Series([*TRUTHS, None], dtype="boolean"), TRUTHS),
    "str": (pd.Series(WORDS), WORDS),
    "nullable string": (pd.Series([*WORDS, None], dtype="string"), WORDS),
    "str of numbers": (pd.Series(["1", "2", "A"]), [1, 2, 2]),
    "str of padded numbers": (pd.Series(["01", "1.50", "A"]), ["01", "1.50", "01"]),
    "str of truths": (pd.Series(["True", "FALSE", "A"]), ["True", "FALSE", "True"]),
    "objects of truths": (objects([*TRUTHS, None]), TRUTHS),
    "objects of numbers": (objects([*NUMBERS, None]), NUMBERS),
    "objects of words": (objects([*WORDS, None]), WORDS),
    "objects of bytes": (objects([b"a", b"b", b"c"]), [b"a", b"b", b"c"]),
    "objects of all kinds": (objects([1, "a", True, None]), [1, "a", "b"]),
    "categories of words": (categories(WORDS), WORDS),
    "categories of whole numbers": (categories(WHOLE), WHOLE),
    "categories of numbers": (categories(NUMBERS), NUMBERS),
    "categories of truths": (categories(TRUTHS), TRUTHS),
    "categories of times": (categories(STAMPS), STAMPS),
    "categories of times with a zone": (
        categories([stamp.tz_localize("UTC") for stamp in STAMPS]),
        [stamp.tz_localize("UTC") for stamp in STAMPS],
    ),
    "categories of intervals": (
        pd.Series(pd.cut([1.0, 2.0, 3.0], [0.5, 1.5, 2.5, 3.5])),
        [1.0, 2.0, 3.0],
    ),
    "times": (pd.Series(STAMPS), STAMPS),
    "times in seconds": (pd.Series(STAMPS).astype("datetime64[s]"), STAMPS),
    "times with a zone": (
        pd.Series(STAMPS).dt.tz_localize("Europe/Berlin"),
        [stamp.tz_localize("Europe/Berlin") for stamp in STAMPS],
    ),
    "periods": (pd.Series(pd.PeriodIndex(STAMPS, freq="D")), STAMPS),
    "durations": (pd.Series(SPANS), SPANS),
}
ODD = {
    "word": "unknown",
    "empty": "",
    "nan": np.nan,
    "none": None,
    "NA": pd.NA,
    "NaT": pd.NaT,
    "truth": True,
    "whole": 7,
    "number": 2.5,
    "negative zero": -0.0,
    "huge": 2**70,
    "beyond 63 bits": 2**63,
    "infinite": np.inf,
    "complex": 1j,
    "text of a number": "1.5",
    "text of a truth": "TRUE",
    "text of a day": "2020-01-01",
    "day": datetime.date(2020, 1, 1),
    "time": datetime.datetime(2020, 1, 1),
    "stamp": pd.Timestamp("2020-01-01"),
    "stamp with a zone": pd.Timestamp("2020-01-01", tz="Asia/Tokyo"),
    "numpy's time": np.datetime64("2020-01-01T00:00:00.5"),
    "numpy's duration": np.timedelta64(5, "s"),
    "duration": pd.Timedelta(5, "s"),
    "bytes": b"x",
    "list": [1, 2],
}


def frame(cells):
    return pd.DataFrame({"c": cells})


def frame_of_array(cells):
    return pd.DataFrame(np.array([[cell] for cell in cells]), columns=["c"])


def from_csv(cells, **options):
    """A column as read_csv makes it, with days that are not ISO."""
    texts = ["" if is_missing(cell) else str(cell) for cell in cells]
    for index, cell in enumerate(cells):
        if isinstance(cell, pd.Timestamp):
            texts[index] = cell.strftime("%m/%d/%Y")
    if isinstance(cells[0], datetime.datetime):
        options["parse_dates"] = ["c"]
    file = io.StringIO()
    pd.DataFrame({"id": range(len(texts)), "c": texts}).to_csv(file, index=False)
    file.seek(0)
    return pd.read_csv(file, **options)[["c"]]


def nullable_csv(cells):
    return from_csv(cells, dtype_backend="numpy_nullable")


def categorical_csv(cells):
    return from_csv(cells).astype("category")


def text_csv(cells):
    return from_csv(cells, dtype=str)


def array(cells):
    return np.array([[cell] for cell in cells])


def rows(cells):
    return [[cell] for cell in cells]


FRAMES = {
    "frame": frame,
    "frame of an array": frame_of_array,
    "csv": from_csv,
    "nullable csv": nullable_csv,
    "categorical csv": categorical_csv,
    "csv of text": text_csv,
}
ARRAYS = {"array": array, "rows": rows}


def told(records, count):
    """What a model sees of the first records: values, types, and whether it does."""
    X, _ = records.rows(np.arange(count))
    cells = X["c"] if hasattr(X, "columns") else np.asarray(X).reshape(count)
    kind = getattr(cells, "dtype", None)
    return kind, [
        (type(cell), repr(cell), bool(unreadable))
        for cell, unreadable in zip(list(cells), records.unreadable, strict=False)
    ]


def changed_by_one_cell(makers, cells, read):
    """Which odd cells, in which containers, change what is told of the others."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas warns users who build such columns
        for kind, make in makers.items():
            try:
                ordinary = make([*cells, cells[0]])
            except (TypeError, ValueError):  # there is no such container
                continue
            alone = told(read(ordinary), len(cells))
            for odd, cell in ODD.items():
                try:
                    private = make([*cells, cell])
                except (TypeError, ValueError):
                    continue
                if told(read(private), len(cells)) != alone:
                    found.append((kind, odd))
    return found


@pytest.mark.parametrize("name", COLUMNS)
class TestOthersAreReadAlike:
    def test_in_frames(self, name):
        training, cells = COLUMNS[name]
        like = pd.DataFrame({"c": training})
        assert not changed_by_one_cell(
            FRAMES, cells, lambda X: read_alike(X, None, training=(like, None))
        )

    @pytest.mark.parametrize("kind", ["array", "list"])
    def test_in_arrays_and_lists(self, name, kind):
        training, cells = COLUMNS[name]
        like = training.to_numpy().reshape(-1, 1)
        if kind == "list":
            like = training.to_numpy(dtype=object).reshape(-1, 1).tolist()
        assert not changed_by_one_cell(
            ARRAYS, cells, lambda X: read_alike(X, None, training=(like, None))
        )

    def test_in_targets(self, name):
        training, cells = COLUMNS[name]
        like = np.zeros((len(training), 1))

        def read(y):
            records = read_alike(np.zeros((len(y), 1)), y, training=(like, training))
            return Records(records.y, None, records.unreadable)

        makers = {
            kind: lambda cells, make=make: make(cells)["c"]
            for kind, make in FRAMES.items()
            if kind in ("frame", "csv")
        }
        makers |= ARRAYS | {"vector": np.array, "plain list": list}
        assert not changed_by_one_cell(makers, cells, read)

    def test_as_they_were(self, name):
        """Cells of the training column, beside a word: the other direction."""
        training, _ = COLUMNS[name]
        there = training[training.notna()]
        like = pd.DataFrame({"c": training})
        read = read_alike(
            pd.DataFrame({"c": objects([*there, "unknown"])}),
            None,
            training=(like, None),
        )
        assert not read.unreadable[:-1].any()
        assert read.X["c"].tolist()[:-1] == there.tolist()


# What is in a file for each of the training cells.
TEXTS = {
    "bool": ["True", "FALSE", "true"],
    "int64": ["1", "02", "3.0"],
    "float64": ["1.50", "-2", ".1"],
    "nullable boolean": ["True", "FALSE", "true"],
    "objects of truths": ["True", "FALSE", "true"],
    "categories of truths": ["True", "FALSE", "true"],
    "categories of whole numbers": ["1", "02", "3.0"],
    "str of padded numbers": ["1", "1.5", "A"],
    "times": DAYS,
    "times in seconds": DAYS,
    "times with a zone": DAYS,
    "categories of times": DAYS,
    "periods": DAYS,
    "categories of intervals": ["1.0", "2", "3e0"],
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_read_as_the_training_column_says(name):
    training, _ = COLUMNS[name]
    like = pd.DataFrame({"c": training})
    private = text_csv([*TEXTS[name], "unknown"])
    read = read_alike(private, None, training=(like, None))
    assert not read.unreadable[:-1].any()
    for found, expected in zip(read.X["c"][:-1], training, strict=False):
        assert found == expected


class TestExactly:
    """Cells that are easy to read wrongly."""

    def test_zero_has_no_sign(self):
        """Whole numbers have no -0, and a column of them may become one of floats."""
        like = np.array([[1.5], [2.0]])
        for private in ([[-0.0]], np.array([[-0.0]]), np.array([["-0.0"]]), [["-0"]]):
            read = read_alike(private, None, training=(like, None)).X
            assert not np.signbit(read[0, 0])

    @pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
    @pytest.mark.parametrize("make", [int, float, str])
    def test_numbers_as_times(self, zone, make):
        """Digits of a year, a day or a second, as pandas reads the same text."""
        like = pd.DataFrame({"c": pd.Series(STAMPS).dt.tz_localize(zone)})
        days = {2020: "2020-01-01", 20201231: "2020-12-31", 5: None, 1577836800: None}
        private = pd.DataFrame({"c": objects([make(cell) for cell in days])})
        read = read_alike(private, None, training=(like, None)).X["c"]
        expected = [pd.Timestamp(day, tz=zone) for day in days.values() if day]
        assert read[:2].tolist() == expected
        assert read[2:].isna().all()

    def test_whole_numbers_keep_their_digits(self):
        like = np.array([[2**53], [2**53 + 1]])
        for private in ([[2**53 + 1]], [[str(2**53 + 1)]], np.array([[2**53 + 1]])):
            read = read_alike(private, None, training=(like, None)).X
            assert read[0, 0] == 2**53 + 1

    def test_a_gap_is_that_of_the_training_column(self):
        for gap in (None, np.nan, pd.NA):
            like = pd.DataFrame({"c": objects(["a", "b", gap])})
            private = pd.DataFrame({"c": objects(["a", None, np.nan, pd.NaT])})
            read = read_alike(private, None, training=(like, None)).X["c"]
            assert all(cell is gap for cell in read[1:])

    def test_the_same_number_is_the_same_word(self):
        """Of several training words, the first: read_csv makes 1 of either."""
        like = pd.DataFrame({"c": ["01", "1", "x"]})
        private = pd.DataFrame({"c": objects(["1", 1, 1.0, "01", True, "2.0", "y"])})
        read = read_alike(private, None, training=(like, None)).X["c"]
        assert read.tolist() == [*["01"] * 5, "2", "y"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cell", HOSTILE)
@pytest.mark.parametrize("name", COLUMNS)
def test_reading_never_raises(name, cell):
    training, cells = COLUMNS[name]
    like = pd.DataFrame({"c": training})
    column = np.empty(2, dtype=object)
    column[0], column[1] = cells[0], HOSTILE[cell]
    private = pd.DataFrame({"c": pd.Series(column, dtype=object)})
    found = [
        read_alike(part, part["c"], training=(like, training)).X["c"]
        for part in (private[:1], private)
    ]
    assert repr(found[0].iloc[0]) == repr(found[1].iloc[0])
