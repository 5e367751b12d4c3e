"""The plan: noise against closed forms and other accountants, and its certificate."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from opacus.accountants import PRVAccountant

from botorch_dp import GDP, RDP, ApproxDP, Certificate, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
)
from botorch_dp.integrations.opacus import JointBudget
from botorch_dp.privacy import (
    GaussianEvent,
)

from .runs import GUARANTEES, RENYI, full_batch, joint_budget, spend_on_tuning


class TestFullBatchPlan:
    @pytest.mark.parametrize("guarantee", GUARANTEES)
    def test_disjoint(self, guarantee):
        budget = full_batch(guarantee, num_runs=16, steps_per_run=25)
        mu = guarantee.to_gdp().mu
        assert math.isclose(budget.noise_multiplier, 20 / mu)
        assert math.isclose(budget.training_accountant().to_gdp().mu, mu)
        assert budget.tuning == guarantee
        assert budget.tuning_ledger is not budget.training_ledger
        assert budget.tuning_ledger.cap == budget.training_ledger.cap == guarantee

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    @pytest.mark.parametrize("share", [None, 0.9])
    def test_shared(self, guarantee, share):
        budget = full_batch(
            guarantee,
            num_runs=16,
            steps_per_run=25,
            records="shared",
            training_share=share,
        )
        share, mu = share or 0.5, guarantee.to_gdp().mu
        assert math.isclose(budget.noise_multiplier, 20 / (mu * math.sqrt(share)))
        assert math.isclose(budget.tuning.mu, mu * math.sqrt(1 - share))
        squares = budget.training_accountant().to_gdp().mu ** 2 + budget.tuning.mu**2
        assert math.isclose(squares, mu**2)
        assert budget.tuning_ledger is budget.training_ledger

    def test_a_run_of_many_has_mu_over_the_root_of_their_number(self):
        b, T = 3, 5
        budget = full_batch(num_runs=b * T)
        one = budget.training_accountant(num_runs=1).to_gdp().mu
        assert math.isclose(one, 1 / math.sqrt(b * T))
        assert one > 1 / (b * math.sqrt(T))  # as the paper has it: more noise


def library_epsilon(events, delta):
    """Epsilon as dp-accounting has it, on a grid of its own."""
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=1e-4,
    )
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def sampled(noise_multiplier, sample_rate):
    return dp_accounting.PoissonSampledDpEvent(
        sample_rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )


class TestSampledPlan:
    def test_disjoint_against_other_accountants(self):
        budget = joint_budget(
            ApproxDP(2.0, 1e-5), num_runs=7, sample_rate=0.1, steps_per_run=20
        )
        z = budget.noise_multiplier
        steps = 7 * 20
        assert library_epsilon([(sampled(z, 0.1), steps)], 1e-5) <= 2.0001
        assert library_epsilon([(sampled(0.995 * z, 0.1), steps)], 1e-5) > 2.0
        opacus = PRVAccountant()
        opacus.history = [(z, 0.1, steps)]
        assert opacus.get_epsilon(delta=1e-5) == pytest.approx(2.0, abs=0.02)

    def test_shared_against_dp_accounting(self):
        budget = joint_budget(
            ApproxDP(2.0, 1e-5),
            num_runs=7,
            sample_rate=0.1,
            steps_per_run=20,
            records="shared",
            training_share=0.7,
        )
        mu = ApproxDP(2.0, 1e-5).to_gdp().mu
        assert math.isclose(budget.tuning.mu, mu * math.sqrt(0.3))
        tuning = (dp_accounting.GaussianDpEvent(1 / budget.tuning.mu), 1)
        for factor, fits in ((1.0, True), (0.99, False)):
            training = (sampled(factor * budget.noise_multiplier, 0.1), 140)
            epsilon = library_epsilon([training, tuning], 1e-5)
            assert (epsilon <= 2.0001) == fits

    def test_renyi(self):
        guarantee = RDP(8.0, 0.5)
        budget = joint_budget(
            guarantee, num_runs=2, sample_rate=0.2, steps_per_run=5, records="shared"
        )
        accountant = dp_accounting.rdp.RdpAccountant(
            [8.0], dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        accountant.compose(sampled(budget.noise_multiplier, 0.2), 10)
        accountant.compose(dp_accounting.GaussianDpEvent(1 / budget.tuning.mu))
        assert 0.99 * 0.5 < accountant.rdp[0] <= 0.5 * (1 + 1e-6)

    @pytest.mark.parametrize("records", ["disjoint", "shared"])
    def test_the_caps_hold_it_all_and_no_more(self, records):
        guarantee = ApproxDP(2.0, 1e-5)
        budget = joint_budget(
            guarantee, num_runs=4, sample_rate=0.1, steps_per_run=10, records=records
        )
        for _ in range(2):
            budget.charge_run()
        spend_on_tuning(budget)
        for _ in range(2):
            budget.charge_run()
        for ledger in (budget.training_ledger, budget.tuning_ledger):
            assert 0.99 * 2.0 < ledger.spent() <= 2.0 * (1 + 1e-9)
        with pytest.raises(BudgetExceededError, match=r"pas[st] the cap"):
            spend_on_tuning(budget)
        assert budget.certificate().epsilons[1e-5] <= 2.0 * (1 + 1e-9)


class TestPlanArguments:
    @pytest.mark.parametrize(
        ("changed", "match"),
        [
            ({"guarantee": PureDP(1.0)}, "guarantee must be one that Gaussian"),
            ({"guarantee": 1.0}, "guarantee must be a GDP"),
            ({"guarantee": GDP(1.0)}, r"ApproxDP or an RDP.*GDP\(mu=1\)"),
            ({"guarantee": RDP(2000.0, 1e-10)}, "guarantee cannot be met"),
            ({"num_runs": 0}, "num_runs must be a whole number"),
            ({"steps_per_run": 1.5}, "steps_per_run must be a whole number"),
            ({"sample_rate": 0.0}, "sample_rate must be a finite number above 0"),
            ({"sample_rate": 1.5}, "sample_rate must be at most 1, got 1.5"),
            ({"records": "some"}, "records must be one of 'disjoint', 'shared'"),
            (
                {"records": "disjoint", "training_share": 0.5},
                "training_share must be None for disjoint",
            ),
            (
                {"records": "shared", "training_share": 1.0},
                "training_share must lie strictly between 0 and 1",
            ),
        ],
    )
    def test_refused(self, changed, match):
        arguments = {
            "guarantee": ApproxDP(1.0, 1e-5),
            "num_runs": 2,
            "sample_rate": 0.5,
            "steps_per_run": 2,
            **changed,
        }
        with pytest.raises(InvalidArgumentError, match=match):
            JointBudget(**arguments)

    def test_orders_beyond_the_grid_count_as_no_sampling(self):
        budget = JointBudget(
            RDP(2000.0, 1.0), num_runs=2, sample_rate=0.5, steps_per_run=2
        )
        unsampled = 2000.0 * 4 / (2 * budget.noise_multiplier**2)
        assert 0.4 < unsampled < 1.0

    def test_accountant_of_no_run(self):
        with pytest.raises(InvalidArgumentError, match="num_runs must be a whole"):
            full_batch().training_accountant(0)


class TestChargedRuns:
    def test_no_more_than_planned(self):
        # Shared records: the cap would allow it, but that is for tuning.
        budget = full_batch(records="shared", num_runs=2)
        budget.charge_run()
        assert budget.runs_left == 1
        budget.charge_run(noise="system")
        with pytest.raises(BudgetExceededError, match="All 2 training runs"):
            budget.charge_run()
        assert budget.runs_left == 0
        first, second = budget.training_ledger.entries
        assert (first.noise, second.noise) == ("seeded", "system")
        assert (first.count, first.adjacency) == (3, "zero_out")
        spend_on_tuning(budget)

    def test_unknown_noise(self):
        with pytest.raises(InvalidArgumentError, match="noise must be one of"):
            full_batch().charge_run(noise="secure")

    @pytest.mark.parametrize("records", ["disjoint", "shared"])
    def test_files_remember(self, records, tmp_path):
        path = tmp_path / "ledger"
        budget = full_batch(records=records, path=path)
        budget.charge_run()
        spend_on_tuning(budget)
        again = full_batch(records=records, path=path)
        assert again.runs_left == 1
        assert again.certificate().epsilons == budget.certificate().epsilons
        assert (again.training_ledger is again.tuning_ledger) == (records == "shared")
        with pytest.raises(LedgerError, match="has the cap"):
            full_batch(GDP(2.0), records=records, path=path)

    @pytest.mark.parametrize("records", ["disjoint", "shared"])
    def test_files_of_the_other_kind_of_records(self, records, tmp_path):
        path = tmp_path / "ledger"
        full_batch(records=records, path=path).charge_run()
        before = sorted(tmp_path.iterdir())
        other = {"disjoint": "shared", "shared": "disjoint"}[records]
        with pytest.raises(InvalidArgumentError, match=f"new one for records='{other}"):
            full_batch(records=other, path=path)
        assert sorted(tmp_path.iterdir()) == before
        assert full_batch(records=records, path=path).runs_left == 1

    @pytest.mark.parametrize("records", ["disjoint", "shared"])
    @pytest.mark.parametrize(
        "changed",
        [
            {"num_runs": 3},
            {"num_runs": 3, "steps_per_run": 2},  # the same noise
            {"sample_rate": 0.5},
        ],
    )
    def test_files_of_another_plan(self, records, changed, tmp_path):
        plan = {"num_runs": 2, "sample_rate": 1.0, "steps_per_run": 3}
        arguments = {"records": records, "path": tmp_path / "ledger"}
        budget = joint_budget(RENYI, **plan, **arguments)
        joint_budget(RENYI, **{**plan, **changed}, **arguments)  # nothing paid yet
        spend_on_tuning(budget)
        budget.charge_run()
        with pytest.raises(InvalidArgumentError, match="path must be that of the same"):
            joint_budget(RENYI, **{**plan, **changed}, **arguments)
        assert joint_budget(RENYI, **plan, **arguments).runs_left == 1

    def test_files_of_nearly_the_same_plan(self, tmp_path):
        path = tmp_path / "ledger"
        other = full_batch(path=path)
        other.noise_multiplier *= 1.001
        other.charge_run()
        with pytest.raises(InvalidArgumentError, match="path must be that of the same"):
            full_batch(path=path)

    def test_files_of_the_same_plan_on_another_machine(self, tmp_path):
        path = tmp_path / "ledger"
        full_batch(path=path).charge_run()
        elsewhere = full_batch(path=path)
        elsewhere.noise_multiplier *= 1 + 1e-12
        elsewhere.charge_run()
        assert full_batch(path=path).runs_left == 0

    def test_summary(self):
        budget = full_batch(ApproxDP(2.0, 1e-5), num_runs=16, records="shared")
        budget.charge_run()
        text = str(budget)
        one = budget.training_accountant(1).get_epsilon(1e-5)
        for words in (
            "shared records",
            "training (50%)",
            f"{one:.6g} for one",
            f"noise multiplier {budget.noise_multiplier:.6g}",
            "together: epsilon=2, composed",
            "paid for: 1 of 16",
        ):
            assert words in text
        disjoint = str(full_batch())
        assert f"together: epsilon={GDP(1.0).epsilon(1e-5):.6g}" in disjoint
        assert "the larger of the two" in disjoint


class TestCertificate:
    def test_disjoint_is_the_larger(self):
        budget = full_batch(GDP(1.0), num_runs=4)
        with pytest.raises(InvalidArgumentError, match="at least one charge"):
            budget.certificate()
        spend_on_tuning(budget)
        assert math.isclose(budget.certificate().guarantee.mu, 1.0)
        budget.charge_run()
        certificate = budget.certificate()
        assert math.isclose(certificate.guarantee.mu, 1.0)  # not sqrt(1 + 1/4)
        assert certificate.num_releases == 3 + 3
        for delta, epsilon in certificate.epsilons.items():
            assert math.isclose(epsilon, GDP(1.0).epsilon(delta))

    def test_disjoint_noise_is_that_of_both(self):
        budget = full_batch(GDP(1.0), num_runs=4)
        budget.charge_run(noise="system")
        assert not budget.certificate().for_experiments_only
        spend_on_tuning(budget)  # seeded
        assert budget.certificate().noise == ("seeded", "system")
        assert budget.certificate().for_experiments_only

    def test_disjoint_before_tuning(self):
        budget = full_batch(GDP(1.0), num_runs=4)
        budget.charge_run()
        assert math.isclose(budget.certificate().guarantee.mu, 0.5)

    def test_of_sampled_runs(self):
        budget = joint_budget(
            ApproxDP(3.0, 1e-6), num_runs=1, sample_rate=0.5, steps_per_run=5
        )
        spend_on_tuning(budget)
        budget.charge_run()
        certificate = budget.certificate()
        assert certificate.guarantee is None
        parts = [budget.training_ledger.spent(), budget.tuning_ledger.spent()]
        assert certificate.epsilons[1e-6] == max(parts)
        assert "PLD" in certificate.accountant
        assert Certificate.from_json(certificate.to_json()) == certificate

    def test_shared_adds_up(self):
        budget = full_batch(GDP(1.0), num_runs=4, records="shared")
        budget.charge_run()
        assert math.isclose(budget.certificate().guarantee.mu, math.sqrt(1 / 8))
        spend_on_tuning(budget)
        expected = math.sqrt(1 / 8 + 1 / 2)
        assert math.isclose(budget.certificate().guarantee.mu, expected)

    def test_words(self):
        for records, words in (("disjoint", "are disjoint"), ("shared", "added up")):
            budget = full_batch(records=records)
            budget.charge_run()
            spend_on_tuning(budget)
            text = str(budget.certificate())
            for part in (words, "zero_out", "FOR EXPERIMENTS ONLY", "may be published"):
                assert part in text
            assert "training_share=" in text

    def test_tuning_for_other_neighbours(self):
        budget = full_batch()
        budget.charge_run()
        budget.tuning_ledger.charge(GaussianEvent(10.0))
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'replace_one'"):
            budget.certificate()


def test_records_are_shared_unless_said_otherwise():
    plan = {"num_runs": 4, "sample_rate": 1.0, "steps_per_run": 1}
    budget = JointBudget(GDP(1.0), **plan)
    assert budget.tuning_ledger is budget.training_ledger
    assert budget.noise_multiplier == pytest.approx(math.sqrt(4 / 0.5))
