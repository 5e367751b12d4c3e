"""Compute the loss of each private record under a fitted model.

The loss of a record depends only on that record and the model. A record that cannot be
scored (a missing value, an unseen label) has the largest loss and does not affect the
other records. Private values never raise, because an exception would be a release.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier, is_regressor

from botorch_dp._validation import check_range
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.quiet import quiet
from botorch_dp.integrations.sklearn.records import Records

Array = npt.NDArray[np.float64]
RecordLoss = Callable[[Any, Any, Any], Any]

# Probabilities below 1 % count as 1 %, so the log loss is at most 4.6.
_LARGEST_LOG_LOSS = math.log(100.0)


@dataclass(frozen=True)
class Scoring:
    """A loss for each record, clipped to a range.

    Attributes:
        name: The name of the score in scikit-learn.
        loss: Maps a fitted estimator, inputs and targets to one loss per record.
        loss_range: The range to which losses are clipped.
        perfect: The score of a loss of 0; the score is ``perfect`` minus the loss.
    """

    name: str
    loss: RecordLoss
    loss_range: tuple[float, float] | None
    perfect: float = 0.0

    def private_losses(self, estimator: Any, records: Records) -> Array:
        """Return the clipped loss of every record; no record raises."""
        assert self.loss_range is not None
        low, high = self.loss_range
        with quiet(), np.errstate(all="ignore"):
            losses = _one_by_one(self.loss, estimator, records)
        return np.clip(
            np.nan_to_num(losses, nan=high, posinf=high, neginf=low), low, high
        )

    def worst_losses(self, num_records: int) -> Array:
        """Return the losses of records under a model that could not be fitted."""
        assert self.loss_range is not None
        return np.full(num_records, self.loss_range[1])

    def try_on(self, estimator: Any, records: Records) -> None:
        """Raise any error of the loss, using training records only."""
        count = len(records)
        try:
            model = copy.deepcopy(estimator)
        except Exception as error:
            raise InvalidArgumentError(
                "estimator must support copy.deepcopy after it is fitted: private "
                "records are scored by copies."
            ) from error
        losses = np.asarray(self.loss(model, *records.rows(np.arange(count))))
        if losses.shape != (count,):
            raise InvalidArgumentError(
                f"scoring must return one loss for each record, shape ({count},) for "
                f"{count} records, got shape {losses.shape}."
            )

    def score(self, loss: float) -> float:
        """Return the score of a mean loss: higher is better."""
        return self.perfect - loss


def errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return 1 for each record with a wrong prediction in any of its targets."""
    wrong = _columns(estimator.predict(X)) != _columns(y)
    return np.asarray(wrong.any(axis=1), dtype=np.float64)


def log_losses(estimator: Any, X: Any, y: Any) -> Array:
    """Return minus the log of the predicted probability of each record's class."""
    probabilities, classes = estimator.predict_proba(X), np.asarray(estimator.classes_)
    columns = _columns(y)
    if columns.shape[1] > 1:
        raise InvalidArgumentError(
            "scoring='neg_log_loss' needs one target per record, got "
            f"{columns.shape[1]}. Use scoring='accuracy'."
        )
    labels = columns[:, 0]
    index = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    right = probabilities[np.arange(len(labels)), index]
    return -np.log(np.where(classes[index] == labels, right, 0.0))


def squared_errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return the mean squared error of each record over its targets."""
    return np.square(_differences(estimator, X, y)).mean(axis=1)


def absolute_errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return the mean absolute error of each record over its targets."""
    return np.abs(_differences(estimator, X, y)).mean(axis=1)


def _differences(estimator: Any, X: Any, y: Any) -> Array:
    targets = _columns(y).astype(np.float64)
    return np.asarray(_columns(estimator.predict(X)) - targets)


def _columns(values: Any) -> npt.NDArray[Any]:
    """Return targets as a table with one row per record."""
    array = np.asarray(values)
    return array.reshape(len(array), -1)


_SCORINGS = {
    scoring.name: scoring
    for scoring in (
        Scoring("accuracy", errors, (0.0, 1.0), perfect=1.0),
        Scoring("neg_log_loss", log_losses, (0.0, _LARGEST_LOG_LOSS)),
        Scoring("neg_mean_squared_error", squared_errors, None),
        Scoring("neg_mean_absolute_error", absolute_errors, None),
    )
}


