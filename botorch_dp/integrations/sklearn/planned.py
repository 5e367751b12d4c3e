"""Searches that follow a plan: a private choice, private gradients, or both.

The plan is made from public facts (:mod:`botorch_dp.optimizers.auto`) and checked
against the ledger as a whole before the first model is trained.
"""

import math
from dataclasses import replace
from typing import Any

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.methods import (
    ADJACENCY,
    NUM_CANDIDATES,
    CandidateChoice,
    Task,
    all_at_once,
    make_optimizer,
)
from botorch_dp.integrations.sklearn.score_release import ScoreRelease
from botorch_dp.integrations.sklearn.space import Params, SearchSpace
from botorch_dp.integrations.sklearn.stages import Gradients, Stages
from botorch_dp.optimizers import DPGIBO
from botorch_dp.optimizers.auto.mixed_plan import (
    MOST_CANDIDATES,
    part_for_choice,
    plan_mixed_search,
)
from botorch_dp.optimizers.auto.search_plan import (
    SearchPlan,
    plan_search,
    with_descent,
)
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    Guarantee,
    PureDP,
)
from botorch_dp.privacy.budget import (
    after_choice,
    check_gaussian,
    warn_of_large_delta,
)

# The share of mu^2 of all Gaussian releases that a score gets; gradients get the rest.
_SHARE_OF_SCORE = 0.1
# The epsilon times n of a choice before gradients: noise of 0.005 ranges on each mean
# loss. Scores of models often differ by a few hundredths of the range.
_CHOICE_SIGNAL = 400.0
# The options of DPGIBO that set the number of points a step.
_POINTS_A_STEP = {"batch_size", "tolerance"}


def plan_automatically(task: Task, evaluation: Evaluation) -> SearchPlan:
    """Choose the method and all its settings: ``method="auto"``."""
    given = {
        "num_steps": (task.num_steps, "'dp-gibo'"),
        "num_candidates": (task.num_candidates, "'stable'"),
        "clip_norm": (task.clip_norm, "'dp-gibo'"),
        "method_options": (task.options or None, "'dp-gibo' or method='stable'"),
    }
    for name, (value, method) in given.items():
        if value is not None:
            raise InvalidArgumentError(
                f"{name} needs method={method}, got {value!r} with method='auto', "
                "which plans all settings. max_evaluations limits the number of models."
            )
    space, limit = task.space, task.max_evaluations
    if limit is None:
        limit = _usual_limit(space)
    # The score trains one more model.
    limit = check_count("max_evaluations", limit, minimum=2 + task.release_score)
    if isinstance(evaluation.scoring, CandidateScoring):
        return SearchPlan(
            num_candidates=int(
                min(space.num_points, MOST_CANDIDATES, limit - task.release_score)
            ),
            choice=task.guarantee.to_pure(),
            descent=None,
            guarantee=task.guarantee,
            reason=f"{evaluation.scoring.name} is not a mean over records, so that it "
            "has no private gradients",
            max_evaluations=limit,
        )
    facts: dict[str, Any] = {
        "num_records": evaluation.num_records,
        "dim": len(space.widest.numbers),
        "guarantee": task.guarantee,
        "loss_range": evaluation.scoring.loss_range,
        "max_evaluations": limit - task.release_score,
        "point_cost": space.models_per_point,
        "gradient_share": _gradient_share(task),
    }
    if space.needs_choice or space.num_points <= MOST_CANDIDATES:
        return plan_mixed_search(num_points=space.num_points, **facts)
    return plan_search(choice_signal=_CHOICE_SIGNAL, **facts)


