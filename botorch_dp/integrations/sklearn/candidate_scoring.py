r"""Scores that are not a mean over records: AUC, F1, precision and recall.

The score of a model is computed from two private numbers, its *tally*, to which every
record contributes a bounded amount. A private choice among candidates needs one
utility for each, which orders candidates as the score does, and a public bound on how
far one record can move it. The proofs are in ``docs/theory/scores_of_candidates.md``.

There is no loss of a record, so there are no gradients: these scores work with
``method="auto"``, which then plans a choice, and with ``method="stable"``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from sklearn.utils.multiclass import type_of_target

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.metrics import class_shares
from botorch_dp.integrations.sklearn.ranked_pairs import rounding_of_weights
from botorch_dp.integrations.sklearn.record_losses import Array
from botorch_dp.integrations.sklearn.records import Mask, Records


@dataclass(frozen=True)
class CandidateScoring(ABC):
    """A score of a model on all records together, between 0 and 1.

    Attributes:
        positive: The positive class; None for the larger of two training classes.
        classes: All classes of the training targets, once :meth:`resolved`.
        share: The share of the positive class among the training targets.
        num_rows: The number of private records if persons are protected, else None.
    """

    positive: Any = None
    classes: tuple[Any, ...] = field(default=(), repr=False)
    share: float = field(default=math.nan, repr=False)
    num_rows: int | None = field(default=None, repr=False)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the score, as in scikit-learn."""

    @property
    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """The methods of which the estimator must have one."""

    @property
    def condition(self) -> str | None:
        """What the sensitivity assumes, in words; None in the worst case."""
        return None

    @property
    def loss_range(self) -> None:
        """There is no loss of a record."""
        return None

    def resolved(self, training_targets: Any) -> Self:
        """Return the score with the classes of the training targets."""
        if training_targets is None or type_of_target(training_targets) not in (
            "binary",
            "multiclass",
        ):
            raise InvalidArgumentError(
                f"scoring={self.name!r} needs training targets that are classes, one "
                "for each record."
            )
        shares = class_shares(training_targets)
        classes, positive = tuple(shares), self.positive
        if positive is None and len(classes) == 2:
            positive = classes[1]
        if positive is None or positive not in classes:
            raise InvalidArgumentError(
                f"scoring={self.name!r} needs positive=..., one of the training "
                f"classes {list(classes)!r}, got {self.positive!r}."
            )
        return replace(self, positive=positive, classes=classes, share=shares[positive])

    def for_records(self, records: Records) -> Self:
        """Return the score for private records, by public facts about these.

        The records of a person share one unit of weight, so that a person moves a tally
        no further than a record does where records are protected.
        """
        if records.people is None:
            return self
        if records.people.max_records is not None:
            raise InvalidArgumentError(
                f"max_records_per_person must be None with scoring={self.name!r}, got "
                f"{records.people.max_records!r}: the records of a person share one "
                "unit of weight equally."
            )
        return replace(self, num_rows=len(records))

    @abstractmethod
    def private_losses(
        self, estimator: Any, records: Records, *, is_tried: bool = False
    ) -> Array:
        """Return the private tally of a model: two numbers; no record raises.

        A record that cannot be read or scored counts as wrong, whatever the others are.

        Args:
            estimator: The fitted model.
            records: The private records.
            is_tried: Whether :meth:`try_on` has just scored the company of these
                records with this model.
        """

    @abstractmethod
    def of_records(self, estimator: Any, X: Any, y: Any) -> Array:
        """Return a number for each record, between -1 and 1, that must be its own."""

    @abstractmethod
    def try_on(self, estimator: Any, records: Records) -> None:
        """Raise any error of the score, using training records only."""

    @abstractmethod
    def utilities(self, private_tallies: Array, num_units: int) -> Array:
        """Return k private utilities from ``2 x k`` tallies, higher is better."""

    @abstractmethod
    def sensitivity(self, num_units: int) -> float:
        """Return how far one record, or one person, can move a utility.

        Args:
            num_units: The number of records, or of persons.
        """

    @abstractmethod
    def units(self, num_units: int) -> Array:
        """Return what one record can move each part of the tally that is released."""

    @abstractmethod
    def tally_sensitivity(self, num_units: int, norm: int) -> float:
        """Return the L1 or L2 distance of neighbouring tallies, in their units."""

    @abstractmethod
    def score_of(self, tally: Sequence[float], num_units: int) -> float:
        """Return the score of a tally, which may have noise, clipped to [0, 1]."""

    @abstractmethod
    def slopes(self, tally: Sequence[float], num_units: int) -> Array:
        """Return the derivatives of the score by each part that is released."""

    def score(self, loss: float) -> float:
        """Return the score of a loss, which is 1 minus the score."""
        return 1.0 - loss

    def _rounding(self, num_units: int) -> float:
        """Return the room for rounding errors of sums of weights; 0 without weights."""
        if self.num_rows is None:
            return 0.0
        return rounding_of_weights(self.num_rows, num_units)

    def _is_positive(self, labels: Any) -> Mask:
        """Return which labels are the positive class."""
        return _where(labels, lambda label: label == self.positive)

    def _is_known(self, labels: Any) -> Mask:
        """Return which labels are classes of the training targets."""
        return _where(labels, self.classes.__contains__)


def _where(labels: Any, holds: Callable[[Any], bool]) -> Mask:
    # Label by label: NumPy compares arrays of different types as a whole.
    column = np.asarray(labels).reshape(len(labels), -1)[:, 0]
    return np.array([holds(label) for label in column.tolist()], dtype=bool)
