"""Named losses: against scikit-learn's means, and one record at a time."""

import pickle

import numpy as np
import pytest
from sklearn import metrics
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.metrics import (
    NAMED,
    class_shares,
    class_weighted,
    huber_loss,
    named_scoring,
    pinball_loss,
    ranking_accuracy,
    top_k_accuracy,
)
from botorch_dp.integrations.sklearn.record_losses import Scoring
from botorch_dp.integrations.sklearn.records import Records

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3))
LABELS = np.array(["no", "perhaps", "yes"])[
    (X @ [1.0, 1.0, 0.0] + RNG.normal(size=300) > [[-1.0], [1.0]]).sum(axis=0)
]
BINARY = np.where(X[:, 0] + RNG.normal(size=300) > 1.0, "yes", "no")
TARGETS = X @ [1.0, 2.0, 3.0] + RNG.normal(size=300)
COUNTS = RNG.poisson(np.exp(X[:, 0]))
WIDE = (0.0, 1e6)
FEW = slice(0, 8)


@pytest.fixture(scope="module")
def classifier():
    return LogisticRegression().fit(X, LABELS)


@pytest.fixture(scope="module")
def binary():
    return LogisticRegression().fit(X, BINARY)


@pytest.fixture(scope="module")
def regressor():
    return LinearRegression().fit(X, TARGETS)


def private_losses(scoring, model, y, loss_range=None):
    ranged = Scoring(scoring.name, scoring.loss, loss_range or scoring.loss_range)
    return ranged.private_losses(model, Records(X, y, None, Records(X[FEW], y[FEW])))


def score(scoring, *args):
    return scoring.score(private_losses(scoring, *args).mean())


def test_brier_score(classifier, binary):
    scoring = named_scoring("neg_brier_score")
    expected = metrics.brier_score_loss(
        BINARY, binary.predict_proba(X)[:, 1], pos_label="yes"
    )
    assert score(scoring, binary, BINARY) == pytest.approx(-expected)
    # Half of the sum over classes, where there are more than two.
    one_hot = LABELS[:, None] == classifier.classes_
    distance = classifier.predict_proba(X) - one_hot
    assert score(scoring, classifier, LABELS) == pytest.approx(
        -np.square(distance).sum(axis=1).mean() / 2
    )


@pytest.mark.parametrize("k", [1, 2])
def test_top_k_accuracy(classifier, k):
    scoring = top_k_accuracy(k)
    linear = LinearSVC().fit(X, LABELS)
    for model, given in (
        (classifier, classifier.predict_proba(X)),
        (linear, linear.decision_function(X)),
    ):
        expected = metrics.top_k_accuracy_score(LABELS, given, k=k)
        assert score(scoring, model, LABELS) == pytest.approx(expected)


def test_top_k_with_ties_and_two_classes():
    class Constant:
        classes_ = np.array([0, 1, 2])

        def predict_proba(self, X):
            return np.tile([0.4, 0.4, 0.2], (len(X), 1))

    y = np.arange(300) % 3
    expected = metrics.top_k_accuracy_score(y, Constant().predict_proba(X), k=1)
    assert score(top_k_accuracy(1), Constant(), y) == pytest.approx(expected)
    linear = LinearSVC().fit(X, BINARY)
    assert score(top_k_accuracy(1), linear, BINARY) == pytest.approx(
        linear.score(X, BINARY)
    )


def test_no_number_is_no_hit():
    class Broken:
        classes_ = np.array(["no", "yes"])

        def predict_proba(self, X):
            return np.full((len(X), 2), np.nan)

    for name in ("top_k_accuracy", "neg_log_loss", "neg_brier_score"):
        found = private_losses(NAMED[name], Broken(), BINARY)
        assert (found == NAMED[name].loss_range[1]).all()


def test_losses_of_regressors(regressor):
    predicted = regressor.predict(X)
    pinball = metrics.mean_pinball_loss(TARGETS, predicted, alpha=0.9)
    found = private_losses(pinball_loss(0.9), regressor, TARGETS, WIDE)
    assert found.mean() == pytest.approx(pinball)
    distance = np.abs(predicted - TARGETS)
    assert (distance > 1.5).any()  # on both sides
    expected = np.where(distance < 1.5, distance**2 / 2, 1.5 * (distance - 0.75))
    found = private_losses(huber_loss(1.5), regressor, TARGETS, WIDE)
    assert found == pytest.approx(expected)