def plan_gradients(task: Task, evaluation: Evaluation) -> SearchPlan:
    """Plan gradients, after a choice if there are categories: ``"dp-gibo"``."""
    space, guarantee = task.space, task.guarantee
    if not space.widest.numbers:
        raise InvalidArgumentError(
            "method='dp-gibo' follows gradients and needs a Real or an Integer in "
            f"space, got only categories, {space.names}. Use method='auto'."
        )
    if isinstance(guarantee, PureDP):
        raise InvalidArgumentError(
            "guarantee must be an ApproxDP, a GDP or an RDP with method='dp-gibo', "
            f"which adds Gaussian noise, got {guarantee!r}. Use method='auto' for "
            "this guarantee."
        )
    secure = bool(task.options.get("secure"))
    if secure and (space.needs_choice or task.release_score):
        raise InvalidArgumentError(
            "secure=True does not support releasing gradients together with "
            f"{'categories' if space.needs_choice else 'a score'}. Use "
            "method='stable'."
        )
    check_gaussian(guarantee, secure)
    limit, choice, count = task.max_evaluations, None, 0
    if limit is not None:
        limit = check_count("max_evaluations", limit, minimum=2) - task.release_score
    if space.needs_choice:
        choice = part_for_choice(guarantee)
        count = _num_candidates(task, limit)
    if (
        limit is None
        and task.num_steps is None
        and not task.options.keys() & (_POINTS_A_STEP)
    ):
        limit = count + _usual_limit(space)
    plan = SearchPlan(
        num_candidates=count,
        choice=choice,
        descent=None,
        guarantee=guarantee,
        reason="method='dp-gibo'",
        max_evaluations=limit,
        point_cost=space.models_per_point,
    )
    if limit is not None and (plan.descent_evaluations or 0) < 2:
        raise InvalidArgumentError(
            f"max_evaluations={task.max_evaluations!r} leaves no two points for a "
            f"gradient, with {space.models_per_point} models for each point and "
            f"{count} candidates. Increase it, or use method='auto'."
        )
    return with_descent(
        plan,
        num_records=evaluation.num_records,
        dim=len(space.widest.numbers),
        gradient_share=_gradient_share(task),
        loss_range=evaluation.scoring.loss_range,
        clip_norm=task.clip_norm,
        num_steps=task.num_steps,
    )


def stages_of(plan: SearchPlan, task: Task, evaluation: Evaluation) -> Stages:
    """Prepare the stages of a plan. Bad settings raise before anything is trained."""
    return _Preparation(plan, task, evaluation).stages


