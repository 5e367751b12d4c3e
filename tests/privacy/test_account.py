"""The account of a run: its entries in a shared ledger, its states, its plans."""

import threading

import pytest
import torch

from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    AssumedEvent,
    GaussianEvent,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    LedgerEntry,
    PrivacyAccountant,
    PureDP,
    PureEvent,
)
from botorch_dp.privacy.account import RunAccount, check_ledger
from tests.devices import DEVICE, seeded

PLAN = [(GaussianEvent(4.0), 5), (PureEvent(0.1), 2)]


def zeros(size=3):
    return torch.zeros(size, dtype=torch.float64, device=DEVICE)


class TestCharges:
    def test_of_several_runs_on_one_ledger(self):
        ledger = Ledger()
        first, second = RunAccount(ledger, "first"), RunAccount(ledger, "second")
        first.charge(GaussianEvent(4.0), count=2)
        second.charge(GaussianEvent(4.0))
        ledger.charge(GaussianEvent(4.0), count=7)
        first.charge(GaussianEvent(4.0))
        assert (first.num_charged, second.num_charged) == (3, 1)
        assert [entry.number for entry in first.entries] == [1, 4]
        assert [entry.number for entry in second.entries] == [2]

    def test_by_another_process(self, tmp_path):
        path = tmp_path / "ledger"
        account = RunAccount(Ledger(path), "run")
        assert account.num_charged == 0
        Ledger(path).charge(GaussianEvent(4.0), count=3, run="run")
        assert account.num_charged == 3

    def test_a_name_that_ends_alike_is_another_run(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(4.0), run="another run")
        ledger.charge(GaussianEvent(4.0), run="run 2")
        assert RunAccount(ledger, "run").num_charged == 0

    def test_of_mechanisms(self):
        account = RunAccount(Ledger(), "run", unit="agent", adjacency="zero_out")
        mechanism = GaussianMechanism(
            GDP(0.5), sensitivity=1.0, unit="agent", adjacency="zero_out"
        )
        mechanism.release(zeros(), ledger=account)
        (entry,) = account.entries
        assert entry.event == GaussianEvent(2.0)
        assert (entry.run, entry.unit, entry.adjacency) == ("run", "agent", "zero_out")
        assert (entry.mechanism, entry.condition) == ("gaussian", None)

    @pytest.mark.parametrize("other", [{"unit": "agent"}, {"adjacency": "zero_out"}])
    def test_a_mechanism_must_protect_whom_the_run_protects(self, other):
        settings = {"unit": "person", "adjacency": "replace_one"}
        account = RunAccount(Ledger(), "run", **settings)
        mechanism = GaussianMechanism(
            GDP(0.5), sensitivity=1.0, **{**settings, **other}
        )
        with pytest.raises(InvalidArgumentError, match="must be 'replace_one' and 'pe"):
            mechanism.release(zeros(), ledger=account)
        assert len(account.ledger) == 0

    def test_a_charge_that_is_refused_leaves_no_trace(self):
        account = RunAccount(Ledger(cap=GDP(0.3)), "run")
        with pytest.raises(BudgetExceededError):
            account.charge(GaussianEvent(1.0))
        assert account.num_charged == 0

    def test_under_a_condition(self):
        account = RunAccount(Ledger(), "run", condition="it rains", failure=0.01)
        mechanism = LaplaceMechanism(PureDP(0.5), sensitivity=1.0)
        mechanism.release(zeros(1), ledger=account)
        (entry,) = account.entries
        assert entry.event == AssumedEvent(0.5, 0.01)
        assert entry.condition == "it rains"

    def test_a_failure_needs_a_pure_epsilon(self):
        account = RunAccount(Ledger(), "run", condition="it rains", failure=0.01)
        with pytest.raises(InvalidArgumentError, match="must have a pure epsilon"):
            account.charge(GaussianEvent(1.0))
        assert not account.entries


