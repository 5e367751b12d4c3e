"""Released scores, their budget, records that break a loss, and racing processes."""

import math
import os
import subprocess
import sys

import numpy as np
import optuna
import pytest
import torch
from optuna.trial import TrialState

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.optuna import ReleasedScoresOnly
from botorch_dp.privacy import GaussianEvent, audit_mu, mu_audit_power
from tests.integrations.optuna.studies import (
    BUDGET,
    NUM_TRIALS,
    journal,
    losses,
    make_objective,
    records,
)


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def run(objective, **options):
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = objective.create_study(sampler=sampler)
    study.optimize(objective, **options)
    return study


def completed(study):
    return [trial for trial in study.trials if trial.state == TrialState.COMPLETE]


class TestBudget:
    def test_a_study_ends_when_the_budget_is_spent(self):
        objective = make_objective()
        study = run(objective)  # without n_trials
        assert len(study.trials) == len(completed(study)) == NUM_TRIALS
        assert objective.num_left == 0
        assert objective.ledger.spent(1e-6) == pytest.approx(1.0, rel=1e-9)

    def test_the_noise_is_that_of_the_guarantee(self):
        objective = make_objective(guarantee=GDP(1.0), num_trials=16)
        # n = 100 records in [0, 1], and a sixteenth of mu squared: 4 / 100.
        assert objective.noise_std == pytest.approx(0.04, rel=1e-6)
        pure = make_objective(guarantee=PureDP(1.0), num_trials=10)
        assert pure.noise_std == pytest.approx(math.sqrt(2) * 0.1, rel=1e-6)
        run(pure)
        assert pure.ledger.spent(1e-9) <= 1.0

    def test_a_spent_budget_evaluates_nothing(self):
        calls = []
        objective = make_objective(losses=lambda p, r: calls.append(p) or losses(p, r))
        study = run(objective)
        study.optimize(objective, n_trials=3)
        assert len(calls) == NUM_TRIALS
        assert [trial.state for trial in study.trials[NUM_TRIALS:]] == [
            TrialState.PRUNED
        ]
        assert study.trials[-1].params == {}

    def test_asking_and_telling(self):
        objective = make_objective(num_trials=1)
        study = objective.create_study()
        trial = study.ask()
        study.tell(trial, objective(trial))
        with pytest.raises(optuna.TrialPruned, match="budget of the study is spent"):
            objective(study.ask())

    def test_a_ledger_that_cannot_pay_for_all_trials(self):
        with pytest.raises(BudgetExceededError):
            make_objective(ledger=Ledger(cap=ApproxDP(0.5, 1e-6)))

    def test_others_may_spend_the_ledger(self):
        ledger = Ledger(cap=BUDGET)
        objective = make_objective(ledger=ledger)
        study = run(objective, n_trials=2)
        while ledger.allows(GaussianEvent(20.0)):
            ledger.charge(GaussianEvent(20.0))
        study.optimize(objective)
        assert len(completed(study)) < NUM_TRIALS
        assert objective.num_left == 0

    def test_a_second_process_continues_the_plan(self, tmp_path):
        file = tmp_path / "ledger"
        study = run(make_objective(ledger=Ledger(file, cap=BUDGET)), n_trials=5)
        second = make_objective(ledger=Ledger(file))
        assert second.num_left == NUM_TRIALS - 5
        study = run(second)
        assert len(completed(study)) == NUM_TRIALS - 5

    def test_other_settings_are_refused(self):
        ledger = Ledger()
        run(make_objective(ledger=ledger), n_trials=1)
        with pytest.raises(InvalidArgumentError, match="another study_name"):
            make_objective(ledger=ledger, num_trials=NUM_TRIALS + 1)
        make_objective(ledger=ledger, num_trials=NUM_TRIALS + 1, study_name="other")

    def test_who_comes_too_late_does_not_draw(self, monkeypatch):
        """As if another process had charged after this one looked."""
        objective = make_objective(ledger=Ledger(), num_trials=2)
        study = run(objective)
        drawn = []
        mechanism = objective._mechanism
        monkeypatch.setattr(type(mechanism), "_draw", lambda *_: drawn.append(1))
        monkeypatch.setattr(type(objective), "num_left", 1)
        with pytest.raises(optuna.TrialPruned, match="another process was faster"):
            objective(study.ask())
        assert not drawn
        assert len(objective.ledger) == 3  # charged before that was known

    @pytest.mark.default_device
    def test_racing_processes_never_release_too_much(self, tmp_path):
        ledgers = [Ledger(tmp_path / "0", cap=BUDGET), Ledger(tmp_path / "1")]
        workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integrations.optuna.studies",
                    ledger.path,
                    str(tmp_path / f"storage{number}"),
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for number, ledger in enumerate(ledgers)
            for _ in range(2)
        ]
        assert [worker.wait(timeout=300) for worker in workers] == [0] * 4
        for number, ledger in enumerate(ledgers):
            study = optuna.load_study(
                study_name="study", storage=journal(str(tmp_path / f"storage{number}"))
            )
            assert len(completed(study)) == NUM_TRIALS
            # With a cap there is not even a charge too many.
            assert NUM_TRIALS <= len(ledger) <= NUM_TRIALS + number
            values = [trial.value for trial in completed(study)]
            assert len(set(values)) == NUM_TRIALS


