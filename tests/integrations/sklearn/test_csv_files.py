"""A malformed line of a private file spoils its own record and raises nothing."""

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Schema, read_csv
from botorch_dp.integrations.sklearn.records import read_alike

HEADER = b"age,ward,seen,ill\n"
TRAIN = HEADER + b"41,01,2020-01-01,yes\n,1,2020-01-02,no\n30.5,x,,yes\n"
LINES = [b"52,1,2020-03-04,no", b'7,"a,b",,yes', b"NA,01,2021-01-01 10:00,no"]
MALFORMED = {
    "an open quote": b'1,"x,2020-01-01,yes',
    "text after a quote": b'1,"x"y,2020-01-01,yes',
    "too few fields": b"1,x,2020-01-01",
    "too many fields": b"1,x,2020-01-01,yes,no",
    "an empty line": b"",
    "another encoding": b"1,\xff,2020-01-01,yes",
    "NUL": b"1,x\0,2020-01-01,yes",
    "a carriage return": b"1,x\ry,2020-01-01,yes",
    "a long field": b"1," + b"x" * 200_000 + b",2020-01-01,yes",
    "the header": HEADER.strip(),
}


def data_of(lines, train=TRAIN, header=HEADER, **options):
    content = header + b"\n".join(lines) + b"\n"
    options = {"target": "ill", **options}
    return read_csv(io.BytesIO(train), io.BytesIO(content), **options)


def records_of(data):
    return read_alike(
        data.X_val, data.y_val, training=(data.X, data.y), schema=data.schema
    )


def rows(records, skip=None):
    """The readable content of all records but one."""
    frame = records.X.assign(y=records.y, bad=records.unreadable)
    frame = frame if skip is None else frame.drop(skip)
    return frame.reset_index(drop=True)


def assert_alone(odd, **options):
    expected = rows(records_of(data_of(LINES, **options)))
    assert not expected["bad"].any()
    for place in range(len(LINES) + 1):
        lines = [*LINES[:place], odd, *LINES[place:]]
        records = records_of(data_of(lines, **options))
        assert len(records) == len(LINES) + 1
        pd.testing.assert_frame_equal(rows(records, place), expected, check_exact=True)


@pytest.mark.filterwarnings("error")
class TestLines:
    @pytest.mark.parametrize("odd", MALFORMED)
    def test_malformed(self, odd, capfd):
        assert_alone(MALFORMED[odd])
        if odd != "the header":  # a record like any other
            assert records_of(data_of([*LINES, MALFORMED[odd]])).unreadable[-1]
        assert capfd.readouterr() == ("", "")

    def test_inputs_alone(self):
        data = data_of([*LINES, MALFORMED["too few fields"]])
        records = read_alike(
            data.X_val, None, training=(data.X, None), schema=data.schema
        )
        assert records.unreadable.tolist() == [False, False, False, True]

    @given(st.binary(max_size=30).filter(lambda line: b"\n" not in line))
    def test_any_bytes(self, odd):
        assert_alone(odd)

    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-8-sig", "shift_jis"])
    def test_encodings(self, encoding):
        assert_alone(b"1,\xff\x80,,yes", encoding=encoding)

    def test_line_breaks_of_other_systems(self):
        expected = rows(records_of(data_of(LINES)))
        ours = [line + b"\r" for line in LINES]
        found = records_of(data_of(ours, header=b"\xef\xbb\xbf" + HEADER))
        pd.testing.assert_frame_equal(rows(found), expected)

    def test_a_last_line_without_a_break(self):
        content = io.BytesIO(HEADER + b"\n".join(LINES))
        found = read_csv(io.BytesIO(TRAIN), content, target="ill")
        assert len(found.X_val) == len(LINES)


class TestCells:
    def test_read_by_their_types(self):
        records = records_of(data_of(LINES))
        assert records.X["age"].tolist()[:2] == [52.0, 7.0]
        assert np.isnan(records.X["age"][2])
        assert records.X["ward"].tolist() == ["1", "a,b", "01"]  # 01 is not 1
        assert records.X["seen"].tolist()[0] == pd.Timestamp("2020-03-04")
        assert records.y.tolist() == ["no", "yes", "no"]

    @pytest.mark.parametrize(
        ("kind", "texts"),
        [
            ("int", ["1", "-2", "30"]),
            ("float", ["1", "", "3"]),
            ("float", ["1", "2.5", "1e3"]),
            ("bool", ["True", "false", "TRUE"]),
            ("float", ["True", "NA", "False"]),
            ("text", ["01", "2", "3"]),
            ("text", ["1", "x", "3"]),
            ("date", ["2020-01-01", "", "2020-01-01T10:00"]),
            ("text", ["01/02/2020", "2020-01-01", ""]),
            ("float", ["", "", ""]),
        ],
    )
    def test_types_of_training_columns(self, kind, texts):
        lines = "".join(f"{text},{n}\n" for n, text in enumerate(texts))
        train = f"a,y\n{lines}".encode()
        data = data_of([b"x,0"], train, b"a,y\n", target="y")
        assert data.schema == Schema({"a": kind})

    def test_days_first(self):
        train = b"seen,ill\n31/12/2020,yes\n"
        data = data_of(
            [b"03/04/2020,no", b"2020-04-03,no"],
            train,
            b"seen,ill\n",
            schema={"seen": "date:%d/%m/%Y"},
        )
        found = records_of(data).X["seen"]
        assert found[0] == pd.Timestamp("2020-04-03")
        assert pd.isna(found[1])

    def test_whole_numbers_keep_their_digits(self):
        number = 2**53 + 1
        lines = [f"{number},no".encode(), b",no"]
        data = data_of(lines, b"id,ill\n1,no\n", b"id,ill\n")
        records = records_of(data)
        assert records.X["id"][0] == number
        assert records.unreadable.tolist() == [False, True]

    def test_labels_stay_apart(self):
        data = data_of(
            [b"1,01", b"1,1", b"1,"],
            b"a,y\n1,01\n2,1\n",
            b"a,y\n",
            target="y",
        )
        records = records_of(data)
        assert records.y.tolist()[:2] == ["01", "1"]
        assert records.unreadable.tolist() == [False, False, True]

    @pytest.mark.parametrize(("labels", "kind"), [(["no", "yes"], "O"), ([0, 1], "i")])
    def test_labels_among_categories(self, labels, kind):
        train = f"a,y\n1,{labels[0]}\n2,{labels[1]}\n".encode()
        data = data_of(
            [f"1,{labels[1]}".encode(), b"1,?"],
            train,
            b"a,y\n",
            target="y",
            schema={"y": labels},
        )
        records = records_of(data)
        assert (data.y.dtype.kind, records.y.dtype.kind) == (kind, kind)
        assert records.y[0] == labels[1]
        assert records.unreadable.tolist() == [False, True]

    def test_other_words_for_missing(self):
        data = data_of([b"-9,x,,yes"], missing=["", "-9"])
        assert records_of(data).X["age"].isna().all()


