"""A private cell is read by the type of its column alone, in any container."""

import contextlib
import datetime
import decimal
import io
import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Schema
from botorch_dp.integrations.sklearn.records import read_alike
from botorch_dp.integrations.sklearn.schema import read_inputs, schema_for, typed

UTC = datetime.UTC
DAY, MOMENT = datetime.date(2020, 4, 3), datetime.datetime(2020, 4, 3, 12, 30)
SECOND = datetime.timedelta(seconds=1)
# For each type: training cells, and private cells that have the type.
TYPES = {
    "float": ([1.5, None, 3.0], [2.5, -1e-7, 1e300]),
    "int": ([1, 2, 3], [5, -7, 2**40]),
    "bool": ([True, False, True], [False, True, True]),
    "text": (["a", "01", "b"], ["b", "c", "a"]),
    "date": ([DAY, None, DAY], [DAY, DAY, DAY.replace(year=1850)]),
    "date:%d/%m/%Y": (["01/02/2020", "31/12/2020", None], ["03/04/2020"] * 3),
    "duration": ([SECOND, 5 * SECOND, None], [SECOND, 86_400 * SECOND, -SECOND]),
    ("a", "b"): (["a", "b", "a"], ["b", "a", "b"]),
    (1, 2): ([1, 2, 1], [2, 1, 2]),
}
ODD = {
    "word": "unknown",
    "nothing": None,
    "empty": "",
    "zeros": "007",
    "number": 7,
    "fraction": 0.5,
    "nan": math.nan,
    "huge": 2**62,
    "truth": True,
    "decimal": decimal.Decimal("1.25"),
    "day": DAY,
    "moment": MOMENT,
    "moment with a zone": MOMENT.replace(tzinfo=UTC),
    "duration": SECOND,
    "list": [1, 2],
    "bytes": b"\xff",
    "surrogate": "\ud800",
}


def objects(cells):
    array = np.empty(len(cells), dtype=object)
    for place, cell in enumerate(cells):
        array[place] = cell
    return array


def containers(cells):
    """The same column in each container that can hold it."""
    makers = {
        "pandas": lambda: pd.DataFrame({"a": cells}),
        "pandas, objects": lambda: pd.DataFrame({"a": objects(cells)}, dtype=object),
        "pandas, inferred": lambda: pd.DataFrame({"a": objects(cells)}).infer_objects(),
        "pandas, nullable": lambda: pd.DataFrame({"a": cells}).convert_dtypes(),
        "polars": lambda: pl.DataFrame({"a": cells}),
        "polars, objects": lambda: pl.DataFrame(
            {"a": pl.Series(cells, dtype=pl.Object)}
        ),
        "arrow": lambda: pa.table({"a": cells}),
        "arrow batch": lambda: pa.RecordBatch.from_pydict({"a": cells}),
    }
    found = {}
    for name, make in makers.items():
        # A container that refuses mixed cells does so in the hands of its user.
        with contextlib.suppress(Exception):
            found[name] = make()
    return found


def was_time(table):
    """Whether Arrow made times of whole numbers, as the documentation says."""
    kind = table.schema.field("a").type
    return pa.types.is_temporal(kind) and not pa.types.is_duration(kind)


def read(kind, private, training=None):
    training = TYPES[kind][0] if training is None else training
    schema = Schema({"a": kind})
    like = typed(pd.DataFrame({"a": objects(training)}), schema)
    records = read_alike(private, None, training=(like, None), schema=schema)
    return records.X["a"], records.unreadable


def same(ours, theirs):
    """Whether two columns have the same type and the same bits."""
    if ours.dtype != theirs.dtype:
        return False
    if isinstance(ours.dtype, pd.CategoricalDtype):
        ours, theirs = ours.cat.codes, theirs.cat.codes
    if isinstance(ours.dtype, np.dtype) and ours.dtype != object:
        return ours.to_numpy().tobytes() == theirs.to_numpy().tobytes()
    return ours.equals(theirs)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", TYPES, ids=str)
