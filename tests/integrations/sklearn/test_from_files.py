"""Searches with a schema: files, polars frames and Arrow tables."""

import io

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from botorch_dp import GDP, Ledger, PureDP
from botorch_dp.exceptions import (
    InvalidArgumentError,
    OptimizerStateError,
    UnpaidReleaseWarning,
)
from botorch_dp.integrations.sklearn import PrivateSearch, Real, Schema, read_csv
from botorch_dp.integrations.sklearn.evaluation import Evaluation

RNG = np.random.default_rng(0)
TRUTH = RNG.random(300) < 0.5
FRAME = pd.DataFrame(
    {
        "code": np.where(TRUTH, "01", "1"),
        "age": RNG.normal(size=300).round(3),
        "ill": np.where(TRUTH, "yes", "no"),
    }
)
TRAIN, PRIVATE = FRAME[:100], FRAME[100:].reset_index(drop=True)
MODEL = make_pipeline(
    make_column_transformer(
        (SimpleImputer(), make_column_selector(dtype_include="number")),
        (
            OneHotEncoder(handle_unknown="ignore"),
            make_column_selector(dtype_exclude="number"),
        ),
    ),
    LogisticRegression(),
)
SETTINGS = {
    "estimator": MODEL,
    "space": {"logisticregression__C": Real(0.1, 10.0, log=True)},
    "guarantee": PureDP(1.0),
    "method": "stable",
    "scoring": "accuracy",
    "num_candidates": 2,
    "random_state": 0,
}
INPUTS = ["code", "age"]
CONTAINERS = {"polars": pl.from_pandas, "arrow": pa.Table.from_pandas}
pytestmark = pytest.mark.default_device


def file_of(frame, odd=None):
    text = frame.to_csv(index=False)
    if odd is not None:
        lines = text.split("\n")
        lines[1] = odd
        text = "\n".join(lines)
    return io.BytesIO(text.encode())


def read(odd=None):
    return read_csv(file_of(TRAIN), file_of(PRIVATE, odd), target="ill")


@pytest.fixture
def seen(monkeypatch):
    found, losses = [], Evaluation.losses

    def spy(evaluation, candidates):
        private = losses(evaluation, candidates)
        found.append(private.numpy().copy())
        return private

    monkeypatch.setattr(Evaluation, "losses", spy)
    return found


class TestFromCSV:
    def test_codes_stay_apart(self, seen):
        """01 and 1 tell the two classes apart, so a search that merges them fails."""
        search = PrivateSearch.from_csv(
            file_of(TRAIN), file_of(PRIVATE), target="ill", **SETTINGS
        )
        assert search.schema_ == Schema({"code": "text", "age": "float"})
        assert seen[0].mean() == 0.0

    @pytest.mark.parametrize("odd", ['"', "", "x,y,z", "1,2,3,4", "\0", "07,1e999,no"])
    def test_one_line(self, odd, seen):
        for line in (None, odd):
            PrivateSearch.from_csv(
                file_of(TRAIN), file_of(PRIVATE, line), target="ill", **SETTINGS
            )
        assert np.array_equal(seen[0][1:], seen[1][1:])

    def test_continued(self):
        data = read()
        ledger = Ledger(cap=PureDP(3.0))
        search = PrivateSearch(**SETTINGS, ledger=ledger)
        search.fit(**data.training, **data.private)
        search.resume(**data.private, guarantee=PureDP(1.0))
        score = search.private_score(**data.private, guarantee=PureDP(1.0))
        assert np.isfinite(score.score)
        assert len(ledger) == 3

    def test_another_schema(self):
        data = read()
        search = PrivateSearch(**SETTINGS, schema={"code": "int"})
        with pytest.raises(InvalidArgumentError, match="schema must agree with the"):
            search.fit(**data.training, **data.private)

    def test_scores_of_the_private_table_are_refused(self):
        data = read()
        search = PrivateSearch(**SETTINGS).fit(**data.training, **data.private)
        with (
            pytest.warns(UnpaidReleaseWarning),
            pytest.raises(InvalidArgumentError, match="X must be public"),
        ):
            search.score(data.X_val, data.y)