class TestColumns:
    def test_in_any_order(self):
        lines = [b"no,s,2020-03-04,1,52"]
        data = data_of(lines, header=b"ill,further,seen,ward,age\n")
        assert records_of(data).X.iloc[0].tolist()[:2] == [52.0, "1"]
        assert list(data.X) == data.X_val.columns == ["age", "ward", "seen"]

    def test_dropped(self):
        data = data_of(LINES, drop=["seen"])
        assert list(data.schema) == list(data.X) == ["age", "ward"]

    def test_people(self):
        lines = [b"a,1,no", b"a,2", b'"b', b"b,3,no", b""]
        data = data_of(lines, b"age,ill\n1,no\n2,yes\n", b"p,age,ill\n", person="p")
        assert data.groups.tolist() == ["a", "a", "", "b", ""]
        assert list(data.schema) == ["age"]
        assert set(data.private) == {"X_val", "y_val", "groups"}

    def test_people_in_the_training_file_are_not_inputs(self):
        data = data_of(LINES, person="ward")
        assert "ward" not in data.schema

    def test_arguments_of_fit(self):
        data = data_of(LINES)
        assert set(data.training) == {"X", "y"}
        assert set(data.private) == {"X_val", "y_val"}


class TestFiles:
    def test_kinds(self, tmp_path):
        path = tmp_path / "train.csv"
        path.write_bytes(TRAIN)
        text = TRAIN.decode()
        with path.open("rb") as binary, path.open() as decoded:
            for file in (str(path), path, binary, decoded, io.StringIO(text)):
                assert len(read_csv(path, file, target="ill").X_val) == 3

    def test_files_of_text_do_not_raise_at_a_bad_byte(self, tmp_path):
        path = tmp_path / "private.csv"
        path.write_bytes(TRAIN + MALFORMED["another encoding"])
        with path.open(encoding="utf-8") as decoded:
            data = read_csv(io.BytesIO(TRAIN), decoded, target="ill")
        assert records_of(data).unreadable.tolist() == [False, False, False, True]

    def test_text_that_cannot_be_encoded(self):
        file = io.StringIO(TRAIN.decode() + "1,\ud800,,yes\n1,\u20ac,,yes\n")
        data = read_csv(io.BytesIO(TRAIN), file, target="ill", encoding="latin-1")
        assert records_of(data).unreadable.tolist()[3:] == [True, False]

    def test_other_objects(self):
        with pytest.raises(InvalidArgumentError, match="private must be a path, a"):
            read_csv(io.BytesIO(TRAIN), iter([b"a"]), target="ill")

    def test_not_shown(self):
        data = data_of([b"12345,secret,,yes"])
        for shown in (repr(data), repr(data.X_val), str(vars(data)["y_val"])):
            assert "12345" not in shown
            assert "secret" not in shown


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"target": "sick"}, r"train must have the columns .* no \['sick'\]"),
            ({"schema": {"agee": "int"}}, r"train must have .* no \['agee'\]"),
            ({"drop": ["agee"]}, r"train must have .* no \['agee'\]"),
            ({"drop": ["age", "ward", "seen"]}, "train must have columns besides"),
            ({"person": "p"}, r"private must have the columns .* no \['p'\]"),
            ({"header": b"age,ward,ill\n"}, r"private must have .* no \['seen'\]"),
            ({"header": b"age,age,ill\n"}, "private must have the different names"),
            ({"train": b""}, "train must have at least one record"),
            ({"train": HEADER}, "train must have at least one record"),
            ({"train": TRAIN + b'1,"x'}, r"train must have 4 fields.*another line 5"),
            (
                {"schema": {"age": "int"}},
                r"train must have cells of the type 'int' in column 'age', got None in "
                "row 3",
            ),
            ({"delimiter": "::"}, "delimiter must be one character"),
            ({"encoding": "utf-16"}, "encoding must be one in which a line ends"),
            ({"encoding": "none"}, "encoding must be one in which a line ends"),
        ],
    )
    def test_public_mistakes(self, options, match):
        with pytest.raises(InvalidArgumentError, match=match):
            data_of(LINES, **options)
