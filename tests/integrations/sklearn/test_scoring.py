"""Which scoring a search gets, and what it is told of others."""

import warnings

import numpy as np
import pytest
from sklearn import metrics
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC

from botorch_dp.exceptions import InvalidArgumentError, RareClassWarning
from botorch_dp.integrations.sklearn.hit_scores import f1
from botorch_dp.integrations.sklearn.metrics import brier_losses, pinball_loss
from botorch_dp.integrations.sklearn.scoring import (
    check_method,
    make_scoring,
    warn_of_rare_classes,
)


def scoring_of(
    name, loss_range=None, estimator=None, prefers_log_loss=False, targets=None
):
    return make_scoring(
        name,
        loss_range,
        estimator=estimator or LogisticRegression(),
        prefers_log_loss=prefers_log_loss,
        training_targets=targets,
    )


class TestChoices:
    def test_usual_ones(self):
        assert scoring_of(None).name == "accuracy"
        assert scoring_of(None, prefers_log_loss=True).name == "neg_log_loss"
        without = scoring_of(None, None, LinearSVC(), prefers_log_loss=True)
        assert without.name == "accuracy"  # it has no probabilities
        usual = scoring_of(None, (0, 9), LinearRegression())
        assert usual.name == "neg_mean_squared_error"
        assert usual.loss_range == (0.0, 9.0)

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            (("auc",), "scoring must be one of 'accuracy'.*'roc_auc'.*Got 'auc'"),
            (("roc_auc",), "scoring='roc_auc' needs training targets"),
            ((["accuracy", "f1"],), "scoring must be a name, a scoring"),
            (("r2",), "neg_mean_squared_error', which has the same optimum"),
            (
                (metrics.make_scorer(metrics.accuracy_score),),
                "scoring must not be a scorer, which returns one number",
            ),
            (("neg_log_loss", None, LinearSVC()), "predict_proba, but LinearSVC does"),
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

    def test_balanced_accuracy_needs_classes(self):
        for targets in (None, [0.5, 1.5], [[0, 1], [1, 0]]):
            with pytest.raises(InvalidArgumentError, match="targets that are classes"):
                scoring_of("balanced_accuracy", targets=targets)

    def test_a_scoring_with_parameters(self):
        found = scoring_of(pinball_loss(0.9), (0.0, 2.0), LinearRegression())
        assert found.name == "pinball_loss(0.9)"
        assert found.loss_range == (0.0, 2.0)

    def test_a_callable_keeps_its_name(self):
        assert scoring_of(brier_losses, (0.0, 1.0)).name == "brier_losses"


class TestBalancedAccuracy:
    def test_weights_come_from_the_training_targets(self):
        found = scoring_of("balanced_accuracy", targets=["no"] * 9 + ["yes"])
        assert found.name == "balanced_accuracy"
        assert found.loss_range == pytest.approx((0.0, 5.0))


class TestRareClasses:
    def warns(self, targets, name="accuracy"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_rare_classes(scoring_of(name, (0.0, 1.0)), targets)
        return [str(w.message) for w in caught if w.category is RareClassWarning]

    def test_two_classes(self):
        assert not self.warns([0] * 80 + [1] * 20)
        (message,) = self.warns(["well"] * 81 + ["ill"] * 19)
        assert "'ill', which is 19.0% of the training records" in message

    def test_more_classes_share_the_same_part_of_an_equal_share(self):
        assert not self.warns([0] * 40 + [1] * 40 + [2] * 20)
        assert self.warns([0] * 45 + [1] * 45 + [2] * 10)

    def test_only_for_accuracy_and_classes(self):
        assert not self.warns(["well"] * 99 + ["ill"], name="neg_log_loss")
        assert not self.warns([0.1, 0.2, 0.3])
        assert not self.warns(None)
        assert not self.warns(["all the same"] * 5)


class TestScoresOfCandidates:
    def test_names(self):
        for name in ("roc_auc", "f1", "precision", "recall"):
            found = scoring_of(name, targets=[0, 1, 1])
            assert found.name == name
            assert found.positive == 1

    def test_a_range_is_refused(self):
        with pytest.raises(InvalidArgumentError, match="loss_range must be None with"):
            scoring_of("f1", (0.0, 1.0), targets=[0, 1])

    def test_what_the_estimator_needs(self):
        given = f1(threshold=0.3)
        with pytest.raises(InvalidArgumentError, match="predict_proba, but LinearSVC"):
            scoring_of(given, None, LinearSVC(), targets=[0, 1])
        assert scoring_of("roc_auc", None, LinearSVC(), targets=[0, 1])

    @pytest.mark.parametrize("method", ["dp-gibo", "kusner"])
    def test_methods_that_need_a_loss_for_each_record(self, method):
        for name, instead in [("roc_auc", "ranking_accuracy"), ("f1", "balanced_acc")]:
            found = scoring_of(name, targets=[0, 1])
            with pytest.raises(InvalidArgumentError, match=f"{method}.*{instead}"):
                check_method(found, method)

    def test_other_methods(self):
        for method in ("auto", "stable"):
            check_method(scoring_of("roc_auc", targets=[0, 1]), method)
        check_method(scoring_of("accuracy"), "kusner")
