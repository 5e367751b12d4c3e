"""A private choice among candidates, and what all methods of a search share."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from botorch_dp._validation import check_count, suggestion
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.space import Params, SearchSpace
from botorch_dp.integrations.sklearn.stopping import TIMED
from botorch_dp.integrations.sklearn.tally_choice import TallyChoice
from botorch_dp.optimizers import PrivateBO
from botorch_dp.optimizers.auto.search_plan import SearchPlan
from botorch_dp.privacy import (
    ApproxDP,
    Certificate,
    Guarantee,
    Ledger,
    PrivacyEvent,
    PureDP,
)
from botorch_dp.privacy.certificate import TOLD_RECORDS

METHODS = ("auto", "dp-gibo", "stable", "kusner")
ADJACENCY = "replace_one"
# The arguments of the optimizers that PrivateSearch sets itself.
_RESERVED = {
    "DPGIBO": {"bounds", "transform", "clip_norm"},
    "PrivateBO": {"candidates", "bounds", "release", "output", "what", "adaptive"},
    "TallyChoice": {"candidates", "scoring", "output"},
    "both": {
        "num_records",
        "guarantee",
        "num_steps",
        "loss_range",
        "max_evaluations",
        "initial_x",
        "unit",
        "ledger",
        "generator",
    },
}
T = TypeVar("T")

# The default numbers of candidates, and of UCB's steps.
NUM_CANDIDATES = {"stable": 32, "kusner": 1000}
_UCB_STEPS = 30

PROTECTED = (
    "protects the validation records (X_val, y_val); the training records (X, y) are "
    "NOT protected: the models may reveal them"
)


@dataclass(frozen=True)
class Task:
    """The public settings of a search.

    Attributes:
        space: The search space.
        guarantee: The guarantee of all releases together.
        ledger: The ledger to charge.
        first: The parameters to start from.
        num_steps: The number of steps; None for the method's default.
        num_candidates: The number of candidates; None for the method's default.
        clip_norm: The bound on gradients; None for a default.
        max_evaluations: How many models may be trained; None for a default.
        release_score: Whether to release the score of the result.
        options: Further arguments of the optimizer.
        generator: A seeded generator for the noise, or None.
        seed: The seed of the candidates.
        is_timed: Whether the clock may stop the search.
        is_auto: Whether the method was left to the plan.
    """

    space: SearchSpace
    guarantee: Guarantee
    ledger: Ledger
    first: Params
    num_steps: int | None = None
    num_candidates: int | None = None
    clip_norm: float | None = None
    max_evaluations: int | None = None
    release_score: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    generator: torch.Generator | None = None
    seed: int = 0
    is_timed: bool = False
    is_auto: bool = False


@dataclass(frozen=True)
class Found:
    """The releases of a search.

    Attributes:
        params: The released hyperparameters.
        loss: The released mean loss, or None.
        loss_std: The standard deviation of the noise on it, or None.
        history: The public facts of every step.
        certificate: The certificate of all releases.
        plan: The plan that was followed, or None.
    """

    params: Params
    loss: float | None
    history: list[dict[str, Any]]
    certificate: Certificate
    plan: SearchPlan | None = None
    loss_std: float | None = None


class CandidateChoice:
    """A run that releases one of the candidates.

    It is a run of PrivateBO, or of TallyChoice for a score that is not a mean over
    records.

    Args:
        task: The public settings of the search.
        evaluation: Computes the private losses.
        candidates: The candidates, all of which are different.
        options: Further arguments of PrivateBO from the user, which come first.
        release: The name of the release.
        guarantee: The guarantee of the choice, and of its score if that is released.
        release_score: Whether to release the score.
        **settings: Further arguments of PrivateBO.

    Attributes:
        run: The run.
        num_candidates: The number of candidates.
    """

    def __init__(
        self,
        task: Task,
        evaluation: Evaluation,
        candidates: list[Params],
        options: dict[str, Any],
        *,
        release: str,
        guarantee: Guarantee,
        release_score: bool,
        **settings: Any,
    ) -> None:
        points = task.space.encoded(candidates)
        rows = map(tuple, points.tolist())
        self._params_at: dict[tuple[float, ...], Params] = dict(
            zip(rows, candidates, strict=True)
        )
        self._candidates, self._evaluation = candidates, evaluation
        self.num_candidates = len(candidates)
        self._released: tuple[Params, float | None] | None = None
        shared = {
            "candidates": points,
            "num_records": evaluation.num_records,
            "guarantee": guarantee,
            "output": "both" if release_score else "point",
            "unit": evaluation.unit,
            "ledger": task.ledger,
            "generator": task.generator,
        }
        scoring = evaluation.scoring
        self.run: PrivateBO | TallyChoice
        if isinstance(scoring, CandidateScoring):
            self.run = make_optimizer(TallyChoice, options, scoring=scoring, **shared)
            return
        self.run = make_optimizer(
            PrivateBO,
            options,
            loss_range=scoring.loss_range,
            release=release,
            **shared,
            **{name: settings[name] for name in settings.keys() - options.keys()},
        )

    @property
    def candidates(self) -> list[Params]:
        """The candidates, all of which are different."""
        return self._candidates

    @property
    def released(self) -> tuple[Params, float | None] | None:
        """The released candidate, and its loss if that is released; None before."""
        if self._released is None and self.run.done:
            with contextlib.suppress(OptimizerStateError):  # paid for, and lost
                result = self.run.result()
                chosen = self._params_at[tuple(result.x.tolist())]
                self._released = chosen, result.value
        return self._released

    @property
    def loss_std(self) -> float | None:
        """The standard deviation of the noise on the released loss, if it is known."""
        if self.released is None:
            return None
        details = self.run.result().details
        # The second is that of a score that is a ratio of noisy counts.
        return details.get("value_noise_std", details.get("score_noise_std"))

    @property
    def num_lost(self) -> int:
        """The number of releases that were paid for and never arrived."""
        return self.run.account.num_charged if self.released is None else 0

    @property
    def history(self) -> list[dict[str, Any]]:
        """The public facts of every step."""
        steps = self.run.history
        if steps and self.run.batch_size == len(self._candidates):
            return [{"params": p, "noise_std": 0.0} for p in self._candidates]
        return [  # the parameters are None if the evaluated points are private
            {
                "params": self._params_at.get(tuple(step.x.tolist())),
                "noise_std": step.noise_std,
            }
            for step in steps
        ]

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs that are still to be paid."""
        return [] if self.run.done else self.run.planned_releases()

    def losses(self, X: torch.Tensor) -> torch.Tensor:
        """Return the private losses of candidates, given as points."""
        at = self._params_at
        return self._evaluation.losses([at[tuple(x)] for x in X.tolist()])


