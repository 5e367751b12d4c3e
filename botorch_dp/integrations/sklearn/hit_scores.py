"""Precision, recall and F1, exactly, as scores of candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from botorch_dp._validation import check_positive, check_probability
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.metrics import ranking_scores
from botorch_dp.integrations.sklearn.quiet import quiet
from botorch_dp.integrations.sklearn.record_losses import (
    Array,
    one_by_one,
    try_on_training,
)
from botorch_dp.integrations.sklearn.records import Records


@dataclass(frozen=True)
class HitScoring(CandidateScoring):
    r"""Precision, recall or F1: :math:`k H / \max(k H + E, m)`, with a public floor m.

    A record is a hit (a true positive), an error or neither. The tally is the number H
    of hits and E of errors: false positives for precision (k = 1), false negatives for
    recall (k = 1), both for F1 (k = 2). Replacing a record moves the score by at most
    k / max(m, k). For recall, k H + E is the number of positive records, which is the
    same for all candidates, so the utility is H, of sensitivity 1.

    Attributes:
        kind: ``"precision"``, ``"recall"`` or ``"f1"``.
        threshold: The smallest probability of a positive prediction; None for
            ``predict``.
        floor: The floor m; None for a default from the training targets.
    """

    kind: str = "f1"
    threshold: float | None = None
    floor: float | None = None

    @property
    def name(self) -> str:
        """The name of the score."""
        return self.kind

    @property
    def needs(self) -> tuple[str, ...]:
        """The methods of which the estimator must have one."""
        return ("predict",) if self.threshold is None else ("predict_proba",)

    @property
    def weight(self) -> int:
        """How much a hit counts, k: 2 for F1."""
        return 2 if self.kind == "f1" else 1

    def private_losses(
        self, estimator: Any, records: Records, *, is_tried: bool = False
    ) -> Array:
        """Return the numbers of hits and of errors."""
        with quiet(), np.errstate(all="ignore"):
            found = one_by_one(self._hits, estimator, records, is_tried=is_tried)
        found = np.nan_to_num(found, nan=-1.0)
        weights = records.weights
        return np.array([weights[found > 0].sum(), weights[found < 0].sum()])

    def of_records(self, estimator: Any, X: Any, y: Any) -> Array:
        """Return 1 for a hit, -1 for an error, and 0 for neither."""
        return self._hits(estimator, X, y)

    def try_on(self, estimator: Any, records: Records) -> None:
        """Raise any error of the score, using training records only."""
        try_on_training(self._hits, estimator, records)

    def floor_of(self, num_units: int) -> float:
        """Return the floor m, from public facts."""
        if self.kind == "recall":
            return 1.0
        if self.floor is not None:
            return max(self.floor, self.weight)
        # Half of k H + E for a model without errors, at the shares of training records.
        return max(self.weight * self.share * num_units / 2, self.weight)

    def utilities(self, private_tallies: Array, num_units: int) -> Array:
        """Return the hits for recall, and otherwise the score of every candidate."""
        hits, errors = private_tallies
        if self.kind == "recall":
            return hits
        return np.asarray(self._ratio(hits, errors, self.floor_of(num_units)))

    def sensitivity(self, num_units: int) -> float:
        """Return 1 for recall and k / m otherwise, and room for rounding."""
        rounding = 2.0**-51 + self._rounding(num_units)
        if self.kind == "recall":
            return 1.0 + rounding
        return self.weight / self.floor_of(num_units) + rounding

    def units(self, num_units: int) -> Array:
        """Return the units of hits and errors."""
        return np.ones(2)

    def tally_sensitivity(self, num_units: int, norm: int) -> float:
        """Return the distance between a hit and an error."""
        distance = float(np.linalg.norm([1.0, 1.0], ord=norm))
        return distance * (1 + self._rounding(num_units))

    def score_of(self, tally: Sequence[float], num_units: int) -> float:
        """Return the score, clipped to [0, 1]."""
        ratio = self._ratio(tally[0], tally[1], self.floor_of(num_units))
        return float(np.clip(ratio, 0.0, 1.0))

    def slopes(self, tally: Sequence[float], num_units: int) -> Array:
        """Return the derivatives of the score by H and by E."""
        k, floor = self.weight, self.floor_of(num_units)
        total = k * tally[0] + tally[1]
        if total <= floor:
            return np.array([k / floor, 0.0])
        return np.array([k * tally[1], -k * tally[0]]) / total**2

    def _ratio(self, hits: Any, errors: Any, floor: float) -> Any:
        hits = self.weight * hits
        return hits / np.maximum(hits + errors, floor)

    def _hits(self, estimator: Any, X: Any, y: Any) -> Array:
        """Return 1 for a hit, -1 for an error, 0 for neither, NaN for other classes."""
        is_positive, is_scored = self._is_positive(y), self._is_known(y)
        if self.threshold is None:
            is_found = self._is_positive(estimator.predict(X))
        else:
            probabilities = ranking_scores(estimator, X, self.positive)
            is_found = probabilities >= self.threshold
            is_scored &= ~np.isnan(probabilities)
        is_error = is_positive != is_found
        if self.kind == "precision":
            is_error &= is_found
        elif self.kind == "recall":
            is_error &= is_positive
        found = np.where(is_positive & is_found, 1.0, np.where(is_error, -1.0, 0.0))
        return np.where(is_scored, found, np.nan)


def f1(
    *, positive: Any = None, threshold: float | None = None, floor: float | None = None
) -> HitScoring:
    r"""Return F1, for a choice among candidates.

    With P positive records, P' positive predictions and H of them right, it is
    :math:`2 H / \max(P + P', m)`. One record moves it by at most 2 / m. Choose the
    floor m from public facts and below P + P': where it is above, scores are too low.

    Args:
        positive: The positive class; by default the larger of two training classes.
        threshold: The probability from which a prediction is positive; by default the
            model's own ``predict``.
        floor: The floor m; by default the number of private records times the share of
            the positive class among *training* records.

    Example:
        >>> f1(floor=100).sensitivity(10_000) < 0.0200001
        True
    """
    return _make("f1", positive, threshold, floor)


def precision(
    *, positive: Any = None, threshold: float | None = None, floor: float | None = None
) -> HitScoring:
    r"""Return the precision, for a choice among candidates.

    With P' positive predictions and H of them right, it is :math:`H / \max(P', m)`. One
    record moves it by at most 1 / m. Models with fewer than m positive predictions have
    scores that are too low, so a model cannot win by a few safe predictions.

    Args:
        positive: The positive class; by default the larger of two training classes.
        threshold: The probability from which a prediction is positive; by default the
            model's own ``predict``.
        floor: The floor m; by default half the number of private records times the
            share of the positive class among *training* records.
    """
    return _make("precision", positive, threshold, floor)


def recall(*, positive: Any = None, threshold: float | None = None) -> HitScoring:
    """Return the recall, for a choice among candidates.

    Candidates are compared by the number of positive records that they find, which one
    record moves by at most 1.

    Args:
        positive: The positive class; by default the larger of two training classes.
        threshold: The probability from which a prediction is positive; by default the
            model's own ``predict``.
    """
    return _make("recall", positive, threshold, None)


def _make(
    kind: str, positive: Any, threshold: float | None, floor: float | None
) -> HitScoring:
    if threshold is not None:
        threshold = check_probability("threshold", threshold)
    if floor is not None:
        floor = check_positive("floor", floor)
    return HitScoring(positive=positive, kind=kind, threshold=threshold, floor=floor)
