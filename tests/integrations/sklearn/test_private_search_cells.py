"""One odd cell of a file changes only its own record's loss in a whole search."""

import io
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from botorch_dp import PureDP
from botorch_dp.integrations.sklearn import PrivateSearch, Real
from botorch_dp.integrations.sklearn.evaluation import Evaluation

PAGE = Path(__file__).parents[3] / "docs" / "private_search.md"
TRAIN, N, RNG = 500, 400, np.random.default_rng(0)
TRUTH = RNG.random(TRAIN + N) < 0.5
ILL = np.where(RNG.random(TRAIN + N) < 0.9, TRUTH, ~TRUTH)
DATES = pd.Timestamp("2020-01-01") + pd.to_timedelta(1 + 365 * TRUTH, unit="D")


def patients(rows, odd=None, column=None):
    """A file, read as most people do."""
    cells = pd.DataFrame(
        {
            "smokes": TRUTH[rows].astype(str),
            "code": np.where(TRUTH, "01", "2")[rows],
            "admitted": DATES[rows].strftime("%m/%d/%Y"),
            "ill": ILL[rows].astype(str),
        }
    ).astype(object)
    if column is not None:
        cells.loc[0, column] = odd
    file = io.StringIO(cells.to_csv(index=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about dates that pandas cannot read
        return pd.read_csv(file, parse_dates=["admitted"])


def year_of(X):
    """An input for each date, each by itself."""
    return X.apply(lambda dates: dates.dt.year).to_numpy(dtype=float)


@pytest.mark.default_device
class TestOneCell:
    """Of a whole search: the mean loss moves by a record's share and no more."""

    @pytest.fixture
    def seen(self, monkeypatch):
        found, losses = [], Evaluation.losses

        def spy(evaluation, candidates):
            found.append(losses(evaluation, candidates))
            return found[-1]

        monkeypatch.setattr(Evaluation, "losses", spy)
        return found

    def search(self, model, train, private):
        return PrivateSearch(
            model,
            {"logisticregression__C": Real(0.1, 10.0, log=True)},
            PureDP(1.0),
            method="stable",
            scoring="accuracy",
            num_candidates=2,
            random_state=0,
        ).fit(train[0], train[1], X_val=private[0], y_val=private[1])

    def moved(self, seen):
        ours, theirs = (losses[:, 0].numpy() for losses in seen)
        assert np.array_equal(ours[1:], theirs[1:])
        assert ours.mean() < 0.2  # records are read at all
        return abs(ours.mean() - theirs.mean())

    @pytest.mark.parametrize("odd", ["unknown", "", "7", "2020-01-01"])
    @pytest.mark.parametrize("column", ["smokes", "code", "admitted", "ill"])
    def test_of_a_file(self, column, odd, seen):
        name = "smokes" if column == "ill" else column
        encoder = OneHotEncoder(handle_unknown="ignore")
        model = make_pipeline(encoder, LogisticRegression())
        if name == "admitted":
            model = make_pipeline(FunctionTransformer(year_of), *model)
        train = patients(slice(TRAIN))
        if name == "code":
            train = train.assign(code=np.where(TRUTH, "01", "2")[:TRAIN])
        for cell in (None, odd):
            private = patients(
                slice(TRAIN, None), cell, None if cell is None else column
            )
            self.search(
                model,
                (train[[name]], train["ill"]),
                (private[[name]], private["ill"]),
            )
        assert self.moved(seen) <= 1 / N + 1e-12

    @pytest.mark.parametrize("odd", [np.timedelta64(5, "s"), "x", 2**70, 1j, None])
    @pytest.mark.parametrize("training", [int, bool, float])
    def test_of_an_array(self, training, odd, seen):
        X = TRUTH.astype(training)[:, None]
        cells = X[TRAIN:, 0].tolist()
        model = make_pipeline(
            OneHotEncoder(handle_unknown="ignore"), LogisticRegression()
        )
        for first in (cells[0], odd):
            private = np.array([[cell] for cell in (first, *cells[1:])])
            self.search(model, (X[:TRAIN], ILL[:TRAIN]), (private, ILL[TRAIN:]))
        assert self.moved(seen) <= 1 / N + 1e-12

    @pytest.mark.parametrize("column", ["ward", "age", "ill"])
    def test_of_the_file_in_the_documentation(self, column, seen):
        """Types of training columns do not depend on a private cell."""
        blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
        (code,) = [block for block in blocks if "read_csv" in block]
        limit = "max_evaluations=10"
        assert limit in code
        code = code.replace(limit, f"{limit}, random_state=0")
        write, schemas, firsts = "patients[:1_000].to_csv(", [], []
        assert write in code
        for odd in (None, "unknown", 'an open "quote'):
            change = f"patients[{column!r}] = patients[{column!r}].astype(object)\n"
            change += f"patients.loc[2_000, {column!r}] = {odd!r}\n"
            names, place = {}, len(seen)
            exec(code.replace(write, change + write), names)
            schemas.append(names["data"].schema)
            firsts.append(seen[place])  # later points depend on releases
        others = np.delete(np.arange(3_000), 1_000)
        assert firsts[0].shape[0] == 3_000
        for schema, losses in zip(schemas, firsts, strict=True):
            assert schema == schemas[0]
            assert (losses[others] == firsts[0][others]).all()
