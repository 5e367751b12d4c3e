"""Private records are read one by one: none decides how another is read."""

import contextlib
import datetime
import decimal
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from botorch_dp.integrations.sklearn.records import Records, copied, read_alike
from botorch_dp.integrations.sklearn.scoring import make_scoring
from tests.integrations.sklearn.hostile import HOSTILE as HOSTILE_CELLS

RNG = np.random.default_rng(0)
X = RNG.integers(-3, 4, size=(24, 3)).astype(float)
Y = (X[:, 0] + RNG.normal(size=24) > 0).astype(int)
HOSTILE = {
    "nan": np.nan,
    "inf": np.inf,
    "large": 1e308,
    "word": "x",
    "text of a number": "1.5",
    "none": None,
    "huge": -(2**70),
    "complex": 1j,
    "NA": pd.NA,
    "bytes": b"b",
    "list": [1, 2],
    "bool": True,
    "date": datetime.datetime(2020, 1, 1),
    "decimal": decimal.Decimal("1.5"),
    "signalling": decimal.Decimal("sNaN"),
    "ragged": [[1, 2], [3]],
    "a scalar array": np.array(3.0),
    "a table": np.ones((3, 2)),
}


def objects(*values):
    """A column of just these cells."""
    cells = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        cells[index] = value
    return pd.Series(cells, dtype=object)


DAYS = pd.to_datetime(["2020-01-01", "2020-01-02"])
# Training data, and private cells of the same column.
COLUMNS = {
    "numbers": (pd.Series([1.5, 2.0]), [2.5, "1", None]),
    "whole numbers": (pd.Series([1, 2]), [2, "1", True]),
    "nullable": (pd.Series([1, None], dtype="Int64"), [2, None]),
    "words": (pd.Series(["a", "b"]), ["a", None, 1]),
    "words, nullable": (pd.Series(["a", None], dtype="string"), ["a", None]),
    "objects": (objects(True, None), [None, True, "x"]),
    "mixed": (objects(1, "a"), ["a", "b", None]),
    "bytes": (objects(b"a", b"b"), ["a", b"b"]),
    "days": (
        pd.Series(DAYS),
        ["2020-01-01", DAYS[1], datetime.date(2020, 1, 1), 5, True],
    ),
    "days with zones": (pd.Series(DAYS).dt.tz_localize("UTC"), ["2020-01-01"]),
    "categories": (pd.Series(pd.Categorical(["a", "b"])), ["b", None, "c"]),
    "truths": (pd.Series(pd.Categorical([True, False])), [True, "True", None]),
    "categories of days": (pd.Series(pd.Categorical(DAYS)), ["2020-01-01", DAYS[1]]),
    "intervals": (
        pd.Series(pd.Categorical(pd.cut([1.0, 2.0], [0.5, 1.5, 2.5]))),
        [1.0, pd.Interval(1.5, 2.5)],
    ),
}


def inputs(cell=None, value=None):
    """The inputs in many containers, one cell replaced."""
    cells = X.astype(object)
    if cell is not None:
        cells[cell] = value
    found = {
        "list": cells.tolist(),
        "objects": cells,
        "frame": pd.DataFrame(cells, columns=list("abc")).infer_objects(),
    }
    with contextlib.suppress(TypeError, ValueError):
        found["array"] = np.array(cells.tolist())  # with one type for all
        found["sparse"] = sparse.csr_matrix(cells.astype(float))
    return found


def targets(first=None):
    values = Y.tolist() if first is None else [first, *Y.tolist()[1:]]
    found = {"list": values, "tuple": tuple(values), "series": pd.Series(values)}
    with contextlib.suppress(ValueError):
        found["array"] = np.array(values)
    return found


MODELS = {
    "logistic": LogisticRegression(),
    "neighbours": KNeighborsClassifier(),
    "missing values": HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=3),
    "imputed": make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
    "encoded": make_pipeline(
        OneHotEncoder(handle_unknown="ignore"), LogisticRegression()
    ),
    "in place": make_pipeline(StandardScaler(copy=False), LogisticRegression()),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param].fit(X.copy(), Y)


