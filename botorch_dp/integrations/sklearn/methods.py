"""The ways to search: by private gradients, or by a private choice of a candidate."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.space import Params, SearchSpace
from botorch_dp.optimizers import DPGIBO, PrivateBO, Step
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    Certificate,
    ExponentialEvent,
    GaussianEvent,
    GaussianMechanism,
    Guarantee,
    Ledger,
    PureDP,
)
from botorch_dp.privacy.budget import (
    check_affordable,
    check_gaussian,
    mean_sensitivity,
    warn_of_large_delta,
)
from botorch_dp.privacy.certificate import TOLD_RECORDS

METHODS = ("dp-gibo", "stable", "kusner")
# What PrivateSearch has arguments of its own for, or must decide.
_RESERVED = {
    "DPGIBO": {"bounds", "transform", "initial_x", "clip_norm"},
    "PrivateBO": {"candidates", "bounds", "release", "what", "loss_range", "adaptive"},
    "both": {"num_records", "guarantee", "num_steps", "ledger", "generator"},
}
T = TypeVar("T")
_ADJACENCY = "replace_one"

# By default: steps of gradients or UCB, and candidates to choose among.
_STEPS = {"dp-gibo": 10, "kusner": 30}
_CANDIDATES = {"stable": 32, "kusner": 1000}
# What the choice of categories takes of epsilon or mu^2; gradients get the rest.
_SHARE_OF_CHOICE = 0.5
# What the score takes of mu^2, where gradients were followed.
_SHARE_OF_SCORE = 0.1
# The bound on a record's gradient in the unit cube, beside the range of its loss: as
# large as leaves so little noise, but no less than that. Few records lose much where
# many gain a little, so that a small bound turns their mean gradient around.
_NOISE, _LEAST_CLIP = 0.003, 0.25
# Of losses in the surrogate: models at nearby points differ by chance, too.
_NOISE_VARIANCE = 1e-4

PROTECTED = (
    "protects the validation records (X_val, y_val); the training records (X, y) are "
    "NOT protected: the models may reveal them"
)


@dataclass(frozen=True)
class Task:
    """What is searched, how, and at which cost: all of it public.

    Attributes:
        space: The hyperparameters.
        guarantee: What all releases together have to meet.
        ledger: What is charged.
        first: Where to start.
        num_steps: None for the method's own number.
        num_candidates: None for the method's own number.
        clip_norm: None for a part of the range of a loss.
        release_score: Whether to release the score of what was found.
        options: Further arguments of the optimizer.
        generator: Seeds the noise.
        seed: Of the candidates.
    """

    space: SearchSpace
    guarantee: Guarantee
    ledger: Ledger
    first: Params
    num_steps: int | None = None
    num_candidates: int | None = None
    clip_norm: float | None = None
    release_score: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    generator: torch.Generator | None = None
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """What a search released.

    Attributes:
        params: The hyperparameters.
        loss: The mean loss, None if that was not asked for.
        history: Public facts, step by step.
        certificate: What is guaranteed.
    """

    params: Params
    loss: float | None
    history: list[dict[str, Any]]
    certificate: Certificate


def choose_candidate(method: str, task: Task, evaluation: Evaluation) -> Found:
    """Choose one of many candidates: ``"stable"`` or ``"kusner"``."""
    if task.clip_norm is not None:
        raise InvalidArgumentError(
            f"clip_norm is for method='dp-gibo', got {task.clip_norm!r} with "
            f"method={method!r}, which clips losses to loss_range."
        )
    if method == "kusner" and "correlation" not in task.options:
        raise InvalidArgumentError(
            "method='kusner' needs method_options={'correlation': ...}, the least "
            "correlation between the losses on two neighbouring data sets, which it "
            "assumes; method='stable' needs no assumption."
        )
    if method == "stable" and not isinstance(task.guarantee, PureDP | ApproxDP):
        raise InvalidArgumentError(
            "guarantee must be a PureDP or an ApproxDP with method='stable', got "
            f"{task.guarantee!r}; method='dp-gibo' can meet it."
        )
    count = check_count(
        "num_candidates", _given(task.num_candidates, _CANDIDATES[method]), minimum=2
    )
    candidates = task.space.candidates(count, first=task.first, seed=task.seed)
    points = task.space.encoded(candidates)
    steps = _given(task.num_steps, _STEPS.get(method, len(candidates)))
    settings: dict[str, Any] = {"num_steps": min(steps, len(candidates))}
    if method == "stable" and task.num_steps is None:
        # All are evaluated, at once, so that there is nothing to estimate.
        settings = {
            "num_steps": 1,
            "batch_size": len(candidates),
            "scoring": "evaluated",
        }
    run = _make(
        PrivateBO,
        task.options,
        candidates=points,
        num_records=evaluation.num_records,
        guarantee=task.guarantee,
        loss_range=evaluation.scoring.loss_range,
        release=method,
        what="both" if task.release_score else "point",
        ledger=task.ledger,
        generator=task.generator,
        **{name: settings[name] for name in settings.keys() - task.options.keys()},
    )
    check_affordable(task.ledger, run.planned_releases(), _ADJACENCY)
    if evaluation.points_are_private:
        evaluation.try_on(candidates[0])
    index_of = {tuple(row): index for index, row in enumerate(points.tolist())}

    def losses(X: torch.Tensor) -> torch.Tensor:
        return evaluation.losses([candidates[index_of[tuple(x)]] for x in X.tolist()])

    result = run.run(losses, progress=False)
    if run.batch_size == len(candidates):
        history = [{"params": params, "noise_std": 0.0} for params in candidates]
    else:
        history = [
            {
                # None where the points that were evaluated are private, too.
                "params": candidates[at] if (at := _row(index_of, step)) >= 0 else None,
                "noise_std": step.noise_std,
            }
            for step in result.history
        ]
    return Found(
        candidates[index_of[tuple(result.x.tolist())]],
        result.value,
        history,
        _certificate(run.certificate(), task, evaluation),
    )


def follow_gradients(task: Task, evaluation: Evaluation) -> Found:
    """Choose categories if there are any, then follow private gradients of numbers."""
    space = task.space
    if not space.numbers:
        raise InvalidArgumentError(
            "method='dp-gibo' follows gradients and needs a Real or an Integer in "
            f"space: use method='stable' for {[*space.choices]}."
        )
    choice, gradients = _split(task)
    score = None
    if task.release_score:
        warn_of_large_delta(task.guarantee, evaluation.num_records)
        score = GDP(gradients.to_gdp().mu * math.sqrt(_SHARE_OF_SCORE))
        gradients = GDP(gradients.to_gdp().mu * math.sqrt(1 - _SHARE_OF_SCORE))
    range_of_loss = evaluation.scoring.loss_range
    assert range_of_loss is not None
    width = range_of_loss[1] - range_of_loss[0]

    num_steps = check_count("num_steps", _given(task.num_steps, _STEPS["dp-gibo"]))
    mu_of_step = gradients.to_gdp().mu / math.sqrt(num_steps)
    affordable = _NOISE * width * evaluation.num_records * mu_of_step / 2
    usual_clip = max(_LEAST_CLIP * width, affordable)

    def make_run(start: Params) -> DPGIBO:
        return _make(
            DPGIBO,
            {"noise_variance": _NOISE_VARIANCE, **task.options},
            bounds=space.bounds,
            num_records=evaluation.num_records,
            guarantee=gradients,
            num_steps=num_steps,
            clip_norm=_given(task.clip_norm, usual_clip),
            transform=space.transform,
            initial_x=space.point(start),
            ledger=task.ledger,
            generator=task.generator,
        )

    run = make_run(task.first)  # all that may fail fails before anything is fitted
    if choice is not None and run.adjacency != _ADJACENCY:
        raise InvalidArgumentError(
            f"method_options must leave adjacency={_ADJACENCY!r} where categories "
            f"({[*space.choices]}) are chosen, got {run.adjacency!r}."
        )
    costs = run.planned_releases()
    if score is not None:
        costs.append((GaussianEvent(1 / score.mu), 1))
    if choice is not None:
        costs.append((ExponentialEvent(choice.epsilon), 1))
    check_affordable(task.ledger, costs, run.adjacency)

    fixed: Params = {}
    if choice is not None:
        chosen = choose_candidate(
            "stable",
            replace(
                task,
                guarantee=choice,
                release_score=False,
                num_steps=None,
                clip_norm=None,
                options={},
            ),
            evaluation,
        )
        start = chosen.params
        fixed = {name: start[name] for name in space.choices}
        run = make_run(start)

    def losses(X: torch.Tensor) -> torch.Tensor:
        points = [
            [(weight, {**params, **fixed}) for weight, params in space.corners(x)]
            for x in X.tolist()
        ]
        return evaluation.interpolated(points)

    result = run.run(losses, progress=False)
    # The mean of later iterates: steadier under noise, and as private as they are.
    params = {**space.rounded(result.average.tolist()), **fixed}
    loss = None
    if score is not None:
        mechanism = GaussianMechanism(
            score,
            sensitivity=mean_sensitivity(width, evaluation.num_records),
            adjacency=run.adjacency,
            generator=task.generator,
        )
        low = range_of_loss[0]
        private = (evaluation.losses([params]) - low).mean(dim=0)
        loss = low + float(mechanism.release(private, ledger=task.ledger))
    history = [
        {
            "params": {**space.rounded(step.x.tolist()), **fixed},
            "noise_std": step.noise_std,
        }
        for step in result.history
    ]
    certificate = _certificate(run.certificate(), task, evaluation)
    return Found(params, loss, history, certificate)


def _split(task: Task) -> tuple[PureDP | None, Guarantee]:
    """Return the shares of choosing categories, if there are any, and of gradients."""
    guarantee = task.guarantee
    if isinstance(guarantee, PureDP):
        raise InvalidArgumentError(
            "guarantee must be an ApproxDP, a GDP or an RDP with method='dp-gibo', "
            f"whose noise is Gaussian, got {guarantee!r}; method='stable' can meet it."
        )
    is_split = bool(task.space.choices) or task.release_score
    if is_split and task.options.get("secure"):
        raise InvalidArgumentError(
            "secure=True cannot be split between gradients and "
            f"{'choices' if task.space.choices else 'a score'}: use method='stable'."
        )
    if not task.space.choices:
        return None, check_gaussian(guarantee, bool(task.options.get("secure")))
    if isinstance(guarantee, ApproxDP):
        choice = guarantee.epsilon * _SHARE_OF_CHOICE
        return PureDP(choice), ApproxDP(guarantee.epsilon - choice, guarantee.delta)
    if isinstance(guarantee, GDP):
        parts = (_SHARE_OF_CHOICE, 1 - _SHARE_OF_CHOICE)
        first, rest = (GDP(guarantee.mu * math.sqrt(part)) for part in parts)
        return first.to_pure(), rest
    raise InvalidArgumentError(
        "guarantee must be an ApproxDP or a GDP where method='dp-gibo' has to choose "
        f"among categories ({[*task.space.choices]}) first, got {guarantee!r}."
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _make(kind: Callable[..., T], options: dict[str, Any], **settings: Any) -> T:
    """Make an optimizer with the caller's options beside our settings."""
    reserved = _RESERVED[kind.__name__] | _RESERVED["both"]
    if taken := sorted(reserved & options.keys()):
        raise InvalidArgumentError(
            f"method_options must not have {taken}: PrivateSearch has arguments for "
            "them, or decides."
        )
    try:
        return kind(**settings, **options)
    except TypeError as error:
        raise InvalidArgumentError(
            f"method_options must be arguments of {kind.__name__}: {error}."
        ) from error


def _row(index_of: dict[tuple[float, ...], int], step: Step) -> int:
    return index_of.get(tuple(step.x.tolist()), -1)


def _certificate(
    certificate: Certificate, task: Task, evaluation: Evaluation
) -> Certificate:
    scoring = evaluation.scoring
    return replace(
        certificate,
        assumptions=(
            *(text for text in certificate.assumptions if text != TOLD_RECORDS),
            PROTECTED,
        ),
        parameters={
            **certificate.parameters,
            "budget": repr(task.guarantee),
            "scoring": scoring.name,
            "loss_range": list(scoring.loss_range or ()),
            "searched": [*task.space.numbers, *task.space.choices],
        },
    )
