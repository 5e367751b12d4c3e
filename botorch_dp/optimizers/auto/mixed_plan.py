"""The rule for spaces with categories, or with so few points that all can be evaluated.

Gradients cover the numbers alone, so a choice among points of the whole space comes
first. The points are the start and random ones.

* **Only categories, or at most 100 points in all**: one choice, with the whole budget.
* **Categories and numbers**: one choice among up to 100 points, with the whole budget.
  In the measured tasks nothing was better than that. If n epsilon is at least 2,000,
  half of epsilon suffices for the choice, among at most 60 % of the evaluations, and
  DP-GIBO continues from the chosen point with its categories. There are no gradients
  if fewer than three steps could be evaluated.
* **Pure differential privacy**: one choice, since DP-GIBO adds Gaussian noise.

For guarantees other than ``ApproxDP``, epsilon is the one that holds at delta = 1e-5,
and the choice of two stages gets half of mu squared.
"""

import math
from dataclasses import replace

from botorch_dp._validation import check_count, check_range
from botorch_dp.optimizers.auto.search_plan import SearchPlan, with_descent
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.guarantees import GDP, ApproxDP, Guarantee, PureDP

MOST_CANDIDATES = 100
# The records times epsilon from which half of epsilon suffices for the choice.
_ENOUGH_FOR_BOTH = 2000.0
_SHARE_OF_CHOICE, _EVALUATIONS_OF_CHOICE = 0.5, 0.6
_FEWEST_STEPS = 3
_DELTA = 1e-5


def plan_mixed_search(
    *,
    num_records: int,
    dim: int,
    guarantee: Guarantee,
    loss_range: tuple[float, float],
    num_points: float = math.inf,
    max_evaluations: int | None = None,
    point_cost: int = 1,
    gradient_share: float = 1.0,
) -> SearchPlan:
    """Plan a choice among points of a mixed space, and gradients where they pay.

    Args:
        num_records: The number n of records.
        dim: The number d of parameters that are numbers; may be 0.
        guarantee: The guarantee of the whole search.
        loss_range: The range of a record's loss.
        num_points: The number of points of the whole space.
        max_evaluations: How many evaluations are allowed.
        point_cost: How many evaluations each point of DP-GIBO needs.
        gradient_share: The share of mu squared of all Gaussian releases that gradients
            get, if there are others, such as a score.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> plan = plan_mixed_search(
        ...     num_records=500,
        ...     dim=2,
        ...     guarantee=ApproxDP(1.0, 1e-5),
        ...     loss_range=(0.0, 1.0),
        ... )
        >>> print(plan)
        Plan: one of 100 points, 100 evaluations.
        Why: n epsilon = 500 is too small for gradients beside a choice of categories.
    """
    n, d = check_count("num_records", num_records), check_count("dim", dim, minimum=0)
    check_guarantee("guarantee", guarantee)
    check_range("loss_range", loss_range)
    if max_evaluations is not None:
        check_count("max_evaluations", max_evaluations, minimum=2)
    cost = check_count("point_cost", point_cost)
    most = int(min(num_points, MOST_CANDIDATES, max_evaluations or MOST_CANDIDATES))
    choice_alone = SearchPlan(
        num_candidates=most,
        choice=guarantee.to_pure(),
        descent=None,
        guarantee=guarantee,
        reason="",
        max_evaluations=max_evaluations,
        point_cost=cost,
    )
    count, left = most, math.inf
    if max_evaluations is not None:
        count = min(most, int(_EVALUATIONS_OF_CHOICE * max_evaluations))
        left = max_evaluations - count
    reason = _why_no_gradients(n, d, guarantee, num_points <= most)
    if not reason and left < _FEWEST_STEPS * (d + 1) * cost:
        reason = f"{max_evaluations} evaluations are needed for a choice of categories"
    if reason:
        return replace(choice_alone, reason=reason)
    plan = replace(
        choice_alone,
        num_candidates=count,
        choice=part_for_choice(guarantee),
        reason=f"{n} records suffice for gradients after a choice of categories",
    )
    return with_descent(
        plan,
        num_records=n,
        dim=d,
        loss_range=loss_range,
        gradient_share=gradient_share,
    )


def _why_no_gradients(n: int, d: int, guarantee: Guarantee, is_list: bool) -> str:
    """Return the reason for a choice alone, or nothing."""
    if isinstance(guarantee, PureDP):
        return "pure differential privacy excludes the Gaussian noise of gradients"
    if is_list:
        return "all points of the space can be evaluated"
    if d == 0:
        return "categories have no gradients"
    if isinstance(guarantee, ApproxDP):
        epsilon = guarantee.epsilon
    else:
        epsilon = guarantee.to_gdp().epsilon(_DELTA)
    if n * epsilon < _ENOUGH_FOR_BOTH:
        return (
            f"n epsilon = {n * epsilon:.4g} is too small for gradients beside a choice "
            "of categories"
        )
    return ""


def part_for_choice(guarantee: Guarantee) -> PureDP:
    """Return the guarantee of a choice that leaves something for gradients."""
    if isinstance(guarantee, ApproxDP):
        return PureDP(_SHARE_OF_CHOICE * guarantee.epsilon)
    mu = guarantee.to_gdp().mu * math.sqrt(_SHARE_OF_CHOICE)
    return GDP(mu).to_pure()
