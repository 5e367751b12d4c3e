"""Private optimizers: budgets, accounts and certificates."""

import pytest
import torch

from botorch_dp import GDP, ApproxDP, Certificate, Ledger, PrivateBO
from botorch_dp.exceptions import (
    BudgetExceededError,
)
from botorch_dp.privacy import GaussianEvent, SeededNoise
from tests.optimizers.problems import Quadratics, make, seeded, unit_box


class TestMisuse:
    def test_an_exhausted_budget(self):
        ledger = Ledger(cap=GDP(1.0))
        make(ledger=ledger).run(Quadratics(), progress=False)
        opt = make(ledger=ledger)
        with pytest.raises(BudgetExceededError, match="this run would bring it to"):
            opt.ask()
        assert len(ledger) == 5

    def test_a_budget_for_some_of_the_steps(self):
        """Refused before the first, not after the last that is affordable."""
        ledger = Ledger(cap=GDP(1.0))
        ledger.charge(GaussianEvent(2.0))
        evaluated = []
        with pytest.raises(
            BudgetExceededError,
            match=r"spent mu=0.5 in 1 charge\(s\), this run would bring it to 1.1",
        ):
            make(ledger=ledger).run(evaluated.append, progress=False)
        assert evaluated == []
        assert len(ledger) == 1

    def test_a_budget_that_another_run_spends_meanwhile(self):
        ledger = Ledger(cap=GDP(1.0))
        opt = make(ledger=ledger)
        losses = Quadratics()(opt.ask())
        make(ledger=ledger).run(Quadratics(), progress=False)
        before = opt.state_dict()
        with pytest.raises(BudgetExceededError):
            opt.tell(losses)
        assert torch.equal(opt.state_dict()["parameter"], before["parameter"])
        assert len(ledger) == 5


class TestCertificate:
    def test_of_a_ledger_of_ones_own(self):
        opt = make()
        certificate = opt.run(Quadratics(), progress=False).certificate
        assert certificate.run is None
        assert "run" not in dict(certificate.rows())

    def test_of_a_shared_ledger(self):
        """It says whose the parameters are, and that other runs were charged."""
        ledger = Ledger()
        make(ledger=ledger, num_steps=2).run(Quadratics(), progress=False)
        opt = make(ledger=ledger, num_steps=3)
        certificate = opt.run(Quadratics(), progress=False).certificate
        assert certificate.num_releases == 5
        row = dict(certificate.rows())["run"]
        assert f"those of {opt.account.run}, which made 3 of the 5 releases" in row
        assert Certificate.from_json(certificate.to_json()) == certificate


class TestLedgerThatIsGone:
    """Nothing may fail once a step was paid for, not even reading the ledger."""

    def break_after_draw(self, monkeypatch, kind, name):
        draw = getattr(kind, name)

        def drawn(*args, **kwargs):
            monkeypatch.setattr(Ledger, "entries_since", lambda self, number: 1 / 0)
            return draw(*args, **kwargs)

        monkeypatch.setattr(kind, name, drawn)

    def test_gradients(self, monkeypatch):
        opt = make(num_steps=1)
        losses = Quadratics()(opt.ask())
        self.break_after_draw(monkeypatch, SeededNoise, "add_gaussian")
        opt.tell(losses)
        assert len(opt.history) == 1
        assert opt._losses._buffer is None

    @pytest.mark.parametrize("adaptive", [False, True])
    def test_releases(self, monkeypatch, adaptive):
        opt = PrivateBO(
            bounds=unit_box(3),
            num_candidates=16,
            num_records=200,
            guarantee=ApproxDP(1.0, 1e-5),
            num_steps=1,
            loss_range=(0.0, 1.0),
            adaptive=adaptive,
            generator=seeded(),
        )
        losses = Quadratics()(opt.ask())
        self.break_after_draw(
            monkeypatch,
            SeededNoise,
            "add_gaussian" if adaptive else "exponential_argmax",
        )
        opt.tell(losses)
        assert len(opt.history) == 1
        assert opt._released is not None

    def test_losses_are_forgotten_if_the_last_draw_is_interrupted(self, monkeypatch):
        opt = make(num_steps=2)
        opt.tell(Quadratics()(opt.ask()))
        losses = Quadratics()(opt.ask())
        assert opt._losses._buffer is not None
        monkeypatch.setattr(SeededNoise, "add_gaussian", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            opt.tell(losses)
        assert opt.done
        assert opt._losses._buffer is None