def all_at_once(candidates: list[Params]) -> dict[str, Any]:
    """Return the settings that evaluate every candidate, so none is estimated."""
    return {"num_steps": 1, "batch_size": len(candidates), "scoring": "evaluated"}


def choice_of(method: str, task: Task, evaluation: Evaluation) -> CandidateChoice:
    """Prepare the choice of one of many candidates: ``"stable"`` or ``"kusner"``."""
    if task.clip_norm is not None:
        raise InvalidArgumentError(
            f"clip_norm needs method='dp-gibo', got {task.clip_norm!r} with "
            f"method={method!r}, which clips losses to loss_range instead."
        )
    if task.max_evaluations is not None:
        raise InvalidArgumentError(
            "max_evaluations needs method='auto' or method='dp-gibo', got "
            f"{task.max_evaluations!r} with method={method!r}. Use num_candidates or "
            "num_steps instead."
        )
    if method == "kusner" and "correlation" not in task.options:
        raise InvalidArgumentError(
            "method='kusner' needs method_options={'correlation': ...}, an assumed "
            "lower bound on the correlation between the losses on two neighboring data "
            "sets. method='stable' needs no such assumption."
        )
    if method == "stable" and not isinstance(task.guarantee, PureDP | ApproxDP):
        raise InvalidArgumentError(
            "guarantee must be a PureDP or an ApproxDP with method='stable', got "
            f"{task.guarantee!r}. Use method='auto' for this guarantee."
        )
    is_tallied = isinstance(evaluation.scoring, CandidateScoring)
    if is_tallied and task.num_steps is not None:
        raise InvalidArgumentError(
            f"num_steps must be None with scoring={evaluation.scoring.name!r}, whose "
            f"value must be known for all candidates, got {task.num_steps!r}. Use "
            "num_candidates."
        )
    given = task.num_candidates
    count = NUM_CANDIDATES[method] if given is None else given
    check_count("num_candidates", count, minimum=2)
    candidates = task.space.candidates(count, first=task.first, seed=task.seed)
    if method == "stable" and task.num_steps is None:
        settings = all_at_once(candidates)
    else:
        default = len(candidates) if method == "stable" else _UCB_STEPS
        steps = default if task.num_steps is None else task.num_steps
        settings = {"num_steps": min(steps, len(candidates))}
    return CandidateChoice(
        task,
        evaluation,
        candidates,
        task.options,
        release=method,
        guarantee=task.guarantee,
        release_score=task.release_score,
        **settings,
    )


def check_names(estimator: Any, space: SearchSpace) -> None:
    """Raise unless the estimator has all parameters of the space."""
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        raise InvalidArgumentError(
            "estimator must be an instance of a scikit-learn estimator, such as "
            f"LogisticRegression(), got {estimator!r}."
        )
    known = estimator.get_params()
    names = space.names
    # A step of a pipeline that is itself searched may have further parameters.
    unknown = [
        name
        for name in names
        if name not in known and name.rpartition("__")[0] not in names
    ]
    if unknown:
        raise InvalidArgumentError(
            f"space contains {', '.join(map(repr, unknown))}, but "
            f"{type(estimator).__name__} has no such parameter."
            f"{suggestion(unknown[0], known)} Available parameters: "
            f"{', '.join(sorted(known))}."
        )


def make_optimizer(
    kind: Callable[..., T], options: dict[str, Any], **settings: Any
) -> T:
    """Return an optimizer with our settings and the caller's options."""
    reserved = _RESERVED[kind.__name__] | _RESERVED["both"]
    if taken := sorted(reserved & options.keys()):
        raise InvalidArgumentError(
            f"method_options must not contain {taken}: PrivateSearch sets them."
        )
    try:
        return kind(**settings, **options)
    except TypeError as error:
        raise InvalidArgumentError(
            f"method_options must be arguments of {kind.__name__}: {error}."
        ) from error


def certified(
    certificate: Certificate,
    task: Task,
    evaluation: Evaluation,
    **parameters: Any,
) -> Certificate:
    """Return the certificate with what it means for a search."""
    scoring = evaluation.scoring
    return replace(
        certificate,
        assumptions=(
            *(text for text in certificate.assumptions if text != TOLD_RECORDS),
            PROTECTED,
            *evaluation.private.assumptions,
            *([TIMED] if task.is_timed else []),
        ),
        parameters={
            **certificate.parameters,
            "budget": repr(task.guarantee),
            "scoring": scoring.name,
            "loss_range": list(scoring.loss_range or ()),
            "searched": task.space.names,
            **parameters,
        },
    )
