"""Check on training records that the loss of a record does not depend on others.

The guarantee of a search assumes that a model predicts for each record by itself. Some
do not: a transformer that iterates until a whole batch has converged, a network that
normalizes by the batch, a scoring that ranks or scales by the targets it is given. One
private record would then change the losses of many.

Training records are public, so the check may compare their values, and show them. A
record is scored alone (in a batch of its copies), in a pair (in a batch of copies of
two records), and in the company of different records. All batches have the same size,
and the record has the same place in them, because the last bits of a prediction may
depend on both. All honest estimators of scikit-learn that were tried then differ by
rounding alone, below 1e-15, so the tolerance is small: a first model with strong
regularization may mix a millionth as much as a later one. In single precision, and
where a model reads texts, it allows for rounding that depends on the shape of a batch,
as where texts are padded. It grows with what two identical calls differ by.

A private record may be far from all training records, and there are many of them. So
the numbers of the other records are also multiplied by ``_FACTORS``, which shows what a
shared stopping rule hides among similar records, and one batch is large.

The check finds what shows on a few training records, and one model of every combination
of categories. It is no proof.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.record_losses import Array, Scoring
from botorch_dp.integrations.sklearn.records import Records

_BATCH = 8
_LARGE_BATCH = 256
_FACTORS = (1e4, -1e4, 1e-4)
# The largest difference between two losses of a record, over the range of losses: for
# inputs in double precision, and for others ten times the rounding of single precision.
_IN_DOUBLES, _TOLERANCE = 1e-12, 1e-6
# By how much random parts of a loss may exceed what was seen of them.
_NOISE = 100.0
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Batch:
    """Training records that are scored together.

    Attributes:
        rows: Their positions among the witnesses.
        factor: What the numbers of all records but the first and the last are
            multiplied by.
    """

    rows: Rows
    factor: float = 1.0

    def inputs(self, X: Any) -> Any:
        """Return the inputs of these records, given as they are."""
        if self.factor == 1:
            return X
        factors = np.full(len(self.rows), self.factor)
        factors[[0, -1]] = 1.0
        return _scaled(X, factors)

    def shares_with(self, other: "_Batch") -> npt.NDArray[np.bool_]:
        """Return where both have the same record."""
        same = self.rows == other.rows
        if self.factor != other.factor:
            same[1:-1] = False
        return same


def check_independence(
    scoring: Scoring | CandidateScoring, estimator: Any, witnesses: Records | None
) -> None:
    """Raise if a model or a loss mixes the records that it is given.

    A loss that differs between two identical calls has a random part, which is allowed.

    Args:
        scoring: The loss of a record.
        estimator: The fitted model.
        witnesses: Some training records. Fewer than two are not checked.
    """
    if witnesses is None:
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # they were shown when the loss was tried
        tolerance = _tolerance(witnesses.X)
        for usual, others in _trials(np.flatnonzero(witnesses.readable)):
            expected = _losses(scoring, estimator, witnesses, usual)
            for batch in others:
                found = _losses(scoring, estimator, witnesses, batch)
                if found is None and batch.factor != 1:
                    continue  # a number may be a code, which has no multiples
                shared = batch.shares_with(usual)
                distances = _distances(expected, found)
                if not (shared & (distances > tolerance)).any():
                    continue
                again = _losses(scoring, estimator, witnesses, usual)
                noise = _NOISE * _distances(expected, again).max()
                wrong = shared & (distances > tolerance + noise)
                if not wrong.any():
                    continue
                place = int(np.flatnonzero(wrong)[0])
                raise InvalidArgumentError(
                    _complaint(witnesses, place, (usual, expected), (batch, found))
                )


def _trials(rows: Rows) -> Iterator[tuple[_Batch, list[_Batch]]]:
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
        usual, reverse, many = (
            np.concatenate([pair[:1], np.resize(inside, size - 2), pair[1:]])
            for inside, size in (
                (others, _BATCH),
                (others[::-1], _BATCH),
                (others, _LARGE_BATCH),
            )
        )
        alone = [np.full(_BATCH, row) for row in pair]
        company = [reverse, np.resize(pair, _BATCH), *alone]
        yield (
            _Batch(usual),
            [*map(_Batch, company), *(_Batch(usual, factor) for factor in _FACTORS)],
        )
        if first == 0:
            copies = np.resize(pair, _LARGE_BATCH)
            scaled = (_Batch(many, factor) for factor in _FACTORS)
            yield _Batch(many), [_Batch(copies), *scaled]


def _losses(
    scoring: Scoring | CandidateScoring,
    estimator: Any,
    witnesses: Records,
    batch: _Batch,
) -> Array | None:
    """Return losses relative to their range, or None if the batch cannot be scored."""
    try:
        model = copy.deepcopy(estimator)
        X, y = witnesses.rows(batch.rows)
        found = scoring.of_records(model, batch.inputs(X), y)
    except Exception:
        return None
    is_complete = found.shape == (len(batch.rows),)
    return np.nan_to_num(found, nan=2.0) if is_complete else None


def _scaled(X: Any, factors: Array) -> Any:
    """Return inputs with the numbers of each row multiplied by a factor."""
    if sparse.issparse(X):
        return sparse.csr_matrix(sparse.diags(factors) @ X, dtype=X.dtype)
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        for index in range(X.shape[1]):
            column = X.iloc[:, index]
            if isinstance(column.dtype, np.dtype):
                values = _scaled(column.to_numpy(), factors)
                X.isetitem(index, type(column)(values, index=X.index))
        return X
    dtype: Any = getattr(X, "dtype", None)
    if not isinstance(X, np.ndarray) or dtype.kind not in "iuf":
        return X
    values = X * factors.reshape(-1, *[1] * (X.ndim - 1))
    if dtype.kind in "iu":
        values = np.clip(values, np.iinfo(dtype).min, np.iinfo(dtype).max)
    return values.astype(dtype)


def _distances(expected: Array | None, found: Array | None) -> Array:
    """Return how far losses are apart; infinitely if only one batch can be scored."""
    if expected is None or found is None:
        return np.array(0.0 if expected is found else np.inf)
    return np.abs(expected - found)


def _tolerance(X: Any) -> float:
    kinds = getattr(X, "dtypes", [getattr(X, "dtype", None)])
    return _IN_DOUBLES if np.dtype(np.float64) in list(kinds) else _TOLERANCE


def _complaint(witnesses: Records, place: int, *scored: tuple[_Batch, Any]) -> str:
    row = scored[0][0].rows[place]
    told = []
    for batch, losses in scored:
        rows = batch.rows
        others = sorted({int(i) for i in witnesses.numbers[rows[rows != row]]})
        how = f"beside training rows {others}" if others else "alone"
        if batch.factor != 1:
            how += f" with their numbers multiplied by {batch.factor:g}"
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
