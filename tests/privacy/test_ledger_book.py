"""The rows that a process has read: one adjacency and one unit for all."""

import contextlib
import gc
from dataclasses import replace

import pytest
import torch

from botorch_dp import GDP, ApproxDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
)
from botorch_dp.privacy import (
    GaussianEvent,
    PrivacyAccountant,
    PureEvent,
    SubsampledGaussianMechanism,
)
from botorch_dp.privacy.entries import LedgerEntry, LedgerHeader, LedgerPlan
from botorch_dp.privacy.ledger_book import LedgerBook


class TestRows:
    def book(self):
        return LedgerBook(LedgerHeader("f00", GDP(1.0), None).to_row())

    def entry(self):
        return LedgerEntry(
            number=1,
            time="",
            event=GaussianEvent(2.0),
            count=1,
            mechanism="",
            adjacency="replace_one",
            noise="system",
        )

    def test_nothing_is_added_before_it_is_stored(self):
        book, entry = self.book(), self.entry()
        head = book.head
        assert book.admit([entry], [(entry.event, 1)], exactly=False) == [entry]
        assert (book.entries, book.head) == ([], head)
        head = head.then(entry.to_row())
        book.add([entry], head)
        assert (book.entries, book.head) == ([entry], head)
        assert book.counter.counted().amount == 0.5
        other = self.book()
        other.read([entry.to_row()], head)
        assert (other.entries, other.head) == (book.entries, book.head)

    def test_charges_are_numbered(self):
        book, entry = self.book(), self.entry()
        book.add([entry], book.head.then(entry.to_row()))
        admitted = book.admit([entry, entry], [(entry.event, 2)], exactly=False)
        assert [charge.number for charge in admitted] == [2, 3]

    def test_a_damaged_row_is_named(self):
        book, entry = self.book(), self.entry()
        with pytest.raises(LedgerError, match="Row 2"):
            book.read([entry.to_row(), "{}"], book.head)
        assert (book.entries, book.head.number) == ([], 0)  # all rows or none

    def test_a_plan_after_a_charge_is_refused(self):
        # No ledger writes one, and it could admit more than the cap.
        entry = self.entry()
        plan = LedgerPlan(
            "", ((entry.event, 1),), "replace_one", "record", "", "", True
        )
        for book, items in ((self.book(), [plan, entry]), (self.book(), [plan])):
            book.add(items, book.head)
            assert book.plan == plan
        for items in ([entry, plan], [entry, entry, plan, entry]):
            book = self.book()
            with pytest.raises(LedgerError, match="a plan after its first charge"):
                book.add(items, book.head)

    def test_garbage_is_collected_again_afterwards(self):
        book, entry = self.book(), self.entry()
        for row in (entry.to_row(), "{"):
            with contextlib.suppress(LedgerError):
                book.read([row], book.head)
            assert gc.isenabled()


class TestCharging:
    def test_one_adjacency(self, make_ledger):
        ledger = make_ledger()
        assert ledger.adjacency is None
        ledger.charge(GaussianEvent(1.0), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'replace_one'"):
            ledger.charge(GaussianEvent(1.0))
        assert len(ledger) == 1

    def test_one_unit(self, make_ledger, double):
        # An agent with 50 records is not protected as a record is.
        ledger = make_ledger()
        assert ledger.unit is None
        ledger.charge(GaussianEvent(1.0), unit="record", adjacency="zero_out")
        agents = SubsampledGaussianMechanism(
            noise_multiplier=1.0, clip_norm=1.0, sampling_rate=0.1, unit="agent"
        )
        with pytest.raises(InvalidArgumentError, match=r"unit.*'record'.*'agent'"):
            agents.release(torch.zeros(5, 2, **double), ledger=ledger)
        with pytest.raises(InvalidArgumentError, match=r"unit.*'record'.*'agent'"):
            ledger.reserve(
                [(GaussianEvent(1.0), 1)], adjacency="zero_out", unit="agent"
            )
        assert len(ledger) == 1
        assert ledger.unit == "record"

    @pytest.mark.parametrize(
        ("other", "match"),
        [
            ({"unit": "user"}, "unit must be 'record'"),
            ({"adjacency": "zero_out"}, "adj"),
        ],
    )
    def test_one_of_each_within_a_batch(self, make_ledger, other, match):
        ledger = make_ledger()
        entry = TestRows().entry()
        with pytest.raises(InvalidArgumentError, match=match):
            ledger.record([entry, replace(entry, **other)])
        assert len(ledger) == 0


class TestPlans:
    def test_the_same_plan_for_other_neighbours(self, make_ledger):
        plan = [(PureEvent(0.05), 100)]  # only exact accounting shows that it fits
        accountant = PrivacyAccountant()
        accountant.compose(*plan[0])
        ledger = make_ledger(ApproxDP(accountant.get_epsilon(1e-5) * 1.0001, 1e-5))
        ledger.reserve(plan, adjacency="zero_out", unit="agent")
        assert ledger.plan.committed
        ledger.reserve(plan)
        assert ledger.plan.committed
        assert (ledger.plan.adjacency, ledger.plan.unit) == ("replace_one", "record")
        ledger.charge(PureEvent(0.05), count=100)
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.05))