class TestReading:
    def test_by_several_threads(self):
        """Others ask how much was charged while the run goes on."""
        ledger = Ledger()
        account, stop = RunAccount(ledger, "run"), threading.Event()

        def poll():
            while not stop.is_set():
                assert account.num_charged <= 60

        threads = [threading.Thread(target=poll) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(60):
            account.charge(GaussianEvent(4.0))
            ledger.charge(GaussianEvent(4.0))
        stop.set()
        for thread in threads:
            thread.join()
        assert account.num_charged == account.num_known == 60
        assert account._read == len(ledger) == 120

    def test_an_interrupted_read_is_made_again(self, monkeypatch):
        ledger = Ledger()
        account = RunAccount(ledger, "run")
        ledger.charge(GaussianEvent(4.0), run="run")

        class Interrupted(dict):
            def __ior__(self, other):
                raise KeyboardInterrupt

        account._own = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            _ = account.entries
        account._own = {}
        assert account.num_charged == 1

    def test_what_is_known_needs_no_ledger(self, monkeypatch):
        account = RunAccount(Ledger(), "run")
        account.charge(GaussianEvent(4.0), count=2)
        monkeypatch.setattr(Ledger, "entries_since", lambda self, number: 1 / 0)
        assert account.num_known == 2
        with pytest.raises(ZeroDivisionError):
            _ = account.num_charged

    def test_another_ledger_is_read_from_its_beginning(self):
        account = RunAccount(Ledger(), "run")
        account.charge(GaussianEvent(4.0), count=2)
        account.ledger = Ledger()
        assert account.num_charged == account.num_known == 0

    def test_a_loaded_state_is_known(self):
        old = RunAccount(Ledger(), "old")
        old.charge(GaussianEvent(4.0), count=2)
        account = RunAccount(old.ledger, "new")
        account.load_state_dict(old.state_dict(), PLAN)
        assert account.num_known == 2


class TestReserve:
    def test_in_the_name_of_the_run(self):
        ledger = Ledger(cap=ApproxDP(3.0, 1e-5))
        RunAccount(ledger, "run").reserve(PLAN)
        assert ledger.plan.run == "run"

    def test_a_plan_that_fits(self):
        ledger = Ledger(cap=ApproxDP(3.0, 1e-5))
        RunAccount(ledger, "run").reserve(PLAN)
        assert ledger.plan.releases == tuple(PLAN)

    def test_a_plan_that_does_not(self):
        with pytest.raises(BudgetExceededError):
            RunAccount(Ledger(cap=ApproxDP(0.1, 1e-5)), "run").reserve(PLAN)

    def test_a_ledger_for_other_neighbours(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(4.0), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match="adjacency='replace_one', got"):
            RunAccount(ledger, "run").reserve(PLAN)


class TestState:
    def start(self, ledger=None, run="new", **kwargs):
        return RunAccount(Ledger() if ledger is None else ledger, run, **kwargs)

    def spend(self):
        account = self.start(run="old")
        account.charge(GaussianEvent(4.0), count=2)
        account.charge(PureEvent(0.1))
        return account

    def test_a_new_ledger_is_charged(self):
        state, account = self.spend().state_dict(), self.start()
        assert account.check_state(state, PLAN, secure=False) == 3
        account.load_state_dict(state, PLAN)
        assert account.num_charged == 3
        assert account.runs == ["old", "new"]
        assert {entry.run for entry in account.entries} == {"old"}
        assert account.charge(GaussianEvent(4.0)).run == "new"
        assert account.num_charged == 4

    def test_the_same_ledger_is_not_charged_twice(self):
        old = self.spend()
        account = self.start(old.ledger)
        account.load_state_dict(old.state_dict(), PLAN)
        assert len(old.ledger) == 2
        assert account.num_charged == 3

    def test_a_part_that_the_ledger_lacks_is_charged(self):
        old = self.spend()
        state = old.state_dict()
        state["charges"][0]["count"] = 4
        account = self.start(old.ledger)
        account.load_state_dict(state, PLAN)
        assert account.num_charged == 5

    def test_all_or_nothing(self):
        ledger = Ledger(cap=PureDP(0.15))
        state = self.start(run="old").state_dict()
        state["charges"] = self.spend().state_dict()["charges"][1:] * 2
        with pytest.raises(BudgetExceededError, match="Nothing was recorded"):
            self.start(ledger).load_state_dict(state, [(PureEvent(0.1), 2)])
        assert len(ledger) == 0

    def test_a_new_ledger_accounts_for_the_whole_plan(self):
        # Only exact accounting shows that all of it fits.
        plan, accountant = [(PureEvent(0.05), 100)], PrivacyAccountant()
        accountant.compose(*plan[0])
        cap = ApproxDP(accountant.get_epsilon(1e-5) * 1.0001, 1e-5)
        old = self.start(run="old")
        for _ in range(10):
            old.charge(PureEvent(0.05))
        account = self.start(Ledger(cap=cap))
        account.load_state_dict(old.state_dict(), plan)
        account.charge(PureEvent(0.05), count=90)
        with pytest.raises(BudgetExceededError):
            account.charge(PureEvent(0.05))

    def test_interrupted_it_has_charged_nothing(self, tmp_path, monkeypatch):
        state, ledger = self.spend().state_dict(), Ledger(tmp_path / "l.db")
        rows = []

        def interrupted(entry):
            rows.append(entry)
            if len(rows) == 2:
                raise KeyboardInterrupt
            return to_row(entry)

        to_row = LedgerEntry.to_row
        with monkeypatch.context() as patched:
            patched.setattr(LedgerEntry, "to_row", interrupted)
            with pytest.raises(KeyboardInterrupt):
                self.start(ledger).load_state_dict(state, PLAN)
        assert len(ledger) == 0

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"unit": "agent"}, "every agent"),
            ({"condition": "luck"}, "another condition"),
            ({"noise": "secure"}, "secure noise, but secure=False"),
            ({"run": "third"}, "another run, 'third'"),
            ({"adjacency": "zero_out"}, "not in the plan"),
            ({"count": 6}, "not in the plan"),
            ({"event": GaussianEvent(400.0).to_dict()}, "not in the plan"),
        ],
    )
    def test_charges_that_are_not_of_such_a_run(self, change, match):
        state = self.spend().state_dict()
        state["charges"][0].update(change)
        with pytest.raises(ValueError, match=match):
            self.start().check_state(state, PLAN, secure=False)

    @pytest.mark.parametrize("runs", [[], [3], "old", ("old",), None])
    def test_identities(self, runs):
        state = {"runs": runs, "charges": []}
        with pytest.raises(ValueError, match="runs"):
            self.start().check_state(state, PLAN, secure=False)

    def test_what_is_left_of_a_plan(self):
        old = self.spend()
        charges = old.state_dict()["charges"]
        expected = [(GaussianEvent(4.0), 3), (PureEvent(0.1), 1)]
        assert old.left_of(PLAN, charges) == expected


