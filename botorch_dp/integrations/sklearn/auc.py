"""The area under the ROC curve, exactly, as a score of candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.metrics import RANKS, ranking_scores
from botorch_dp.integrations.sklearn.quiet import quiet
from botorch_dp.integrations.sklearn.ranked_pairs import (
    wrongly_ranked,
)
from botorch_dp.integrations.sklearn.record_losses import (
    Array,
    one_by_one,
    try_on_training,
)
from botorch_dp.integrations.sklearn.records import Mask, Records

# The noise on the count of positives relative to that on U, where both are released.
# The AUC is best known at k^(2/3) for Laplace noise and an AUC of 1 - k: 0.34 at 0.8.
_UNIT_OF_COUNT = 1 / 3


@dataclass(frozen=True)
class RocAuc(CandidateScoring):
    r"""The area under the ROC curve, see :func:`roc_auc`.

    The tally is the number U of wrongly ranked pairs
    (:func:`~botorch_dp.integrations.sklearn.ranked_pairs.wrongly_ranked`) and the
    number of positive records. The utility is -U, of sensitivity n - 1.

    Attributes:
        class_counts: The public numbers of negative and positive records, or None.
    """

    class_counts: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The name of the score."""
        return "roc_auc"

    @property
    def needs(self) -> tuple[str, ...]:
        """The methods of which the estimator must have one."""
        return RANKS

    @property
    def condition(self) -> str | None:
        """What the sensitivity assumes, in words; None in the worst case."""
        if self.class_counts is None:
            return None
        return (
            "public numbers of records of each class, so that a record is replaced by "
            "one of its own class"
        )

    def private_losses(
        self, estimator: Any, records: Records, *, is_tried: bool = False
    ) -> Array:
        """Return U and the number of positive records."""
        with quiet(), np.errstate(all="ignore"):
            labels = one_by_one(self._classes_of, None, records)
            scores = one_by_one(self._scores, estimator, records, is_tried=is_tried)
        # Unreadable records and unknown classes are negative ones, ranked above all.
        is_positive = labels == 1.0
        worst = np.where(is_positive, -np.inf, np.inf)
        scores = np.where(np.isnan(labels) | np.isnan(scores), worst, scores)
        weights, people = records.weights, records.people
        if self.class_counts is not None:
            weights = weights * self._is_counted(is_positive)
        persons = None if people is None else people.persons
        wrong = wrongly_ranked(scores, is_positive, weights=weights, persons=persons)
        return np.array([wrong, weights[is_positive].sum()])

    def of_records(self, estimator: Any, X: Any, y: Any) -> Array:
        """Return the scores of records, which may be any numbers, within (-1, 1)."""
        scores = self._scores(estimator, X, y)
        return scores / (1 + np.abs(scores))

    def try_on(self, estimator: Any, records: Records) -> None:
        """Raise any error of the score, using training records only."""
        try_on_training(self._scores, estimator, records)

    def utilities(self, private_tallies: Array, num_units: int) -> Array:
        """Return minus U for every candidate."""
        return -private_tallies[0]

    def sensitivity(self, num_units: int) -> float:
        """Return n - 1, or the larger number of records of a class if it is public."""
        if self.class_counts is not None:
            if self.num_rows is not None or sum(self.class_counts) != num_units:
                raise InvalidArgumentError(
                    "class_counts must be the numbers of negative and of positive "
                    f"records among the {num_units} private records, got "
                    f"{self.class_counts!r}."
                )
            return float(max(self.class_counts))
        return max(num_units - 1, 1) * (1 + self._rounding(num_units))

    def units(self, num_units: int) -> Array:
        """Return the unit of U, and of the number of positive records."""
        of_pairs = self.sensitivity(num_units)
        if self.class_counts is not None:
            return np.array([of_pairs])
        return np.array([of_pairs, 1 / _UNIT_OF_COUNT])

    def tally_sensitivity(self, num_units: int, norm: int) -> float:
        """Return the L1 or L2 distance of neighbouring tallies, in their units."""
        # The division by the units rounds U / (n - 1), which is at most n.
        rounding = num_units * 2.0**-50 + self._rounding(num_units)
        parts = [1.0] if self.class_counts else [1.0, _UNIT_OF_COUNT]
        return float(np.linalg.norm(parts, ord=norm)) * (1 + rounding)

    def score_of(self, tally: Sequence[float], num_units: int) -> float:
        """Return 1 - U / (n_+ n_-), clipped to [0, 1]."""
        _, pairs = self._pairs(tally, num_units)
        return min(max(1.0 - tally[0] / pairs, 0.0), 1.0)

    def slopes(self, tally: Sequence[float], num_units: int) -> Array:
        """Return the derivatives of the score by U and by n_+."""
        positives, pairs = self._pairs(tally, num_units)
        of_count = tally[0] * (num_units - 2 * positives) / pairs**2
        return np.array([-1.0 / pairs, of_count])[: len(self.units(num_units))]

    def _pairs(self, tally: Sequence[float], num_units: int) -> tuple[float, float]:
        if self.class_counts is not None:
            positives = float(self.class_counts[1])
        else:
            positives = min(max(tally[1], 1.0), max(num_units - 1.0, 1.0))
        return positives, max(positives * (num_units - positives), 1.0)

    def _classes_of(self, estimator: Any, X: Any, y: Any) -> Array:
        return np.where(self._is_known(y), self._is_positive(y), np.nan)

    def _scores(self, estimator: Any, X: Any, y: Any) -> Array:
        return ranking_scores(estimator, X, self.positive)

    def _is_counted(self, is_positive: Mask) -> Mask:
        """Leave out records beyond the public counts, which would break the bound."""
        assert self.class_counts is not None
        negative, positive = self.class_counts
        return np.where(
            is_positive,
            np.cumsum(is_positive) <= positive,
            np.cumsum(~is_positive) <= negative,
        )


def roc_auc(
    *, positive: Any = None, class_counts: tuple[int, int] | None = None
) -> RocAuc:
    r"""Return the area under the ROC curve, for a choice among candidates.

    It is the share of pairs, one record of each class, that a model ranks right.
    Candidates are compared by the number of pairs that they rank wrongly, which one of
    n records moves by at most n - 1. Neither the classes of the records nor their
    numbers are assumed to be public. In units of the AUC, that is
    :math:`(n - 1) / (n_+ n_-)`, close to one over the number of records of a rare
    class.

    If persons are protected (``groups=``), the records of a person share one unit of
    weight, and one person moves the weight of wrongly ranked pairs by at most n - 1,
    with n the number of persons. Pairs within a person count as ranked right.

    Args:
        positive: The positive class; by default the larger of two training classes.
            With more classes, the positive one is compared with all others.
        class_counts: The numbers of negative and of positive private records, if they
            are public. Down to half of the noise is then enough, but the guarantee
            covers only neighbours in which a record keeps its class, as the
            certificate says. Further records of a class are left out.

    Example:
        >>> roc_auc(positive="ill").name
        'roc_auc'
    """
    if class_counts is not None:
        if len(class_counts) != 2:
            raise InvalidArgumentError(
                "class_counts must be two numbers, of negative and of positive "
                f"records, got {class_counts!r}."
            )
        negative, count = (check_count("class_counts", part) for part in class_counts)
        class_counts = negative, count
    return RocAuc(positive=positive, class_counts=class_counts)