class TestScores:
    def test_the_mean_of_clipped_losses(self):
        objective = make_objective(
            guarantee=GDP(1e9), num_trials=1, losses=lambda p, r: 3 * r - 0.5
        )
        (trial,) = run(objective).trials
        expected = (3 * records() - 0.5).clamp(0, 1).mean()
        assert trial.value == pytest.approx(float(expected), abs=1e-6)

    @pytest.mark.parametrize(
        "kind", [np.asarray, list, lambda values: torch.tensor(values, device="cpu")]
    )
    def test_other_kinds_of_records_and_losses(self, kind):
        objective = make_objective(
            guarantee=GDP(1e9),
            num_trials=1,
            private_records=list(range(10)),
            losses=lambda p, rows: kind([row / 10 for row in rows]),
        )
        assert run(objective).best_value == pytest.approx(0.45, abs=1e-6)

    def test_another_range(self):
        objective = make_objective(
            guarantee=GDP(1e9),
            num_trials=1,
            loss_range=(-2.0, 2.0),
            losses=lambda p, rows: -5 * rows,
        )
        expected = (-5 * records()).clamp(-2, 2).mean()
        assert run(objective).best_value == pytest.approx(float(expected), abs=1e-6)

    def test_only_for_its_own_study(self):
        objective = make_objective()
        other = optuna.create_study(study_name="other")
        with pytest.raises(InvalidArgumentError, match="of the study 'study'"):
            objective(other.ask())
        upwards = optuna.create_study(study_name="study", direction="maximize")
        with pytest.raises(InvalidArgumentError, match="minimizes one value"):
            objective(upwards.ask())
        assert len(objective.ledger) == 0

    def test_a_guard_of_the_user_is_kept(self):
        guard = ReleasedScoresOnly(None, public_attributes=["version"])
        objective = make_objective()
        study = objective.create_study(guard)
        assert study._storage is guard
        study.optimize(objective, n_trials=1)
        assert len(completed(study)) == 1

    def test_the_certificate(self):
        objective = make_objective()
        run(objective)
        certificate = objective.certificate()
        assert certificate.epsilons[1e-6] <= 1.0 + 1e-9
        assert certificate.num_releases == NUM_TRIALS
        assert certificate.parameters["study_name"] == "study"
        assert any("suggest" in text for text in certificate.assumptions)

    @pytest.mark.parametrize(
        ("wrong", "match"),
        [
            ({"num_trials": 0}, "num_trials"),
            ({"loss_range": (1.0, 0.0)}, "loss_range"),
            ({"private_records": 3}, "private_records"),
            ({"private_records": []}, "private_records"),
            ({"losses": None}, "losses"),
            ({"suggest": None}, "suggest"),
            ({"study_name": None}, "study_name"),
            ({"ledger": "file"}, "ledger"),
            ({"guarantee": 1.0}, "guarantee"),
        ],
    )
    def test_wrong_settings(self, wrong, match):
        with pytest.raises(InvalidArgumentError, match=match):
            make_objective(**wrong)


