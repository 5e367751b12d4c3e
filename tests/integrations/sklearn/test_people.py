import itertools
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from botorch_dp import ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.integrations.sklearn import PrivateSearch, Real
from botorch_dp.integrations.sklearn.people import People, people_of
from botorch_dp.integrations.sklearn.record_losses import Scoring
from botorch_dp.integrations.sklearn.records import read_alike

X, Y = make_classification(400, n_features=4, random_state=0)
TRAIN = X[:100], Y[:100]
X_VAL, Y_VAL = X[100:], Y[100:]
PRIVATE = {"X_val": X_VAL, "y_val": Y_VAL}
GROUPS = np.arange(300) // 3
GUARANTEE = ApproxDP(epsilon=1.0, delta=1e-5)
SPACE = {"C": Real(1e-3, 1e3, log=True)}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def search(**kwargs):
    settings = {"method": "stable", "num_candidates": 3, "random_state": 0, **kwargs}
    return PrivateSearch(
        LogisticRegression(), SPACE, settings.pop("guarantee", GUARANTEE), **settings
    )


def persons_of(groups):
    return people_of(groups, np.zeros(len(groups)), None).persons.tolist()


def mean_loss(records_of_persons, max_records=None, loss_range=(0.0, 1.0)):
    """Return the mean over persons, from a list of losses for each of them."""
    losses = np.array([loss for person in records_of_persons for loss in person])
    names = [i for i, person in enumerate(records_of_persons) for _ in person]
    people = people_of(names, losses, max_records)
    return people.losses(losses, loss_range).mean()


class TestLosses:
    def test_mean_over_the_records_of_a_person(self):
        people = people_of(["b", "a", "b", "b"], np.zeros(4), None)
        losses = people.losses(np.array([1.0, 0.5, 0.0, 0.5]), (0.0, 1.0))
        np.testing.assert_allclose(losses, [0.5, 0.5])

    def test_clipped_sum(self):
        people = people_of(["b", "a", "b", "b"], np.zeros(4), 2)
        losses = people.losses(np.array([2.0, 1.5, 2.0, 1.5]), (1.0, 2.0))
        # b: 1 + min(1, (1 + 1 + 0.5) / 2), a: 1 + 0.5 / 2
        np.testing.assert_allclose(losses, [2.0, 1.25])

    @pytest.mark.parametrize("max_records", [None, 1, 2, 5])
    @pytest.mark.parametrize("loss_range", [(0.0, 1.0), (-3.0, 2.0), (0.1, 0.7)])
    def test_sensitivity_by_brute_force(self, max_records, loss_range):
        # A person with any number of records replaces another. The largest change is
        # that of a person with the smallest losses and one with the largest.
        low, high = loss_range
        values = np.linspace(low, high, 3)
        persons = [
            list(losses)
            for count in (1, 2, 3)
            for losses in itertools.product(values, repeat=count)
        ] + [[high] * 50, [low] * 50]
        others = [[low, high, high], [high], [low] * 7]
        means = [
            mean_loss([*others[:1], person, *others[1:]], max_records, loss_range)
            for person in persons
        ]
        bound = (high - low) / 4
        assert max(means) - min(means) <= bound * (1 + 1e-12)
        is_reached = max(means) - min(means) >= bound * (1 - 1e-12)
        assert is_reached

    def test_a_person_with_many_records_counts_once(self):
        # A mean over records instead of persons moves by 1000 / 1003.
        others = [[0.0]] * 3
        moved = mean_loss([*others, [1.0] * 1000]) - mean_loss([*others, [0.0] * 1000])
        assert moved == pytest.approx(1 / 4, rel=1e-12)

    def test_never_outside_the_range(self):
        rng = np.random.default_rng(0)
        losses = rng.choice([0.1, 0.7], 3000)
        people = people_of(rng.integers(0, 500, 3000), losses, None)
        found = people.losses(losses, (0.1, 0.7))
        assert found.min() >= 0.1
        assert found.max() <= 0.7

    def test_do_not_depend_on_other_persons(self):
        rng = np.random.default_rng(0)
        losses, names = rng.random(200), rng.integers(0, 20, 200)
        before = people_of(names, losses, None).losses(losses, (0.0, 1.0))
        is_other = names == names[-1]
        keep = np.flatnonzero(~is_other)
        after = people_of(names[keep], losses[keep], None)
        found = after.losses(losses[keep], (0.0, 1.0))
        last = people_of(names, losses, None).persons[-1]
        assert np.array_equal(np.delete(before, last), found)  # to the last bit


