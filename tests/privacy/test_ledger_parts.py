"""Parts of a ledger: every record is within the cap, and every team within its own."""

import math
import pickle

import numpy as np
import pytest
import torch

from botorch_dp import GDP, ApproxDP, Certificate, GaussianMechanism, Ledger, PureDP
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError, LedgerError
from botorch_dp.privacy import GaussianEvent, LaplaceEvent, PureEvent
from botorch_dp.privacy.account import RunAccount
from botorch_dp.privacy.certificate import WORST_CASE
from botorch_dp.privacy.ledger_summary import accountant_of
from botorch_dp.privacy.partitions import pseudonym
from tests.devices import DEVICE
from tests.privacy.cases import FORK

KEY = b"0123456789abcdef"


class TestPartitions:
    def test_each_has_the_cap(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        north, south = ledger.partition("north"), ledger.partition("south")
        for part in (north, south):
            part.charge(PureEvent(0.6))
            part.charge(PureEvent(0.4))
            assert not part.allows(PureEvent(0.1))
            with pytest.raises(BudgetExceededError, match=r"epsilon=1 to 1\.1"):
                part.charge(PureEvent(0.1))
        assert ledger.partition("east").allows(PureEvent(1.0))
        assert not ledger.allows(PureEvent(0.1))
        assert ledger.spent() == pytest.approx(1.0, rel=1e-3)

    def test_common_charges_count_for_everybody(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        ledger.partition("north").charge(PureEvent(0.7))
        ledger.partition("south").charge(PureEvent(0.2))
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.4))
        ledger.charge(PureEvent(0.3))
        with pytest.raises(BudgetExceededError):
            ledger.partition("north").charge(PureEvent(0.01))
        with pytest.raises(BudgetExceededError):
            ledger.partition("new").charge(PureEvent(0.8))
        ledger.partition("south").charge(PureEvent(0.5))

    @pytest.mark.parametrize(
        "cap",
        [PureDP(2.0), ApproxDP(2.0, 1e-5), GDP(0.4)],
        ids=["pure", "approx", "gdp"],
    )
    def test_admits_what_a_ledger_for_each_partition_would(self, cap):
        # Brute force: one ledger for each partition, with the common charges in all.
        rng = np.random.default_rng(3)
        ledger = Ledger(cap=cap, filter="renyi" if isinstance(cap, ApproxDP) else None)
        alone = {
            name: Ledger(cap=cap, filter="renyi" if ledger.filter == "renyi" else None)
            for name in ("a", "b", "c")
        }
        outcomes = set()
        for _ in range(120):
            name = str(rng.choice(["", "a", "b", "c"], p=[0.1, 0.4, 0.3, 0.2]))
            event = GaussianEvent(rng.uniform(8, 30))
            if not isinstance(cap, GDP) and (
                isinstance(cap, PureDP) or rng.random() < 0.5
            ):
                event = rng.choice(
                    [PureEvent(rng.uniform(0, 0.2)), LaplaceEvent(rng.uniform(9, 30))]
                )
            part = ledger.partition(name) if name else ledger
            concerned = [alone[name]] if name else list(alone.values())
            fits = all(one.allows(event) for one in concerned)
            assert part.allows(event) == fits
            outcomes.add((bool(name), fits))
            if fits:
                part.charge(event)
                for one in concerned:
                    one.charge(event)
            else:
                with pytest.raises(BudgetExceededError):
                    part.charge(event)
        assert len(outcomes) == 4
        delta = 1e-5
        assert ledger.spent(delta) == pytest.approx(
            max(one.spent(delta) for one in alone.values())
        )

    def test_read_again_they_count_the_same(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        ledger.charge(PureEvent(0.1))
        ledger.partition("north").charge(PureEvent(0.6))
        ledger.partition("south").charge(PureEvent(0.8))
        again = Ledger(tmp_path / "l.db")
        assert [entry.partition for entry in again.entries] == ["", "north", "south"]
        for name, left in (("north", 0.3), ("south", 0.1), ("new", 0.9)):
            assert again.partition(name).allows(PureEvent(left))
            assert not again.partition(name).allows(PureEvent(left + 0.01))

    def test_rows_without_parts_are_as_before(self):
        row = Ledger().charge(PureEvent(0.1)).to_row()
        assert "partition" not in row
        assert "budget" not in row

    def test_what_a_record_has_to_pay_for(self):
        ledger = Ledger(cap=GDP(1.0))
        ledger.charge(GaussianEvent(4.0))
        for name, multiplier in (("a", 2.0), ("b", 3.0)):
            ledger.partition(name).charge(GaussianEvent(multiplier))
        part = ledger.partition("a")
        assert [entry.number for entry in part.entries] == [1, 2]
        assert len(part) == 2
        assert [entry.number for entry in ledger.partition("b").entries] == [1, 3]
        assert len(ledger) == 3
        mu = math.sqrt(1 / 16 + 1 / 4)
        assert ledger.spent(1e-5) == pytest.approx(GDP(mu).epsilon(1e-5))
        assert part.spent(1e-5) == pytest.approx(ledger.spent(1e-5))
        assert f"epsilon={ledger.spent(1e-5):.6g} at" in ledger.summary(1e-5)
        assert "Privacy ledger (in memory, partition 'a'): 2 charge" in part.summary()
        assert "a record of 2 partitions spent" in ledger.summary()
        assert "partitions spent" not in part.summary()
        # The composition of everything is valid for everybody, and larger.
        assert ledger.accountant().get_epsilon(1e-5) > ledger.spent(1e-5)

    def test_the_certificate_states_the_assumption(self):
        ledger = Ledger(cap=PureDP(1.0))
        ledger.partition("a").charge(PureEvent(0.5))
        ledger.partition("b").charge(PureEvent(0.7))
        whole = Certificate.from_ledger(ledger)
        assert whole.assumptions == (WORST_CASE,)
        assert whole.epsilons[1e-5] == pytest.approx(1.2, rel=1e-3)
        assert "most, if partitions are disjoint" in str(whole)  # the cap counts so
        certificate = Certificate.from_ledger(ledger.partition("a"))
        text = "assuming the partitions are disjoint, with fixed public membership"
        assert text in str(certificate)
        assert "worst case over all" not in str(certificate)
        assert certificate.epsilons[1e-5] == pytest.approx(0.5, rel=1e-3)

    def test_a_run_charges_a_partition(self):
        ledger = Ledger(cap=GDP(1.0))
        mechanism = GaussianMechanism(GDP(0.5), sensitivity=1.0)
        account = RunAccount(ledger.partition("a"), "run")
        value = torch.zeros(2, dtype=torch.float64, device=DEVICE)
        mechanism.release(value, ledger=account)
        ledger.partition("b").charge(GaussianEvent(1.0))
        ledger.partition("a").charge(GaussianEvent(10.0))
        mechanism.release(value, ledger=account)
        assert account.num_charged == 2
        assert [entry.number for entry in account.entries] == [1, 4]
        assert {entry.partition for entry in account.entries} == {"a"}

    def test_a_recorded_entry_gets_the_label_of_its_ledger(self):
        ledger = Ledger(cap=PureDP(1.0))
        entry = ledger.partition("a").charge(PureEvent(0.6))
        with pytest.raises(BudgetExceededError):
            ledger.record([entry])  # now it concerns everybody
        [again] = ledger.partition("b").record([entry])
        assert again.partition == "b"

    def test_a_pickle_keeps_the_part(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", PureDP(1.0))
        part = ledger.partition("a").budget("team", PureDP(0.5))
        entry = pickle.loads(pickle.dumps(part)).charge(PureEvent(0.5))
        assert (entry.partition, entry.budget) == ("a", "team")

    def test_a_plan_covers_the_partitions_together(self):
        releases = [(PureEvent(0.05), 60), (LaplaceEvent(20.0), 40)]
        charged = Ledger()
        charged.charge_many(releases)
        cap = ApproxDP(charged.spent(1e-5) * 1.0001, 1e-5)
        ledger = Ledger(cap=cap)
        ledger.partition("a").reserve(releases)
        assert ledger.plan.committed
        ledger.partition("a").charge(PureEvent(0.05), count=40)
        with pytest.raises(BudgetExceededError, match="not in the rest of the plan"):
            ledger.partition("b").charge(PureEvent(0.05), count=21)
        ledger.partition("b").charge(PureEvent(0.05), count=20)

    def test_no_partition_of_a_partition(self):
        with pytest.raises(InvalidArgumentError, match="no partitions of its own"):
            Ledger().partition("a").partition("b")
        with pytest.raises(InvalidArgumentError, match="name must"):
            Ledger().partition("")


class TestPersons:
    def test_each_has_the_cap_under_a_pseudonym(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        for name in ("Ada", "Bob"):
            person = ledger.person(name, key=KEY)
            person.charge(PureEvent(1.0), unit="person")
            assert not ledger.person(name, key=KEY).allows(PureEvent(0.1))
        assert ledger.person("Eve", key=KEY).allows(PureEvent(1.0))
        rows = "".join(entry.to_row() for entry in ledger.entries)
        assert "Ada" not in rows
        assert ledger.entries[0].partition.startswith("person-")

    @pytest.mark.parametrize("unit", ["record", "user"])
    def test_other_units_are_refused_from_the_first_charge_on(self, unit):
        ledger = Ledger(cap=PureDP(1.0))
        bob = ledger.person("bob", key=KEY)
        same = ledger.partition(pseudonym("bob", KEY))
        for part in (bob, bob.budget("ads", PureDP(0.5)), same):
            with pytest.raises(InvalidArgumentError, match="unit must be 'person'"):
                part.charge(PureEvent(0.5), unit=unit)
            with pytest.raises(InvalidArgumentError, match="unit must be 'person'"):
                part.reserve([(PureEvent(0.5), 1)], unit=unit)
        assert len(ledger) == 0
        bob.charge(PureEvent(0.5), unit="person")

    def test_a_charge_takes_as_long_with_many_persons(self):
        # Counted, not timed: what is looked at does not grow with their number.
        ledger = Ledger(cap=PureDP(1.0))
        for number in range(500):
            ledger.partition(str(number)).charge(PureEvent(0.1))
        within, calls = ledger._book.counter._filter.within, []
        ledger._book.counter._filter.within = lambda total, limit: (
            calls.append(1) or within(total, limit)
        )
        ledger.partition("7").charge(PureEvent(0.1))
        ledger.charge(PureEvent(0.1))
        assert len(calls) <= 4
        with pytest.raises(BudgetExceededError):
            ledger.charge(PureEvent(0.9))
        assert len(calls) < 20


class TestBudgets:
    def test_both_caps_hold(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        ads = ledger.budget("ads", PureDP(0.6))
        research = ledger.budget("research", PureDP(0.7))
        ads.charge(PureEvent(0.5))
        with pytest.raises(BudgetExceededError, match=r"PureDP\(epsilon=0\.6\)"):
            ads.charge(PureEvent(0.2))
        with pytest.raises(BudgetExceededError, match=r"PureDP\(epsilon=0\.6\)"):
            ads.reserve([(PureEvent(0.2), 1)])
        assert not ads.allows(PureEvent(0.2))
        assert ledger.allows(PureEvent(0.2))
        # Both teams use the same records, so what they spend adds up.
        with pytest.raises(BudgetExceededError, match=r"PureDP\(epsilon=1\)"):
            research.charge(PureEvent(0.6))
        research.charge(PureEvent(0.5))
        assert len(research) == len(ledger) == 2
        assert research.spent() == pytest.approx(
            1.0, rel=1e-3
        )  # of a record, by all teams

    def test_of_a_ledger_without_a_cap(self):
        team = Ledger().budget("team", GDP(1.0))
        team.charge(GaussianEvent(1.5))
        assert not team.allows(GaussianEvent(1.0))
        with pytest.raises(BudgetExceededError):
            team.charge(GaussianEvent(1.0))

    def test_of_several_partitions_count_together(self):
        ledger = Ledger(cap=PureDP(1.0))
        for name in ("a", "b"):
            team = ledger.partition(name).budget("team", PureDP(0.8))
            team.charge(PureEvent(0.4))
        with pytest.raises(BudgetExceededError):
            ledger.partition("c").budget("team").charge(PureEvent(0.1))
        assert ledger.spent() == pytest.approx(0.4, rel=1e-3)

    def test_a_cap_is_final(self, make_ledger):
        ledger = make_ledger(PureDP(1.0))
        with pytest.raises(LedgerError, match="no budget 'ads'"):
            ledger.budget("ads")
        ledger.budget("ads", PureDP(0.6))
        ledger.budget("ads", PureDP(0.6))
        for cap in (PureDP(0.7), GDP(1.0)):
            with pytest.raises(LedgerError, match="which are final"):
                ledger.budget("ads", cap)
        ledger.budget("mixed", ApproxDP(0.5, 1e-6), filter="basic")
        with pytest.raises(LedgerError, match="which are final"):
            ledger.budget("mixed", filter="gdp")
        assert ledger._book.head.number == 2

    def test_read_again_they_count_the_same(self, tmp_path):
        ledger = Ledger(tmp_path / "l.db", ApproxDP(1.0, 1e-5))
        ledger.budget("ads", PureDP(0.3)).charge(PureEvent(0.2))
        ads = Ledger(tmp_path / "l.db").budget("ads")
        assert ads.allows(PureEvent(0.1))
        assert not ads.allows(PureEvent(0.11))

    def test_bad_arguments(self):
        with pytest.raises(InvalidArgumentError, match="cap"):
            Ledger().budget("a", 1.0)
        with pytest.raises(InvalidArgumentError, match="filter"):
            Ledger().budget("a", PureDP(1.0), filter="no")
        with pytest.raises(InvalidArgumentError, match="no budgets of its own"):
            Ledger().budget("a", PureDP(1.0)).budget("b", PureDP(1.0))

    def test_a_charge_to_an_unknown_budget_is_damage(self):
        ledger = Ledger()
        entry = ledger.charge(PureEvent(0.1)).with_checked(budget="none")
        with pytest.raises(LedgerError, match="no budgets"):
            ledger._book.add([entry], ledger._book.head)


def spend(url, name, barrier, results):
    """Charge a partition or, without a name, everybody, until refused."""
    ledger = Ledger(url)
    part = ledger.partition(name) if name else ledger
    barrier.wait()
    done = 0
    try:
        while True:
            part.charge(PureEvent(0.05))
            done += 1
    except BudgetExceededError:
        results.put((name, done))


def test_processes_on_a_server_never_overspend_a_partition(url):
    Ledger(url, PureDP(1.0))
    names = ("a", "a", "b", "")
    barrier, results = FORK.Barrier(len(names)), FORK.Queue()
    processes = [
        FORK.Process(target=spend, args=(url, name, barrier, results)) for name in names
    ]
    for process in processes:
        process.start()
    for _ in processes:
        results.get(timeout=60)
    for process in processes:
        process.join()
    ledger = Ledger(url)
    for name in ("a", "b"):
        entries = ledger.partition(name).entries
        assert sum(entry.count for entry in entries) == 20
        assert accountant_of(entries).get_epsilon(1e-5) <= 1.0 + 1e-9
