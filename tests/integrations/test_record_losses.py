"""One loss a record: against scikit-learn's means, and whatever the record is."""

import threading
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.record_losses import (
    Scoring,
    log_losses,
    make_scoring,
)
from botorch_dp.integrations.sklearn.records import Records, read_alike

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
LABELS = np.array(["no", "perhaps", "yes"])[RNG.integers(3, size=200)]
TARGETS = X @ [1.0, 2.0, 3.0] + RNG.normal(size=200)


def scoring_of(name, loss_range=None, estimator=None, needs_gradients=False):
    return make_scoring(
        name,
        loss_range,
        estimator=estimator or LogisticRegression(),
        needs_gradients=needs_gradients,
    )


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
        losses = scoring.private_losses(classifier, Records(X, LABELS))
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
        losses = scoring.private_losses(regressor, Records(X, TARGETS))
        assert scoring.score(losses.mean()) == pytest.approx(
            -metric(TARGETS, regressor.predict(X))
        )
        column = scoring.private_losses(regressor, Records(X, TARGETS[:, None]))
        assert np.array_equal(column, losses)


def test_several_targets():
    targets = np.stack([TARGETS, -2 * TARGETS], axis=1)
    model = LinearRegression().fit(X, targets)
    losses = scoring_of("neg_mean_squared_error", (0, 100), model).private_losses(
        model, Records(X, targets)
    )
    assert losses.mean() == pytest.approx(
        metrics.mean_squared_error(targets, model.predict(X))
    )


def test_log_loss_of_several_targets():
    both = np.stack([LABELS, LABELS], axis=1)
    with pytest.raises(InvalidArgumentError, match="takes one target a record, got 2"):
        log_losses(LogisticRegression().fit(X, LABELS), X, both)


def test_clipped_to_the_range(regressor):
    scoring = scoring_of("neg_mean_squared_error", (0.5, 1.0), regressor)
    losses = scoring.private_losses(regressor, Records(X, TARGETS))
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
            losses = scoring.private_losses(classifier, Records(bad, LABELS))
        good = np.ones(200, dtype=bool)
        good[[3, 77, 199]] = False
        alone = scoring.private_losses(classifier, Records(X, LABELS))
        assert np.array_equal(losses[good], alone[good])
        if not np.isfinite(value):
            assert (losses[~good] == 1.0).all()

    def test_unseen_labels(self, classifier):
        for label in ("never seen", "a", "zzz"):
            scoring = scoring_of("neg_log_loss")
            labels = LABELS.astype(object)
            labels[5] = label
            losses = scoring.private_losses(classifier, Records(X, labels.astype(str)))
            assert losses[5] == scoring.loss_range[1]
            alone = scoring.private_losses(classifier, Records(X, LABELS))
            assert np.array_equal(np.delete(losses, 5), np.delete(alone, 5))

    def test_targets_that_are_no_numbers(self, regressor):
        targets = TARGETS.astype(object)
        targets[11] = "unknown"
        scoring = scoring_of("neg_mean_absolute_error", (0, 10), regressor)
        losses = scoring.private_losses(regressor, Records(X, targets))
        assert losses[11] == 10.0
        assert np.delete(losses, 11) == pytest.approx(
            np.delete(np.abs(regressor.predict(X) - TARGETS), 11)
        )

    def test_all_of_them(self, classifier):
        losses = scoring_of("accuracy").private_losses(
            classifier, Records(np.full_like(X, np.nan), LABELS)
        )
        assert (losses == 1.0).all()

    def test_others_are_scored_as_many_at_a_time_as_ever(self):
        """A predictor whose last bits depend on that, or that draws random numbers."""

        def shaped(estimator, X, y):
            if np.isnan(X).any():
                raise ValueError("not finite")
            return np.random.default_rng(len(X)).uniform(size=len(X))

        scoring = Scoring("shaped", shaped, (0.0, 1.0))
        alone = scoring.private_losses(None, Records(X, TARGETS))
        bad = X.copy()
        bad[[0, 41, 150]] = np.nan
        losses = scoring.private_losses(None, Records(bad, TARGETS))
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
        losses = scoring.private_losses(None, Records(bad, TARGETS))
        assert losses[0] == 1.0
        assert losses[1:] == pytest.approx(np.abs(TARGETS[1:]) / 100)

    def test_none_that_can_be_read(self, classifier):
        records = Records(X, LABELS, np.ones(200, dtype=bool))
        assert (scoring_of("accuracy").private_losses(classifier, records) == 1).all()

    def test_a_loss_that_fails_for_all_at_once(self):
        def small(estimator, X, y):
            if len(X) > 50:
                raise MemoryError
            return np.abs(y) / 100

        scoring = Scoring("small", small, (0.0, 1.0))
        losses = scoring.private_losses(None, Records(X, TARGETS))
        assert losses == pytest.approx(np.abs(TARGETS) / 100)

    def test_the_callers_own_loss(self):
        def fragile(estimator, X, y):
            if (y == 7).any():
                raise RuntimeError("record 7")
            return y[y != 8] / 10.0  # and one too few if there is an 8

        scoring = Scoring("fragile", fragile, (0.0, 1.0))
        losses = scoring.private_losses(
            None, Records(np.zeros((10, 1)), np.arange(10.0))
        )
        assert losses == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1, 1, 0.9])


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
        alone = scoring.private_losses(model, Records(X, TARGETS))
        found = scoring.private_losses(model, Records(bad, TARGETS))
        assert model.seen == [0]
        assert np.array_equal(np.delete(found, 3), np.delete(alone, 3))

    def test_that_cannot_be_copied(self):
        scoring = Scoring("any", lambda model, X, y: y, (0.0, 1.0))
        with pytest.raises(InvalidArgumentError, match=r"copy\.deepcopy can copy"):
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
        frame.iloc[0, 0] = np.nan
        records = read_alike(frame, TARGETS[:40], training=(frame, TARGETS[:40]))
        losses = scoring.private_losses(None, records)
        assert losses.tolist() == [1.0] + [0.5] * 39


