"""One loss a record: against scikit-learn's means, and whatever the record is."""

import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn import metrics
from sklearn.linear_model import LinearRegression, LogisticRegression

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.metrics import log_losses
from botorch_dp.integrations.sklearn.record_losses import Scoring
from botorch_dp.integrations.sklearn.records import Records, read_alike
from botorch_dp.integrations.sklearn.scoring import make_scoring

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
LABELS = np.array(["no", "perhaps", "yes"])[RNG.integers(3, size=200)]
TARGETS = X @ [1.0, 2.0, 3.0] + RNG.normal(size=200)


def scoring_of(name, loss_range=None, estimator=None, prefers_log_loss=False):
    return make_scoring(
        name,
        loss_range,
        estimator=estimator or LogisticRegression(),
        prefers_log_loss=prefers_log_loss,
    )


def private(inputs, targets, unreadable=None, company=None):
    """Records in the company of a few that a model was trained on."""
    if company is None:
        of_training = LABELS if np.asarray(targets).dtype.kind in "UO" else TARGETS
        company = (X[:8], of_training[:8].reshape(8, *np.shape(targets)[1:]))
    return Records(inputs, targets, unreadable, Records(*company))


@pytest.fixture(scope="module")
def classifier():
    return LogisticRegression().fit(X, LABELS)


@pytest.fixture(scope="module")
def regressor():
    return LinearRegression().fit(X, TARGETS)


def test_means_of_classifiers(classifier):
    for name, metric, given in (
        ("accuracy", metrics.accuracy_score, classifier.predict(X)),
        ("neg_log_loss", metrics.log_loss, classifier.predict_proba(X)),
    ):
        scoring = scoring_of(name)
        losses = scoring.private_losses(classifier, private(X, LABELS))
        assert losses.shape == (200,)
        score = scoring.score(losses.mean())
        sign = 1 if name == "accuracy" else -1
        assert score == pytest.approx(sign * metric(LABELS, given))


def test_means_of_regressors(regressor):
    for name, metric in (
        ("neg_mean_squared_error", metrics.mean_squared_error),
        ("neg_mean_absolute_error", metrics.mean_absolute_error),
    ):
        scoring = scoring_of(name, (0.0, 100.0), regressor)
        losses = scoring.private_losses(regressor, private(X, TARGETS))
        assert scoring.score(losses.mean()) == pytest.approx(
            -metric(TARGETS, regressor.predict(X))
        )
        column = scoring.private_losses(regressor, private(X, TARGETS[:, None]))
        assert np.array_equal(column, losses)


def test_several_targets():
    targets = np.stack([TARGETS, -2 * TARGETS], axis=1)
    model = LinearRegression().fit(X, targets)
    losses = scoring_of("neg_mean_squared_error", (0, 100), model).private_losses(
        model, private(X, targets, company=(X[:8], targets[:8]))
    )
    assert losses.mean() == pytest.approx(
        metrics.mean_squared_error(targets, model.predict(X))
    )


def test_log_loss_of_several_targets():
    both = np.stack([LABELS, LABELS], axis=1)
    with pytest.raises(
        InvalidArgumentError, match="needs one target per record, got 2"
    ):
        log_losses(LogisticRegression().fit(X, LABELS), X, both)


def test_clipped_to_the_range(regressor):
    scoring = scoring_of("neg_mean_squared_error", (0.5, 1.0), regressor)
    losses = scoring.private_losses(regressor, private(X, TARGETS))
    exact = np.square(regressor.predict(X) - TARGETS)
    assert np.array_equal(losses, exact.clip(0.5, 1.0))
    assert {*losses} >= {0.5, 1.0}