def test_poisson_deviance():
    model = PoissonRegressor().fit(X, COUNTS)
    scoring = named_scoring("neg_mean_poisson_deviance")
    expected = metrics.mean_poisson_deviance(COUNTS, model.predict(X))
    found = private_losses(scoring, model, COUNTS, WIDE)
    assert found.mean() == pytest.approx(expected)
    # No rate and no count: the largest loss of this record, whatever the others are.
    linear = LinearRegression().fit(X, TARGETS)
    assert (linear.predict(X) < 0).any()
    found = private_losses(scoring, linear, np.ones(300), (0.0, 7.0))
    assert (found[linear.predict(X) <= 0] == 7.0).all()
    rates = linear.predict(X)
    assert (found[(rates > 0.5) & (rates < 3)] < 2.0).all()
    assert (
        private_losses(scoring, model, COUNTS - 1, (0.0, 7.0))[COUNTS == 0].min() == 7
    )


class TestClassWeights:
    def test_balanced_accuracy_with_the_true_shares(self, classifier):
        scoring = class_weighted("accuracy", class_shares(LABELS))
        expected = metrics.balanced_accuracy_score(LABELS, classifier.predict(X))
        assert score(scoring, classifier, LABELS) == pytest.approx(expected)

    def test_log_loss_like_sample_weights(self, classifier):
        shares = {"no": 0.5, "perhaps": 0.3, "yes": 0.2}
        scoring = class_weighted("neg_log_loss", shares)
        probabilities = classifier.predict_proba(X).clip(min=0.01)
        own = probabilities[
            np.arange(300), np.searchsorted(["no", "perhaps", "yes"], LABELS)
        ]
        weights = np.array([1 / (3 * shares[label]) for label in LABELS])
        found = private_losses(scoring, classifier, LABELS)
        assert found == pytest.approx(-np.log(own) * weights)

    def test_a_common_class_stays_below_its_own_bound(self):
        class Wrong:
            classes_ = np.array(["no", "yes"])

            def predict_proba(self, X):
                return np.tile([0.0, 1.0], (len(X), 1))

        scoring = class_weighted("neg_log_loss", {"no": 0.9, "yes": 0.1})
        found = private_losses(scoring, Wrong(), np.full(300, "no"))
        assert found == pytest.approx(np.log(100) / 1.8)
        assert scoring.loss_range == pytest.approx((0.0, np.log(100) * 5))

    def test_an_unknown_class_has_the_largest_loss(self, classifier):
        scoring = class_weighted("accuracy", {"no": 0.5, "perhaps": 0.5})
        found = private_losses(scoring, classifier, LABELS)
        assert (found[LABELS == "yes"] == scoring.loss_range[1]).all()

    @pytest.mark.parametrize(
        ("scoring", "shares", "match"),
        [
            ("accuracy", {"no": 1.0}, "at least two classes"),
            ("accuracy", {"no": 0.0, "yes": 1.0}, "shares must be"),
            ("neg_mean_squared_error", {0: 0.5, 1: 0.5}, "a score of classifiers"),
            ("roc_auc", {0: 0.5, 1: 0.5}, "scoring must be one of"),
        ],
    )
    def test_bad_ones(self, scoring, shares, match):
        with pytest.raises(InvalidArgumentError, match=match):
            class_weighted(scoring, shares)


