"""The AUC of candidates: against scikit-learn, and how far one record moves it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.svm import LinearSVC

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import roc_auc
from botorch_dp.integrations.sklearn.people import People
from botorch_dp.integrations.sklearn.records import Records
from tests.integrations.sklearn.columns import column, read_records, records_of

AUC = roc_auc().resolved([0, 1])


def tally(records, scoring=AUC):
    scores, labels = zip(*records, strict=True)
    return scoring.private_losses(column(), records_of(scores, labels))


@pytest.mark.parametrize("kind", [LogisticRegression, LinearSVC])
@pytest.mark.parametrize("positive", [0, 1, 2])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_as_scikit_learn(kind, positive, num_classes):
    if positive == num_classes:
        return
    X, y = make_classification(
        400, n_informative=4, n_classes=num_classes, random_state=0
    )
    model = kind().fit(X[:100], y[:100])
    scoring = roc_auc(positive=positive).resolved(y[:100])
    found = scoring.private_losses(model, Records(X, y, None, Records(X[:8], y[:8])))
    one = getattr(model, "predict_proba", model.decision_function)(X)
    one = one[:, positive] if one.ndim == 2 else one * (2 * positive - 1)
    exact = roc_auc_score(y == positive, one)
    assert scoring.score_of(found, 400) == pytest.approx(exact, abs=1e-12)
    assert found[1] == (y == positive).sum()


def test_candidates_are_ordered_as_by_the_auc():
    rng = np.random.default_rng(0)
    y = rng.random(60) < 0.2
    X = y[:, None] * np.linspace(0, 2, 9) + rng.normal(size=(60, 9))
    records = records_of(X, y.astype(int))
    tallies = [AUC.private_losses(column(index), records) for index in range(9)]
    utilities = AUC.utilities(np.stack(tallies, axis=-1), 60)
    exact = [roc_auc_score(y, X[:, index]) for index in range(9)]
    assert np.argsort(utilities).tolist() == np.argsort(exact).tolist()


class TestBadRecords:
    """An unreadable record is ranked wrongly, and changes nothing else."""

    def test_scores(self):
        scoring = roc_auc().resolved(["no", "yes"])
        model = column(classes=("no", "yes"))
        labels = ["no", "no", "yes", "yes"]
        good = scoring.private_losses(model, read_records([1, 2, 3, 4], labels))
        assert good.tolist() == [0.0, 2.0]
        for bad in (np.nan, 99):  # missing, and an error of the model
            found = scoring.private_losses(model, read_records([bad, 2, 3, 4], labels))
            assert found.tolist() == [2.0, 2.0]  # above both positive ones
            found = scoring.private_losses(model, read_records([1, 2, 3, bad], labels))
            assert found.tolist() == [2.0, 2.0]  # below both negative ones

    @pytest.mark.parametrize("label", ["perhaps", None, 7])
    def test_labels(self, label):
        scoring = roc_auc().resolved(["no", "yes"])
        model = column(classes=("no", "yes"))
        records = read_records([-9, 2, 3, 4], [label, "no", "yes", "yes"])
        assert scoring.private_losses(model, records).tolist() == [2.0, 2.0]


# Two scores and two classes, a missing score and an unknown class.
RECORDS = [*itertools.product((0.0, 1.0, np.nan), (0, 1)), (0.0, 5)]


class TestSensitivity:
    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_over_all_data_sets(self, n):
        moved = {1: 0.0, 2: 0.0}
        for rest in itertools.product(RECORDS, repeat=n - 1):
            found = np.array([tally([kind, *rest]) for kind in RECORDS])
            utilities = AUC.utilities(found.T, n)
            assert np.ptp(utilities) <= AUC.sensitivity(n)
            scaled = found / AUC.units(n)
            for norm, size in moved.items():
                apart = np.linalg.norm(scaled[:, None] - scaled, ord=norm, axis=-1)
                moved[norm] = max(size, apart.max())
        for norm, size in moved.items():
            assert size <= AUC.tally_sensitivity(n, norm)
            if n > 1:  # it is attained, up to the room for rounding
                assert size == pytest.approx(AUC.tally_sensitivity(n, norm), rel=1e-12)

    @pytest.mark.parametrize("n", [2, 10, 1000])
    def test_attained(self, n):
        """One positive record among negative ones, ranked first or last."""
        others = [(0.0, 0)] * (n - 1)
        found = [tally([(score, 1), *others]) for score in (-1.0, 1.0)]
        assert np.ptp(AUC.utilities(np.array(found).T, n)) == AUC.sensitivity(n)

    def test_persons(self):
        scoring = replace(AUC, num_rows=1000)
        assert scoring.sensitivity(100) > 99
        assert scoring.sensitivity(100) == pytest.approx(99)
        assert scoring.tally_sensitivity(100, 1) > AUC.tally_sensitivity(100, 1)

    def test_records_of_a_person_share_a_weight(self):
        """The second person has one record of each class: its pair does not count."""
        records = records_of([0.2, 0.9, 0.5], [1, 0, 1])
        people = People(np.array([0, 1, 1]), 2)
        found = AUC.private_losses(column(), replace(records, people=people))
        assert found.tolist() == [0.5, 1.5]

    def test_bound_on_the_sum_is_refused(self):
        records = records_of([0.2, 0.9], [1, 0])
        people = People(np.array([0, 0]), 1, max_records=2)
        with pytest.raises(InvalidArgumentError, match="max_records_per_person must"):
            AUC.for_records(replace(records, people=people))


class TestClassCounts:
    def test_a_record_keeps_its_class(self):
        """Over all data sets of four records, also with other classes than declared.

        Records beyond the public counts are left out: otherwise U could move by 3.
        """
        scoring = roc_auc(class_counts=(2, 2)).resolved([0, 1])
        assert scoring.sensitivity(4) == 2
        moved = 0.0
        for classes in itertools.product((0, 1), repeat=4):
            for scores in itertools.product((0.0, 1.0), repeat=3):
                found = [
                    tally(list(zip((own, *scores), classes, strict=True)), scoring)
                    for own in (-1.0, 2.0)
                ]
                assert found[0][1] == found[1][1]
                moved = max(moved, abs(found[0][0] - found[1][0]))
        assert moved == 2

    def test_score(self):
        scoring = roc_auc(class_counts=(2, 1)).resolved([0, 1])
        assert scoring.score_of([0.5], 3) == 0.75
        assert scoring.tally_sensitivity(3, 1) == pytest.approx(1)
        assert scoring.units(3).tolist() == [2.0]

    def test_stated(self):
        assert AUC.condition is None
        condition = roc_auc(class_counts=(2, 1)).condition
        assert "one of its own class" in condition

    def test_refused(self):
        for counts, match in [
            ((2, 2), r"class_counts must be the numbers.*3 private.*\(2, 2\)"),
            ((3, 0), "class_counts must be"),
            ((1, 1, 1), "class_counts must be two numbers"),
        ]:
            with pytest.raises(InvalidArgumentError, match=match):
                roc_auc(class_counts=counts).sensitivity(3)
        with pytest.raises(InvalidArgumentError, match="class_counts"):  # of persons
            replace(roc_auc(class_counts=(2, 1)), num_rows=9).sensitivity(3)


class TestScore:
    def test_noise_stays_inside(self):
        for noisy in ([-50.0, 3.0], [500.0, 3.0], [2.0, -7.0], [2.0, 1e9]):
            assert 0.0 <= AUC.score_of(noisy, 10) <= 1.0
        assert AUC.score_of([0.0, 1.0], 1) == 1.0

    def test_slopes(self):
        """Against finite differences."""
        at, step = np.array([12.0, 4.0]), 1e-6
        found = AUC.slopes(at, 20)
        for index in (0, 1):
            move = step * np.eye(2)[index]
            ends = [AUC.score_of(at + sign * move, 20) for sign in (1, -1)]
            assert found[index] == pytest.approx((ends[0] - ends[1]) / (2 * step))
