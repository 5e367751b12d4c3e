"""The rule by which ``minimize`` and ``PrivateSearch`` choose a method.

It uses public facts alone: the numbers of records, parameters and evaluations, the
range of the losses and the guarantee. ``benchmarks/arena.py`` measures it against
simple alternatives, and ``docs/choosing.md`` shows its table.

* **A box in more than four dimensions**: DP-GIBO from the start. A hundred points
  cannot fill such a box, and the best of them is often in a worse basin than the one
  to which wide stencils lead from the start.
* **A box in up to four dimensions**: first a choice among 100 space-filling points and
  the start, then DP-GIBO from there. The choice costs up to 0.3 of the budget, less
  where there are many records. It finds a better basin, if there is one. There is no
  choice if noise would drown it, or if evaluations are too few.
* **Pure differential privacy**: one choice among space-filling points, since DP-GIBO
  adds Gaussian noise.

:mod:`botorch_dp.optimizers.auto.mixed_plan` has the rule for spaces with categories.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from botorch_dp._validation import check_count, check_positive, check_range
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.gibo.descent_plan import DescentPlan, plan_descent
from botorch_dp.privacy.budget import after_choice
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.guarantees import GDP, ApproxDP, Guarantee, PureDP

# Up to this dimension, 100 points find basins that descent from the start would miss.
_MOST_EXPLORED = 4
_NUM_EXPLORED, _FEWEST_EXPLORED = 100, 8
# The epsilon of the choice times n: noise of 0.02 ranges on each mean loss.
_CHOICE_SIGNAL = 100.0
# Below this share of it, the noise on the largest of 100 scores is a quarter of the
# range, and there is no choice.
_LEAST_SHARE_OF_SIGNAL = 0.4
_SHARE_OF_CHOICE = 0.3
# The number of candidates of a pure choice.
_FEWEST_CANDIDATES, _MOST_CANDIDATES = 16, 200


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """What a search will do, and why.

    Attributes:
        num_candidates: The number of points of the first choice, with the start; 0 if
            there is no choice.
        choice: The guarantee of that choice, or None.
        descent: The plan of DP-GIBO, or None.
        guarantee: The guarantee of everything together.
        reason: Why this was chosen, in a few words.
        max_evaluations: How many evaluations are allowed, or None.
        point_cost: How many evaluations each point of DP-GIBO needs.
    """

    num_candidates: int
    choice: PureDP | None
    descent: DescentPlan | None
    guarantee: Guarantee
    reason: str
    max_evaluations: int | None = None
    point_cost: int = 1

    @property
    def descent_evaluations(self) -> int | None:
        """How many points DP-GIBO may evaluate, or None."""
        if self.max_evaluations is None:
            return None
        return (self.max_evaluations - self.num_candidates) // self.point_cost

    @property
    def method(self) -> str:
        """The name of the method."""
        if self.descent is None:
            return "permute-and-flip"
        return "dp-gibo" if self.choice is None else "permute-and-flip, then dp-gibo"

    @property
    def num_evaluations(self) -> int:
        """The number of evaluations that the search makes."""
        points = 0 if self.descent is None else self.descent.num_evaluations
        return self.num_candidates + points * self.point_cost

    def __str__(self) -> str:
        parts = []
        if self.choice is not None:
            share = f" for epsilon = {self.choice.epsilon:.3g}" if self.descent else ""
            parts.append(f"one of {self.num_candidates} points{share}")
        if self.descent is not None:
            plan = self.descent
            parts.append(f"{plan.num_steps} gradient steps of {plan.batch_size} points")
        return (
            f"Plan: {', then '.join(parts)}, {self.num_evaluations} evaluations.\n"
            f"Why: {self.reason}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "method": self.method,
            "num_candidates": self.num_candidates,
            "choice_epsilon": None if self.choice is None else self.choice.epsilon,
            "descent": None if self.descent is None else self.descent.to_dict(),
            "reason": self.reason,
        }


def plan_search(
    *,
    num_records: int,
    dim: int,
    guarantee: Guarantee,
    loss_range: tuple[float, float] | None = None,
    clip_norm: float | None = None,
    max_evaluations: int | None = None,
    explore: bool | None = None,
    point_cost: int = 1,
    gradient_share: float = 1.0,
    choice_signal: float = _CHOICE_SIGNAL,
) -> SearchPlan:
    """Choose a method and its settings from public facts alone.

    Args:
        num_records: The number n of records.
        dim: The number d of parameters.
        guarantee: The guarantee of the whole search.
        loss_range: The range of a record's loss; needed unless ``clip_norm`` is given.
        clip_norm: The bound on a record's gradient where the box is the unit cube.
        max_evaluations: How many evaluations are allowed.
        explore: Whether a choice among space-filling points comes first; by default as
            the rule says.
        point_cost: How many evaluations each point of DP-GIBO needs, such as several
            models whose losses are interpolated. A point of the choice needs one.
        gradient_share: The share of mu squared of all Gaussian releases that gradients
            get, if there are others, such as a score.
        choice_signal: The epsilon of a choice before gradients, times n, that
            suffices. It should be larger if mean losses differ by a small part of their
            range.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> plan = plan_search(
        ...     num_records=2000,
        ...     dim=3,
        ...     guarantee=ApproxDP(1.0, 1e-5),
        ...     loss_range=(0.0, 1.0),
        ... )
        >>> plan.method, plan.num_evaluations
        ('permute-and-flip, then dp-gibo', 220)
    """
    n, d = check_count("num_records", num_records), check_count("dim", dim)
    check_guarantee("guarantee", guarantee)
    if loss_range is not None:
        check_range("loss_range", loss_range)
    if max_evaluations is not None:
        check_count("max_evaluations", max_evaluations, minimum=2)
    cost = check_count("point_cost", point_cost)
    is_too_few = max_evaluations is not None and max_evaluations < 2 * cost
    if isinstance(guarantee, PureDP) or is_too_few:
        return _plan_choice(n, guarantee, loss_range, max_evaluations, explore)
    choice, count, reason = _plan_exploration(
        n, d, guarantee, loss_range, max_evaluations, explore, cost, choice_signal
    )
    plan = SearchPlan(
        num_candidates=count,
        choice=choice,
        descent=None,
        guarantee=guarantee,
        reason=reason,
        max_evaluations=max_evaluations,
        point_cost=cost,
    )
    return with_descent(
        plan,
        num_records=n,
        dim=d,
        loss_range=loss_range,
        clip_norm=clip_norm,
        gradient_share=gradient_share,
    )


def with_descent(
    plan: SearchPlan,
    *,
    num_records: int,
    dim: int,
    gradient_share: float = 1.0,
    **settings: Any,
) -> SearchPlan:
    """Return a plan with DP-GIBO after its choice.

    Args:
        plan: The plan of the choice, or of no choice.
        num_records: The number n of records.
        dim: The number d of parameters that are numbers.
        gradient_share: As for :func:`plan_search`.
        **settings: Further arguments of
            :func:`~botorch_dp.optimizers.gibo.descent_plan.plan_descent`.
    """
    left = plan.guarantee
    if plan.choice is not None:
        left = after_choice(left, plan.choice.epsilon)
    if gradient_share != 1:
        left = GDP(left.to_gdp().mu * math.sqrt(gradient_share))
    descent = plan_descent(
        num_records=num_records,
        dim=dim,
        guarantee=left,
        max_evaluations=plan.descent_evaluations,
        **settings,
    )
    return replace(plan, descent=descent)


def _plan_choice(
    n: int,
    guarantee: Guarantee,
    loss_range: tuple[float, float] | None,
    max_evaluations: int | None,
    explore: bool | None,
) -> SearchPlan:
    is_pure = isinstance(guarantee, PureDP)
    if is_pure and (loss_range is None or explore is False):
        raise InvalidArgumentError(
            f"guarantee={guarantee!r} needs loss_range and a choice among points: "
            "gradients are released with Gaussian noise, which an ApproxDP, a GDP or "
            "an RDP allows."
        )
    if loss_range is None or explore is False:
        raise InvalidArgumentError(
            "max_evaluations must be larger without a choice among points, for two "
            f"points of a gradient, got {max_evaluations!r}."
        )
    choice = guarantee.to_pure()
    count = min(
        max(_FEWEST_CANDIDATES, round(n * choice.epsilon / 2)), _MOST_CANDIDATES
    )
    return SearchPlan(
        num_candidates=min(count, max_evaluations or count),
        choice=choice,
        descent=None,
        guarantee=guarantee,
        max_evaluations=max_evaluations,
        reason="pure differential privacy excludes the Gaussian noise of gradients"
        if is_pure
        else f"{max_evaluations} evaluations are too few for a gradient",
    )


def _plan_exploration(
    n: int,
    d: int,
    guarantee: Guarantee,
    loss_range: tuple[float, float] | None,
    max_evaluations: int | None,
    explore: bool | None,
    point_cost: int,
    choice_signal: float,
) -> tuple[PureDP | None, int, str]:
    """Return the first choice, the number of its points, and the reason."""
    if explore is False:
        return None, 0, "explore=False"
    if loss_range is None:
        if explore:
            raise InvalidArgumentError(
                "explore=True needs loss_range, which bounds what one record changes."
            )
        return None, 0, "without loss_range, one record could decide a choice"
    count = _NUM_EXPLORED
    if max_evaluations is not None:
        count = min(count, max_evaluations // 3)
    choice = _guarantee_of_choice(
        check_positive("choice_signal", choice_signal) / n, guarantee
    )
    if not explore:
        if d > _MOST_EXPLORED:
            return None, 0, f"in {d} dimensions the start is as good as many points"
        if choice.epsilon * n < _LEAST_SHARE_OF_SIGNAL * choice_signal:
            return None, 0, f"{n} records are too few for a choice with this budget"
        too_few = (
            max_evaluations is not None
            and max_evaluations - count < 3 * (d + 1) * point_cost
        )
        if count < _FEWEST_EXPLORED or too_few:
            return None, 0, f"{max_evaluations} evaluations are needed for gradients"
    count = max(2, count)
    if max_evaluations is not None and max_evaluations < count + 2 * point_cost:
        raise InvalidArgumentError(
            f"max_evaluations must be at least {2 + 2 * point_cost} with explore=True, "
            f"two points of a choice and two of a gradient, got {max_evaluations!r}."
        )
    reason = (
        f"{count} points may find a better basin than the start's in {d} dimensions"
    )
    return choice, count, reason


def _guarantee_of_choice(enough: float, guarantee: Guarantee) -> PureDP:
    if isinstance(guarantee, ApproxDP):
        return PureDP(min(enough, _SHARE_OF_CHOICE * guarantee.epsilon))
    mu = guarantee.to_gdp().mu * math.sqrt(_SHARE_OF_CHOICE)
    return PureDP(min(enough, GDP(mu).to_pure().epsilon))
