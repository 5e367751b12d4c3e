"""Caps: plans that are fixed before the first charge, and filters for the rest."""

import numpy as np
import pytest

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError, LedgerError
from botorch_dp.privacy import (
    AssumedEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PrivacyAccountant,
    PureEvent,
    ZCDPEvent,
)
from botorch_dp.privacy.entries import LedgerBudget, LedgerPlan


class TestPlans:
    """A plan that is fixed before the first charge is accounted for exactly."""

    EVENT = PoissonGaussianEvent(1.0, 0.1)

    @pytest.fixture
    def cap(self):
        accountant = PrivacyAccountant()
        accountant.compose(self.EVENT, 30)
        return ApproxDP(accountant.get_epsilon(1e-5) * 1.0001, 1e-5)

    def test_only_exact_accounting_admits_it(self, make_ledger, cap):
        ledger = make_ledger(cap)
        ledger.reserve([(self.EVENT, 30)], adjacency="zero_out", run="r")
        assert ledger.plan.committed
        assert ledger.plan.run == "r"
        assert ledger.adjacency is None  # nothing was charged yet
        for _ in range(30):
            ledger.charge(self.EVENT, adjacency="zero_out")
        with pytest.raises(BudgetExceededError, match="committed"):
            ledger.charge(self.EVENT, adjacency="zero_out")
        with pytest.raises(BudgetExceededError, match="committed"):
            ledger.charge(GaussianEvent(1e9), adjacency="zero_out")
        assert ledger.spent() <= cap.epsilon
        assert "30 x PoissonGaussianEvent" in str(ledger)

    def test_without_a_plan_the_filter_stops_earlier(self, make_ledger, cap):
        ledger = make_ledger(cap)
        while ledger.allows(self.EVENT):
            ledger.charge(self.EVENT, adjacency="zero_out")
        assert 10 < len(ledger) < 30
        with pytest.raises(BudgetExceededError, match="Renyi filter"):
            ledger.charge(self.EVENT, adjacency="zero_out")

    def test_a_single_charge_is_its_own_plan(self, make_ledger, cap):
        ledger = make_ledger(cap)
        ledger.charge(self.EVENT, count=30, adjacency="zero_out")
        assert ledger.plan.committed
        with pytest.raises(BudgetExceededError):
            ledger.charge(GaussianEvent(1e9), adjacency="zero_out")

    def test_no_plan_is_exact_after_something_was_seen(self, make_ledger, cap):
        ledger = make_ledger(cap)
        ledger.charge(GaussianEvent(1e9), adjacency="zero_out")
        assert not ledger.plan.committed
        with pytest.raises(BudgetExceededError, match="would bring it to"):
            ledger.reserve([(self.EVENT, 30)], adjacency="zero_out")
        assert not ledger.allows(self.EVENT, 30)

    def test_before_the_first_charge_a_plan_may_be_replaced(self, make_ledger, cap):
        ledger = make_ledger(cap)
        ledger.reserve([(self.EVENT, 30)], adjacency="zero_out")
        with pytest.raises(BudgetExceededError, match="committed"):
            ledger.charge(GaussianEvent(100.0), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'replace_one'"):
            ledger.charge(GaussianEvent(100.0))
        assert not ledger.allows(GaussianEvent(100.0))
        ledger.reserve([(GaussianEvent(100.0), 1)])
        assert not ledger.plan.committed
        assert ledger.plan.adjacency == "replace_one"
        ledger.charge(GaussianEvent(100.0))
        assert ledger.filter == "gdp"

    def test_nothing_is_no_plan(self, make_ledger):
        ledger = make_ledger(ApproxDP(1.0, 1e-5))
        ledger.reserve([])
        assert ledger.plan is None

    @pytest.mark.parametrize("filter", ["gdp", "renyi", "basic"])
    @pytest.mark.parametrize(
        ("event", "count"),
        [
            (GaussianEvent(1e-10), 1),
            (PureEvent(1e10), 1),
            (LaplaceEvent(1e-10), 2**53),
            (ZCDPEvent(1e10), 2**53),
        ],
    )
    def test_huge_costs_are_refused(self, filter, event, count):
        ledger = Ledger(cap=ApproxDP(1.0, 1e-5), filter=filter)
        with pytest.raises(BudgetExceededError):
            ledger.charge(event, count=count)

    @pytest.mark.parametrize("cap", [ApproxDP(1e-9, 1e-300), ApproxDP(700.0, 0.9)])
    def test_odd_caps(self, cap):
        ledger = Ledger(cap=cap, filter="renyi")
        ledger.reserve([(PureEvent(1e-10), np.int64(1))])
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(1e4))
        with pytest.raises(InvalidArgumentError, match=r"count.*-5"):
            ledger.allows(PureEvent(1e-9), -5)

    def test_a_refusal_names_the_filter(self, make_ledger):
        ledger = make_ledger(ApproxDP(8.0, 1e-4))
        ledger.charge(GaussianEvent(10.0))
        with pytest.raises(BudgetExceededError, match=r"filter 'gdp'.*another filter="):
            ledger.reserve([(ZCDPEvent(0.01), 1)])
        mixed = Ledger(cap=ApproxDP(8.0, 1e-4), filter="renyi")
        mixed.charge(GaussianEvent(10.0))
        mixed.reserve([(ZCDPEvent(0.01), 1)])

    def test_a_plan_that_passes_the_filter_reserves_nothing(self, make_ledger):
        ledger = make_ledger(ApproxDP(1.0, 1e-5))
        ledger.reserve([(GaussianEvent(100.0), 10)])
        assert not ledger.plan.committed
        assert ledger.filter == "gdp"
        ledger.charge(GaussianEvent(5.0))  # of another plan
        assert len(ledger) == 1

    def test_too_large(self, make_ledger):
        ledger = make_ledger(ApproxDP(1.0, 1e-5))
        with pytest.raises(BudgetExceededError, match="its cap is ApproxDP"):
            ledger.reserve([(GaussianEvent(1.0), 1)])
        assert ledger.plan is None
        with pytest.raises(BudgetExceededError, match="another kind"):
            Ledger(cap=PureDP(1.0)).reserve([(GaussianEvent(1.0), 1)])
        Ledger().reserve([(GaussianEvent(1e-3), 1)])  # no cap, no limit

    def test_a_stated_filter_is_final(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", ApproxDP(1.0, 1e-5), filter="renyi")
        ledger.charge(GaussianEvent(100.0))
        assert Ledger(tmp_path / "l.db").filter == "renyi"
        with pytest.raises(LedgerError, match=r"'renyi'.*'gdp'"):
            Ledger(tmp_path / "l.db", filter="gdp")

    @pytest.mark.parametrize(
        ("event", "adjacency", "name"),
        [
            (GaussianEvent(100.0), "zero_out", "gdp"),
            (LaplaceEvent(100.0), "zero_out", "renyi"),
            (PoissonGaussianEvent(5.0, 0.01), "zero_out", "renyi"),
            (AssumedEvent(0.1, 1e-6), "zero_out", "basic"),
        ],
    )
    def test_the_first_charge_decides(self, make_ledger, event, adjacency, name):
        ledger = make_ledger(ApproxDP(1.0, 1e-5))
        assert ledger.filter is None
        ledger.charge(event, adjacency=adjacency)
        assert ledger.filter == name

    def test_no_filter_is_chosen_after_something_was_seen(self, make_ledger):
        cap = ApproxDP(1.0, 1e-5)
        event = GaussianEvent(1 / ApproxDP(0.98, 1e-5).to_gdp().mu)
        Ledger(cap=cap).charge(event)  # by the filter for Gaussian releases alone
        ledger = make_ledger(cap)
        ledger.charge(PureEvent(1e-6))
        with pytest.raises(BudgetExceededError, match="Renyi filter"):
            ledger.charge(event)
        assert ledger.filter == "renyi"

    def test_a_cap_is_met_exactly_by_what_it_equals(self, make_ledger):
        make_ledger(ApproxDP(1.0, 1e-5)).charge(AssumedEvent(1.0, 1e-5))

    def test_accounting_of_a_plan_does_not_hold_the_lock(
        self, tmp_path, monkeypatch, cap
    ):
        ledger = Ledger(tmp_path / "l.db", cap)
        other = Ledger(tmp_path / "l.db")
        within = PrivacyAccountant.within

        def slowly(accountant, budget):
            assert other.charge(GaussianEvent(100.0), adjacency="zero_out")
            assert within(accountant, budget)  # it would have fitted
            return True

        monkeypatch.setattr(PrivacyAccountant, "within", slowly)
        # Nothing had been charged when it began; now something has.
        with pytest.raises(BudgetExceededError):
            ledger.charge(self.EVENT, count=30, adjacency="zero_out")
        assert len(ledger) == 1


class TestForgedRows:
    """Rows that a ledger never writes, by somebody who may append rows."""

    @staticmethod
    def append(ledger, item):
        with ledger._store.transaction() as transaction:
            transaction.append([item.to_row()], ledger._book.head)

    @staticmethod
    def plan(count):
        releases = ((PureEvent(0.5), count),)
        return LedgerPlan("", releases, "replace_one", "record", "", "", True)

    @pytest.mark.parametrize("cap", [PureDP(1.0), GDP(1.0)])
    def test_a_committed_plan_beyond_the_cap(self, cap):
        ledger = Ledger(cap=cap)
        self.append(ledger, self.plan(50))
        with pytest.raises(LedgerError, match="past the cap"):
            ledger.charge(PureEvent(0.5))
        assert not len(ledger)

    def test_one_that_uses_up_the_cap_is_followed(self):
        ledger = Ledger(cap=PureDP(1.0))
        self.append(ledger, self.plan(2))
        ledger.charge(PureEvent(0.5), count=2)
        assert not ledger.allows(PureEvent(0.5))

    def test_a_plan_after_a_charge(self):
        ledger = Ledger(cap=PureDP(1.0))
        ledger.charge(PureEvent(0.5))
        self.append(ledger, self.plan(1))
        with pytest.raises(LedgerError, match="a plan after its first charge"):
            ledger.charge(PureEvent(0.5))

    def test_a_budget_that_is_declared_twice(self):
        ledger = Ledger(cap=PureDP(1.0))
        team = ledger.budget("team", PureDP(0.4))
        team.charge(PureEvent(0.4))
        self.append(ledger, LedgerBudget("", "team", PureDP(0.4), "pure"))
        with pytest.raises(LedgerError, match="'team' twice"):
            team.charge(PureEvent(0.4))
