"""The rule that chooses a method: from public facts, within the budget."""

import math

import pytest

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import plan_search
from botorch_dp.privacy import GaussianEvent, PermuteAndFlipEvent

EPSILON, DELTA = 1.0, 1e-5
BASE = {
    "num_records": 2000,
    "dim": 3,
    "guarantee": ApproxDP(EPSILON, DELTA),
    "loss_range": (0.0, 1.0),
}


class TestRule:
    def test_few_dimensions_explore(self):
        plan = plan_search(**BASE)
        assert plan.method == "permute-and-flip, then dp-gibo"
        assert plan.num_candidates == 100
        assert plan.choice == PureDP(100 / 2000)
        assert plan.num_evaluations == 100 + plan.descent.num_evaluations

    def test_a_choice_takes_at_most_three_tenths(self):
        plan = plan_search(**{**BASE, "num_records": 200})
        assert plan.choice == PureDP(0.3)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"dim": 7}, "in 7 dimensions"),
            ({"num_records": 100}, "too few for a choice"),
            ({"max_evaluations": 12}, "are needed for gradients"),
            ({"loss_range": None, "clip_norm": 1.0}, "without loss_range"),
            ({"explore": False}, "explore=False"),
        ],
    )
    def test_otherwise_only_gradients(self, change, reason):
        plan = plan_search(**{**BASE, **change})
        assert plan.method == "dp-gibo"
        assert plan.num_candidates == 0
        assert plan.choice is None
        assert reason in plan.reason

    def test_explore_can_be_asked_for(self):
        plan = plan_search(**{**BASE, "dim": 20, "explore": True})
        assert plan.num_candidates == 100

    def test_pure_privacy_is_one_choice(self):
        plan = plan_search(**{**BASE, "guarantee": PureDP(0.1)})
        assert plan.method == "permute-and-flip"
        assert plan.choice == PureDP(0.1)
        assert plan.num_candidates == 100  # n epsilon / 2
        assert plan.descent is None
        few = plan_search(**{**BASE, "guarantee": PureDP(0.1), "max_evaluations": 9})
        assert few.num_evaluations == 9

    def test_never_more_evaluations_than_allowed(self):
        for dim in (1, 2, 4, 6, 12):
            for allowed in range(2, 400, 3):
                for explore in (None, True, False):
                    if explore and allowed < 4:
                        continue
                    plan = plan_search(
                        **{**BASE, "dim": dim},
                        max_evaluations=allowed,
                        explore=explore,
                    )
                    assert plan.num_evaluations <= allowed

    def test_prints_two_lines(self):
        lines = str(plan_search(**BASE)).splitlines()
        assert len(lines) == 2
        assert lines[0].startswith("Plan: one of 100 points for epsilon = 0.05, then")
        assert lines[1].startswith("Why: ")


class TestBudget:
    @pytest.mark.parametrize(
        "guarantee",
        [ApproxDP(1.0, 1e-5), ApproxDP(0.5, 1e-6), GDP(1.0), RDP(order=8, epsilon=1.0)],
    )
    def test_the_whole_plan_fits_and_no_more(self, guarantee):
        plan = plan_search(**{**BASE, "num_records": 300, "guarantee": guarantee})
        assert plan.choice is not None
        mu = plan.descent.mu / math.sqrt(plan.descent.num_steps)

        def costs(factor):
            return [
                (PermuteAndFlipEvent(plan.choice.epsilon), 1),
                (GaussianEvent(1 / (factor * mu)), plan.descent.num_steps),
            ]

        ledger = Ledger(cap=guarantee)
        ledger.reserve(costs(1.0))
        if not isinstance(guarantee, RDP):  # pure releases cost less than their bound
            assert not all(
                Ledger(cap=guarantee).allows(event, count)
                for event, count in costs(1.5)
            )


class TestMistakes:
    def test_pure_privacy_needs_a_range(self):
        for change in ({"loss_range": None, "clip_norm": 1.0}, {"explore": False}):
            with pytest.raises(InvalidArgumentError, match="needs loss_range"):
                plan_search(**{**BASE, "guarantee": PureDP(1.0), **change})

    def test_exploration_needs_a_range(self):
        with pytest.raises(InvalidArgumentError, match="explore=True needs loss_range"):
            plan_search(**{**BASE, "loss_range": None}, clip_norm=1.0, explore=True)

    def test_a_range_or_a_clip_norm_is_needed(self):
        with pytest.raises(InvalidArgumentError, match="Give loss_range"):
            plan_search(**{**BASE, "loss_range": None})

    def test_exploration_needs_four_evaluations(self):
        for allowed in (2, 3):
            with pytest.raises(
                InvalidArgumentError, match=f"at least 4.*got {allowed}"
            ):
                plan_search(**BASE, max_evaluations=allowed, explore=True)
        assert plan_search(**BASE, max_evaluations=4, explore=True).num_evaluations == 4

    def test_one_evaluation_is_not_enough(self):
        with pytest.raises(InvalidArgumentError, match="max_evaluations"):
            plan_search(**BASE, max_evaluations=1)