class TestNames:
    def test_are_compared_by_content(self):
        names = [7, "7", 7.0, np.int64(7), " 7 ", b"7", "8", "Ann", "Ann "]
        assert persons_of(names) == [0, 0, 0, 0, 0, 0, 1, 2, 2]

    def test_missing_ones_are_one_person(self):
        names = ["a", None, np.nan, pd.NA, pd.NaT, "", " ", "nan", "b"]
        assert persons_of(names) == [0, 1, 1, 1, 1, 1, 1, 1, 2]

    def test_long_ones_keep_their_digits(self):
        names = [2**60 + 1, 2**60, 2**60 + 1]
        for container in (list, np.array, pd.Series, lambda v: list(map(str, v))):
            assert persons_of(container(names)) == [0, 1, 0]

    @pytest.mark.parametrize("odd", [None, "Ann", 0.5, [1, 2], object(), {}])
    def test_an_odd_one_does_not_change_others(self, odd):
        names = [3, 1, 3, 2, 1]
        for container in (list, lambda v: np.array(v, dtype=object), pd.Series):
            assert persons_of(container([*names, odd]))[:5] == [0, 1, 0, 2, 1]

    def test_hostile_ones_do_not_raise(self):
        class Hostile:
            def __str__(self):
                raise ZeroDivisionError

            __repr__ = __float__ = __hash__ = __str__

        assert persons_of(["a", Hostile(), None, "a"]) == [0, 1, 1, 0]

    def test_categories(self):
        assert persons_of(pd.Series(["x", None, "x"], dtype="category")) == [0, 1, 0]


