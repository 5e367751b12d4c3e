"""Wrongly ranked pairs: against their definition, and how far one record moves them."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from botorch_dp.integrations.sklearn.ranked_pairs import (
    rounding_of_weights,
    wrongly_ranked,
)

# A record has one of three scores, so that there are ties, and one of two classes.
RECORDS = [(score, is_positive) for score in (0.0, 1.0, 2.0) for is_positive in (0, 1)]


def brute_force(scores, positive, weights=None, persons=None):
    n = len(scores)
    weights = np.ones(n) if weights is None else weights
    persons = np.arange(n) if persons is None else persons
    total = 0.0
    for i, j in itertools.product(range(n), repeat=2):
        if positive[i] and not positive[j] and persons[i] != persons[j]:
            wrong = (scores[j] > scores[i]) + (scores[j] == scores[i]) / 2
            total += weights[i] * weights[j] * wrong
    return total


def of_records(records, **settings):
    scores, positive = (np.array(part) for part in zip(*records, strict=True))
    return wrongly_ranked(scores, positive.astype(bool), **settings)


def test_as_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(50):
        positive = rng.random(40) < 0.3
        positive[:2] = True, False
        scores = rng.integers(6, size=40).astype(float)
        pairs = positive.sum() * (~positive).sum()
        auc = 1 - wrongly_ranked(scores, positive) / pairs
        assert auc == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


def test_all_small_data_sets():
    for n in (1, 2, 3, 4):
        for records in itertools.product(RECORDS, repeat=n):
            scores, positive = zip(*records, strict=True)
            assert of_records(records) == brute_force(scores, positive)


def test_infinite_scores():
    scores = np.array([-np.inf, np.inf, 0.0, np.inf])
    positive = np.array([True, False, True, True])
    assert wrongly_ranked(scores, positive) == 1.0 + 1.0 + 0.5


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_one_record_moves_it_by_the_number_of_others(n):
    """Over all data sets: the bound holds and is attained."""
    moved = moved_within_class = 0.0
    for rest in itertools.product(RECORDS, repeat=n - 1):
        found = [(kind[1], of_records([kind, *rest])) for kind in RECORDS]
        values = [value for _, value in found]
        moved = max(moved, max(values) - min(values))
        for own in (0, 1):
            of_class = [value for is_positive, value in found if is_positive == own]
            spread = max(of_class) - min(of_class)
            others = sum(is_positive != own for _, is_positive in rest)
            assert spread <= others
            moved_within_class = max(moved_within_class, spread)
    assert moved == n - 1 == moved_within_class


class TestPersons:
    def some(self, rng, num_persons):
        counts = rng.integers(1, 4, size=num_persons)
        persons = np.repeat(np.arange(num_persons), counts)
        scores = rng.integers(3, size=len(persons)).astype(float)
        positive = rng.random(len(persons)) < 0.5
        return scores, positive, 1 / counts[persons], persons

    def test_as_defined(self):
        rng = np.random.default_rng(0)
        for _ in range(100):
            scores, positive, weights, persons = self.some(rng, 5)
            order = rng.permutation(len(persons))  # persons need not be sorted
            data = [part[order] for part in (scores, positive, weights, persons)]
            settings = {"weights": data[2], "persons": data[3]}
            found = wrongly_ranked(*data[:2], **settings)
            assert found == pytest.approx(brute_force(*data), abs=1e-12)

    def test_one_person_moves_it_by_the_number_of_others(self):
        """Persons with two records of half a weight, over all data sets."""
        kinds = list(itertools.combinations_with_replacement(RECORDS, 2))
        persons, weights = np.array([0, 0, 1, 1, 2, 2]), np.full(6, 0.5)
        settings = {"weights": weights, "persons": persons}
        moved = 0.0
        for rest in itertools.product(kinds, repeat=2):
            others = [record for person in rest for record in person]
            values = [of_records([*kind, *others], **settings) for kind in kinds]
            moved = max(moved, max(values) - min(values))
        assert moved == 2.0  # three persons

    def test_rounding(self):
        """The error of weights that are no binary fractions, against fractions."""
        rng = np.random.default_rng(1)
        scores, positive, weights, persons = self.some(rng, 300)
        settings = {"weights": weights, "persons": persons}
        found = wrongly_ranked(scores, positive, **settings)
        six = (6 * weights).round().astype(int)  # the weights are 1, 1/2 and 1/3
        exact = brute_force(scores, positive, six, persons) / 36
        share = rounding_of_weights(len(scores), 300)
        assert abs(found - exact) <= 299 * share / 2
        assert share < 1e-6
