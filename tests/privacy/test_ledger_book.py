"""The rows that a process has read: one adjacency and one unit for all."""

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
from botorch_dp.privacy.entries import LedgerEntry, LedgerHeader
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
        assert book.admit(entry, [(entry.event, 1)], exactly=False) == [entry]
        assert (book.entries, book.head) == ([], head)
        book.add(entry, entry.to_row())
        assert book.entries == [entry]
        assert book.counter.counted().amount == 0.5
        other = self.book()
        other.read([entry.to_row()])
        assert (other.entries, other.head) == (book.entries, book.head)

    def test_charges_are_numbered(self):
        book, entry = self.book(), self.entry()
        book.add(entry, entry.to_row())
        [second] = book.admit(entry, [(entry.event, 1)], exactly=False)
        assert second.number == 2

    def test_a_damaged_row_is_named(self):
        book, entry = self.book(), self.entry()
        with pytest.raises(LedgerError, match="Row 2"):
            book.read([entry.to_row(), "{}"])
        assert len(book.entries) == 1


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
