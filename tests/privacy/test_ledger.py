"""The ledger: no overspending, no under-reporting, whatever happens to the process."""

import contextlib
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sqlite3
import threading
import time

import numpy as np
import pytest
import torch

from botorch_dp import (
    GDP,
    RDP,
    ApproxDP,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    PureDP,
)
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
)
from botorch_dp.privacy import (
    AssumedEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PrivacyAccountant,
    PrivacyEvent,
    PureEvent,
    SubsampledGaussianMechanism,
    ZCDPEvent,
)
from botorch_dp.privacy.stores import sqlite as sqlite_store
from botorch_dp.privacy.stores.chain import start

FORK = multiprocessing.get_context("fork")


@pytest.fixture(params=["memory", "sqlite"])
def make_ledger(request, tmp_path):
    def make(cap=None):
        return Ledger(None if request.param == "memory" else tmp_path / "l.db", cap)

    return make


class TestCharging:
    @pytest.mark.parametrize(
        ("cap", "event"),
        [
            (GDP(1.0), GaussianEvent(2.0)),
            (ApproxDP(GDP(1.0).epsilon(1e-5), 1e-5), GaussianEvent(2.0)),
            (RDP(8.0, 4.0), GaussianEvent(2.0)),
            (PureDP(2.0), PureEvent(0.5)),
        ],
    )
    def test_the_charge_that_would_pass_the_cap_is_refused(
        self, make_ledger, cap, event
    ):
        ledger = make_ledger(cap)
        for number in range(1, 5):
            assert ledger.charge(event).number == number
        with pytest.raises(BudgetExceededError, match="Nothing was recorded"):
            ledger.charge(event)
        assert len(ledger) == 4
        with pytest.raises(BudgetExceededError):
            make_ledger(cap).charge(event, count=5)

    @pytest.mark.parametrize(
        ("cap", "event"),
        [
            (GDP(1.0), GaussianEvent(2.0)),
            (RDP(8.0, 4.0), GaussianEvent(2.0)),
            (PureDP(2.0), PureEvent(0.5)),
        ],
    )
    def test_releases_charged_together_count_one_by_one(self, make_ledger, cap, event):
        ledger = make_ledger(cap)
        ledger.charge(event, count=3)
        assert not ledger.allows(event, count=2)
        with pytest.raises(BudgetExceededError):
            ledger.charge(event, count=2)
        ledger.charge(event)
        assert not ledger.allows(event)
        with pytest.raises(BudgetExceededError):
            ledger.charge(event)
        assert [entry.count for entry in ledger.entries] == [3, 1]

    def test_a_charge_a_little_past_the_cap_is_refused(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        ledger.charge(PureEvent(0.5))
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.5 * (1 + 1e-6)))
        ledger.charge(PureEvent(0.5))

    def test_a_smaller_charge_may_still_fit(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        ledger.charge(PureEvent(0.9))
        with pytest.raises(BudgetExceededError, match=r"0\.9 to 1\.1"):
            ledger.charge(PureEvent(0.2))
        ledger.charge(PureEvent(0.1))

    def test_what_the_cap_cannot_express_is_refused(self, make_ledger):
        with pytest.raises(BudgetExceededError, match="inf"):
            make_ledger(PureDP(100.0)).charge(GaussianEvent(1e6))

    def test_mixtures_within_an_approximate_cap(self, make_ledger):
        ledger = make_ledger(ApproxDP(2.0, 1e-5))
        for _ in range(10):
            ledger.charge(GaussianEvent(10.0))
            ledger.charge(LaplaceEvent(20.0))
        assert ledger.spent() <= 2.0
        with pytest.raises(BudgetExceededError):
            ledger.charge(LaplaceEvent(0.5))
        assert len(ledger) == 20

    def test_entries_say_what_when_and_how(self, make_ledger):
        ledger = make_ledger()
        entry = ledger.charge(
            GaussianEvent(2.0),
            count=3,
            mechanism="m",
            adjacency="zero_out",
            noise="seeded",
        )
        assert ledger.entries == (entry,)
        assert entry.event == GaussianEvent(2.0)
        assert (entry.count, entry.mechanism, entry.noise) == (3, "m", "seeded")
        assert entry.time.endswith("+00:00")
        assert ledger.adjacency == "zero_out"

    def test_reports_count_releases_one_by_one(self, make_ledger):
        ledger = make_ledger()
        ledger.charge(GaussianEvent(4.0), count=16)
        assert ledger.accountant().to_gdp() == GDP(1.0)
        assert ledger.spent(1e-5) == pytest.approx(GDP(1.0).epsilon(1e-5))

    def test_an_event_knows_its_adjacency(self, make_ledger):
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'replace_one'"):
            make_ledger().charge(PoissonGaussianEvent(1.0, 0.1))
        with pytest.raises(InvalidArgumentError, match=r"'replace_one'.*'zero_out'"):
            make_ledger().charge(
                FixedSizeGaussianEvent(1.0, 1, 10), adjacency="zero_out"
            )

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
        ("arguments", "match"),
        [
            ({"event": PrivacyEvent()}, "event"),
            ({"event": type("Mine", (GaussianEvent,), {})(1.0)}, "library's own"),
            ({"event": type("Own", (PrivacyEvent,), {})()}, "library's own"),
            ({"count": 10**400}, "count.*401 digits"),
            ({"count": 2**53 + 1}, "count"),
            ({"noise": "numpy"}, "noise.*'numpy'"),
            ({"unit": "row"}, "unit.*'row'"),
            ({"mechanism": 3}, "mechanism.*3"),
            ({"run": None}, "run.*None"),
            ({"condition": 1.0}, "condition"),
        ],
    )
    def test_nothing_is_appended_that_cannot_be_read_again(
        self, make_ledger, arguments, match
    ):
        ledger = make_ledger(GDP(5.0))
        with pytest.raises(InvalidArgumentError, match=match):
            ledger.charge(**{"event": GaussianEvent(1.0), **arguments})
        ledger.charge(GaussianEvent(1.0), mechanism="\ud800")  # half a character
        assert [entry.event for entry in ledger.entries] == [GaussianEvent(1.0)]
        if ledger.path:
            assert Ledger(ledger.path).entries == ledger.entries

    def test_a_charge_takes_as_long_after_many_different_ones(self, make_ledger):
        # Counted, not timed: what is composed again does not grow with the ledger.
        ledger = make_ledger(ApproxDP(8.0, 1e-5))
        costs = []
        ledger.charge(GaussianEvent(1e4))
        cost = ledger._book.counter._filter.cost
        ledger._book.counter._filter.cost = lambda event: (
            costs.append(event) or cost(event)
        )
        for number in range(1, 21):
            ledger.charge(GaussianEvent(1e4 + number))
            with pytest.raises(BudgetExceededError):
                ledger.charge(GaussianEvent(1e-3))
        assert len(costs) <= 20 * 8

    def test_threads_share_a_cap(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        refused = []

        def spend():
            for _ in range(20):
                try:
                    ledger.charge(PureEvent(0.02))
                except BudgetExceededError:
                    refused.append(1)

        threads = [threading.Thread(target=spend) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger) == 50
        assert len(refused) == 30

    def test_a_reader_sees_everything_while_a_charge_is_refused(self, monkeypatch):
        # Another thread is refused just when this one has read: it must wait.
        ledger = Ledger(cap=PureDP(1.0))
        ledger.charge(PureEvent(1.0))
        refresh, threads = ledger._refresh, []

        def overspend():
            with pytest.raises(BudgetExceededError):
                ledger.charge(PureEvent(1.0))

        def refresh_and_interfere():
            refresh()
            threads.append(threading.Thread(target=overspend))
            threads[-1].start()
            threads[-1].join(timeout=0.3)

        monkeypatch.setattr(ledger, "_refresh", refresh_and_interfere)
        assert len(ledger.entries) == 1
        threads[0].join()

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"event": "gaussian"}, "event.*'gaussian'"),
            ({"event": GaussianEvent(1.0), "count": 0}, "count.*0"),
            ({"event": GaussianEvent(1.0), "adjacency": "swap"}, "adjacency.*'swap'"),
        ],
    )
    def test_bad_charges(self, make_ledger, arguments, match):
        ledger = make_ledger()
        with pytest.raises(InvalidArgumentError, match=match):
            ledger.charge(**arguments)
        assert len(ledger) == 0

    def test_bad_cap(self):
        with pytest.raises(InvalidArgumentError, match=r"cap.*1\.0"):
            Ledger(cap=1.0)


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

    def test_a_plan_is_remembered(self, tmp_path, cap):
        ledger = Ledger(tmp_path / "l.db", cap)
        ledger.reserve([(self.EVENT, 30)], adjacency="zero_out")
        ledger.charge(self.EVENT, count=10, adjacency="zero_out")
        again = Ledger(tmp_path / "l.db")
        assert again.plan == ledger.plan
        assert again.allows(self.EVENT, 20)
        assert not again.allows(self.EVENT, 21)

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

    def test_a_plan_is_recognized_up_to_rounding(self, make_ledger, cap):
        ledger = make_ledger(cap)
        ledger.reserve([(self.EVENT, 30)], adjacency="zero_out")
        rounded = PoissonGaussianEvent(1.0 * (1 + 3e-16), 0.1)
        assert rounded != self.EVENT
        assert not ledger.allows(PoissonGaussianEvent(1.0 - 1e-6, 0.1))
        ledger.charge(rounded, count=20, adjacency="zero_out")
        ledger.charge(self.EVENT, count=10, adjacency="zero_out")
        with pytest.raises(BudgetExceededError):
            ledger.charge(rounded, adjacency="zero_out")

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

    def test_gaussian_releases_may_be_divided_otherwise(self, make_ledger):
        plan = [(self.EVENT, 30), (GaussianEvent(2.0), 1)]
        accountant = PrivacyAccountant()
        for event, count in plan:
            accountant.compose(event, count)
        ledger = make_ledger(ApproxDP(accountant.get_epsilon(1e-5) * 1.0001, 1e-5))
        ledger.reserve(plan, adjacency="zero_out")
        for _ in range(4):  # four times mu = 1/4 is mu = 1/2
            ledger.charge(GaussianEvent(4.0), adjacency="zero_out")
        with pytest.raises(BudgetExceededError):
            ledger.charge(GaussianEvent(100.0), adjacency="zero_out")
        ledger.charge(self.EVENT, count=30, adjacency="zero_out")

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

    @pytest.mark.parametrize(
        ("cap", "filter", "match"),
        [
            (GDP(1.0), "gdp", "filter must be None unless"),
            (None, "gdp", "filter must be None unless"),
            (ApproxDP(1.0, 1e-5), "rdp", "filter must be one of"),
        ],
    )
    def test_bad_filters(self, cap, filter, match):
        with pytest.raises(InvalidArgumentError, match=match):
            Ledger(cap=cap, filter=filter)

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


