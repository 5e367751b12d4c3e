"""Releases that are paid for ahead: never more of them than the ledger counts."""

import copy
import os
import pickle
import random
import threading

import pytest
import torch

from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError, LedgerError
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    Certificate,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    PaidReleases,
    PureDP,
    SecureNoise,
)
from botorch_dp.privacy.account import RunAccount
from tests.privacy.cases import FORK, kill_while_drawing


def gaussian(mu=0.1, **kwargs):
    return GaussianMechanism(GDP(mu), sensitivity=1.0, **kwargs)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64, device="cpu")


class TestPaying:
    def test_all_of_it_before_the_first_draw(self, make_ledger, monkeypatch):
        ledger, mechanism = make_ledger(GDP(1.0)), gaussian()
        monkeypatch.setattr(mechanism.noise_source, "add_gaussian", lambda *a: 1 / 0)
        paid = PaidReleases(ledger, mechanism, num_releases=60, size=3)
        (entry,) = ledger.entries
        assert (entry.event, entry.count) == (mechanism.event(3), 60)
        assert (entry.mechanism, entry.noise) == ("gaussian", "system")
        assert (entry.adjacency, entry.unit) == ("replace_one", "record")
        assert paid.num_left == 60

    def test_within_the_cap_or_not_at_all(self, make_ledger):
        ledger = make_ledger(GDP(1.0))
        with pytest.raises(BudgetExceededError, match="Nothing was recorded"):
            PaidReleases(ledger, gaussian(), num_releases=101)
        assert len(ledger) == 0
        PaidReleases(ledger, gaussian(), num_releases=100)
        with pytest.raises(BudgetExceededError):
            gaussian().release(zeros(1), ledger=ledger)

    def test_in_the_name_of_a_run(self):
        ledger = Ledger()
        account = RunAccount(ledger, "run", condition="it rains")
        PaidReleases(account, gaussian(), num_releases=5)
        assert account.num_charged == 5
        (entry,) = ledger.entries
        assert (entry.run, entry.condition) == ("run", "it rains")

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"num_releases": 0}, "num_releases"),
            ({"num_releases": 2**53 + 1}, "num_releases"),
            ({"num_releases": 2, "size": 0}, "size"),
            ({"num_releases": 2, "mechanism": GDP(1.0)}, "mechanism"),
        ],
    )
    def test_bad_arguments(self, arguments, match):
        ledger = Ledger()
        with pytest.raises(InvalidArgumentError, match=match):
            PaidReleases(ledger, **{"mechanism": gaussian(), **arguments})
        assert len(ledger) == 0