@pytest.mark.parametrize("kind", CONTAINERS)
class TestContainers:
    def tables(self, kind):
        make = CONTAINERS[kind]
        return make(TRAIN[INPUTS]), make(PRIVATE[INPUTS][["age", "code"]])

    def test_both(self, kind, seen):
        X, X_val = self.tables(kind)
        y, y_val = TRAIN["ill"], PRIVATE["ill"]
        search = PrivateSearch(**SETTINGS).fit(X, y, X_val=X_val, y_val=y_val)
        assert search.schema_ == Schema({"code": "text", "age": "float"})
        PrivateSearch(**SETTINGS, schema=search.schema_).fit(
            TRAIN[INPUTS], y, X_val=PRIVATE[INPUTS], y_val=y_val
        )
        assert np.array_equal(seen[0], seen[1])
        assert search.predict(X).tolist() == y.tolist()
        assert search.score(X, y) == 1.0

    def test_targets(self, kind, seen):
        X, X_val = self.tables(kind)
        y, y_val = (CONTAINERS[kind](part[["ill"]]) for part in (TRAIN, PRIVATE))
        y, y_val = (part["ill"] for part in (y, y_val))
        PrivateSearch(**SETTINGS).fit(X, y, X_val=X_val, y_val=y_val)
        PrivateSearch(**SETTINGS).fit(
            X, TRAIN["ill"], X_val=X_val, y_val=PRIVATE["ill"]
        )
        assert np.array_equal(seen[0], seen[1])

    def test_private_ones_alone(self, kind):
        _, X_val = self.tables(kind)
        search = PrivateSearch(**SETTINGS).fit(
            TRAIN[INPUTS], TRAIN["ill"], X_val=X_val, y_val=PRIVATE["ill"]
        )
        assert search.best_params_

    def test_other_columns(self, kind):
        X, X_val = self.tables(kind)
        X_val = CONTAINERS[kind](PRIVATE[["code", "ill"]])
        with pytest.raises(
            InvalidArgumentError,
            match=r"X_val must have the columns of X, \['code', 'age'\], in any order",
        ):
            PrivateSearch(**SETTINGS).fit(
                X, TRAIN["ill"], X_val=X_val, y_val=PRIVATE["ill"]
            )

    def test_same_records(self, kind):
        X, _ = self.tables(kind)
        with pytest.raises(InvalidArgumentError, match="that the models are not"):
            PrivateSearch(**SETTINGS).fit(X, TRAIN["ill"], X_val=X, y_val=TRAIN["ill"])


def test_the_schema_is_a_setting_of_a_checkpoint(tmp_path):
    settings = {
        **SETTINGS,
        "guarantee": GDP(1.0),
        "method": "dp-gibo",
        "num_candidates": None,
        "max_evaluations": 4,
        "checkpoint": tmp_path / "search.pt",
    }
    ours = read()
    theirs = read_csv(
        file_of(TRAIN),
        file_of(PRIVATE),
        target="ill",
        schema={"code": ["01", "1"]},
    )
    PrivateSearch(**settings).fit(**ours.training, **ours.private)
    with pytest.raises(OptimizerStateError, match="schema="):
        PrivateSearch(**settings).fit(**theirs.training, **theirs.private)
    PrivateSearch(**settings).fit(**ours.training, **ours.private)


def test_one_file_for_both(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age,ill\n1,no\n2,yes\n")
    (tmp_path / "link.csv").symlink_to(path)
    memory = io.StringIO("age,ill\n1,no\n")
    with path.open("rb") as opened:
        for one, other in (
            (path, str(path)),
            (path, tmp_path / "link.csv"),
            (opened, path),
            (memory, memory),
        ):
            with pytest.raises(InvalidArgumentError, match="private must be another"):
                PrivateSearch.from_csv(one, other, target="ill")