class TestRefusals:
    @pytest.mark.parametrize("groups", [[1, 2], np.arange(299), np.arange(301)])
    def test_lengths(self, groups):
        with pytest.raises(InvalidArgumentError, match=f"300 names, got {len(groups)}"):
            search().fit(*TRAIN, **PRIVATE, groups=groups)

    @pytest.mark.parametrize("groups", ["patient", 7, np.zeros((300, 1))])
    def test_shapes(self, groups):
        with pytest.raises(InvalidArgumentError, match="one-dimensional array or list"):
            search().fit(*TRAIN, **PRIVATE, groups=groups)

    @pytest.mark.parametrize("bound", [0, 1.5, "many"])
    def test_bounds(self, bound):
        with pytest.raises(InvalidArgumentError, match="max_records_per_person"):
            search(max_records_per_person=bound).fit(*TRAIN, **PRIVATE, groups=GROUPS)

    def test_a_bound_without_persons(self):
        with pytest.raises(InvalidArgumentError, match="needs groups"):
            search(max_records_per_person=2).fit(*TRAIN, **PRIVATE)

    @pytest.mark.parametrize("persons_first", [True, False])
    def test_one_ledger_for_records_and_persons(self, persons_first):
        ledger = Ledger(cap=ApproxDP(epsilon=5.0, delta=1e-4))
        first, second = (GROUPS, None) if persons_first else (None, GROUPS)
        search(ledger=ledger).fit(*TRAIN, **PRIVATE, groups=first)
        with pytest.raises(InvalidArgumentError, match="Give groups= to all searches"):
            search(ledger=ledger).fit(*TRAIN, **PRIVATE, groups=second)
        assert len(ledger) == 1

    def test_groups_forgotten(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger", cap=PureDP(9.0))
        fitted = search(ledger=ledger, guarantee=PureDP(1.0))
        fitted.fit(*TRAIN, **PRIVATE, groups=GROUPS)
        for found in (fitted, pickle.loads(pickle.dumps(fitted))):
            for method in (found.resume, found.private_score):
                with pytest.raises(InvalidArgumentError, match="needs groups="):
                    method(**PRIVATE, guarantee=PureDP(1.0))

    @pytest.mark.parametrize("groups", [np.arange(300), np.zeros(300)])
    def test_other_persons(self, groups, tmp_path):
        ledger = Ledger(tmp_path / "ledger", cap=PureDP(9.0))
        fitted = search(ledger=ledger, guarantee=PureDP(1.0))
        fitted.fit(*TRAIN, **PRIVATE, groups=GROUPS)
        again = {**PRIVATE, "groups": groups, "guarantee": PureDP(1.0)}
        again |= {"X": TRAIN[0], "y": TRAIN[1]}
        for found in (fitted, pickle.loads(pickle.dumps(fitted))):
            for method in (found.resume, found.private_score):
                with pytest.raises(
                    InvalidArgumentError, match="of fit, 100 persons with 300 records"
                ):
                    method(**again)
        assert len(ledger) == 1
        fitted.fit(*TRAIN, **PRIVATE, groups=np.arange(300))  # a search of its own

    @pytest.mark.parametrize("groups", [None, GROUPS])
    def test_part_of_the_records(self, groups):
        fitted = search(ledger=Ledger(cap=PureDP(9.0)), guarantee=PureDP(1.0))
        fitted.fit(*TRAIN, **PRIVATE, groups=groups)
        some = {name: part[:200] for name, part in PRIVATE.items()}
        if groups is not None:
            some["groups"] = groups[:200]
        for method in (fitted.resume, fitted.private_score):
            with pytest.raises(InvalidArgumentError, match=r"300 records, got .*200 "):
                method(**some, guarantee=PureDP(1.0))

    def test_groups_invented(self):
        fitted = search(ledger=Ledger(cap=PureDP(9.0)), guarantee=PureDP(1.0))
        fitted.fit(*TRAIN, **PRIVATE)
        for method in (fitted.resume, fitted.private_score):
            with pytest.raises(InvalidArgumentError, match="must not be given groups"):
                method(**PRIVATE, groups=GROUPS, guarantee=PureDP(1.0))


METHODS = {
    "auto": {"method": "auto", "num_candidates": None, "max_evaluations": 6},
    "stable": {},
    "dp-gibo": {"method": "dp-gibo", "num_candidates": None, "num_steps": 2},
    "kusner": {
        "method": "kusner",
        "num_candidates": 4,
        "num_steps": 2,
        "method_options": {"correlation": 0.9},
    },
}


class TestSearch:
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_protects_persons(self, method):
        ledger = Ledger()
        found = search(**METHODS[method], release_score=True, ledger=ledger)
        found.fit(*TRAIN, **PRIVATE, groups=GROUPS)
        assert {entry.unit for entry in ledger.entries} == {"person"}
        assert found.certificate_.unit == "person"
        text = str(found.certificate_)
        assert "every person with all their records" in text
        assert (
            "the number of persons and the total number of records are public" in text
        )
        parameters = found.certificate_.parameters
        assert parameters["num_persons"] == 100
        assert "num_records" not in parameters
        assert max(found.certificate_.epsilons) < 1 / 100
        assert found.certificate_.verify(ledger).ok

    @pytest.mark.parametrize("method", METHODS)
    def test_one_record_each_is_a_search_by_record(self, method):
        by_record = search(**METHODS[method], release_score=True)
        by_record.fit(*TRAIN, **PRIVATE)
        by_person = search(**METHODS[method], release_score=True)
        by_person.fit(*TRAIN, **PRIVATE, groups=[f"p{i}" for i in range(300)])
        assert by_person.best_params_ == by_record.best_params_
        assert by_person.best_score_ == by_record.best_score_

    def test_noise_follows_the_number_of_persons(self):
        scores = [
            search(ledger=Ledger())
            .fit(*TRAIN, **PRIVATE, groups=groups)
            .private_score(**PRIVATE, groups=groups, guarantee=PureDP(1.0))
            for groups in (None, GROUPS)
        ]
        assert scores[1].noise_std == pytest.approx(3 * scores[0].noise_std)

    @pytest.mark.parametrize("scoring", ["roc_auc", "f1"])
    def test_scores_of_candidates_protect_persons(self, scoring):
        found = search(
            scoring=scoring,
            release_score=True,
            guarantee=PureDP(1.0),
            ledger=Ledger(cap=PureDP(9.0)),
        )
        found.fit(*TRAIN, **PRIVATE, groups=GROUPS)
        assert 0 < found.best_score_std_ < math.inf
        found.private_score(**PRIVATE, groups=GROUPS, guarantee=PureDP(1.0))
        assert {entry.unit for entry in found.ledger.entries} == {"person"}
        assert found.certificate_.num_releases == 3
        assert "every person with all their records" in str(found.certificate_)

    def test_says_how_records_are_combined(self):
        found = search(max_records_per_person=4)
        found.fit(*TRAIN, **PRIVATE, groups=GROUPS)
        assert "records divided by 4" in str(found.certificate_)

    def test_continues_for_the_same_persons(self):
        found = search(ledger=Ledger(cap=PureDP(9.0)), guarantee=PureDP(1.0))
        found.fit(*TRAIN, **PRIVATE, groups=GROUPS)
        found.resume(**PRIVATE, groups=GROUPS, guarantee=PureDP(1.0))
        found.private_score(**PRIVATE, groups=GROUPS, guarantee=PureDP(1.0))
        assert found.certificate_.num_releases == 3
        assert found.certificate_.unit == "person"

    def test_nothing_released_protects_persons(self):
        found = search(**METHODS["auto"], timeout=1e-9)
        found.fit(*TRAIN, **PRIVATE, groups=GROUPS)
        assert found.certificate_.num_releases == 0
        assert found.certificate_.unit == "person"


class TestCheckpoint:
    def test_does_not_tell_who_has_which_records(self, tmp_path):
        path = tmp_path / "search"
        settings = {**METHODS["dp-gibo"], "checkpoint": path}
        search(**settings, max_fits=4).fit(*TRAIN, **PRIVATE, groups=GROUPS)
        kept = torch.load(path, weights_only=True)["settings"]
        assert kept["unit"] == "'person'"
        assert kept["num_persons"] == "100"
        assert "num_records" not in kept
        # The same number of persons, with other records: a neighbour's checkpoint.
        other = np.minimum(np.arange(300), 99)
        done = search(**settings).fit(*TRAIN, **PRIVATE, groups=other)
        assert done.certificate_.num_releases == 2

    def test_never_continues_by_record(self, tmp_path):
        settings = {**METHODS["dp-gibo"], "checkpoint": tmp_path / "search"}
        search(**settings, max_fits=4).fit(*TRAIN, **PRIVATE, groups=GROUPS)
        with pytest.raises(OptimizerStateError, match="unit='person' there"):
            search(**settings).fit(*TRAIN, **PRIVATE)


def test_an_audit_notices_a_person_who_counts_more_than_once():
    # The released score of a data set in which one person has most records: with a
    # mean over records, a neighbour is told apart at any epsilon.
    scoring = Scoring("loss", lambda model, X, y: X[:, 0], (0.0, 1.0))

    def losses(value):
        X_val = np.array([[0.0]] * 9 + [[value]] * 91)
        groups = [*range(9), *["Ann"] * 91]
        people = people_of(groups, X_val, None)
        training = (np.array([[0.0], [1.0]]), None)
        records = read_alike(X_val, None, training=training, people=people)
        return scoring.private_losses(None, records), records

    (first, records), (second, _) = losses(0.0), losses(1.0)
    assert first.shape == (records.num_persons,) == (10,)
    assert abs(second.mean() - first.mean()) <= 1 / 10 + 1e-12
    by_record = abs(np.mean([0.0] * 9 + [1.0] * 91) - 0.0)
    assert by_record > 9 * (1 / 10)
    assert isinstance(records.people, People)
    assert records.persons.tolist() == [*range(9), *[9] * 91]