class TestBadRecords:
    """They lose most, and nobody else notices."""

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
    def test_inputs(self, classifier, value):
        bad = X.copy()
        bad[[3, 77, 199]] = value
        scoring = scoring_of("accuracy")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses = scoring.private_losses(classifier, private(bad, LABELS))
        good = np.ones(200, dtype=bool)
        good[[3, 77, 199]] = False
        alone = scoring.private_losses(classifier, private(X, LABELS))
        assert np.array_equal(losses[good], alone[good])
        if not np.isfinite(value):
            assert (losses[~good] == 1.0).all()

    def test_unseen_labels(self, classifier):
        for label in ("never seen", "a", "zzz"):
            scoring = scoring_of("neg_log_loss")
            labels = LABELS.astype(object)
            labels[5] = label
            losses = scoring.private_losses(classifier, private(X, labels.astype(str)))
            assert losses[5] == scoring.loss_range[1]
            alone = scoring.private_losses(classifier, private(X, LABELS))
            assert np.array_equal(np.delete(losses, 5), np.delete(alone, 5))

    def test_targets_that_are_no_numbers(self, regressor):
        targets = TARGETS.astype(object)
        targets[11] = "unknown"
        scoring = scoring_of("neg_mean_absolute_error", (0, 10), regressor)
        records = private(X, targets, company=(X[:8], TARGETS[:8]))
        losses = scoring.private_losses(regressor, records)
        assert losses[11] == 10.0
        assert np.delete(losses, 11) == pytest.approx(
            np.delete(np.abs(regressor.predict(X) - TARGETS), 11)
        )

    def test_all_of_them(self, classifier):
        losses = scoring_of("accuracy").private_losses(
            classifier, private(np.full_like(X, np.nan), LABELS)
        )
        assert (losses == 1.0).all()

    def test_others_are_scored_as_many_at_a_time_as_ever(self):
        """A predictor whose last bits depend on that, or that draws random numbers."""

        def shaped(estimator, X, y):
            if np.isnan(X).any():
                raise ValueError("not finite")
            return np.random.default_rng(len(X)).uniform(size=len(X))

        scoring = Scoring("shaped", shaped, (0.0, 1.0))
        alone = scoring.private_losses(None, private(X, TARGETS))
        bad = X.copy()
        bad[[0, 41, 150]] = np.nan
        losses = scoring.private_losses(None, private(bad, TARGETS))
        good = np.isfinite(bad).all(axis=1)
        assert np.array_equal(losses[good], alone[good])
        assert (losses[~good] == 1.0).all()

    def test_a_loss_that_cannot_take_one_record(self):
        def squeezed(estimator, X, y):
            if np.isnan(X).any():
                raise ValueError("not finite")
            return np.squeeze(np.abs(y) / 100)

        scoring = Scoring("squeezed", squeezed, (0.0, 1.0))
        bad = X.copy()
        bad[0] = np.nan
        losses = scoring.private_losses(None, private(bad, TARGETS))
        assert losses[0] == 1.0
        assert losses[1:] == pytest.approx(np.abs(TARGETS[1:]) / 100)

    def test_none_that_can_be_read(self, classifier):
        records = private(X, LABELS, np.ones(200, dtype=bool))
        assert (scoring_of("accuracy").private_losses(classifier, records) == 1).all()

    def test_a_loss_that_fails_for_all_at_once(self):
        def small(estimator, X, y):
            if len(X) > 50:
                raise MemoryError
            return np.abs(y) / 100

        scoring = Scoring("small", small, (0.0, 1.0))
        losses = scoring.private_losses(None, private(X, TARGETS))
        assert losses == pytest.approx(np.abs(TARGETS) / 100)

    def test_the_callers_own_loss(self):
        def fragile(estimator, X, y):
            if (y == 7).any():
                raise RuntimeError("record 7")
            return y[y != 8] / 10.0  # and one too few if there is an 8

        scoring = Scoring("fragile", fragile, (0.0, 1.0))
        losses = scoring.private_losses(
            None,
            private(
                np.zeros((10, 1)),
                np.arange(10.0),
                company=(np.zeros((8, 1)), np.zeros(8)),
            ),
        )
        assert losses == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1, 1, 0.9])


def needs_two_classes(model, X, y):
    if np.isnan(X).any() or len(np.unique(y)) < 2:
        raise ValueError("only one class")
    return np.full(len(y), 0.25)


def needs_spread(model, X, y):
    if np.isnan(X).any() or np.ptp(X[:, 0]) == 0:
        raise ValueError("constant input")
    return np.full(len(y), 0.25)


def needs_many(model, X, y):
    if np.isnan(X).any() or len(np.unique(X, axis=0)) < 5:
        raise ValueError("too few samples")
    return np.full(len(y), 0.25)


def in_part_of_memory(model, X, y):
    """Fails for many records, and its losses depend on how many there are."""
    if np.isnan(X).any() or len(X) > 60:
        raise MemoryError
    return np.random.default_rng(len(X)).uniform(size=len(X))


