"""The rule by which ``minimize`` and ``PrivateSearch`` choose a method.

It uses public facts alone: the numbers of records, parameters and evaluations, the
range of the losses and the guarantee. ``benchmarks/arena.py`` measures it against
simple alternatives, and ``docs/choosing.md`` shows its table.

* **A box in more than six dimensions**: DP-GIBO from the start. A few hundred points
  cannot fill such a box, and the start is better than nearly all of them.
* **A box in up to six dimensions**: first a choice among 100 space-filling points and
  the start, then DP-GIBO from there. The choice costs up to 0.3 of the budget, less
  where there are many records. It finds a better basin, if there is one. There is no
  choice if noise would drown it, or if evaluations are too few.
* **Pure differential privacy**: one choice among space-filling points, since DP-GIBO
  adds Gaussian noise.
"""

import math
from dataclasses import dataclass
from typing import Any

from botorch_dp._validation import check_count, check_range
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.gibo.descent_plan import DescentPlan, plan_descent
from botorch_dp.privacy.budget import after_choice
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.guarantees import GDP, ApproxDP, Guarantee, PureDP

# Up to this dimension, 100 points find basins that descent from the start would miss.
_MOST_EXPLORED = 6
_NUM_EXPLORED, _FEWEST_EXPLORED = 100, 8
# The epsilon of the choice times n: noise of 0.02 ranges on each mean loss.
_CHOICE_SIGNAL = 100.0
# Below this, the noise on the largest of 100 scores is a quarter of the range.
_LEAST_CHOICE_SIGNAL = 40.0
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
        max_evaluations: How many points may be evaluated, or None.
    """

    num_candidates: int
    choice: PureDP | None
    descent: DescentPlan | None
    guarantee: Guarantee
    reason: str
    max_evaluations: int | None = None

    @property
    def descent_evaluations(self) -> int | None:
        """How many points DP-GIBO may evaluate, or None."""
        if self.max_evaluations is None:
            return None
        return self.max_evaluations - self.num_candidates

    @property
    def method(self) -> str:
        """The name of the method."""
        if self.descent is None:
            return "permute-and-flip"
        return "dp-gibo" if self.choice is None else "permute-and-flip, then dp-gibo"

    @property
    def num_evaluations(self) -> int:
        """The number of points that the search evaluates."""
        steps = 0 if self.descent is None else self.descent.num_evaluations
        return self.num_candidates + steps

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
) -> SearchPlan:
    """Choose a method and its settings from public facts alone.

    Args:
        num_records: The number n of records.
        dim: The number d of parameters.
        guarantee: The guarantee of the whole search.
        loss_range: The range of a record's loss; needed unless ``clip_norm`` is given.
        clip_norm: The bound on a record's gradient where the box is the unit cube.
        max_evaluations: How many points may be evaluated.
        explore: Whether a choice among space-filling points comes first; by default as
            the rule says.

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
    if isinstance(guarantee, PureDP):
        return _plan_choice(n, guarantee, loss_range, max_evaluations, explore)
    choice, count, reason = _plan_exploration(
        n, d, guarantee, loss_range, max_evaluations, explore
    )
    left = guarantee if choice is None else after_choice(guarantee, choice.epsilon)
    descent = plan_descent(
        num_records=n,
        dim=d,
        guarantee=left,
        loss_range=loss_range,
        clip_norm=clip_norm,
        max_evaluations=None if max_evaluations is None else max_evaluations - count,
    )
    return SearchPlan(
        num_candidates=count,
        choice=choice,
        descent=descent,
        guarantee=guarantee,
        reason=reason,
        max_evaluations=max_evaluations,
    )


def _plan_choice(
    n: int,
    guarantee: PureDP,
    loss_range: tuple[float, float] | None,
    max_evaluations: int | None,
    explore: bool | None,
) -> SearchPlan:
    if loss_range is None or explore is False:
        raise InvalidArgumentError(
            f"guarantee={guarantee!r} needs loss_range and a choice among points: "
            "gradients are released with Gaussian noise, which an ApproxDP, a GDP or "
            "an RDP allows."
        )
    count = min(
        max(_FEWEST_CANDIDATES, round(n * guarantee.epsilon / 2)), _MOST_CANDIDATES
    )
    return SearchPlan(
        num_candidates=min(count, max_evaluations or count),
        choice=guarantee,
        descent=None,
        guarantee=guarantee,
        max_evaluations=max_evaluations,
        reason="pure differential privacy excludes the Gaussian noise of gradients",
    )


def _plan_exploration(
    n: int,
    d: int,
    guarantee: Guarantee,
    loss_range: tuple[float, float] | None,
    max_evaluations: int | None,
    explore: bool | None,
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
    choice = _guarantee_of_choice(n, guarantee)
    if not explore:
        if d > _MOST_EXPLORED:
            return None, 0, f"in {d} dimensions the start is as good as many points"
        if choice.epsilon * n < _LEAST_CHOICE_SIGNAL:
            return None, 0, f"{n} records are too few for a choice with this budget"
        too_few = max_evaluations is not None and max_evaluations - count < 3 * (d + 1)
        if count < _FEWEST_EXPLORED or too_few:
            return None, 0, f"{max_evaluations} evaluations are needed for gradients"
    reason = (
        f"{count} points may find a better basin than the start's in {d} dimensions"
    )
    return choice, max(2, count), reason


def _guarantee_of_choice(n: int, guarantee: Guarantee) -> PureDP:
    enough = _CHOICE_SIGNAL / n
    if isinstance(guarantee, ApproxDP):
        return PureDP(min(enough, _SHARE_OF_CHOICE * guarantee.epsilon))
    mu = guarantee.to_gdp().mu * math.sqrt(_SHARE_OF_CHOICE)
    return PureDP(min(enough, GDP(mu).to_pure().epsilon))