def make_scoring(
    given: str | RecordLoss | None,
    loss_range: tuple[float, float] | None,
    *,
    estimator: Any,
    prefers_log_loss: bool,
) -> Scoring:
    """Return the scoring with its loss range.

    Args:
        given: A name or a callable; None selects a default for the estimator.
        loss_range: Replaces the range of the scoring.
        estimator: The estimator to score.
        prefers_log_loss: Whether the default for classifiers is the log loss, where
            they have probabilities, rather than accuracy. It says more of a record.
    """
    if given is None:
        given = _default(estimator, prefers_log_loss)
    if hasattr(given, "_score_func"):
        raise InvalidArgumentError(
            "scoring must not be a scorer, which returns one number for all records, "
            f"got {given!r}. Pass the name of a score, or a callable (estimator, X, y) "
            "that returns one loss for each record."
        )
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        scoring = Scoring(name, given, None)
    elif isinstance(given, str) and given in _SCORINGS:
        scoring = _SCORINGS[given]
    else:
        raise InvalidArgumentError(
            f"scoring must be one of {', '.join(map(repr, _SCORINGS))}, or a callable "
            "(estimator, X, y) that returns one loss for each record. Scores that are "
            "not a mean over records, such as AUC or F1, are not supported. Got "
            f"{given!r}."
        )
    if scoring.loss is log_losses and not hasattr(estimator, "predict_proba"):
        raise InvalidArgumentError(
            "scoring='neg_log_loss' needs an estimator with predict_proba, but "
            f"{type(estimator).__name__} does not have it. Use scoring='accuracy'."
        )
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


def _one_by_one(loss: RecordLoss, estimator: Any, records: Records) -> Array:
    """Return the losses, with NaN for records that cannot be scored.

    The first attempt scores all records at once. If it fails, bisection finds the
    records that cannot be scored, and the others are scored again.

    Every attempt also scores the same few training records (the company), and a
    training record takes the place of each private record that is left out. A loss may
    need several records or several classes, and its last bits may depend on the number
    of records. In this way neither depends on other private records.
    """
    everyone = np.arange(len(records))
    company = len(records) + np.arange(len(records.of_training))
    stand_ins = np.resize(company, len(records))
    is_scored = records.readable

    def attempt(index: npt.NDArray[np.intp]) -> Array | None:
        rows = np.where(is_scored[index], index, stand_ins[index])
        rows = np.concatenate([rows, company])
        found = _attempt(loss, estimator, records, rows)
        return None if found is None else found[: len(index)]

    if attempt(everyone[:0]) is None:  # the model fails on the company alone
        return np.full(len(records), np.nan)
    losses = attempt(everyone)
    if losses is None:
        todo = [np.flatnonzero(is_scored)]
        while todo:
            index = todo.pop()
            if len(index) == 0 or attempt(index) is not None:
                continue
            if len(index) == 1:
                is_scored[index] = False
            else:
                todo += np.array_split(index, 2)
        losses = _in_parts(attempt, everyone)
    return np.where(is_scored, losses, np.nan)


def _in_parts(
    attempt: Callable[[npt.NDArray[np.intp]], Array | None],
    everyone: npt.NDArray[np.intp],
) -> Array:
    """Return the losses from as few equal parts as possible, with NaN for failures.

    The loss may not be able to score all records at a time.
    """
    num_parts = 1
    while True:
        found = []
        for part in np.array_split(everyone, num_parts):
            losses = attempt(part)
            if losses is None and len(part) > 1:
                break
            found.append(np.full(len(part), np.nan) if losses is None else losses)
        else:
            return np.concatenate(found)
        num_parts = min(2 * num_parts, len(everyone))


def _attempt(
    loss: RecordLoss, estimator: Any, records: Records, index: npt.NDArray[np.intp]
) -> Array | None:
    """Return the losses of some records, or None if the loss fails.

    A copy of the model makes the predictions. A model that changes when it predicts
    must not carry anything over to other attempts, or into parts that it shares.
    """
    try:
        model = copy.deepcopy(estimator)
        found = np.asarray(loss(model, *records.rows(index)), dtype=np.float64)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever it is, it may reveal a record
        return None
    return found if found.shape == (len(index),) else None