class TestCompany:
    """Private records are scored in the company of training records alone."""

    @pytest.mark.parametrize(
        "loss", [needs_two_classes, needs_spread, needs_many, in_part_of_memory]
    )
    @pytest.mark.parametrize("place", [0, 77, 199])
    def test_a_loss_that_needs_some(self, loss, place):
        """A record that cannot be scored makes others be scored in small groups."""
        y = np.repeat(["no", "yes"], 100)  # whole groups are of one class
        company = (X[:8] + 1.0, np.array(["no", "yes"] * 4))
        scoring = Scoring("needs some", loss, (0.0, 1.0))
        alone = scoring.private_losses(None, private(X, y, company=company))
        bad = X.copy()
        bad[place] = np.nan
        found = scoring.private_losses(None, private(bad, y, company=company))
        assert np.array_equal(np.delete(found, place), np.delete(alone, place))
        assert found[place] == 1.0
        assert (np.delete(alone, place) < 1.0).all()

    @pytest.mark.parametrize("is_tried", [False, True])
    def test_is_not_scored_alone_again(self, is_tried):
        sizes = []

        def watched(model, X, y):
            sizes.append(len(X))
            return np.zeros(len(X))

        scoring = Scoring("watched", watched, (0.0, 1.0))
        scoring.private_losses(None, private(X, TARGETS), is_tried=is_tried)
        assert sizes == ([208] if is_tried else [8, 208])

    def test_is_scored_alone_in_other_containers(self):
        """Trying a loss on arrays does not show that it works on series."""

        def needs_two_classes_of_series(model, X, y):
            if hasattr(y, "iloc") and len(np.unique(y)) < 2:
                raise ValueError("one class")
            return np.zeros(len(X))

        y = pd.Series(np.arange(200) % 2)
        scoring = Scoring("series", needs_two_classes_of_series, (0.0, 1.0))
        records = private(X, y, company=(X[:8], np.zeros(8, int)))
        scoring.try_on(None, records.of_training)
        losses = scoring.private_losses(None, records, is_tried=True)
        assert (losses == 1.0).all()

    @pytest.mark.parametrize("unreadable", [None, 5])
    def test_others_stand_in_for_none(self, unreadable):
        """Whoever is left out is replaced by a training record, never by another."""
        seen = []

        def watched(model, X, y):
            seen.append(X[:, 0].tolist())
            if (X == 13.0).any():
                raise ValueError("unlucky")
            return np.zeros(len(X))

        n, numbers = 20, np.arange(20.0)[:, None]
        company = np.arange(100.0, 103.0)
        mask = None if unreadable is None else np.arange(n) == unreadable
        records = private(
            numbers, np.zeros(n), mask, company=(company[:, None], np.zeros(3))
        )
        losses = Scoring("watched", watched, (0.0, 1.0)).private_losses(None, records)
        lost = {13} if unreadable is None else {13, unreadable}
        assert np.flatnonzero(losses).tolist() == sorted(lost)
        assert len(seen) > 2
        for batch in seen:
            assert batch[-3:] == company.tolist()
            ours = [number for number in batch if number < 100.0]
            assert len(ours) == len(set(ours))
        everyone = [i for i in range(n) if i not in lost]
        assert [number for number in seen[-1] if number < 100.0] == everyone
        assert [seen[-1][i] for i in everyone] == everyone  # each at its place

    def test_that_fails_with_the_model(self):
        """Then nobody is scored, whatever the private records are."""
        calls = []

        def needs_nine(model, X, y):
            calls.append(len(X))
            if np.isnan(X).any() or len(X) < 9:
                raise ValueError("too few")
            return np.zeros(len(X))

        scoring = Scoring("needs nine", needs_nine, (0.0, 1.0))
        for bad in (X, np.where(np.arange(200)[:, None] == 3, np.nan, X)):
            losses = scoring.private_losses(None, private(bad, LABELS))
            assert (losses == 1.0).all()
        assert calls == [8, 8]

    @pytest.mark.parametrize(
        "kind", ["array", "frame", "list", "sparse", "documents", "series", "tensor"]
    )
    def test_in_every_container(self, kind):
        """One record that cannot be scored, in the container that it came in."""
        made = {
            "array": lambda x: x,
            "frame": lambda x: pd.DataFrame(x, columns=list("abc")),
            "list": lambda x: x.tolist(),
            "sparse": sparse.csr_matrix,
            "documents": lambda x: [str(row) for row in x],
            "series": lambda x: pd.Series([str(row) for row in x]),
            "tensor": torch.from_numpy,
        }[kind]
        bad = X[:40].copy()
        bad[7] = np.nan
        types = set()

        def watched(model, X, y):
            types.add(type(X))
            text = " ".join(X) if kind in ("documents", "series") else None
            values = X.data if kind == "sparse" else X
            if "nan" in text if text else np.isnan(np.asarray(values)).any():
                raise ValueError("not finite")
            return np.full(y.shape, 0.5)

        records = read_alike(
            made(bad), TARGETS[:40], training=(made(X[50:90]), TARGETS[50:90])
        )
        losses = Scoring("watched", watched, (0.0, 1.0)).private_losses(None, records)
        assert losses.tolist() == [0.5] * 7 + [1.0] + [0.5] * 32
        assert len(types) == 1

    @pytest.mark.parametrize("kinds", ["sparse for dense", "dense for sparse"])
    def test_in_another_container_than_training(self, kinds):
        first, second = (
            (lambda x: x, sparse.csr_matrix)
            if kinds == "sparse for dense"
            else (sparse.csr_matrix, lambda x: x)
        )

        def watched(model, X, y):
            if np.isnan(X.data if sparse.issparse(X) else X).any():
                raise ValueError("not finite")
            return np.full(y.shape, 0.5)

        bad = X[:40].copy()
        bad[7] = np.nan
        records = read_alike(
            second(bad), TARGETS[:40], training=(first(X[50:]), TARGETS[50:])
        )
        losses = Scoring("watched", watched, (0.0, 1.0)).private_losses(None, records)
        assert losses.tolist() == [0.5] * 7 + [1.0] + [0.5] * 32