class TestOddCells:
    """An odd cell spoils its own record and nothing else."""

    @pytest.mark.parametrize("odd", ODD)
    def test_in_every_container(self, kind, odd):
        cells = TYPES[kind][1]
        expected, _ = read(kind, pd.DataFrame({"a": objects(cells)}, dtype=object))
        assert not expected.isna().any()
        for place in (0, len(cells)):
            mixed = [*cells[:place], ODD[odd], *cells[place:]]
            tables = containers(mixed)
            assert "pandas, objects" in tables
            for name, private in tables.items():
                is_whole = kind in ("int", (1, 2))
                if is_whole and name.startswith("arrow") and was_time(private):
                    continue
                found, bad = read(kind, private)
                others = found.drop(place).reset_index(drop=True)
                assert same(others, expected), name
                assert not np.delete(bad, place).any(), name

    def test_containers_do_not_matter(self, kind):
        cells = TYPES[kind][1]
        expected, bad = read(kind, pd.DataFrame({"a": objects(cells)}, dtype=object))
        assert not bad.any()
        assert len(containers(cells)) >= 7
        for name, private in containers(cells).items():
            found, bad = read(kind, private)
            assert same(found, expected), name
            assert not bad.any(), name

    def test_reading_again_changes_nothing(self, kind):
        training = TYPES[kind][0]
        schema = Schema({"a": kind})
        once = typed(pd.DataFrame({"a": objects(training)}), schema)
        assert same(typed(once, schema)["a"], once["a"])
        assert same(read_inputs(once, schema, once)[0]["a"], once["a"])


CELLS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=4)
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
    | st.decimals()
    | st.lists(st.integers(), max_size=2)
)


@given(
    st.sampled_from(list(TYPES)),
    st.lists(CELLS, min_size=1, max_size=4),
    CELLS,
)
def test_any_cells(kind, cells, odd):
    """Other cells of the same column are read as they are without the odd one."""
    alone, bad = read(kind, pl.DataFrame({"a": pl.Series(cells, dtype=pl.Object)}))
    mixed = objects([odd, *cells])
    both, worse = read(kind, pd.DataFrame({"a": mixed}, dtype=object))
    assert same(both[1:].reset_index(drop=True), alone)
    assert np.array_equal(worse[1:], bad)


@given(
    st.lists(st.sampled_from(["01", "1", "1.0", "x", "2"]), min_size=1, max_size=4),
    st.sampled_from(["x", "1", ""]),
)
def test_words_that_a_reader_of_files_takes_for_numbers(words, odd):
    """In frames that others read, a letter elsewhere must not part 01 and 1."""

    def found(cells):
        lines = "\n".join(["a,b", *(f"{cell},0" for cell in cells), ""])
        private = pd.read_csv(io.StringIO(lines))[["a"]]
        return read("text", private, training=["01", "1", "a"])[0]

    assert same(found([odd, *words])[1:].reset_index(drop=True), found(words))