class TestSummary:
    def test_says_what_was_spent_on_what_and_what_is_left(self, double):
        ledger = Ledger(cap=GDP(1.0))
        gaussian = GaussianMechanism(GDP(0.6), sensitivity=1.0)
        laplace = LaplaceMechanism(PureDP(0.1), sensitivity=1.0)
        gaussian.release(torch.zeros(2, **double), ledger=ledger)
        laplace.release(torch.zeros(2, **double), ledger=ledger)
        laplace.release(torch.zeros(2, **double), ledger=ledger)
        text = str(ledger)
        assert "3 charge(s)" in text
        assert "cap    GDP(mu=1)" in text
        left = (1 - ledger.accountant().spent_of(GDP(1.0)).amount ** 2) ** 0.5
        assert f"left   mu={left:.6g} of 1 ({left:.1%})" in text
        assert "1 x gaussian" in text
        assert "2 x laplace" in text
        assert "at delta=1e-05" in text
        assert ledger.entries[0].time in text
        assert ledger.entries[2].time in text

    def test_without_cap_and_at_another_delta(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(1.0))
        text = ledger.summary(delta=1e-3)
        assert f"epsilon={GDP(1.0).epsilon(1e-3):.6g} at delta=0.001" in text
        assert "cap" not in text

    def test_delta_of_the_cap_is_the_default(self):
        ledger = Ledger(cap=ApproxDP(9.0, 1e-7))
        ledger.charge(GaussianEvent(1.0))
        assert ledger.spent() == pytest.approx(GDP(1.0).epsilon(1e-7))


