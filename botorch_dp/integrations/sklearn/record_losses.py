"""The loss of each record under a fitted model: private, bounded, never an exception.

What a record loses depends on that record and the model alone. So a record that cannot
be scored (a missing value, a label that was never seen) has the largest loss, and does
not keep others from being scored: whether an exception occurred would be a release.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
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

# Probabilities below 1 % count as 1 %: a log loss of at most 4.6.
_LARGEST_LOG_LOSS = math.log(100.0)


@dataclass(frozen=True)
class Scoring:
    """A loss for each record, within a range.

    Attributes:
        name: As scikit-learn calls the score.
        loss: From a fitted estimator, inputs and targets to one loss a record.
        loss_range: Losses outside are clipped to it.
        is_smooth: Whether small changes of a model change it a little.
        perfect: The score of a loss of 0, from which losses are counted down.
    """

    name: str
    loss: RecordLoss
    loss_range: tuple[float, float] | None
    is_smooth: bool = True
    perfect: float = 0.0

    def private_losses(self, estimator: Any, records: Records) -> Array:
        """Return the clipped loss of every record, whatever the records are."""
        assert self.loss_range is not None
        low, high = self.loss_range
        with quiet(), np.errstate(all="ignore"):
            losses = _one_by_one(self.loss, estimator, records)
        return np.clip(
            np.nan_to_num(losses, nan=high, posinf=high, neginf=low), low, high
        )

    def worst_losses(self, num_records: int) -> Array:
        """Return the losses of records under a model that cannot be had."""
        assert self.loss_range is not None
        return np.full(num_records, self.loss_range[1])

    def try_on(self, estimator: Any, records: Records) -> None:
        """Raise what is wrong with the loss, seen on training records."""
        count = len(records)
        try:
            model = copy.deepcopy(estimator)
        except Exception as error:
            raise InvalidArgumentError(
                "estimator must be one that copy.deepcopy can copy when it is fitted: "
                "private records are scored by copies."
            ) from error
        losses = np.asarray(self.loss(model, *records.rows(np.arange(count))))
        if losses.shape != (count,):
            raise InvalidArgumentError(
                "scoring must return one loss for each record, a vector of "
                f"{count} for {count} records, got shape {losses.shape}."
            )

    def score(self, loss: float) -> float:
        """Return the score of a mean loss: higher is better."""
        return self.perfect - loss


def errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return 1 for each record that is classified wrongly, in any of its targets."""
    wrong = _columns(estimator.predict(X)) != _columns(y)
    return np.asarray(wrong.any(axis=1), dtype=np.float64)


def log_losses(estimator: Any, X: Any, y: Any) -> Array:
    """Return minus the logarithm of the probability given to each record's class."""
    probabilities, classes = estimator.predict_proba(X), np.asarray(estimator.classes_)
    columns = _columns(y)
    if columns.shape[1] > 1:
        raise InvalidArgumentError(
            "scoring='neg_log_loss' takes one target a record, got "
            f"{columns.shape[1]}: use scoring='accuracy' with method='stable'."
        )
    labels = columns[:, 0]
    index = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    right = probabilities[np.arange(len(labels)), index]
    return -np.log(np.where(classes[index] == labels, right, 0.0))


def squared_errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return the squared error of each record, the mean over its targets."""
    return np.square(_differences(estimator, X, y)).mean(axis=1)


def absolute_errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return the absolute error of each record, the mean over its targets."""
    return np.abs(_differences(estimator, X, y)).mean(axis=1)


def _differences(estimator: Any, X: Any, y: Any) -> Array:
    targets = _columns(y).astype(np.float64)
    return np.asarray(_columns(estimator.predict(X)) - targets)


def _columns(values: Any) -> npt.NDArray[Any]:
    """Return targets with a row for each record."""
    array = np.asarray(values)
    return array.reshape(len(array), -1)


_SCORINGS = {
    scoring.name: scoring
    for scoring in (
        Scoring("accuracy", errors, (0.0, 1.0), is_smooth=False, perfect=1.0),
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
    needs_gradients: bool,
) -> Scoring:
    """Return what is scored, and within which range.

    Args:
        given: A name, or a callable; None takes the usual one of the estimator.
        loss_range: In place of the scoring's own.
        estimator: Of which kind it has to be.
        needs_gradients: Whether losses that jump are of no use.
    """
    if given is None:
        given = _usual(estimator, needs_gradients)
    if hasattr(given, "_score_func"):
        raise InvalidArgumentError(
            "scoring must not be a scorer, which gives one number for all records "
            f"(got {given!r}): name the score, or give a callable (estimator, X, y) "
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
            "(estimator, X, y) that returns one loss for each record; a score of all "
            "records together, such as an AUC, has no loss of a record whose influence "
            f"could be bounded. Got {given!r}."
        )
    if needs_gradients and not scoring.is_smooth:
        raise InvalidArgumentError(
            "scoring='accuracy' needs method='stable': an error is 0 or 1, which tells "
            "method='dp-gibo' nothing about the direction to go. Or use "
            "scoring='neg_log_loss'."
        )
    if scoring.loss is log_losses and not hasattr(estimator, "predict_proba"):
        raise InvalidArgumentError(
            f"scoring='neg_log_loss' needs an estimator with predict_proba, which "
            f"{type(estimator).__name__} has not; use scoring='accuracy' with "
            "method='stable'."
        )
    chosen = (
        scoring.loss_range
        if loss_range is None
        else check_range("loss_range", loss_range)
    )
    if chosen is None:
        raise InvalidArgumentError(
            f"loss_range must be given with scoring={scoring.name!r}: (low, high), "
            "the least and the most that a record can lose, in the units of your "
            "target. Losses outside are clipped to it. Choose it without looking at "
            "the private data."
        )
    return Scoring(
        scoring.name, scoring.loss, chosen, scoring.is_smooth, scoring.perfect
    )


def _usual(estimator: Any, needs_gradients: bool) -> str:
    if is_classifier(estimator):
        return "neg_log_loss" if needs_gradients else "accuracy"
    if is_regressor(estimator):
        return "neg_mean_squared_error"
    raise InvalidArgumentError(
        f"scoring must be given: {type(estimator).__name__} is neither a classifier "
        "nor a regressor."
    )


def _one_by_one(loss: RecordLoss, estimator: Any, records: Records) -> Array:
    """Return losses, not a number where a record cannot be scored.

    All at once if that works. Otherwise those that cannot be scored are found in
    halves, and all are scored again without them. In each attempt the same few training
    records are scored, too, and others of these take the places of private records that
    are left out: a loss may need several records, or several classes, and its last bits
    may depend on how many there are. None of this depends on other private records.
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

    if attempt(everyone[:0]) is None:  # the company alone: that is the model's fault
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
    """Return losses by as few attempts as work, not a number where none does.

    How many that is depends on how many records a loss can take at a time.
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
    """Return the losses of some records, None if that fails.

    By a copy of the model: what one learns when it predicts must neither stay with a
    part that others share, nor depend on the attempts before.
    """
    try:
        model = copy.deepcopy(estimator)
        found = np.asarray(loss(model, *records.rows(index)), dtype=np.float64)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever it is, it may tell something about a record
        return None
    return found if found.shape == (len(index),) else None
