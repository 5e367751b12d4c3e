"""Precision, recall and F1 of candidates: against scikit-learn, and their bounds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import f1, precision, recall
from botorch_dp.integrations.sklearn.people import People
from botorch_dp.integrations.sklearn.records import Records
from tests.integrations.sklearn.columns import column, read_records, records_of

KINDS = {"precision": precision, "recall": recall, "f1": f1}
THEIRS = {
    "precision": metrics.precision_score,
    "recall": metrics.recall_score,
    "f1": metrics.f1_score,
}
# A record's score (the prediction is positive above 0) and class: all four outcomes.
OUTCOMES = list(itertools.product((-1.0, 1.0), (0, 1)))


def make(kind, floor=None, **settings):
    if kind != "recall":
        settings["floor"] = floor
    return KINDS[kind](**settings).resolved([0, 1])


def tally(scoring, outcomes):
    scores, labels = zip(*outcomes, strict=True)
    return scoring.private_losses(column(), records_of(scores, labels))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("positive", ["a", "c"])
def test_as_scikit_learn(kind, threshold, positive):
    X, y = make_classification(400, n_informative=4, n_classes=3, random_state=0)
    y = np.array(list("abc"))[y]
    model = LogisticRegression().fit(X[:100], y[:100])
    scoring = KINDS[kind](positive=positive, threshold=threshold).resolved(y[:100])
    found = scoring.private_losses(model, Records(X, y, None, Records(X[:8], y[:8])))
    predicted = model.predict(X) == positive
    if threshold is not None:
        index = model.classes_.tolist().index(positive)
        predicted = model.predict_proba(X)[:, index] >= threshold
    exact = THEIRS[kind](y == positive, predicted)
    assert scoring.score_of(found, 400) == pytest.approx(exact, abs=1e-12)
    utility = scoring.utilities(found[:, None], 400)
    expected = found[0] if kind == "recall" else exact
    assert utility == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("floor", [1, 2, 2.5, 3, 5, 20])
def test_sensitivity_over_all_tables(kind, floor):
    """All confusion tables of up to seven other records; the bound is attained."""
    scoring, moved, apart = make(kind, floor), 0.0, {1: 0.0, 2: 0.0}
    one = np.array([tally(scoring, [outcome]) for outcome in OUTCOMES])
    for n in range(1, 9):
        for counts in itertools.product(range(n), repeat=4):
            if sum(counts) == n - 1:
                found = one + np.array(counts) @ one
                moved = max(moved, np.ptp(scoring.utilities(found.T, n)))
                for norm, size in apart.items():
                    pairs = np.linalg.norm(found[:, None] - found, ord=norm, axis=-1)
                    apart[norm] = max(size, pairs.max())
    assert moved <= scoring.sensitivity(8)
    assert moved == pytest.approx(scoring.sensitivity(8), rel=1e-9)
    for norm, size in apart.items():
        assert size == pytest.approx(scoring.tally_sensitivity(8, norm))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("floor", [1, 2.5, 4])
def test_sensitivity_of_persons(kind, floor):
    """A person's weight of 1 is split between outcomes: random splits and corners."""
    rng, scoring = np.random.default_rng(0), make(kind, floor)
    one = np.array([tally(scoring, [outcome]) for outcome in OUTCOMES])
    for _ in range(200):
        shares = rng.dirichlet(np.full(4, 0.3), size=(30, 6))
        shares[:, 1:] = shares[0, 1:]  # the other five persons are the same
        found = shares.sum(axis=1) @ one
        moved = np.ptp(scoring.utilities(found.T, 6))
        assert moved <= replace(scoring, num_rows=24).sensitivity(6)


def test_weights():
    scoring = make("f1", 1)
    records = records_of([1, 1, -1], [1, 0, 1])
    people = People(np.array([0, 1, 1]), 2)
    found = scoring.private_losses(column(), replace(records, people=people))
    assert found.tolist() == [1.0, 1.0]


class TestFloor:
    def test_from_public_shares(self):
        targets = [0, 0, 0, 1]
        for kind, expected in [("precision", 50.0), ("recall", 1.0), ("f1", 100.0)]:
            assert KINDS[kind]().resolved(targets).floor_of(400) == expected
        assert f1().resolved(targets).floor_of(4) == 2  # a single hit is at most 1

    def test_of_few_predictions(self):
        scoring = make("precision", 10)
        assert scoring.score_of([3.0, 0.0], 100) == pytest.approx(0.3)
        assert scoring.score_of([30.0, 10.0], 100) == pytest.approx(0.75)

    def test_refused(self):
        with pytest.raises(InvalidArgumentError, match="floor must be"):
            f1(floor=0)
        with pytest.raises(InvalidArgumentError, match="threshold must lie"):
            precision(threshold=1.5)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_records_are_errors(kind):
    scoring = KINDS[kind]().resolved(["no", "yes"])
    model = column(classes=("no", "yes"))
    labels = ["no", "no", "yes", "yes"]
    good = scoring.private_losses(model, read_records([-1, -1, 1, 1], labels))
    assert good.tolist() == [2.0, 0.0]
    found = scoring.private_losses(model, read_records([99, -1, 1, 1], labels))
    assert found.tolist() == [2.0, 1.0]
    for label in ("perhaps", None):
        records = read_records([-1, -1, 1, 1], [label, *labels[1:]])
        assert scoring.private_losses(model, records).tolist() == [2.0, 1.0]


class NoNumbers:
    """Gives no probability to records with a negative input."""

    classes_ = np.array([0, 1])

    def predict_proba(self, X):
        X = np.asarray(X)
        return np.where(X < 0, np.nan, [0.1, 0.9])


def test_a_missing_probability_is_an_error():
    scoring = make("f1", 1, threshold=0.5)
    records = records_of([1, -1, -1], [1, 0, 1])
    assert scoring.private_losses(NoNumbers(), records).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_noisy_tallies(kind):
    scoring = make(kind, 4)
    for noisy in ([-50.0, 3.0], [50.0, -80.0], [-5.0, -5.0]):
        assert 0.0 <= scoring.score_of(noisy, 10) <= 1.0
    for at in ([6.0, 3.0], [0.7, 0.2]):
        found, step = scoring.slopes(at, 20), 1e-6
        for index in (0, 1):
            move = step * np.eye(2)[index]
            ends = [scoring.score_of(at + sign * move, 20) for sign in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * step)
            assert found[index] == pytest.approx(slope, abs=1e-6)
