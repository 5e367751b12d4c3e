"""Compute the loss of each private record under a fitted model.

The losses themselves are in :mod:`~botorch_dp.integrations.sklearn.metrics`. The loss
of a record depends only on that record and the model. A record that cannot be
scored (a missing value, an unseen label) has the largest loss and does not affect the
other records. Private values never raise, because an exception would be a release.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.quiet import quiet
from botorch_dp.integrations.sklearn.records import Records

Array = npt.NDArray[np.float64]
RecordLoss = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Scoring:
    """A loss for each record, clipped to a range.

    Attributes:
        name: The name of the score, where possible the one in scikit-learn.
        loss: Maps a fitted estimator, inputs and targets to one loss per record.
        loss_range: The range to which losses are clipped.
        perfect: The score of a loss of 0; the score is ``perfect`` minus the loss.
        needs: The methods of which the estimator must have one; any if empty.
    """

    name: str
    loss: RecordLoss = field(repr=False)
    loss_range: tuple[float, float] | None
    perfect: float = 0.0
    needs: tuple[str, ...] = ()

    def private_losses(
        self, estimator: Any, records: Records, *, is_tried: bool = False
    ) -> Array:
        """Return the clipped loss of every record, or of every person; none raises.

        Args:
            estimator: The fitted model.
            records: The private records.
            is_tried: Whether :meth:`try_on` has just scored the company of these
                records with this model.
        """
        assert self.loss_range is not None
        with quiet(), np.errstate(all="ignore"):
            losses = one_by_one(self.loss, estimator, records, is_tried=is_tried)
        losses = self.clipped(losses)
        people = records.people
        return losses if people is None else people.losses(losses, self.loss_range)

    def clipped(self, losses: Array) -> Array:
        """Return losses in the range; one that is not a number is the largest."""
        assert self.loss_range is not None
        low, high = self.loss_range
        return np.clip(
            np.nan_to_num(losses, nan=high, posinf=high, neginf=low), low, high
        )

    def of_records(self, estimator: Any, X: Any, y: Any) -> Array:
        """Return the losses of records, clipped and relative to their range."""
        assert self.loss_range is not None
        low, high = self.loss_range
        found = np.asarray(self.loss(estimator, X, y), dtype=np.float64)
        return np.asarray((self.clipped(found) - low) / (high - low))

    def worst_losses(self, num_records: int) -> Array:
        """Return the losses of records or persons if a model could not be fitted."""
        assert self.loss_range is not None
        return np.full(num_records, self.loss_range[1])

    def try_on(self, estimator: Any, records: Records) -> None:
        """Raise any error of the loss, using training records only."""
        try_on_training(self.loss, estimator, records)

    def score(self, loss: float) -> float:
        """Return the score of a mean loss: higher is better."""
        return self.perfect - loss


def try_on_training(loss: RecordLoss, estimator: Any, records: Records) -> None:
    """Raise any error of a function of records, using training records only."""
    count = len(records)
    try:
        model = copy.deepcopy(estimator)
    except Exception as error:
        raise InvalidArgumentError(
            "estimator must support copy.deepcopy after it is fitted: private "
            "records are scored by copies."
        ) from error
    losses = np.asarray(loss(model, *records.rows(np.arange(count))))
    try:
        losses = losses.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "scoring must return one number for each record, got an array of "
            f"{losses.dtype}."
        ) from error
    if losses.shape != (count,):
        raise InvalidArgumentError(
            f"scoring must return one loss for each record, shape ({count},) for "
            f"{count} records, got shape {losses.shape}."
        )


def one_by_one(
    loss: RecordLoss, estimator: Any, records: Records, *, is_tried: bool = False
) -> Array:
    """Return the losses, with NaN for records that cannot be scored.

    The first attempt scores all records at once. If it fails, bisection finds the
    records that cannot be scored, and the others are scored again.

    Every attempt also scores the same few training records (the company), and a
    training record takes the place of each private record that is left out. A loss may
    need several records or several classes, and its last bits may depend on the number
    of records. In this way neither depends on other private records.

    Nothing is scored unless the company alone can be. ``try_on_training`` has shown
    this if ``is_tried`` and the records are arrays like those of the company.
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

    is_tried = is_tried and records.are_like_company
    if not is_tried and attempt(everyone[:0]) is None:  # it fails on the company alone
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
