"""The least noise of training runs: exact and monotone."""

import pytest

from botorch_dp import GDP, RDP, ApproxDP, PrivacyAccountant
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    AtLeast,
    GaussianEvent,
    Poisson,
    PoissonGaussianEvent,
    SelectionEvent,
    TruncatedNegativeBinomial,
    least_noise,
    noise_multiplier_for,
    selection_planning,
)

BUDGET = ApproxDP(4.0, 1e-5)
PLAN = {"sampling_rate": 0.02, "num_steps": 500}
SCORE = GaussianEvent(20.0)


def accountant_of(noise, score=None, count=None, num_runs=1, plan=PLAN):
    step = PoissonGaussianEvent(noise, plan["sampling_rate"])
    run = [(step, num_runs * plan["num_steps"])]
    run += [] if score is None else [(score, num_runs)]
    accountant = PrivacyAccountant()
    for event, number in [(SelectionEvent(run, count), 1)] if count else run:
        accountant.compose(event, number)
    return accountant


class TestLeastNoise:
    @pytest.mark.parametrize("score", [None, SCORE])
    @pytest.mark.parametrize(
        "count",
        [
            None,
            Poisson(16.0),
            TruncatedNegativeBinomial(16.0, 0.0),
            AtLeast(TruncatedNegativeBinomial(15.0, 1.0), 2),
        ],
        ids=repr,
    )
    def test_meets_the_guarantee_and_hardly_more(self, count, score):
        noise = least_noise(BUDGET, **PLAN, score=score, count=count)
        assert accountant_of(noise, score, count).within(BUDGET)
        less = accountant_of(noise * 0.99, score, count)
        assert less.get_epsilon(1e-5) > BUDGET.epsilon

    def test_runs_that_are_all_released(self):
        noise = least_noise(BUDGET, **PLAN, num_runs=5)
        known = noise_multiplier_for(BUDGET, sampling_rate=0.02, num_releases=2500)
        assert noise == pytest.approx(known, rel=0.02)
        with_scores = least_noise(BUDGET, **PLAN, num_runs=5, score=SCORE)
        assert accountant_of(with_scores, SCORE, num_runs=5).within(BUDGET)
        assert with_scores > noise

    @pytest.mark.parametrize("budget", [ApproxDP(0.3, 1e-6), ApproxDP(30.0, 1e-5)])
    def test_small_and_large_budgets(self, budget):
        noise = least_noise(budget, **PLAN, count=Poisson(5.0))
        accountant = accountant_of(noise, count=Poisson(5.0))
        assert accountant.within(budget)
        assert accountant.get_epsilon(budget.delta) > 0.98 * budget.epsilon

    def test_a_selection_lies_between_one_run_and_all(self):
        count = TruncatedNegativeBinomial(16.0, 1.0)
        one, best, all_runs = (
            least_noise(BUDGET, **PLAN, count=c, num_runs=n)
            for c, n in ((None, 1), (count, 1), (None, 16))
        )
        assert one < best < all_runs

    def test_renyi_budgets(self):
        budget = RDP(8.0, 2.0)
        noise = least_noise(budget, **PLAN, count=TruncatedNegativeBinomial(4.0, 1.0))
        accountant = accountant_of(noise, count=TruncatedNegativeBinomial(4.0, 1.0))
        assert accountant.within(budget)

    def test_is_confirmed_by_the_accountant(self, monkeypatch):
        # A search that ends too early is corrected.
        count = TruncatedNegativeBinomial(16.0, 1.0)
        enough = least_noise(BUDGET, **PLAN, count=count)
        monkeypatch.setattr(
            selection_planning, "_solve", lambda *_, **__: 0.99 * enough
        )
        selection_planning._least_noise.cache_clear()
        found = least_noise(BUDGET, **PLAN, count=count)
        selection_planning._least_noise.cache_clear()
        assert accountant_of(found, count=count).within(BUDGET)
        assert found > 0.99 * enough


class TestMisuse:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"num_runs": 2, "count": Poisson(3.0)}, "num_runs must be 1 with a count"),
            ({"num_runs": 0}, "num_runs must be a whole number"),
            ({"count": 3}, "count must be a Count"),
            ({"score": 0.1}, "score must be a GaussianEvent"),
            ({"num_steps": 0}, "num_steps must be a whole number"),
            ({"sampling_rate": 1.5}, "sampling_rate must be at most 1"),
            ({"score": GaussianEvent(0.1)}, "guarantee cannot be met by any noise"),
        ],
    )
    def test_names_the_argument(self, arguments, message):
        with pytest.raises(InvalidArgumentError, match=message):
            least_noise(BUDGET, **{**PLAN, **arguments})

    def test_gaussian_guarantees_have_no_plan(self):
        with pytest.raises(InvalidArgumentError, match="guarantee cannot be met"):
            least_noise(GDP(1.0), **PLAN, count=Poisson(3.0))


class TestExtremes:
    def test_a_score_that_costs_too_much_alone(self):
        for noise_multiplier in (1e-3, 1e-6):  # large losses must not fill the memory
            for count in (None, Poisson(16.0)):
                with pytest.raises(InvalidArgumentError, match="cannot be met"):
                    least_noise(
                        ApproxDP(1.0, 1e-5),
                        sampling_rate=0.1,
                        num_steps=50,
                        score=GaussianEvent(noise_multiplier),
                        count=count,
                    )

    def test_hardly_ever_a_run(self):
        noise = least_noise(
            ApproxDP(1.0, 1e-5), sampling_rate=0.1, num_steps=50, count=Poisson(1e-6)
        )
        assert noise == 0.01  # P(K > 0) is below delta: no noise is needed

    def test_tiny_epsilon(self):
        options = {"sampling_rate": 0.1, "num_steps": 50}
        budget, count = ApproxDP(0.01, 1e-5), Poisson(16.0)
        noise = least_noise(budget, **options, count=count)
        base = ((PoissonGaussianEvent(noise, 0.1), 50),)
        assert 0.0095 < SelectionEvent(base, count).epsilon_at(1e-5) <= 0.01