class _Preparation:
    """Makes a choice, gradients and the release of a score, as the plan says."""

    def __init__(self, plan: SearchPlan, task: Task, evaluation: Evaluation) -> None:
        self._task, self._evaluation = task, evaluation
        self._num_steps = task.num_steps
        choice: CandidateChoice | None = None
        given: Guarantee = task.guarantee
        if plan.choice is not None:
            given = plan.choice
            if task.release_score and plan.descent is None:
                # PrivateBO splits the budget between the choice and its score.
                given, half = _shares_of_a_scored_choice(task.guarantee)
                plan = replace(plan, choice=half)
            choice = self._make_choice(
                plan.num_candidates,
                guarantee=given,
                release_score=plan.descent is None and task.release_score,
            )
            plan = replace(plan, num_candidates=choice.num_candidates)
        run: DPGIBO | None = None
        score: ScoreRelease | None = None
        if plan.descent is not None:
            given, share = _gaussian_shares(plan, task.release_score)
            self._gradients, self._limit = given, plan.descent_evaluations
            run = self._make_run(task.space.widest.start(task.first))
            # The cost was planned before the choice, so it is the same in all branches.
            self._num_steps = run.num_steps
            plan = replace(plan, descent=run.plan)
            self._check_adjacency(run, has_choice=choice is not None)
            if share is not None:
                score = self._make_score(share, run.adjacency)
        if not isinstance(given, ApproxDP):  # otherwise the optimizer warns
            warn_of_large_delta(task.guarantee, evaluation.num_records)
        self.stages = Stages(
            choice=choice,
            gradients=None if run is None else Gradients(run, self._make_run),
            score=score,
            plan=plan,
            num_models=self._num_models(plan, score),
            certified=_certified_plan(plan, task),
        )

    def _num_models(self, plan: SearchPlan, score: ScoreRelease | None) -> int | None:
        """Return how many models will be trained, None if that is not known."""
        if self._task.options.keys() & _POINTS_A_STEP:
            return None
        return plan.num_evaluations + (score is not None)

    def _make_choice(self, count: int, **settings: Any) -> CandidateChoice:
        task = self._task
        candidates = task.space.candidates(count, first=task.first, seed=task.seed)
        return CandidateChoice(
            task,
            self._evaluation,
            candidates,
            {},
            release="stable",
            **all_at_once(candidates),
            **settings,
        )

    def _make_run(self, start: Params) -> DPGIBO:
        task, branch = self._task, self._task.space.branch_of(start)
        return make_optimizer(
            DPGIBO,
            task.options,
            bounds=branch.bounds,
            num_records=self._evaluation.num_records,
            guarantee=self._gradients,
            num_steps=self._num_steps,
            clip_norm=task.clip_norm,
            loss_range=self._evaluation.scoring.loss_range,
            max_evaluations=self._limit,
            transform=branch.transform,
            initial_x=branch.point(start),
            unit=self._evaluation.unit,
            ledger=task.ledger,
            generator=task.generator,
        )

    def _check_adjacency(self, run: DPGIBO, *, has_choice: bool) -> None:
        if has_choice and run.adjacency != ADJACENCY:
            raise InvalidArgumentError(
                f"method_options must keep adjacency={ADJACENCY!r} if space has "
                f"categories ({self._task.space.chosen_names}), got {run.adjacency!r}."
            )

    def _make_score(self, share: GDP, adjacency: str) -> ScoreRelease:
        loss_range = self._evaluation.scoring.loss_range
        assert loss_range is not None
        return ScoreRelease(
            share,
            ledger=self._task.ledger,
            loss_range=loss_range,
            num_records=self._evaluation.num_records,
            adjacency=adjacency,
            unit=self._evaluation.unit,
            generator=self._task.generator,
        )


def _certified_plan(plan: SearchPlan, task: Task) -> dict[str, Any]:
    """Return what was chosen and why, for the certificate."""
    found: dict[str, Any] = {"method": plan.method}
    if task.is_auto:
        found = {"method": f"auto: {plan.method}", "reason": plan.reason}
    if plan.choice is not None:
        found["num_candidates"] = plan.num_candidates
        found["choice_epsilon"] = float(f"{plan.choice.epsilon:.6g}")
    if task.max_evaluations is not None or task.is_auto:
        found["max_evaluations"] = task.max_evaluations or _usual_limit(task.space)
    return found


def _usual_limit(space: SearchSpace) -> int:
    """Return how many models may be trained by default."""
    return max(60, 10 * (len(space.names) + 1))


def _num_candidates(task: Task, limit: int | None) -> int:
    if task.num_candidates is not None:
        return check_count("num_candidates", task.num_candidates, minimum=2)
    usual = NUM_CANDIDATES["stable"]
    return usual if limit is None else min(usual, max(2, limit // 2))


def _gradient_share(task: Task) -> float:
    return 1 - _SHARE_OF_SCORE if task.release_score else 1.0


def _gaussian_shares(plan: SearchPlan, has_score: bool) -> tuple[Guarantee, GDP | None]:
    """Return the guarantees of all gradients together, and of the score."""
    left = plan.guarantee
    if plan.choice is not None:
        left = after_choice(left, plan.choice.epsilon)
    if not has_score:
        return left, None
    mu = left.to_gdp().mu
    gradients = GDP(mu * math.sqrt(1 - _SHARE_OF_SCORE))
    return gradients, GDP(mu * math.sqrt(_SHARE_OF_SCORE))


def _shares_of_a_scored_choice(guarantee: Guarantee) -> tuple[Guarantee, PureDP]:
    """Return the guarantee of a choice with its score, and the half for the choice."""
    whole = guarantee if isinstance(guarantee, ApproxDP) else guarantee.to_pure()
    return whole, PureDP(whole.epsilon / 2)