def losses(model, private_X, private_y, name="accuracy"):
    scoring = make_scoring(name, None, estimator=model, prefers_log_loss=False)
    is_frame = hasattr(private_X, "columns")
    like = pd.DataFrame(X, columns=list("abc")) if is_frame else X
    return scoring.private_losses(
        model, read_alike(private_X, private_y, training=(like, Y))
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", HOSTILE)
class TestOneRecord:
    """Whatever it is, the losses of the others stay, and its own is in the range."""

    def test_inputs(self, model, value):
        harmless = inputs()
        for kind, private in inputs((0, 1), HOSTILE[value]).items():
            found, alone = (losses(model, x, Y) for x in (private, harmless[kind]))
            assert np.array_equal(found[1:], alone[1:]), kind
            assert 0.0 <= found[0] <= 1.0

    @pytest.mark.parametrize("name", ["accuracy", "neg_log_loss"])
    def test_targets(self, model, value, name):
        alone = losses(model, X, Y, name)
        for kind, private in targets(HOSTILE[value]).items():
            found = losses(model, X, private, name)
            assert np.array_equal(found[1:], alone[1:]), kind


def test_containers_do_not_matter(model):
    alone = losses(model, X, Y)
    dense = [private for kind, private in inputs().items() if kind != "sparse"]
    for private in dense:
        for private_y in targets().values():
            assert np.array_equal(losses(model, private, private_y), alone)


@pytest.mark.filterwarnings("error")
class TestColumnsOfFrames:
    @pytest.mark.parametrize("hostile", ["harmless", *HOSTILE])
    @pytest.mark.parametrize("name", COLUMNS)
    def test_cells_are_read_one_by_one(self, name, hostile):
        training, cells = COLUMNS[name]
        last = cells[0] if hostile == "harmless" else HOSTILE[hostile]
        like = pd.DataFrame({"c": training})
        for model_sees in (slice(None), slice(0, None, -1)):
            found = []
            for column in ([*cells, last], [*cells, cells[0]]):
                private = pd.DataFrame({"c": objects(*column)})
                records = read_alike(private, None, training=(like, None))
                order = np.arange(len(column))[model_sees]
                rows, _ = records.rows(order)
                read = dict(zip(order, rows["c"], strict=True))
                found.append(
                    [
                        (repr(read[i]), type(read[i]), bool(records.unreadable[i]))
                        for i in range(len(cells))
                        if i in read
                    ]
                )
            assert found[0] == found[1]

    def test_days_as_text_are_found_among_categories(self):
        training, cells = COLUMNS["categories of days"]
        read = read_alike(
            pd.DataFrame({"c": objects(*cells, "x")}),
            None,
            training=(pd.DataFrame({"c": training}), None),
        ).X["c"]
        assert read.cat.codes.tolist() == [0, 1, -1]
        assert read.dtype == training.dtype

    @pytest.mark.parametrize("unit", ["us", "ns"])
    @pytest.mark.parametrize(
        "training", [pd.Series(["2020-01-01 00:00:00", "b"]), objects(*DAYS)]
    )
    def test_types_of_private_columns_do_not_matter(self, training, unit):
        """A column of times, unless one cell is none."""
        days = pd.Series(DAYS).astype(f"datetime64[{unit}]")
        like, found = pd.DataFrame({"c": training}), []
        for column in (days, objects(DAYS[0], DAYS[1]), objects(DAYS[0], "unknown")):
            records = read_alike(
                pd.DataFrame({"c": column}), None, training=(like, None)
            )
            found.append((type(records.X["c"].iloc[0]), str(records.X["c"].iloc[0])))
        assert found[0] == found[1] == found[2]

    @pytest.mark.parametrize(
        "training",
        [
            pd.Series(DAYS).dt.tz_localize("UTC"),
            pd.Series(pd.period_range("2020-01-01", periods=2, freq="D")),
        ],
    )
    def test_types_of_pandas_stay(self, training):
        like = pd.DataFrame({"c": training})
        for column in (training, objects(training[0], "x"), objects(training[0], [1])):
            private = pd.DataFrame({"c": column})
            read = read_alike(private, None, training=(like, None)).rows(np.arange(2))
            assert read[0]["c"].dtype == training.dtype
            assert read[0]["c"].iloc[0] == training[0]

    def test_whole_numbers_among_categories(self):
        """None of them, as in a column of whole numbers, unless some are missing."""
        private = pd.DataFrame({"c": objects(1, None, 7)})
        for cells, expected in (
            ([1, 2], [False, True, True]),
            ([1, None], [False] * 3),
        ):
            like = pd.DataFrame({"c": pd.Categorical(cells, categories=[1, 2])})
            records = read_alike(private, None, training=(like, None))
            assert records.unreadable.tolist() == expected

    def test_rows_have_no_names(self):
        frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=["x", "y", "z"])
        frame = frame.set_flags(allows_duplicate_labels=False)
        records = read_alike(frame, None, training=(frame, None))
        rows, _ = records.rows(np.array([2, 2, 0]))
        assert rows["a"].tolist() == [3.0, 3.0, 1.0]
        assert rows.index.tolist() == [0, 1, 2]
        assert frame.index.tolist() == ["x", "y", "z"]


