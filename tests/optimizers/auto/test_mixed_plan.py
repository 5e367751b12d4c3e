"""The plans for categories, and for points that need several evaluations."""

import math
import re

import pytest

from botorch_dp import GDP, RDP, ApproxDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.auto.mixed_plan import part_for_choice, plan_mixed_search
from botorch_dp.optimizers.auto.search_plan import plan_search
from botorch_dp.privacy.budget import after_choice

BUDGET = ApproxDP(1.0, 1e-5)


def plan_of(**facts):
    usual = {
        "num_records": 5_000,
        "dim": 2,
        "guarantee": BUDGET,
        "loss_range": (0.0, 1.0),
        "max_evaluations": 60,
    }
    return plan_mixed_search(**{**usual, **facts})


class TestChoiceAlone:
    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            ({"num_records": 1_999}, "n epsilon = 1999 is too small for gradients"),
            ({"guarantee": GDP(0.1)}, "n epsilon = 1.* is too small for gradients"),
            ({"dim": 0}, "categories have no gradients"),
            ({"guarantee": PureDP(1.0)}, "excludes the Gaussian noise of gradients"),
            ({"num_points": 60}, "all points of the space can be evaluated"),
            ({"dim": 8}, "60 evaluations are needed for a choice of categories"),
            ({"point_cost": 3}, "60 evaluations are needed for a choice of categories"),
        ],
    )
    def test_with_the_whole_budget(self, facts, reason):
        plan = plan_of(**facts)
        assert plan.method == "permute-and-flip"
        assert plan.descent is None
        assert plan.choice == plan.guarantee.to_pure()
        assert plan.num_candidates == plan.num_evaluations == 60
        assert re.search(reason, plan.reason)

    @pytest.mark.parametrize(
        ("facts", "count"),
        [
            ({"max_evaluations": None}, 100),
            ({"max_evaluations": 1_000}, 100),
            ({"max_evaluations": 2}, 2),
            ({"num_points": 5}, 5),
        ],
    )
    def test_among_as_many_points_as_are_allowed(self, facts, count):
        assert plan_of(dim=0, **facts).num_candidates == count


class TestBoth:
    @pytest.mark.parametrize("facts", [{}, {"num_records": 2_000}, {"num_points": 61}])
    def test_half_of_epsilon_for_the_choice(self, facts):
        plan = plan_of(**facts)
        assert plan.method == "permute-and-flip, then dp-gibo"
        assert plan.choice == PureDP(0.5)
        assert plan.num_candidates == 36  # 60 % of 60
        assert plan.descent.num_evaluations == 24
        assert plan.descent.mu == after_choice(BUDGET, 0.5).mu

    @pytest.mark.parametrize("guarantee", [GDP(1.0), RDP(4.0, 2.0)])
    def test_half_of_mu_squared_for_the_choice(self, guarantee):
        plan = plan_of(guarantee=guarantee)
        assert plan.choice == GDP(math.sqrt(0.5)).to_pure() == part_for_choice(GDP(1.0))
        if isinstance(guarantee, GDP):
            assert plan.descent.mu == pytest.approx(math.sqrt(0.5))
        else:  # the choice costs less in this currency
            assert math.sqrt(0.5) < plan.descent.mu < 1.0

    @pytest.mark.parametrize("most", [60, 61, 75, 130, 250])
    @pytest.mark.parametrize("cost", [1, 2, 3])
    @pytest.mark.parametrize("dim", [1, 3])
    def test_never_more_evaluations_than_allowed(self, most, cost, dim):
        plan = plan_of(max_evaluations=most, point_cost=cost, dim=dim)
        assert plan.num_evaluations <= most
        if plan.descent is not None:
            points = plan.descent.num_evaluations
            assert plan.num_evaluations == plan.num_candidates + cost * points

    def test_a_share_for_the_score(self):
        whole, part = plan_of().descent.mu, plan_of(gradient_share=0.9).descent.mu
        assert part == pytest.approx(whole * math.sqrt(0.9))

    def test_two_lines(self):
        lines = str(plan_of()).splitlines()
        assert lines == [
            "Plan: one of 36 points for epsilon = 0.5, then 8 gradient steps of 3 "
            "points, 60 evaluations.",
            "Why: 5000 records suffice for gradients after a choice of categories.",
        ]


class TestNumbers:
    """``plan_search``, where a point of DP-GIBO needs several evaluations."""

    @pytest.mark.parametrize("most", [4, 7, 20, 60, 200])
    @pytest.mark.parametrize("cost", [1, 2, 3])
    @pytest.mark.parametrize("dim", [1, 3, 8])
    def test_never_more_evaluations_than_allowed(self, most, cost, dim):
        plan = plan_search(
            num_records=5_000,
            dim=dim,
            guarantee=BUDGET,
            loss_range=(0.0, 1.0),
            max_evaluations=most,
            point_cost=cost,
        )
        points = 0 if plan.descent is None else plan.descent.num_evaluations
        assert plan.num_evaluations == plan.num_candidates + cost * points <= most

    @pytest.mark.parametrize(
        ("n", "epsilon"), [(10_000, 0.04), (1_000, 0.3), (534, 0.3), (533, None)]
    )
    def test_epsilon_of_a_choice_that_has_to_be_exact(self, n, epsilon):
        """400 / n, but at most 0.3 of epsilon, and none below 160 / n."""
        plan = plan_search(
            num_records=n,
            dim=2,
            guarantee=BUDGET,
            loss_range=(0.0, 1.0),
            choice_signal=400.0,
        )
        assert plan.choice == (None if epsilon is None else PureDP(epsilon))

    def test_too_few_for_a_gradient(self):
        facts = {"num_records": 500, "dim": 2, "guarantee": BUDGET}
        facts |= {"max_evaluations": 5, "point_cost": 3}
        plan = plan_search(**facts, loss_range=(0.0, 1.0))
        assert plan.descent is None
        assert plan.choice == BUDGET.to_pure()
        assert plan.num_candidates == 5
        assert plan.reason == "5 evaluations are too few for a gradient"
        enough = plan_search(**{**facts, "max_evaluations": 6}, loss_range=(0.0, 1.0))
        assert enough.method == "dp-gibo"
        with pytest.raises(InvalidArgumentError, match="max_evaluations must be larg"):
            plan_search(**facts, clip_norm=1.0)

    def test_a_share_for_the_score(self):
        facts = {"num_records": 500, "dim": 9, "guarantee": BUDGET}
        plan = plan_search(**facts, loss_range=(0.0, 1.0), gradient_share=0.9)
        assert plan.descent.mu == pytest.approx(BUDGET.to_gdp().mu * math.sqrt(0.9))


@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"num_records": 0}, "num_records must be a whole number"),
        ({"dim": -1}, "dim must be a whole number of at least 0"),
        ({"guarantee": 1.0}, "guarantee must be"),
        ({"loss_range": (1.0, 0.0)}, "loss_range must be"),
        ({"max_evaluations": 1}, "max_evaluations must be a whole number of at leas"),
        ({"point_cost": 0}, "point_cost must be a whole number"),
    ],
)
def test_bad_facts(facts, match):
    with pytest.raises(InvalidArgumentError, match=match):
        plan_of(**facts)
