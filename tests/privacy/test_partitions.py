"""Totals of partitions, and pseudonyms."""

import numpy as np
import pytest

from botorch_dp import Ledger, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import PureEvent
from botorch_dp.privacy.partitions import PartitionTotals, check_name, pseudonym

KEY = b"0123456789abcdef"


class TestTotals:
    def test_against_a_table_of_every_partition(self):
        rng = np.random.default_rng(0)
        totals, table, common = PartitionTotals(), {}, np.zeros(3)
        for _ in range(200):
            name, cost = rng.choice(["", "a", "b", "c", "d"]), rng.random(3)
            totals.add(str(name), cost)
            if name:
                table[name] = table.get(name, 0.0) + cost
            else:
                common = common + cost
            seen = [common, *(common + own for own in table.values())]
            np.testing.assert_allclose(totals.bound(), np.max(seen, axis=0))
            for own in table:
                np.testing.assert_allclose(totals.bound(own), common + table[own])
            each = [np.broadcast_to(total, 3) for total in totals.each()]
            np.testing.assert_allclose(each, seen)
        np.testing.assert_allclose(totals.bound("new"), common)

    def test_equal_totals_are_looked_at_once(self):
        totals = PartitionTotals()
        for number in range(1000):
            totals.add(str(number), np.array([0.5 * (1 + number % 2)]))
        assert len(list(totals.each())) == 3


def losses(first, second, cap):
    """Return the privacy losses of all transcripts of an adaptive use of a ledger.

    A data set is one record: its partition and its bit. A release says whether the
    partition has a one, by randomized response. What comes next, and how accurate it
    is, depends on the last answer, until the ledger refuses.
    """

    def follow(ledger, answers, loss):
        epsilon = 0.5 if answers and answers[-1] else 0.25
        names = [
            name
            for name in ("pq", "qp")[sum(answers) % 2]
            if ledger.partition(name).allows(PureEvent(epsilon))
        ]
        if not names:
            yield loss
            return
        name = names[0]
        for answer in (0, 1):
            after = Ledger(cap=cap)
            for entry in ledger.entries:
                after.partition(entry.partition).charge(entry.event)
            after.partition(name).charge(PureEvent(epsilon))
            signs = [
                1 if answer == (one == (name, 1)) else -1 for one in (first, second)
            ]
            step = epsilon * (signs[0] - signs[1]) / 2
            yield from follow(after, (*answers, answer), loss + step)

    return list(follow(Ledger(cap=cap), (), 0.0))


class TestTheorem:
    """``docs/theory/parallel_composition.md``, by enumeration of all transcripts."""

    def test_a_record_that_stays_is_within_the_cap(self):
        largest = max(
            max(losses((name, 0), (name, 1), PureDP(1.0))) for name in ("p", "q")
        )
        assert largest == pytest.approx(1.0)

    def test_a_record_that_moves_costs_the_sum(self):
        # Why membership must be fixed.
        assert max(losses(("p", 1), ("q", 1), PureDP(1.0))) == pytest.approx(2.0)


class TestPseudonym:
    def test_depends_on_the_key(self):
        one = pseudonym("Ada", KEY)
        assert one == pseudonym("Ada", KEY)
        assert "Ada" not in one
        assert len({one, pseudonym("Bob", KEY), pseudonym("Ada", KEY + b"!")}) == 3

    @pytest.mark.parametrize("key", [b"", b"0123456789abcde", "0123456789abcdef"])
    def test_bad_keys(self, key):
        with pytest.raises(InvalidArgumentError, match="key"):
            pseudonym("Ada", key)

    def test_bad_person(self):
        with pytest.raises(InvalidArgumentError, match="person"):
            pseudonym(5, KEY)


@pytest.mark.parametrize("name", ["", "x" * 201, 5])
def test_bad_names(name):
    with pytest.raises(InvalidArgumentError, match="name must"):
        check_name("name", name)