class Counting:
    """Counts the records that it has seen, and cannot take some."""

    def __init__(self):
        self.seen = [0]

    def __deepcopy__(self, memo):
        found = Counting()
        found.seen = [*self.seen]
        return found


class TestModels:
    def test_learn_nothing_of_private_records(self):
        def losses(model, X, y):
            model.seen[0] += len(X)
            if np.isnan(X).any():
                raise ValueError("not finite")
            return np.full(len(X), model.seen[0] / 1000)

        scoring, model = Scoring("counting", losses, (0.0, 1.0)), Counting()
        bad = X.copy()
        bad[3] = np.nan
        alone = scoring.private_losses(model, private(X, TARGETS))
        found = scoring.private_losses(model, private(bad, TARGETS))
        assert model.seen == [0]
        assert np.array_equal(np.delete(found, 3), np.delete(alone, 3))

    def test_that_cannot_be_copied(self):
        scoring = Scoring("any", lambda model, X, y: y, (0.0, 1.0))
        with pytest.raises(InvalidArgumentError, match=r"support copy\.deepcopy"):
            scoring.try_on(threading.Lock(), Records(X, TARGETS))

    def test_that_join_by_names_of_rows(self):
        """One record that cannot be scored has another stand in for it."""
        frame = pd.DataFrame(X[:40], columns=[f"x{i}" for i in range(X.shape[1])])

        def joined(model, X, y):
            if X.isna().any(axis=None):
                raise ValueError("not finite")
            both = X.join(X.rename(columns=lambda name: f"{name} again"))
            return np.full(len(X), 0.5) if len(both) == len(X) else None

        scoring = Scoring("joined", joined, (0.0, 1.0))
        training = frame.copy(), TARGETS[:40]
        frame.iloc[0, 0] = np.nan
        records = read_alike(frame, TARGETS[:40], training=training)
        losses = scoring.private_losses(None, records)
        assert losses.tolist() == [1.0] + [0.5] * 39


def test_the_callers_settings_of_numpy_do_not_matter():
    def small(model, X, y):
        return np.exp(-y)  # of 800 too small for a double: 0

    scoring = Scoring("small", small, (0.0, 1.0))
    records = private(
        np.zeros((3, 1)), np.array([0.5, 800.0, 1.0]), company=(np.zeros((1, 1)), [1.0])
    )
    with np.errstate(all="raise"):
        losses = scoring.private_losses(None, records)
    assert losses == pytest.approx([np.exp(-0.5), 0.0, np.exp(-1.0)])


def test_tried_on_training_records():
    scoring = Scoring("mean", lambda estimator, X, y: np.mean(y), (0.0, 1.0))
    with pytest.raises(
        InvalidArgumentError,
        match=r"one loss for each record, shape \(8,\) for.*shape \(\)",
    ):
        scoring.try_on(None, Records(X[:8], TARGETS[:8]))

    def broken(estimator, X, y):
        raise KeyError("a mistake in the loss")

    with pytest.raises(KeyError, match="a mistake"):
        Scoring("broken", broken, (0.0, 1.0)).try_on(None, Records(X[:8], TARGETS[:8]))