class TestRanking:
    def test_the_auc_if_the_sample_is_the_private_records(self, binary):
        scoring = ranking_accuracy(X, BINARY)
        losses = private_losses(scoring, binary, BINARY)
        expected = metrics.roc_auc_score(BINARY == "yes", binary.predict_proba(X)[:, 1])
        for label in ("no", "yes"):  # each class by itself has the AUC as its mean
            assert 1 - losses[label == BINARY].mean() == pytest.approx(expected)
        assert score(scoring, binary, BINARY) == pytest.approx(expected)

    def test_ties_and_decision_functions(self):
        class Steps:
            classes_ = np.array(["no", "yes"])

            def decision_function(self, X):
                return np.round(X[:, 0])

        scoring = ranking_accuracy(X[:100], BINARY[:100])
        losses = private_losses(scoring, Steps(), BINARY)
        scores, reference = np.round(X[:, 0]), np.round(X[:100, 0])
        for index in range(300):
            others = reference[BINARY[:100] != BINARY[index]]
            sign = 1 if BINARY[index] == "yes" else -1
            wrong = (sign * (others - scores[index]) > 0) + (
                others == scores[index]
            ) / 2
            assert losses[index] == pytest.approx(wrong.mean())

    def test_smoothing_tends_to_the_step(self, binary):
        sharp = private_losses(ranking_accuracy(X, BINARY), binary, BINARY)
        smooth, almost = (
            private_losses(ranking_accuracy(X, BINARY, smoothing=h), binary, BINARY)
            for h in (0.3, 1e-9)
        )
        # A record is never compared with itself, and has no ties with others.
        assert almost == pytest.approx(sharp)
        assert 0 < np.abs(smooth - sharp).max() < 0.5

    def test_depends_on_the_record_alone(self, binary):
        scoring = ranking_accuracy(X[:100], BINARY[:100], smoothing=0.1)
        before = private_losses(scoring, binary, BINARY)
        changed, inputs = BINARY.copy(), X.copy()
        changed[7:], inputs[7:] = "no", 9.0
        records = Records(inputs, changed, None, Records(X[FEW], BINARY[FEW]))
        assert (scoring.private_losses(binary, records)[:7] == before[:7]).all()

    def test_models_that_work_in_place(self):
        # One record that cannot be scored changes the number of calls to the model.
        scaler = StandardScaler(copy=False)
        model = make_pipeline(scaler, LogisticRegression()).fit(X.copy(), BINARY)
        reference = 3 * X[:100] + 1
        before = reference.copy()
        scoring = ranking_accuracy(reference, BINARY[:100])
        odd = X.copy()
        odd[5] = np.nan
        company = Records(X[FEW], BINARY[FEW])
        losses, changed = (
            scoring.private_losses(model, Records(inputs.copy(), BINARY, None, company))
            for inputs in (X, odd)
        )
        assert changed[5] == 1.0
        assert (np.delete(losses, 5) == np.delete(changed, 5)).all()
        assert (reference == before).all()
        reference[:] = 0.0  # later changes by the caller do not matter
        again = scoring.private_losses(model, Records(X.copy(), BINARY, None, company))
        assert (again == losses).all()

    def test_another_class_has_the_largest_loss(self, binary):
        y = BINARY.astype(object)
        y[3] = "perhaps"
        losses = private_losses(ranking_accuracy(X, BINARY), binary, y)
        assert losses[3] == 1.0
        assert losses[:3].max() < 1.0

    @pytest.mark.parametrize("targets", [LABELS, ["yes"] * 300, [[0, 1]] * 300])
    def test_bad_ones(self, targets):
        with pytest.raises(InvalidArgumentError, match="must contain two classes"):
            ranking_accuracy(X, targets)

    def test_bad_smoothing(self):
        with pytest.raises(InvalidArgumentError, match="smoothing must be"):
            ranking_accuracy(X, BINARY, smoothing=-1.0)


@pytest.mark.parametrize("name", NAMED)
def test_unknown_classes_and_one_record(name, classifier, regressor):
    """An odd record has the largest loss, and others have the losses of before."""
    scoring = NAMED[name]
    is_regression = scoring.loss_range is None
    model, y = (regressor, TARGETS) if is_regression else (classifier, LABELS)
    loss_range = scoring.loss_range or (0.0, 100.0)
    before = private_losses(scoring, model, y, loss_range)
    odd = y.astype(object)
    odd[5] = np.nan if is_regression else "none of these"
    after = private_losses(scoring, model, odd, loss_range)
    assert after[5] == loss_range[1]
    assert (np.delete(after, 5) == np.delete(before, 5)).all()
    # The bound on one record's influence is attained, or no loss reaches the range.
    assert loss_range[0] <= after.min() <= after.max() <= loss_range[1]


@pytest.mark.parametrize(
    "scoring",
    [
        *NAMED.values(),
        class_weighted("accuracy", {0: 1, 1: 2}),
        ranking_accuracy(X, BINARY),
    ],
    ids=lambda scoring: scoring.name,
)
def test_workers_can_get_it(scoring):
    assert pickle.loads(pickle.dumps(scoring)).name == scoring.name


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: huber_loss(0.0), "delta must be"),
        (lambda: pinball_loss(1.0), "quantile must lie"),
        (lambda: top_k_accuracy(0), "k must be"),
    ],
)
def test_bad_parameters(make, match):
    with pytest.raises(InvalidArgumentError, match=match):
        make()


def test_one_target_a_record(classifier):
    for name in ("neg_log_loss", "neg_brier_score", "top_k_accuracy"):
        with pytest.raises(InvalidArgumentError, match="one target per record, got 2"):
            NAMED[name].loss(classifier, X, np.stack([LABELS, LABELS], axis=1))