@pytest.mark.parametrize(
    "row", [np.ones((3, 2)), np.array(3.0), np.ones(2), "abc", None, {}, 7]
)
def test_rows_of_any_kind(row):
    like = X[:4].tolist()
    records = read_alike([row, *like], None, training=(like, None))
    assert records.unreadable.tolist() == [True, False, False, False, False]
    assert records.X[1:].tolist() == like
    several = np.array([[1, 2, 3], [4, 5, 6]])
    values = read_alike([[0]] * 2, [row, [4, 5, 6]], training=([[0]] * 2, several))
    assert values.unreadable.tolist() == [True, False]


def test_sparse_cells_that_cannot_be_read():
    like = sparse.csr_matrix(np.array([[1, 0], [0, 2]]))
    private = sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 3.0], [0.5, 0.0]]))
    records = read_alike(private, None, training=(like, None))
    assert records.unreadable.tolist() == [False, False, True]


class Loud:
    """A number that complains."""

    def __float__(self):
        warnings.warn("a private record", stacklevel=2)
        return 1.0


def test_reading_says_nothing():
    """Numbers that overflow, or complain, whatever the caller has set."""
    like = np.array([[1.0], [2.0]], dtype=np.float16)
    private = [[1e308], [Loud()], [3.0]]
    with np.errstate(all="raise"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_alike(np.array([[1e308], [3.0]]), None, training=(like, None))
        records = read_alike(private, None, training=(like.tolist(), None))
    assert caught == []
    assert records.X[1:].tolist() == [[1.0], [3.0]]


class TestRead:
    def test_as_numbers(self):
        for like in (X + 0.5, (X + 0.5).tolist()):
            records = read_alike([["1", "?", 2]], ["0"], training=(like, Y))
            assert np.array_equal(records.X, [[1.0, np.nan, 2.0]], equal_nan=True)
            assert not records.unreadable.any()
            assert records.y.tolist() == [0]

    @pytest.mark.parametrize("dtype", [int, np.uint8, bool])
    def test_whole_numbers_stay_whole(self, dtype):
        like = np.ones((2, 3), dtype=dtype)
        rows = [["1", 0.0, True], [1, 0, 0.5], [1, 0, None], [0, 1, 2**70], [1, 1, 1]]
        for given in (rows, np.array(rows, dtype=object)):
            records = read_alike(given, Y[:5], training=(like, Y[:2]))
            assert records.unreadable.tolist() == [False, True, True, True, False]
            assert records.X.dtype == dtype
            assert records.X[0].tolist() == [1, 0, 1]
            assert records.readable.tolist() == [True, False, False, False, True]

    def test_large_labels_stay_apart(self):
        labels = np.array([10**17, 10**17 + 1])
        records = read_alike(X[:2], [10**17 + 1, 0.5], training=(X[:2], labels))
        assert records.y[0] == 10**17 + 1
        assert records.unreadable.tolist() == [False, True]

    def test_precision_of_the_training_records(self):
        small = X.astype(np.float32)
        assert read_alike(X, Y, training=(small, Y)).X.dtype == np.float32
        assert read_alike(small, Y, training=(X, Y)).X.dtype == np.float64

    def test_rows_of_another_length_cannot_be_read(self):
        records = read_alike([[1, 2, 3], [1, 2], 7], Y[:3], training=(X, Y))
        assert records.unreadable.tolist() == [False, True, True]
        assert records.X[0].tolist() == [1, 2, 3]

    def test_words(self):
        words = np.array(["no", "yes"])
        for given in (
            ["yes", 1, None],
            np.array(["yes", 1, None], dtype=object),
            pd.Series(["yes", 1.0, np.nan], dtype=object),
        ):
            records = read_alike(X[:3], given, training=(X[:2], words))
            assert records.y.tolist()[:2] == ["yes", "1"]
            assert records.unreadable.tolist() == [False, False, True]

    def test_complex_numbers_for_words(self):
        """One of them makes an array of such of all."""
        like = np.array([["1"], ["2"]], dtype=object)
        plain = read_alike(np.array([[1], [2]]), None, training=(like, None)).X
        other = read_alike(np.array([[1], [2j]]), None, training=(like, None)).X
        assert plain[0, 0] == other[0, 0] == "1"

    def test_numbers_for_words(self):
        """A column that is whole numbers, unless somebody has a letter."""
        like = pd.DataFrame({"code": ["1", "2", "A"]})
        labels = np.array(["0", "1", "0"])
        for values in ([1, 2, 3], [1.0, 2.0, 3.0], ["1", "2", "3"], ["1", 2, 3.0]):
            frame = pd.DataFrame({"code": values})
            records = read_alike(frame, pd.Series(values), training=(like, labels))
            assert records.X["code"].tolist() == ["1", "2", "3"]
            assert records.X["code"].dtype == like["code"].dtype
            assert records.y.tolist() == ["1", "2", "3"]

    def test_several_targets(self):
        both = np.stack([Y, 1 - Y], axis=1)
        frame = pd.DataFrame(both).astype(object)
        frame.iloc[0, 0] = "unknown"
        for given in (frame, frame.to_numpy(), frame.to_numpy().tolist()):
            records = read_alike(X, given, training=(X, both))
            assert records.unreadable.tolist() == [True] + [False] * 23
            assert np.array_equal(records.y[1:], both[1:])

    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
    @pytest.mark.parametrize("wanted", [int, np.int8, bool, float, np.float32])
    @pytest.mark.parametrize("given", [int, np.uint8, bool, float, np.float32])
    def test_numeric_targets_as_if_each_were_an_object(self, wanted, given):
        y_val = np.array([0.0, 1.0, 2.5, 300.0, -1.0, np.nan, np.inf]).astype(given)
        like = np.array([0, 1, 1]).astype(wanted)
        found, expected = (
            read_alike(np.zeros((7, 1)), y, training=(np.zeros((3, 1)), like))
            for y in (y_val, y_val.astype(object))
        )
        assert found.unreadable.tolist() == expected.unreadable.tolist()
        read = found.readable
        assert found.y.dtype == expected.y.dtype == like.dtype
        np.testing.assert_array_equal(found.y[read], expected.y[read])

    @pytest.mark.parametrize("table", [np.asarray, np.asfortranarray, pd.DataFrame])
    def test_stand_ins_keep_their_places(self, table):
        records = read_alike(
            table(np.arange(4.0).reshape(-1, 1)),
            np.zeros(4),
            training=(table(np.array([[7.0], [8.0]])), np.ones(2)),
        )
        for index in ([0, 1, 4, 5], [0, 5, 1, 4], [4, 5, 4], [3, 2]):
            inputs, targets = records.rows(np.array(index))
            expected = np.array([0.0, 1.0, 2.0, 3.0, 7.0, 8.0])[index]
            assert np.ravel(inputs).tolist() == expected.tolist()
            assert targets.tolist() == (np.array(index) > 3).tolist()
            assert not np.shares_memory(inputs, records.X)

    def test_targets_in_rows_of_one(self):
        for given in ([[v] for v in Y], Y[:, None], pd.DataFrame(Y)):
            for like in (Y, Y[:, None]):
                records = read_alike(X, given, training=(X, like))
                assert np.array_equal(np.ravel(records.y), Y)
                assert not records.unreadable.any()

    def test_columns_by_their_own_types(self):
        like = pd.DataFrame(
            {
                "whole": [1, 2],
                "number": [1.5, 2.0],
                "word": ["a", "b"],
                "kind": pd.Categorical(["u", "v"]),
                "code": pd.Categorical([1, 2]),
                "day": pd.to_datetime(["2020-01-01", "2020-01-02"]),
            }
        )
        cells = {
            "whole": ["3", "x"],
            "number": ["3", "x"],
            "word": ["c", 5],
            "kind": ["v", "other"],
            "code": ["2", 7],
            "day": [pd.Timestamp("2021-05-06"), "never"],
        }
        private = pd.DataFrame(cells, index=["p", "q"])
        records = read_alike(private, None, training=(like, None))
        read = records.X
        assert records.unreadable.tolist() == [False, True]
        assert read["whole"].iloc[0] == 3
        assert read["whole"].dtype == like["whole"].dtype
        assert read["number"].isna().tolist() == [False, True]
        assert read["word"].tolist() == ["c", "5"]
        for name in ("kind", "code"):
            assert read[name].dtype == like[name].dtype
            assert read[name].isna().tolist() == [False, True]
        assert read["day"].dt.year.tolist()[0] == 2021
        assert read["day"].isna().tolist() == [False, True]
        assert private["number"].tolist() == ["3", "x"]  # the caller's are as they were

    def test_documents(self):
        documents = ["some text", "more", "text"]
        for given in (documents, pd.Series(documents), np.array(documents, object)):
            records = read_alike(given, None, training=(documents, None))
            assert list(records.X) == documents
            assert type(records.X) is type(given)

    def test_tables_of_several_types(self):
        like = np.array([["a", 1.5], ["b", 2.0]], dtype=object)
        rows = [["c", "3"], [4, None]]
        for given in (rows, np.array(rows, dtype=object)):
            read = read_alike(given, None, training=(like, None)).X
            assert read[:, 0].tolist() == ["c", "4"]
            assert read[0, 1] == 3.0
            assert np.isnan(read[1, 1])

    def test_what_is_no_table_stays(self):
        dicts = [{"a": 1}, {"b": 2}]
        assert dicts == read_alike(dicts, None, training=(dicts, None)).X
        images = np.ones((2, 3, 3))
        read = read_alike(images, None, training=(images, None)).X
        assert np.array_equal(read, images)

    def test_named_fields(self):
        """One word makes text of a whole field."""
        like = np.array([(1, 2.0, True)], dtype=[("a", int), ("b", float), ("c", bool)])
        for odd in (3, "x"):
            columns = [np.array([first, odd]) for first in (1, 2.5, True)]
            private = np.rec.fromarrays(columns, names=["a", "b", "c"])
            records = read_alike(private, None, training=(like, None))
            assert records.X.dtype == like.dtype
            assert records.X[0].tolist() == (1, 2.5, True)
            assert records.unreadable.tolist() == [False, True]  # 3 is no truth

    @pytest.mark.parametrize("odd", [4.0, "x", None, [1]])
    def test_arrays_of_more_dimensions(self, odd):
        images = np.arange(18.0).reshape(2, 3, 3)
        private = images.tolist()
        private[1][0][0] = odd
        for like in (images, images.tolist()):
            records = read_alike(private, None, training=(like, None))
            assert np.array_equal(records.X[0], images[0])
            assert records.X.dtype == np.float64
            assert not records.unreadable[0]
            assert not records.unreadable[1]
            expected = 4.0 if odd == 4.0 else np.nan
            assert np.array_equal(records.X[1, 0, 0], expected, equal_nan=True)
            ragged = read_alike(
                [images[0], private[1][:2]], None, training=(like, None)
            )
            assert ragged.unreadable.tolist() == [False, True]

    @pytest.mark.parametrize("odd", [1.5, 4.0])
    def test_tensors(self, odd):
        """In which one fraction makes such of all whole numbers."""
        like = torch.tensor([[1, 2], [3, 4]], device="cpu")
        private = torch.tensor([[1, 2], [3, odd]], device="cpu")
        records = read_alike(private, None, training=(like, None))
        assert records.X.dtype == np.int64
        assert records.X[0].tolist() == [1, 2]
        assert records.unreadable.tolist() == [False, odd == 1.5]

    def test_not_shown(self):
        assert "0." not in repr(Records(X, Y))


@pytest.mark.parametrize("kind", ["list", "objects", "frame", "array", "sparse"])
def test_rows_are_copies(kind):
    def first(rows):
        return rows.iloc[0] if kind == "frame" else rows[0]

    records = Records(inputs()[kind], [[1], [2]] * 12)
    before = str(first(records.rows(np.arange(1))[0]))
    rows, values = records.rows(np.arange(2))
    values[0][0] = 7
    if kind == "list":
        rows[0][0] = 7.0
    else:
        (rows.iloc if kind == "frame" else rows)[0, 0] = 7.0
    assert str(first(rows)) != before
    assert str(first(records.X)) == before
    assert records.y[0] == [1]


def test_copied():
    words = np.array([["a"], None], dtype=object)
    copied(words)[0].append("b")
    assert words[0] == ["a"]
    assert copied(None) is None
    for frame in (pd.DataFrame({"a": [["x"]]}), pd.Series([["x"]])):
        copied(frame).to_numpy().ravel()[0].append("y")
        assert frame.to_numpy().ravel()[0] == ["x"]


@pytest.mark.parametrize("width", [1, 2])
def test_a_row_that_raises_is_unreadable(width):
    """In a list of rows, and of blocks of rows."""
    row = HOSTILE_CELLS["row"]
    for training in (np.ones((3, width)), np.ones((3, 2, width))):
        private = [*training[:2].tolist(), row]
        records = read_alike(private, None, training=(training.tolist(), None))
        assert records.readable.tolist() == [True, True, False]
        targets = [0, [1], row]
        records = read_alike(
            training, targets, training=(training, np.array([0, 1, 1]))
        )
        assert records.readable.tolist() == [True, True, False]
