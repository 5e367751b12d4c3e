"""Search by private gradients, or by a private choice among candidates."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.space import Params, SearchSpace
from botorch_dp.optimizers import DPGIBO, PrivateBO
from botorch_dp.privacy import (
    GDP,
    ApproxDP,
    Certificate,
    GaussianEvent,
    GaussianMechanism,
    Guarantee,
    Ledger,
    PermuteAndFlipEvent,
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
# The arguments of the optimizers that PrivateSearch sets itself.
_RESERVED = {
    "DPGIBO": {"bounds", "transform", "initial_x", "clip_norm"},
    "PrivateBO": {
        "candidates",
        "bounds",
        "release",
        "output",
        "what",
        "loss_range",
        "adaptive",
    },
    "both": {"num_records", "guarantee", "num_steps", "ledger", "generator"},
}
T = TypeVar("T")
_ADJACENCY = "replace_one"

# The default numbers of steps (of gradients or UCB) and of candidates.
_STEPS = {"dp-gibo": 10, "kusner": 30}
_CANDIDATES = {"stable": 32, "kusner": 1000}
# The share of epsilon or mu^2 for the choice of categories; gradients get the rest.
_SHARE_OF_CHOICE = 0.5
# The share of mu^2 for the score with method="dp-gibo".
_SHARE_OF_SCORE = 0.1
# The default bound on a record's gradient in the unit cube, relative to the loss range:
# the largest bound with noise of at most _NOISE, but at least _LEAST_CLIP. If few
# records lose much and many gain a little, a small bound reverses the mean gradient.
_NOISE, _LEAST_CLIP = 0.003, 0.25
# The noise variance of the surrogate: models at nearby points differ by chance.
_NOISE_VARIANCE = 1e-4

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
        release_score: Whether to release the score of the result.
        options: Further arguments of the optimizer.
        generator: A seeded generator for the noise, or None.
        seed: The seed of the candidates.
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
    """The releases of a search.

    Attributes:
        params: The released hyperparameters.
        loss: The released mean loss, or None.
        history: The public facts of every step.
        certificate: The certificate of all releases.
    """

    params: Params
    loss: float | None
    history: list[dict[str, Any]]
    certificate: Certificate


def choose_candidate(method: str, task: Task, evaluation: Evaluation) -> Found:
    """Choose one of many candidates: ``"stable"`` or ``"kusner"``."""
    if task.clip_norm is not None:
        raise InvalidArgumentError(
            f"clip_norm needs method='dp-gibo', got {task.clip_norm!r} with "
            f"method={method!r}, which clips losses to loss_range instead."
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
            f"{task.guarantee!r}. Use method='dp-gibo' for this guarantee."
        )
    count = check_count(
        "num_candidates", _given(task.num_candidates, _CANDIDATES[method]), minimum=2
    )
    candidates = task.space.candidates(count, first=task.first, seed=task.seed)
    points = task.space.encoded(candidates)
    steps = _given(task.num_steps, _STEPS.get(method, len(candidates)))
    settings: dict[str, Any] = {"num_steps": min(steps, len(candidates))}
    if method == "stable" and task.num_steps is None:
        # One batch evaluates all candidates, so no score has to be estimated.
        size = len(candidates)
        settings = {"num_steps": 1, "batch_size": size, "scoring": "evaluated"}
    run = _make(
        PrivateBO,
        task.options,
        candidates=points,
        num_records=evaluation.num_records,
        guarantee=task.guarantee,
        loss_range=evaluation.scoring.loss_range,
        release=method,
        output="both" if task.release_score else "point",
        ledger=task.ledger,
        generator=task.generator,
        **{name: settings[name] for name in settings.keys() - task.options.keys()},
    )
    check_affordable(task.ledger, run.planned_releases(), _ADJACENCY)
    if evaluation.points_are_private:
        evaluation.try_on(candidates[0])
    rows = map(tuple, points.tolist())
    params_at: dict[tuple[float, ...], Params] = dict(
        zip(rows, candidates, strict=True)
    )

    def losses(X: torch.Tensor) -> torch.Tensor:
        return evaluation.losses([params_at[tuple(x)] for x in X.tolist()])

    result = run.run(losses, progress=False)
    if run.batch_size == len(candidates):
        history = [{"params": params, "noise_std": 0.0} for params in candidates]
    else:  # the parameters are None if the evaluated points are private
        history = [
            {
                "params": params_at.get(tuple(step.x.tolist())),
                "noise_std": step.noise_std,
            }
            for step in result.history
        ]
    return Found(
        params_at[tuple(result.x.tolist())],
        result.value,
        history,
        _certificate(run.certificate(), task, evaluation),
    )


def follow_gradients(task: Task, evaluation: Evaluation) -> Found:
    """Choose categories if there are any, then follow private gradients."""
    space = task.space
    if not space.numbers:
        raise InvalidArgumentError(
            "method='dp-gibo' follows gradients and needs a Real or an Integer in "
            f"space, got only categories, {[*space.choices]}. Use method='stable'."
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

    run = make_run(task.first)  # raises bad settings before anything is fitted
    if choice is not None and run.adjacency != _ADJACENCY:
        raise InvalidArgumentError(
            f"method_options must keep adjacency={_ADJACENCY!r} if space has "
            f"categories ({[*space.choices]}), got {run.adjacency!r}."
        )
    costs = run.planned_releases()
    if score is not None:
        costs.append((GaussianEvent(1 / score.mu), 1))
    if choice is not None:
        costs.append((PermuteAndFlipEvent(choice.epsilon), 1))
    check_affordable(task.ledger, costs, run.adjacency)

    fixed: Params = {}
    if choice is not None:
        part = replace(task, guarantee=choice, release_score=False, options={})
        part = replace(part, num_steps=None, clip_norm=None)
        start = choose_candidate("stable", part, evaluation).params
        fixed = {name: start[name] for name in space.choices}
        run = make_run(start)

    def losses(X: torch.Tensor) -> torch.Tensor:
        points = [
            [(weight, {**params, **fixed}) for weight, params in space.corners(x)]
            for x in X.tolist()
        ]
        return evaluation.interpolated(points)

    result = run.run(losses, progress=False)
    # The mean of the later iterates has less noise, at no further privacy cost.
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
    """Return the guarantees for categories (None if there are none) and gradients."""
    guarantee = task.guarantee
    if isinstance(guarantee, PureDP):
        raise InvalidArgumentError(
            "guarantee must be an ApproxDP, a GDP or an RDP with method='dp-gibo', "
            f"which adds Gaussian noise, got {guarantee!r}. Use method='stable' for "
            "this guarantee."
        )
    is_split = bool(task.space.choices) or task.release_score
    if is_split and task.options.get("secure"):
        raise InvalidArgumentError(
            "secure=True does not support releasing gradients together with "
            f"{'categories' if task.space.choices else 'a score'}. Use "
            "method='stable'."
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
        "guarantee must be an ApproxDP or a GDP with method='dp-gibo' and categories "
        f"in space ({[*task.space.choices]}), got {guarantee!r}."
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _make(kind: Callable[..., T], options: dict[str, Any], **settings: Any) -> T:
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