class TestSeededNoise:
    def test_is_not_repeated(self):
        def mechanism():
            generator = seeded(0)
            return GaussianMechanism(GDP(0.5), sensitivity=1.0, generator=generator)

        account, first = RunAccount(Ledger(), "run"), mechanism()
        drawn = [first.release(zeros(), ledger=account) for _ in range(3)]
        second = mechanism()
        account.skip_noise(second, size=3, device=DEVICE)
        after = second.release(zeros(), ledger=account)
        assert not any(torch.equal(after, before) for before in drawn)
        assert torch.equal(after, first.release(zeros(), ledger=account))

    def test_nothing_else_is_drawn(self, monkeypatch):
        mechanism = GaussianMechanism(GDP(0.5), sensitivity=1.0)
        account = RunAccount(Ledger(), "run")
        account.charge(GaussianEvent(2.0))
        monkeypatch.setattr(
            type(mechanism.noise_source), "add_gaussian", lambda *args: 1 / 0
        )
        account.skip_noise(mechanism, size=3, device=DEVICE)


def test_ledgers_are_checked():
    ledger = Ledger()
    assert check_ledger("ledger", ledger) is ledger
    assert check_ledger("ledger", None, optional=True) is None
    for value, optional in ((None, False), (GDP(1.0), True)):
        with pytest.raises(InvalidArgumentError, match=r"must be a botorch_dp\.Ledger"):
            check_ledger("ledger", value, optional=optional)
    with pytest.raises(InvalidArgumentError, match="ledger must be"):
        RunAccount(GDP(1.0), "run")