class TestTypesOfLibraries:
    """Each type of polars and Arrow, with gaps."""

    @pytest.mark.parametrize(
        ("kind", "dtype", "cells", "expected"),
        [
            (("a", "b"), pl.Categorical, ["b", None, "z"], ["b", None, None]),
            (("a", "b"), pl.Enum(["a", "b"]), ["b", None], ["b", None]),
            ("date", pl.Date, [DAY, None], [pd.Timestamp(DAY), None]),
            ("date", pl.Datetime("ns"), [MOMENT, None], [MOMENT, None]),
            (
                "date",
                pl.Datetime("ms", "Europe/Paris"),
                [MOMENT.replace(tzinfo=UTC), None],
                [MOMENT, None],
            ),
            ("duration", pl.Duration("ms"), [SECOND, None], [SECOND, None]),
            ("float", pl.Decimal(10, 2), [decimal.Decimal("1.25")], [1.25]),
            ("float", pl.List(pl.Int64), [[1], None], [None, None]),
            ("float", pl.Boolean, [True, None], [1.0, None]),
            ("float", pl.Float32, [0.5, None], [0.5, None]),
            ("float", pl.Null, [None, None], [None, None]),
        ],
        ids=str,
    )
    def test_polars(self, kind, dtype, cells, expected):
        private = pl.DataFrame({"a": pl.Series(cells, dtype=dtype)})
        found, bad = read(kind, private)
        assert [None if pd.isna(v) else v for v in found] == expected
        assert not bad.any()

    @pytest.mark.parametrize(
        ("kind", "dtype", "cells", "expected"),
        [
            (
                ("a", "b"),
                pa.dictionary(pa.int8(), pa.string()),
                ["b", None],
                ["b", None],
            ),
            ("date", pa.date32(), [DAY, None], [pd.Timestamp(DAY), None]),
            ("date", pa.timestamp("ns"), [MOMENT, None], [MOMENT, None]),
            (
                "date",
                pa.timestamp("s", "Europe/Paris"),
                [MOMENT.replace(tzinfo=UTC), None],
                [MOMENT, None],
            ),
            ("duration", pa.duration("s"), [SECOND, None], [SECOND, None]),
            ("float", pa.decimal128(10, 2), [decimal.Decimal("1.25")], [1.25]),
            ("float", pa.bool_(), [True, None], [1.0, None]),
            ("float", pa.null(), [None, None], [None, None]),
            ("text", pa.large_string(), ["a", None], ["a", None]),
        ],
        ids=str,
    )
    def test_arrow(self, kind, dtype, cells, expected):
        found, bad = read(kind, pa.table({"a": pa.array(cells, type=dtype)}))
        assert [None if pd.isna(v) else v for v in found] == expected
        assert not bad.any()

    @pytest.mark.parametrize("kind", ["int", "bool"])
    def test_gaps_spoil_their_record(self, kind):
        cells = [None, *TYPES[kind][1]]
        for private in (pl.DataFrame({"a": cells}), pa.table({"a": cells})):
            assert read(kind, private)[1].tolist() == [True, False, False, False]

    @pytest.mark.parametrize("cell", [None, 3])
    def test_gaps_among_whole_numbers(self, cell):
        """They would turn the numbers of other records into floats."""
        private = pl.DataFrame({"a": [1, cell]})
        assert read((1, 2), private)[1].tolist() == [False, True]

    def test_whole_numbers_keep_their_digits_beside_a_gap(self):
        private = pl.DataFrame({"a": [2**53 + 1, None]})
        assert read("int", private)[0][0] == 2**53 + 1

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("package", ["polars", "arrow"])
    def test_dates_that_python_does_not_have(self, package):
        days = [5_000_000, 18_355]  # the year 15,659, and 2020
        private = (
            pl.DataFrame({"a": pl.Series(days, dtype=pl.Int32).cast(pl.Date)})
            if package == "polars"
            else pa.table({"a": pa.array(days, type=pa.int32()).cast(pa.date32())})
        )
        found, _ = read("date", private)
        assert found.isna().tolist() == [True, False]
        assert found[1] == pd.Timestamp("2020-04-03")


class TestDates:
    @pytest.mark.parametrize("kind", ["date", "date:%d/%m/%Y"])
    def test_nothing_is_guessed(self, kind):
        cells = ["03/04/2020", "2020-04-03"]
        found, _ = read(kind, pd.DataFrame({"a": cells}))
        assert found.isna().tolist() == [kind == "date", kind != "date"]
        assert found.dropna().tolist() == [pd.Timestamp("2020-04-03")]

    def test_zones(self):
        cells = ["2020-01-01T00:00:00+02:00", "2020-01-01 00:00"]
        found, _ = read("date", pd.DataFrame({"a": cells}))
        assert found[0] == pd.Timestamp("2019-12-31 22:00")
        assert found[1] == pd.Timestamp("2020-01-01")


class TestFromTraining:
    FRAME = pd.DataFrame(
        {
            "whole": [1, 2],
            "number": [1.5, None],
            "truth": [True, False],
            "word": ["01", None],
            "stage": pd.Categorical(["I", "II"]),
            "day": pd.to_datetime(["2020-01-01", None]),
            "length": pd.to_timedelta([1, 2], unit="s"),
        }
    )
    SCHEMA = Schema(
        {
            "whole": "int",
            "number": "float",
            "truth": "bool",
            "word": "text",
            "stage": ["I", "II"],
            "day": "date",
            "length": "duration",
        }
    )

    def test_containers(self):
        assert Schema.from_training(self.FRAME) == self.SCHEMA
        assert Schema.from_training(pl.from_pandas(self.FRAME)) == self.SCHEMA
        assert Schema.from_training(pa.Table.from_pandas(self.FRAME)) == self.SCHEMA

    @pytest.mark.parametrize(
        ("column", "kind"),
        [
            (pd.array([1, 2], dtype="Int64"), "float"),
            (pd.array([True, None], dtype="boolean"), "float"),
            (objects([True, None]), "float"),
            (objects([decimal.Decimal("1.5")]), "float"),
            (objects([None, None]), "float"),
            (pd.array(["a", None], dtype="string"), "text"),
            (pd.date_range("2020", periods=2, tz="UTC"), "date"),
            (pd.Categorical([2, 1]), (1, 2)),
        ],
    )
    def test_columns(self, column, kind):
        assert Schema.from_training(pd.DataFrame({"a": column}))["a"] == kind

    def test_enums_keep_all_their_categories(self):
        dtype = pl.Enum(["I", "II", "III"])
        X = pl.DataFrame({"a": pl.Series(["II"], dtype=dtype)})
        assert Schema.from_training(X)["a"] == ("I", "II", "III")

    def test_given_types_come_first(self):
        X = pd.DataFrame({"a": ["1"], "b": [1], "odd": objects([{}])})
        found = Schema.from_training(X, {"b": "text", "odd": "text"})
        assert found == Schema({"a": "text", "b": "text", "odd": "text"})

    def test_columns_that_have_no_type(self):
        X = pd.DataFrame({"a": objects([1, "x"])})
        with pytest.raises(
            InvalidArgumentError, match=r"column 'a'.*schema=\{'a': 'te"
        ):
            Schema.from_training(X)

    def test_arrays(self):
        with pytest.raises(InvalidArgumentError, match="X must have named columns"):
            Schema.from_training(np.ones((2, 2)))

    def test_names_that_occur_twice(self):
        X = pd.DataFrame(np.ones((2, 2)), columns=["a", "a"])
        with pytest.raises(InvalidArgumentError, match="different names"):
            Schema.from_training(X)