class TestFile:
    def test_reopened_it_remembers_everything(self, tmp_path):
        path = tmp_path / "ledger.db"
        ledger = Ledger(path, cap=GDP(1.0))
        ledger.charge(GaussianEvent(2.0), mechanism="first")
        again = Ledger(path)
        assert again.cap == GDP(1.0)
        assert again.entries == ledger.entries
        again.charge(GaussianEvent(2.0))
        assert len(ledger) == 2  # the first handle sees what the second charged
        assert again.path == str(path)

    def test_reopened_it_counts_releases_charged_together(self, tmp_path):
        Ledger(tmp_path / "l.db", PureDP(1.0)).charge(PureEvent(0.25), count=4)
        again = Ledger(tmp_path / "l.db")
        assert not again.allows(PureEvent(0.25))
        with pytest.raises(BudgetExceededError):
            again.charge(PureEvent(0.25))

    def test_another_cap_is_refused(self, tmp_path):
        Ledger(tmp_path / "l.db", cap=GDP(1.0))
        with pytest.raises(LedgerError, match=r"GDP\(mu=1\).*GDP\(mu=2\)"):
            Ledger(tmp_path / "l.db", cap=GDP(2.0))
        Ledger(tmp_path / "none.db")
        with pytest.raises(LedgerError, match="None"):
            Ledger(tmp_path / "none.db", cap=GDP(2.0))

    def test_the_copied_main_file_is_complete(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db")
        ledger.charge(GaussianEvent(2.0))
        copy = tmp_path / "copy.db"
        copy.write_bytes((tmp_path / "l.db").read_bytes())
        assert len(Ledger(copy)) == 1

    def test_journal_whose_locks_belong_to_the_file_and_extra_sync(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db")
        with ledger._store._connection() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
            assert connection.execute("PRAGMA synchronous").fetchone() == (3,)

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM rows",
            "UPDATE rows SET text = '{}'",
            "DELETE FROM header",
            "UPDATE header SET text = '{}'",
        ],
    )
    def test_append_only(self, tmp_path, statement):
        ledger = Ledger(tmp_path / "l.db", cap=GDP(5.0))
        ledger.charge(GaussianEvent(1.0))
        with (
            contextlib.closing(sqlite3.connect(tmp_path / "l.db")) as connection,
            pytest.raises(sqlite3.IntegrityError, match="append-only"),
        ):
            connection.execute(statement)

    def test_pickle_is_a_handle_on_the_same_file(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", cap=GDP(1.0))
        ledger.charge(GaussianEvent(2.0))
        other = pickle.loads(pickle.dumps(ledger))
        other.charge(GaussianEvent(2.0))
        assert len(ledger) == 2

    def test_unpickled_elsewhere_it_is_the_same_ledger_or_none(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        ledger = Ledger("l.db", cap=PureDP(1.0))
        ledger.charge(PureEvent(1.0))
        pickled = pickle.dumps(ledger)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert pickle.loads(pickled).cap == PureDP(1.0)
        assert len(ledger) == 1
        for file in tmp_path.glob("l.db*"):
            file.unlink()
        with pytest.raises(LedgerError, match="not there any more"):
            pickle.loads(pickled)

    def test_numpy_counts(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db")
        ledger.charge(GaussianEvent(1.0), count=np.int64(2))
        event = FixedSizeGaussianEvent(1.0, np.int64(2), np.int64(10))
        ledger.charge(event)
        assert Ledger(tmp_path / "l.db").entries[1].event == event

    @pytest.mark.parametrize("error", [sqlite3.OperationalError, KeyboardInterrupt])
    def test_a_failed_commit_leaves_no_trace(self, tmp_path, monkeypatch, error):
        ledger = Ledger(tmp_path / "l.db", cap=PureDP(1.0))
        ledger.charge(PureEvent(0.1))

        @contextlib.contextmanager
        def failing(store):
            with store._connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield sqlite_store.SQLiteTransaction(connection, store)
                raise error("disk full")

        with monkeypatch.context() as patched:
            patched.setattr(sqlite_store.SQLiteStore, "transaction", failing)
            with pytest.raises((LedgerError, KeyboardInterrupt)):
                ledger.charge(PureEvent(0.05))
        assert ledger.charge(PureEvent(0.8)).event == PureEvent(0.8)
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.8))
        assert [entry.event.epsilon for entry in ledger.entries] == [0.1, 0.8]

    def test_memory_cannot_be_sent_away(self):
        with pytest.raises(LedgerError, match="give it a path"):
            pickle.dumps(Ledger())

    def test_no_folder(self, tmp_path):
        with pytest.raises(LedgerError, match="no folder"):
            Ledger(tmp_path / "missing" / "l.db")

    def test_a_charge_holds_the_only_write_lock(self, tmp_path):
        # From before it reads: who else has read then cannot charge what is left.
        ledger = Ledger(tmp_path / "l.db")
        with (
            ledger._store.transaction(),
            contextlib.closing(
                sqlite3.connect(tmp_path / "l.db", timeout=0.0)
            ) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")

    def test_locked_for_too_long(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sqlite_store, "_LOCK_TIMEOUT_SECONDS", 0.05)
        ledger = Ledger(tmp_path / "l.db")
        with contextlib.closing(
            sqlite3.connect(tmp_path / "l.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="locked"):
                ledger.charge(GaussianEvent(1.0))
        ledger.charge(GaussianEvent(1.0))
        assert len(ledger) == 1

    def test_others_wait_from_the_first_read_of_a_charge(self, tmp_path):
        # Not only from its write: two that have read the same would both fit.
        ledger = Ledger(tmp_path / "l.db")
        with contextlib.closing(
            sqlite3.connect(tmp_path / "l.db", isolation_level=None, timeout=0)
        ) as other:
            with ledger._store.transaction() as transaction:
                assert transaction.read_after(ledger._book.head) == []
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    other.execute("BEGIN IMMEDIATE")
            other.execute("BEGIN IMMEDIATE")


def append_text(connection, text):
    """Append a row with the right digest, as whoever knows the format could."""
    (header,) = connection.execute("SELECT text FROM header").fetchone()
    head = start(header)
    for (row,) in connection.execute("SELECT text FROM rows ORDER BY id").fetchall():
        head = head.then(row)
    head = head.then(text)
    row = (head.number, text, head.digest)
    connection.execute("INSERT INTO rows VALUES (?, ?, ?)", row)
    connection.commit()


class TestReplacedFiles:
    """A live process notices that its file is not what it was."""

    @pytest.fixture
    def ledger(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(10.0))
        for _ in range(5):
            ledger.charge(PureEvent(1.0))
        return ledger

    def check_refused(self, ledger, match="replaced"):
        with pytest.raises(LedgerError, match=match):
            ledger.charge(PureEvent(1.0))
        with pytest.raises(LedgerError, match=match):
            ledger.entries  # noqa: B018
        with pytest.raises(LedgerError, match=match):
            ledger.reserve([(PureEvent(1.0), 1)])

    def test_by_an_older_copy(self, ledger, tmp_path):
        older = (tmp_path / "l.db").read_bytes()
        ledger.charge(PureEvent(1.0))
        (tmp_path / "l.db").write_bytes(older)
        self.check_refused(ledger)

    def test_by_an_older_copy_that_went_on(self, ledger, tmp_path):
        shutil.copy(tmp_path / "l.db", tmp_path / "copy.db")
        ledger.charge(PureEvent(0.5))
        copy = Ledger(tmp_path / "copy.db")
        for _ in range(3):
            copy.charge(PureEvent(0.6))
        os.replace(tmp_path / "copy.db", tmp_path / "l.db")
        self.check_refused(ledger)

    @pytest.mark.parametrize("num_charges", [0, 5, 6])
    def test_by_another_ledger(self, ledger, tmp_path, num_charges):
        other = Ledger(tmp_path / "other.db", PureDP(10.0))
        for _ in range(num_charges):
            other.charge(PureEvent(1.0))
        os.replace(tmp_path / "other.db", tmp_path / "l.db")
        self.check_refused(ledger)
        with pytest.raises(LedgerError, match="replaced"):
            pickle.loads(pickle.dumps(ledger))

    def test_an_empty_ledger_by_another(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        Ledger(tmp_path / "other.db", PureDP(10.0))
        os.replace(tmp_path / "other.db", tmp_path / "l.db")
        self.check_refused(ledger)

    def test_by_nothing(self, ledger, tmp_path):
        (tmp_path / "l.db").unlink()
        self.check_refused(ledger, match="not there any more")

    def test_a_changed_row(self, ledger, tmp_path):
        with contextlib.closing(sqlite3.connect(tmp_path / "l.db")) as connection:
            connection.execute("DROP TRIGGER rows_UPDATE")
            connection.execute(
                "UPDATE rows SET text = replace(text, '1.0', '0.1') WHERE id = 2"
            )
            connection.commit()
        with pytest.raises(LedgerError, match=r"Row 2 .* digest"):
            Ledger(tmp_path / "l.db")

    def test_a_later_copy_of_the_same_ledger_is_taken(self, ledger, tmp_path):
        shutil.copy(tmp_path / "l.db", tmp_path / "copy.db")
        Ledger(tmp_path / "copy.db").charge(PureEvent(1.0))
        os.replace(tmp_path / "copy.db", tmp_path / "l.db")
        assert len(ledger) == 6

    def test_the_digest_names_the_whole_history(self, ledger):
        before = ledger.digest
        assert Ledger(ledger.path).digest == before
        ledger.charge(PureEvent(1.0))
        assert ledger.digest != before
        assert len(ledger.id) == 32

    def test_a_digest_is_of_all_rows_before(self):
        first, other = start("header").then("a"), start("header").then("b")
        assert first.then("c").digest != other.then("c").digest
        assert start("header").then("a").digest != start("other").then("a").digest


class TestLinks:
    def test_two_names_for_one_ledger(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        os.link(tmp_path / "l.db", tmp_path / "other.db")
        with pytest.raises(LedgerError, match="2 hard links"):
            ledger.charge(PureEvent(0.1))
        with pytest.raises(LedgerError, match="2 hard links"):
            Ledger(tmp_path / "other.db")
        (tmp_path / "other.db").unlink()
        assert ledger.charge(PureEvent(0.1)).number == 1

    def test_a_symbolic_link_is_the_same_ledger(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        (tmp_path / "link.db").symlink_to(tmp_path / "l.db")
        Ledger(tmp_path / "link.db").charge(PureEvent(0.1))
        assert len(ledger) == 1

    def test_the_rest_of_an_interrupted_creation(self, tmp_path):
        Ledger(tmp_path / "l.db", PureDP(1.0))
        os.link(tmp_path / "l.db", tmp_path / ".l.db.abcdef")
        Ledger(tmp_path / "l.db").charge(PureEvent(0.1))
        assert [path.name for path in tmp_path.iterdir()] == ["l.db"]

    def test_processes_with_two_names_never_overspend(self, tmp_path, monkeypatch):
        # With the check of links off, as on a file system that does not count them.
        monkeypatch.setattr(sqlite_store.SQLiteStore, "_check_links", lambda self: None)
        Ledger(tmp_path / "l.db", cap=PureDP(1.0))
        os.link(tmp_path / "l.db", tmp_path / "other.db")
        barrier, results = FORK.Barrier(4), FORK.Queue()
        processes = [
            FORK.Process(target=race, args=(tmp_path / name, barrier, results))
            for name in ("l.db", "other.db") * 2
        ]
        for process in processes:
            process.start()
        counts = [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
        assert sum(counts) == 100


class TestDamage:
    @pytest.fixture
    def ledger_file(self, tmp_path):
        path = tmp_path / "l.db"
        ledger = Ledger(path)
        for _ in range(100):
            ledger.charge(GaussianEvent(100.0))
        return path

    @pytest.mark.parametrize("keep", [0, 10, 99, 100, 4096, 10_000, -1, -4096])
    def test_truncated(self, ledger_file, keep):
        whole = ledger_file.read_bytes()
        cut = whole[:keep]
        assert len(cut) < len(whole)
        ledger_file.write_bytes(cut)
        with pytest.raises(LedgerError, match=r"not a ledger|damaged"):
            Ledger(ledger_file)
        assert ledger_file.read_bytes() == cut

    def test_overwritten_page(self, ledger_file):
        content = bytearray(ledger_file.read_bytes())
        content[8192:8292] = b"\xff" * 100
        ledger_file.write_bytes(content)
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)
        assert ledger_file.read_bytes() == bytes(content)

    def test_a_page_that_does_not_add_up(self, ledger_file):
        # All rows can be read, and the next one might overwrite some of them.
        content = bytearray(ledger_file.read_bytes())
        assert content[-4096] == 0x0D  # a leaf of a table
        content[-4096 + 7] += 50  # unused bytes between rows
        ledger_file.write_bytes(content)
        with pytest.raises(LedgerError, match="so what was spent is not known"):
            Ledger(ledger_file)
        assert ledger_file.read_bytes() == bytes(content)

    def test_unreadable_row(self, ledger_file):
        with contextlib.closing(sqlite3.connect(ledger_file)) as connection:
            append_text(connection, "{")
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)

    @pytest.mark.parametrize("row", ["{}", "[]", '{"event": {"type": "Nothing"}}'])
    def test_row_of_something_else(self, ledger_file, row):
        with contextlib.closing(sqlite3.connect(ledger_file)) as connection:
            append_text(connection, row)
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)

    def test_lost_row(self, ledger_file):
        with contextlib.closing(sqlite3.connect(ledger_file)) as connection:
            connection.execute("DROP TRIGGER rows_DELETE")
            connection.execute("DELETE FROM rows WHERE id = 50")
            connection.commit()
        with pytest.raises(LedgerError, match="Row 50 of the ledger is lost"):
            Ledger(ledger_file)

    def test_page_size_of_zero(self, ledger_file):
        content = bytearray(ledger_file.read_bytes())
        content[16:18] = b"\x00\x00"
        ledger_file.write_bytes(content)
        with pytest.raises(LedgerError, match="damaged"):
            Ledger(ledger_file)

    def test_foreign_text(self, tmp_path):
        path = tmp_path / "notes.txt"
        path.write_text("not a ledger at all\n" * 100)
        with pytest.raises(LedgerError, match=r"not a ledger.*left as it is"):
            Ledger(path)
        assert path.read_text() == "not a ledger at all\n" * 100

    def test_foreign_sqlite(self, tmp_path):
        path = tmp_path / "other.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE charges (id, charge)")
        before = path.read_bytes()
        with pytest.raises(LedgerError, match="another program"):
            Ledger(path)
        assert path.read_bytes() == before

    def test_a_folder(self, tmp_path):
        with pytest.raises(LedgerError, match="not a ledger"):
            Ledger(tmp_path)


def charge_until_refused(ledger, results, times, before=lambda: None):
    """Charge, then report how many charges went through."""
    done = 0
    with contextlib.suppress(BudgetExceededError):
        for _ in range(times):
            before()
            ledger.charge(PureEvent(0.01))
            done += 1
    results.put(done)


def race(path, barrier, results):
    ledger = Ledger(path, cap=PureDP(1.0))
    barrier.wait()
    charge_until_refused(ledger, results, times=50)


def release_until_killed(path, drawn_path, seed):
    """Release 200 times, noting every draw in a file after it happened."""
    mechanism = GaussianMechanism(
        GDP(0.1), sensitivity=1.0, generator=torch.Generator("cpu").manual_seed(seed)
    )
    value = torch.zeros(2, dtype=torch.float64, device="cpu")
    add_gaussian = mechanism.noise_source.add_gaussian
    drawn = os.open(drawn_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def noting(*args):
        noisy = add_gaussian(*args)
        os.write(drawn, b"x")
        return noisy

    mechanism.noise_source.add_gaussian = noting
    ledger = Ledger(path)
    for _ in range(200):
        mechanism.release(value, ledger=ledger)


class TestProcesses:
    def test_eight_processes_never_overspend(self, tmp_path):
        # All create the file, too. Without the transaction every process could spend
        # all of it: 400 charges for a cap of 100.
        barrier, results = FORK.Barrier(8), FORK.Queue()
        processes = [
            FORK.Process(target=race, args=(tmp_path / "l.db", barrier, results))
            for _ in range(8)
        ]
        for process in processes:
            process.start()
        counts = [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
        assert sum(counts) == 100
        assert len(Ledger(tmp_path / "l.db")) == 100
        assert not list(tmp_path.glob(".l.db*"))  # nothing left of the creation race

    def test_killed_at_random_it_never_under_reports(self, tmp_path):
        # Twelve processes, each killed somewhere in its 200 releases.
        path, drawn_path = tmp_path / "l.db", tmp_path / "drawn"
        drawn_path.touch()
        moments = random.Random(5)
        for seed in range(12):
            until = drawn_path.stat().st_size + moments.randrange(190)
            process = FORK.Process(
                target=release_until_killed, args=(path, drawn_path, seed)
            )
            process.start()
            give_up = time.monotonic() + 60
            while drawn_path.stat().st_size < until and time.monotonic() < give_up:
                time.sleep(1e-4)
            time.sleep(moments.uniform(0.0, 0.01))  # anywhere within a release
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            drawn = drawn_path.stat().st_size
            assert drawn >= until
            if path.exists():
                recorded = len(Ledger(path))
                # At most the release under way was charged and not yet drawn.
                assert drawn <= recorded <= drawn + seed + 1
        assert drawn > 200

    def test_forked_workers_and_further_handles_share_the_cap(self, tmp_path):
        # Handles opened before the fork, and further handles in every process: each
        # would drop the locks of a connection kept open.
        path = tmp_path / "l.db"
        ledger = Ledger(path, cap=PureDP(1.0))
        ledger.charge(PureEvent(0.01))
        results = FORK.Queue()

        def spend(ledger):
            charge_until_refused(ledger, results, 60, before=lambda: Ledger(path))

        processes = [FORK.Process(target=spend, args=(ledger,)) for _ in range(3)]
        for process in processes:
            process.start()
        del ledger
        spend(Ledger(path))
        counts = [results.get(timeout=120) for _ in range(4)]
        for process in processes:
            process.join()
        assert sum(counts) == 99
        assert len(Ledger(path)) == 100

    def test_a_ledger_on_file_survives_a_fork(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db")
        ledger.charge(GaussianEvent(1.0))
        process = FORK.Process(target=ledger.charge, args=(GaussianEvent(1.0),))
        process.start()
        process.join()
        assert process.exitcode == 0
        ledger.charge(GaussianEvent(1.0))
        assert len(ledger) == 3

    def test_a_fork_while_threads_charge(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db")
        stop = threading.Event()

        def spend():
            while not stop.is_set():
                ledger.charge(PureEvent(0.01))

        threads = [threading.Thread(target=spend) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                process = FORK.Process(target=ledger.charge, args=(PureEvent(0.01),))
                process.start()
                process.join(timeout=30)
                assert process.exitcode == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(ledger) >= 10

    def test_a_ledger_in_memory_refuses_a_fork(self):
        ledger = Ledger()
        answer = FORK.Queue()

        def child():
            try:
                ledger.charge(GaussianEvent(1.0))
                answer.put("charged")
            except LedgerError as error:
                answer.put(str(error))

        process = FORK.Process(target=child)
        process.start()
        assert "give it a path" in answer.get(timeout=60)
        process.join()
        assert len(ledger) == 0


def test_a_guarantee_is_no_path():
    with pytest.raises(InvalidArgumentError, match=r"path must be a file name.*cap="):
        Ledger(GDP(1.0))