def test_the_callers_settings_of_numpy_do_not_matter():
    def small(model, X, y):
        return np.exp(-y)  # of 800 too small for a double: 0

    scoring = Scoring("small", small, (0.0, 1.0))
    records = Records(np.zeros((3, 1)), np.array([0.5, 800.0, 1.0]))
    with np.errstate(all="raise"):
        losses = scoring.private_losses(None, records)
    assert losses == pytest.approx([np.exp(-0.5), 0.0, np.exp(-1.0)])


def test_tried_on_training_records():
    scoring = Scoring("mean", lambda estimator, X, y: np.mean(y), (0.0, 1.0))
    with pytest.raises(
        InvalidArgumentError,
        match=r"one loss for each record, a vector of 8.*shape \(\)",
    ):
        scoring.try_on(None, Records(X[:8], TARGETS[:8]))

    def broken(estimator, X, y):
        raise KeyError("a mistake in the loss")

    with pytest.raises(KeyError, match="a mistake"):
        Scoring("broken", broken, (0.0, 1.0)).try_on(None, Records(X[:8], TARGETS[:8]))


class TestChoices:
    def test_usual_ones(self):
        assert scoring_of(None).name == "accuracy"
        assert scoring_of(None, needs_gradients=True).name == "neg_log_loss"
        usual = scoring_of(None, (0, 9), LinearRegression())
        assert usual.name == "neg_mean_squared_error"
        assert usual.loss_range == (0.0, 9.0)

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            (("roc_auc",), "scoring must be one of 'accuracy'.*AUC.*Got 'roc_auc'"),
            ((["accuracy", "f1"],), "scoring must be one of 'accuracy'"),
            (
                (metrics.make_scorer(metrics.accuracy_score),),
                "scoring must not be a scorer, which gives one number",
            ),
            (("accuracy", None, None, True), "needs method='stable'"),
            (("neg_log_loss", None, LinearSVC()), "predict_proba, which LinearSVC"),
            ((None, None, KMeans()), "KMeans is neither a classifier nor a regressor"),
            (
                ("neg_mean_squared_error", None),
                "loss_range must be given with scoring=",
            ),
            ((lambda e, X, y: y, None), "loss_range must be given with scoring='<lam"),
            (("accuracy", (1.0, 0.0)), r"loss_range must be .* got \(1.0, 0.0\)"),
            (("accuracy", 1.0), "loss_range must be"),
            (("accuracy", (0.0, np.inf)), "loss_range must be .* finite"),
        ],
    )
    def test_bad_ones(self, arguments, match):
        with pytest.raises(InvalidArgumentError, match=match):
            scoring_of(*arguments)
