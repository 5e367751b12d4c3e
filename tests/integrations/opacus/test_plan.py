"""The noise of a plan, against closed forms and other accountants."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from opacus.accountants import PRVAccountant

from botorch_dp import GDP, RDP, ApproxDP, PureDP
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.opacus import JointBudget
from tests.integrations.opacus.runs import (
    GUARANTEES,
    full_batch,
    joint_budget,
    spend_on_tuning,
)


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
        with pytest.raises(BudgetExceededError, match=r"(exceed|past) the cap"):
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
            "tuning": "composition",
            "num_runs": 2,
            "sample_rate": 0.5,
            "steps_per_run": 2,
            **changed,
        }
        with pytest.raises(InvalidArgumentError, match=match):
            JointBudget(**arguments)

    def test_orders_beyond_the_grid_count_as_no_sampling(self):
        budget = joint_budget(
            RDP(2000.0, 1.0),
            num_runs=2,
            sample_rate=0.5,
            steps_per_run=2,
            records="shared",
        )
        unsampled = 2000.0 * 4 / (2 * budget.noise_multiplier**2)
        assert 0.4 < unsampled < 1.0

    def test_accountant_of_no_run(self):
        with pytest.raises(InvalidArgumentError, match="num_runs must be a whole"):
            full_batch().training_accountant(0)


def test_records_are_shared_unless_said_otherwise():
    plan = {"num_runs": 4, "sample_rate": 1.0, "steps_per_run": 1}
    budget = JointBudget(GDP(1.0), tuning="composition", **plan)
    assert budget.tuning_ledger is budget.training_ledger
    assert budget.noise_multiplier == pytest.approx(math.sqrt(4 / 0.5))