class TestTyped:
    @pytest.mark.parametrize(
        ("kind", "cell"),
        [
            ("float", "x"),
            ("int", 1.5),
            ("int", None),
            ("bool", "yes"),
            ("date", "03/04/2020"),
            ("date:%d/%m/%Y", "2020-04-03"),
            ("duration", "x"),
            (("a", "b"), "c"),
            ((1, 2), None),
        ],
        ids=str,
    )
    def test_cells_that_do_not_fit(self, kind, cell):
        X = pd.DataFrame({"a": objects([TYPES[kind][0][0], cell])})
        with pytest.raises(
            InvalidArgumentError, match=r"column 'a', got .* in row 1\. Change the cell"
        ):
            typed(X, Schema({"a": kind}))

    def test_test_data_may_have_new_categories(self):
        schema = Schema({"a": ["a", "b"]})
        X = pd.DataFrame({"a": ["c", "a"]}, index=[7, 8])
        found = typed(X, schema, is_training=False)
        assert found["a"].isna().tolist() == [True, False]
        assert found.index.tolist() == [7, 8]

    def test_words_stay_apart(self):
        found = typed(pl.DataFrame({"a": ["01", "1"]}), Schema({"a": "text"}))
        assert found["a"].tolist() == ["01", "1"]


class TestSchemaFor:
    def test_none_for_what_has_types_of_its_own(self):
        X = pd.DataFrame({"a": [1.0]})
        assert schema_for(None, X, X.copy()) is None
        assert schema_for(None, np.ones((2, 1)), np.ones((2, 1))) is None

    def test_of_training_data_alone(self):
        X, X_val = pd.DataFrame({"a": [1, 2]}), pl.DataFrame({"a": ["x", None]})
        assert schema_for(None, X, X_val) == Schema({"a": "int"})

    def test_training_data_without_names(self):
        with pytest.raises(InvalidArgumentError, match="X_val must have the type of X"):
            schema_for(None, np.ones((2, 1)), pl.DataFrame({"a": [1.0]}))


class TestSchema:
    SCHEMA = Schema({"age": "float", "stage": ["I", "II"], "seen": "date:%d/%m/%Y"})

    def test_json(self):
        text = self.SCHEMA.to_json()
        assert json.loads(text)["stage"] == ["I", "II"]
        assert Schema.from_json(text) == self.SCHEMA

    def test_printed(self):
        assert eval(repr(self.SCHEMA)) == self.SCHEMA
        assert hash(Schema(self.SCHEMA)) == hash(self.SCHEMA)

    def test_equality(self):
        assert Schema({"a": "int", "b": "int"}) != Schema({"b": "int", "a": "int"})
        assert Schema({"a": [1, 0]}) != Schema({"a": [True, False]})
        assert self.SCHEMA != 1

    @pytest.mark.parametrize(
        "kind",
        ["number", "date:", "date:d", "int:8", [], ["a", "a"], [None], [math.nan], 3],
        ids=str,
    )
    def test_refused(self, kind):
        with pytest.raises(
            InvalidArgumentError, match=r"schema\['a'\] must be 'float'"
        ):
            Schema({"a": kind})

    def test_not_a_mapping(self):
        with pytest.raises(
            InvalidArgumentError, match="schema must be a Schema or a d"
        ):
            Schema(["a"])