def break_at(row, how):
    """Return losses that do something unexpected where a record is."""

    def broken(parameters, rows):
        if row in rows.tolist():
            return how(rows)
        return rows

    return broken


def raises(_):
    raise RuntimeError("record 17")


def exits(_):
    sys.exit("record 17")


class TestRecordsThatBreakALoss:
    @pytest.mark.parametrize(
        "how",
        [raises, exits, lambda rows: rows[:0], lambda rows: "text", lambda rows: None],
    )
    def test_count_as_the_largest_loss_alone(self, how):
        private = torch.arange(50, dtype=torch.float64, device="cpu") / 100
        objective = make_objective(
            private_records=private, losses=break_at(0.17, how), num_trials=1
        )
        expected = private.clone()
        expected[17] = 1.0
        assert torch.equal(objective._bounded_losses({}), expected)
        study = run(objective)
        assert "record 17" not in repr(study.trials)

    def test_what_is_not_a_number(self):
        values = [math.nan, math.inf, -math.inf, 0.5]
        objective = make_objective(
            private_records=[0] * 4, losses=lambda p, rows: values[: len(rows)]
        )
        assert objective._bounded_losses({}).tolist() == [1.0, 1.0, 0.0, 0.5]

    def test_one_record_moves_the_mean_by_no_more_than_the_sensitivity(self):
        private = torch.rand(64, dtype=torch.float64, device="cpu")
        for index, how in ((0, raises), (63, exits)):
            broken = break_at(float(private[index]), how)
            changed = make_objective(private_records=private, losses=broken)
            plain = make_objective(private_records=private, losses=lambda p, r: r)
            means = [o._bounded_losses({}).mean() for o in (changed, plain)]
            assert abs(means[0] - means[1]) <= plain._mechanism.sensitivity

    def test_everything_breaks(self):
        objective = make_objective(losses=lambda p, r: raises(r))
        assert objective._bounded_losses({}).tolist() == [1.0] * 100

    def test_the_keyboard_interrupts(self):
        def interrupted(parameters, rows):
            raise KeyboardInterrupt

        objective = make_objective(losses=interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(objective)
        assert len(objective.ledger) == 0

    def test_mistakes_can_be_found(self):
        objective = make_objective(losses=lambda p, r: raises(r))
        with pytest.raises(RuntimeError, match="record 17"):
            objective.private_losses({"x": 0.5})
        found = make_objective().private_losses({"x": 0.5})
        assert torch.equal(found, (records() - 0.5).abs())
        assert len(objective.ledger) == 0


class TestAudit:
    NUM = 600

    def scores(self, last, factor, seed):
        """Released scores whose share of the budget is mu = 1."""
        private = torch.zeros(20, dtype=torch.float64, device="cpu")
        private[-1] = last
        objective = make_objective(
            private_records=private,
            losses=lambda p, rows: rows,
            guarantee=GDP(math.sqrt(self.NUM)),
            num_trials=self.NUM,
            ledger=Ledger(),  # without a cap: broken noise costs more
            generator=torch.Generator("cpu").manual_seed(seed),
        )
        objective._mechanism.noise_std *= factor
        released = [
            objective._release(objective._bounded_losses({})) for _ in range(self.NUM)
        ]
        return torch.tensor(released, dtype=torch.float64, device="cpu")

    @pytest.mark.parametrize("last", [1.0, 1e9, math.inf])
    def test_halved_noise_is_refuted_and_the_claim_is_not(self, last):
        power = mu_audit_power(true_mu=2.0, claimed_mu=1.0, num_samples=self.NUM // 2)
        assert power > 0.99
        honest = audit_mu(self.scores(0.0, 1.0, 1), self.scores(last, 1.0, 2))
        assert not honest.rejects(GDP(1.0))
        assert honest.lower_bound > 0.5
        broken = audit_mu(self.scores(0.0, 0.5, 3), self.scores(last, 0.5, 4))
        assert broken.rejects(GDP(1.0))
