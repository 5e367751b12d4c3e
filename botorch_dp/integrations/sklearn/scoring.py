"""Find the scoring that a search asks for, and its range."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sklearn.base import is_classifier, is_regressor
from sklearn.utils.multiclass import type_of_target

from botorch_dp._validation import check_range
from botorch_dp.exceptions import InvalidArgumentError, RareClassWarning
from botorch_dp.integrations.sklearn.auc import roc_auc
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.hit_scores import f1, precision, recall
from botorch_dp.integrations.sklearn.metrics import (
    class_shares,
    class_weighted,
    named_scoring,
)
from botorch_dp.integrations.sklearn.record_losses import RecordLoss, Scoring
from botorch_dp.integrations.sklearn.records import Records

# The share of the rarest of two classes below which accuracy says little; with more
# classes, the same part of an equal share.
_RARE = 0.2
_OF_CANDIDATES: dict[str, Callable[[], CandidateScoring]] = {
    "roc_auc": roc_auc,
    "f1": f1,
    "precision": precision,
    "recall": recall,
}


def make_scoring(
    given: str | Scoring | CandidateScoring | RecordLoss | None,
    loss_range: tuple[float, float] | None,
    *,
    estimator: Any,
    prefers_log_loss: bool,
    training_targets: Any = None,
) -> Scoring | CandidateScoring:
    """Return the scoring with its loss range, or with the classes of its targets.

    Args:
        given: A name, a scoring of
            :mod:`~botorch_dp.integrations.sklearn.metrics`, a
            :class:`~botorch_dp.integrations.sklearn.candidate_scoring.CandidateScoring`
            or a callable; None selects a default for the estimator.
        loss_range: Replaces the range of the scoring.
        estimator: The estimator to score.
        prefers_log_loss: Whether the default for classifiers is the log loss, where
            they have probabilities, rather than accuracy. It says more of a record.
        training_targets: The targets of the training records, which are public. They
            give the class weights of ``"balanced_accuracy"``.
    """
    if given is None:
        given = _default(estimator, prefers_log_loss)
    if hasattr(given, "_score_func"):
        raise InvalidArgumentError(
            "scoring must not be a scorer, which returns one number for all records, "
            f"got {given!r}. Pass the name of a score, or a callable (estimator, X, y) "
            "that returns one loss for each record."
        )
    scoring = _scoring(given, training_targets)
    if scoring.needs and not any(hasattr(estimator, name) for name in scoring.needs):
        raise InvalidArgumentError(
            f"scoring={scoring.name!r} needs an estimator with "
            f"{' or '.join(scoring.needs)}, but {type(estimator).__name__} does not "
            "have it. Use scoring='accuracy'."
        )
    if isinstance(scoring, CandidateScoring):
        if loss_range is not None:
            raise InvalidArgumentError(
                f"loss_range must be None with scoring={scoring.name!r}, which is not "
                f"a mean of losses, got {loss_range!r}."
            )
        return scoring
    if loss_range is not None:
        scoring = replace(scoring, loss_range=check_range("loss_range", loss_range))
    if scoring.loss_range is None:
        raise InvalidArgumentError(
            f"loss_range must be given with scoring={scoring.name!r}: (low, high), "
            "the smallest and the largest loss of a record, in the units of the loss. "
            "Losses outside are clipped to it. Choose it without looking at the "
            "private data."
        )
    return scoring


def check_method(scoring: Scoring | CandidateScoring, method: str) -> None:
    """Raise if the method needs a loss for each record and there is none."""
    if isinstance(scoring, CandidateScoring) and method not in ("auto", "stable"):
        instead = "'balanced_accuracy' or 'neg_log_loss'"
        if scoring.name == "roc_auc":
            instead = "ranking_accuracy(X_reference, y_reference)"
        raise InvalidArgumentError(
            f"scoring={scoring.name!r} needs method='auto' or method='stable', got "
            f"method={method!r}, which needs one loss for each record. Use "
            f"scoring={instead}."
        )


def for_records(
    scoring: Scoring | CandidateScoring, records: Records
) -> Scoring | CandidateScoring:
    """Return the scoring for private records, by public facts about these."""
    if isinstance(scoring, CandidateScoring):
        return scoring.for_records(records)
    return scoring


def warn_of_rare_classes(
    scoring: Scoring | CandidateScoring, training_targets: Any
) -> None:
    """Warn if accuracy rewards a model that ignores a class, by public facts."""
    if scoring.name != "accuracy" or not _has_classes(training_targets):
        return
    shares = class_shares(training_targets)
    rarest = min(shares, key=lambda label: shares[label])
    if len(shares) > 1 and shares[rarest] < _RARE * 2 / len(shares):
        warnings.warn(
            f"scoring='accuracy' says little about class {rarest!r}, which is "
            f"{shares[rarest]:.1%} of the training records: a model that ignores it "
            "scores well. Consider scoring='balanced_accuracy' or 'neg_log_loss'.",
            RareClassWarning,
            stacklevel=3,
        )


def _scoring(given: Any, training_targets: Any) -> Scoring | CandidateScoring:
    if isinstance(given, str) and given in _OF_CANDIDATES:
        given = _OF_CANDIDATES[given]()
    if isinstance(given, CandidateScoring):
        return given.resolved(training_targets)
    if isinstance(given, Scoring):
        return given
    if given == "balanced_accuracy":
        if not _has_classes(training_targets):
            raise InvalidArgumentError(
                "scoring='balanced_accuracy' needs training targets that are classes, "
                "one for each record, whose shares give the weights."
            )
        return class_weighted("accuracy", class_shares(training_targets), name=given)
    if isinstance(given, str):
        return named_scoring(given)
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        return Scoring(name, given, None)
    raise InvalidArgumentError(
        "scoring must be a name, a scoring of botorch_dp.integrations.sklearn, or a "
        f"callable (estimator, X, y) that returns one loss for each record, got "
        f"{given!r}."
    )


def _has_classes(targets: Any) -> bool:
    return targets is not None and type_of_target(targets) in ("binary", "multiclass")


def _default(estimator: Any, prefers_log_loss: bool) -> str:
    if is_classifier(estimator):
        is_possible = prefers_log_loss and hasattr(estimator, "predict_proba")
        return "neg_log_loss" if is_possible else "accuracy"
    if is_regressor(estimator):
        return "neg_mean_squared_error"
    raise InvalidArgumentError(
        f"scoring must be given: {type(estimator).__name__} is neither a classifier "
        "nor a regressor."
    )
