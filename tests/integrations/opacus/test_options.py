"""The ways to spend a guarantee, against the accountant."""

import math

import pytest

from botorch_dp import RDP, ApproxDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus import JointBudget, plan_training
from botorch_dp.integrations.opacus.options import default_counts, recommended_count
from botorch_dp.integrations.opacus.score import plan_score
from botorch_dp.privacy import (
    AtLeast,
    Poisson,
    PoissonGaussianEvent,
    PrivacyAccountant,
    SelectionEvent,
    TruncatedNegativeBinomial,
)

GUARANTEE = ApproxDP(2.0, 1e-5)
PLAN = {"sample_rate": 0.1, "steps_per_run": 40, "num_records": 1000}
SCORE = plan_score(
    GUARANTEE, num_records=1000, score_range=(0.0, 1.0), noise_std=None
).event


@pytest.fixture(scope="module")
def plan():
    return plan_training(GUARANTEE, **PLAN)


def epsilon(option, factor):
    """Epsilon by exact accounting, with other noise."""
    accountant = PrivacyAccountant()
    step = PoissonGaussianEvent(factor * option.noise_multiplier, 0.1)
    if option.count is not None:
        event = SelectionEvent(((step, 40), (SCORE, 1)), option.count)
        accountant.compose(event)
    else:
        accountant.compose(step, 40 * int(option.expected_runs))
        if option.expected_runs > 1:
            accountant.compose(SCORE, int(option.expected_runs))
    return accountant.get_epsilon(1e-5)


class TestNoise:
    @pytest.mark.parametrize("number", range(9))
    def test_against_the_accountant(self, plan, number):
        option = plan.options[number]
        assert epsilon(option, 1.0) <= 2.0 * (1 + 1e-9)
        assert epsilon(option, 0.99) > 2.0

    def test_as_planned_by_a_budget(self, plan):
        budget = JointBudget(GUARANTEE, count=plan.recommended.count, **PLAN)
        expected = budget.noise_multiplier
        assert plan.recommended.noise_multiplier == pytest.approx(expected, rel=0.01)

    def test_renyi(self):
        guarantee = RDP(8.0, 0.5)
        plan = plan_training(guarantee, counts=[Poisson(3.0)], num_runs=3, **PLAN)
        noise = [option.noise_multiplier for option in plan.options]
        assert noise[0] < noise[1]
        assert noise[0] < noise[2]


class TestRecommendation:
    def test_numbers(self, plan):
        by_name = {option.name: option for option in plan.options}
        one, all_runs = by_name["one run"], by_name["16 runs composed"]
        assert (one.expected_runs, one.at_most_one, one.miss) == (1, 1.0, 0.8)
        assert all_runs.miss == pytest.approx(0.8**16)
        poisson = by_name["best of Poisson"]
        assert poisson.miss == pytest.approx(math.exp(-16 * 0.2))
        assert poisson.at_most_one == pytest.approx(17 * math.exp(-16))
        geometric = by_name["best of geometric"]
        assert geometric.at_most_one == pytest.approx(1 / 16)
        assert geometric.miss == pytest.approx(0.05 / (1 - 0.8 * 15 / 16))
        for option in plan.options[1:-1]:
            assert option.expected_runs == pytest.approx(16)
            assert one.noise_multiplier < option.noise_multiplier
            assert option.noise_multiplier < all_runs.noise_multiplier

    def test_least_noise_of_those_that_rarely_miss(self, plan):
        fitting = [option for option in plan.options if option.miss <= 1 / 8]
        assert 1 < len(fitting) < len(plan.options)
        noise = [option.noise_multiplier for option in fitting]
        assert plan.recommended.noise_multiplier == min(noise)
        assert plan.recommended.count == recommended_count()

    def test_if_all_miss(self):
        plan = plan_training(GUARANTEE, counts=[Poisson(2.0)], num_runs=3, **PLAN)
        assert plan.recommended.name == "3 runs composed"
        assert "misses least" in plan.reason

    def test_text(self, plan):
        text = str(JointBudget.plan(GUARANTEE, counts=[Poisson(20.0)], **PLAN))
        assert "* best of Poisson(mean=20.0)" in text
        assert "P(K <= 1)" in text
        assert f"{plan.options[0].noise_multiplier:.3f}" in text
        assert "* recommended: the least noise" in text


class TestCounts:
    def test_have_one_mean(self):
        for mean in (5, 16, 40):
            for count in default_counts(mean).values():
                assert count.mean == pytest.approx(mean)
        assert default_counts(16)["best of geometric, at least 4"] == AtLeast(
            TruncatedNegativeBinomial(13.0, 1.0), 4
        )

    @pytest.mark.parametrize(
        ("changed", "match"),
        [
            ({"sample_rate": 2.0}, "sample_rate must be at most 1"),
            ({"steps_per_run": 0}, "steps_per_run"),
            ({"num_runs": 0}, "num_runs"),
            ({"num_records": 0}, "num_validation_records"),
            ({"score_noise": 1e-9}, "score_noise must be above"),
        ],
    )
    def test_refused(self, changed, match):
        with pytest.raises(InvalidArgumentError, match=match):
            plan_training(GUARANTEE, **{**PLAN, **changed})