class TestTaking:
    def test_until_none_is_left(self, make_ledger):
        ledger, mechanism = make_ledger(), gaussian()
        paid = PaidReleases(ledger, mechanism, num_releases=4)
        mechanism.release(zeros(1), ledger=paid)
        with pytest.raises(BudgetExceededError, match=r"4 release.* 3 are left"):
            mechanism.release(zeros(4, 1), ledger=paid, batch_dims=1)
        assert paid.num_left == 3
        mechanism.release(zeros(3, 1), ledger=paid, batch_dims=1)
        with pytest.raises(BudgetExceededError, match="Nothing was drawn"):
            mechanism.release(zeros(1), ledger=paid)
        assert [entry.count for entry in ledger.entries] == [4]

    def test_a_refusal_draws_nothing(self, monkeypatch):
        mechanism = gaussian()
        paid = PaidReleases(Ledger(), mechanism, num_releases=1)
        mechanism.release(zeros(1), ledger=paid)
        monkeypatch.setattr(mechanism.noise_source, "add_gaussian", lambda *a: 1 / 0)
        with pytest.raises(BudgetExceededError):
            mechanism.release(zeros(1), ledger=paid)

    @pytest.mark.parametrize(
        "other",
        [
            gaussian(mu=0.2),
            gaussian(generator=torch.Generator("cpu").manual_seed(0)),
            gaussian(adjacency="zero_out"),
            gaussian(unit="user"),
            LaplaceMechanism(PureDP(0.1), sensitivity=1.0),
        ],
        ids=["cost", "noise", "adjacency", "unit", "mechanism"],
    )
    def test_only_what_was_paid_for(self, other):
        ledger = Ledger()
        paid = PaidReleases(ledger, gaussian(), num_releases=4)
        with pytest.raises(InvalidArgumentError, match="for which these releases"):
            other.release(zeros(1), ledger=paid)
        assert paid.num_left == 4

    def test_the_mechanism_is_compared_by_name(self):
        paid = PaidReleases(Ledger(), gaussian(), num_releases=4)
        labels = {"adjacency": "replace_one", "noise": "system", "unit": "record"}
        with pytest.raises(InvalidArgumentError, match="for which these releases"):
            paid.charge(gaussian().event(), mechanism="mine", **labels)
        paid.charge(gaussian().event(), mechanism="gaussian", **labels)
        assert paid.num_left == 3

    def test_the_size_counts_where_the_cost_depends_on_it(self):
        mechanism = GaussianMechanism(
            ApproxDP(1.0, 1e-5), sensitivity=1.0, secure=SecureNoise(-12)
        )
        paid = PaidReleases(Ledger(), mechanism, num_releases=2, size=2)
        assert mechanism.event(2) != mechanism.event(3)
        with pytest.raises(InvalidArgumentError, match="for which these releases"):
            mechanism.release(zeros(3), ledger=paid)
        mechanism.release(zeros(2), ledger=paid)

    def test_a_certificate_counts_what_was_paid_for(self):
        ledger = Ledger()
        mechanism = gaussian(generator=torch.Generator("cpu").manual_seed(0))
        paid = PaidReleases(ledger, mechanism, num_releases=100)
        mechanism.release(zeros(1), ledger=paid)
        certificate = Certificate.from_ledger(ledger)
        assert certificate.num_releases == 100
        assert certificate.guarantee.mu == pytest.approx(1.0)
        assert certificate.for_experiments_only


class TestTwice:
    """Nobody takes a release that somebody else has taken."""

    def test_threads(self):
        mechanism, taken = gaussian(), []
        paid = PaidReleases(Ledger(), mechanism, num_releases=500)

        def take():
            for _ in range(200):
                try:
                    mechanism.release(zeros(1), ledger=paid)
                    taken.append(1)
                except BudgetExceededError:
                    pass

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(taken), paid.num_left) == (500, 0)

    @pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
    def test_copies(self, take):
        paid = PaidReleases(Ledger(), gaussian(), num_releases=5)
        with pytest.raises(LedgerError, match="drawn twice"):
            take(paid)

    def test_forks(self, tmp_path):
        mechanism = gaussian()
        paid = PaidReleases(Ledger(tmp_path / "l.db"), mechanism, num_releases=5)
        answer = FORK.Queue()

        def child():
            try:
                mechanism.release(zeros(1), ledger=paid)
                answer.put("drawn")
            except LedgerError as error:
                answer.put(str(error))

        process = FORK.Process(target=child)
        process.start()
        assert "paid for in another process" in answer.get(timeout=60)
        process.join()
        mechanism.release(zeros(1), ledger=paid)


def release_until_killed(path, drawn_path, block):
    """Pay for blocks of releases and note every draw after it happened."""
    mechanism, ledger = gaussian(0.001), Ledger(path)
    drawn = os.open(drawn_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(100):
        paid = PaidReleases(ledger, mechanism, num_releases=block)
        while paid.num_left:
            mechanism.release(zeros(1), ledger=paid)
            os.write(drawn, b"x")


def test_killed_it_never_under_reports(tmp_path):
    path, drawn_path, block = tmp_path / "l.db", tmp_path / "drawn", 20
    drawn_path.touch()
    moments = random.Random(7)
    for kills in range(1, 6):
        until = drawn_path.stat().st_size + moments.randrange(1, 10 * block)
        wait = moments.uniform(0.0, 0.003)  # anywhere within a block
        args = (path, drawn_path, block)
        drawn = kill_while_drawing(release_until_killed, args, drawn_path, until, wait)
        recorded = sum(entry.count for entry in Ledger(path).entries)
        assert recorded % block == 0
        assert drawn <= recorded <= drawn + kills * block
    assert drawn > 5 * block
