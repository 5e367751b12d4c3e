"""Check on training records that the loss of a record does not depend on others.

The guarantee of a search assumes that a model predicts for each record by itself. Some
do not: a transformer that iterates until a whole batch has converged, a network that
normalizes by the batch, a scoring that ranks or scales by the targets it is given. One
private record would then change the losses of many.

Training records are public, so the check may compare their values, and show them. A
record is scored alone (in a batch of its copies), in a pair (in a batch of copies of
two records), and in the company of different records. All batches have the same size,
and the record has the same place in them, because the last bits of a prediction may
depend on both. What remains is the rounding of models that do not repeat their sums in
the same order. ``_TOLERANCE`` is a hundred times the rounding of single precision.

The check finds what shows on a few training records. It is no proof.
"""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.record_losses import Array, Scoring
from botorch_dp.integrations.sklearn.records import Records

_BATCH = 8
# The largest difference between two losses of a record, over the range of losses.
_TOLERANCE = 1e-5
Rows = npt.NDArray[np.intp]


def check_independence(
    scoring: Scoring | CandidateScoring, estimator: Any, witnesses: Records | None
) -> None:
    """Raise if a model or a loss mixes the records that it is given.

    A loss that differs between two identical calls is random, and is not checked.

    Args:
        scoring: The loss of a record.
        estimator: The fitted model.
        witnesses: Some training records. Fewer than two are not checked.
    """
    if witnesses is None:
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # they were shown when the loss was tried
        for usual, others in _trials(np.flatnonzero(witnesses.readable)):
            expected = _losses(scoring, estimator, witnesses, usual)
            if _differ(expected, _losses(scoring, estimator, witnesses, usual)).any():
                return
            for batch in others:
                found = _losses(scoring, estimator, witnesses, batch)
                wrong = _differ(expected, found) & (batch == usual)
                for place in np.flatnonzero(wrong)[:1]:
                    raise InvalidArgumentError(
                        _complaint(witnesses, place, (usual, expected), (batch, found))
                    )


def _trials(rows: Rows) -> Iterator[tuple[Rows, list[Rows]]]:
    """Yield batches that begin with one record and end with another.

    Each time there is one batch to compare with, and others in which at least one of
    the two records has the same place.
    """
    for first, last in ((0, -1), (len(rows) // 2, 1)):
        if len(rows) < 2 or rows[first] == rows[last]:
            return
        pair = rows[[first, last]]
        others = rows[~np.isin(rows, pair)]
        others = others if len(others) else pair
        usual, reverse = (
            np.concatenate([pair[:1], np.resize(inside, _BATCH - 2), pair[1:]])
            for inside in (others, others[::-1])
        )
        alone = [np.full(_BATCH, row) for row in pair]
        yield usual, [reverse, np.resize(pair, _BATCH), *alone]


def _losses(
    scoring: Scoring | CandidateScoring,
    estimator: Any,
    witnesses: Records,
    batch: Rows,
) -> Array | None:
    """Return losses relative to their range, or None if the batch cannot be scored."""
    try:
        model = copy.deepcopy(estimator)
        found = scoring.of_records(model, *witnesses.rows(batch))
    except Exception:
        return None
    return np.nan_to_num(found, nan=2.0) if found.shape == (len(batch),) else None


def _differ(expected: Array | None, found: Array | None) -> npt.NDArray[np.bool_]:
    if expected is None or found is None:
        return np.full(_BATCH, expected is not found)
    return np.abs(expected - found) > _TOLERANCE


def _complaint(witnesses: Records, place: int, *scored: tuple[Rows, Any]) -> str:
    row = scored[0][0][place]
    told = []
    for batch, losses in scored:
        others = sorted({int(i) for i in witnesses.numbers[batch[batch != row]]})
        how = f"beside training rows {others}" if others else "alone"
        loss = "fails" if losses is None else f"gives {losses[place]:.6g} of its range"
        told.append(f"{loss} {how}")
    return (
        "estimator and scoring must score every record by itself, but the loss of "
        f"training row {witnesses.numbers[row]} {', and '.join(told)}. A private "
        "record would change the losses of others. Look for steps that use a whole "
        "batch when they predict or score: ranks, scaling by the batch, "
        "pandas.get_dummies, or iterations until all rows have converged (such as "
        "NMF). Fit them on the training records instead."
    )
