r"""Count the pairs of records that a model ranks wrongly.

A pair is one positive and one negative record. It is ranked wrongly if the negative
one has the higher score, and counts as half if both have the same. With U the number
of wrongly ranked pairs, the area under the ROC curve is
:math:`1 - U / (n_+ n_-)` [Hanley1982auc]_.

References:
    .. [Hanley1982auc] J. Hanley and B. McNeil. The Meaning and Use of the Area under a
        Receiver Operating Characteristic (ROC) Curve. Radiology, 1982.
"""

import numpy as np
import numpy.typing as npt

from botorch_dp.integrations.sklearn.record_losses import Array

Mask = npt.NDArray[np.bool_]


def wrongly_ranked(
    private_scores: Array,
    is_positive: Mask,
    *,
    weights: Array | None = None,
    persons: npt.NDArray[np.intp] | None = None,
) -> float:
    r"""Return the number U of wrongly ranked pairs, which is private.

    **Sensitivity.** Replace one of n records by any other, of either class. Pairs of
    the other n - 1 records do not change. A positive record adds between 0 and the
    number :math:`m_-` of negative records among the others, a negative one between 0
    and :math:`m_+`, and :math:`m_+ + m_- = n - 1`. So U moves by at most
    :math:`\max(m_+, m_-) \le n - 1`. If the record keeps its class, U moves by at most
    the number of records of the other class.

    **Persons.** Let the weights of a person's records add up to at most 1, and leave
    out pairs within a person. Then a person with positive records of total weight a
    and negative ones of b adds between 0 and :math:`a m_- + b m_+ \le n - 1`, where
    :math:`m_+ + m_- \le n - 1` are the weights of the other n - 1 persons: the bound is
    the same, with n the number of persons.

    Without weights the result is exact for up to 10^7 records. With weights, it has a
    relative rounding error, see :func:`rounding_of_weights`.

    Args:
        private_scores: The score of each record, larger for the positive class;
            infinite is allowed.
        is_positive: Whether each record is positive.
        weights: The weight of each record; 1 by default.
        persons: The number of each record's person; by default every record is a
            person.

    Example:
        >>> scores = np.array([0.1, 0.4, 0.4, 0.8])
        >>> wrongly_ranked(scores, np.array([False, True, False, True]))
        0.5
    """
    if weights is None:
        weights = np.ones(len(private_scores))
    wrong = _wrong_weight(private_scores, is_positive, weights)
    if persons is not None:
        for rows in _rows_of_mixed_persons(persons, is_positive):
            wrong -= _wrong_weight(
                private_scores[rows], is_positive[rows], weights[rows]
            )
    return wrong


def _rows_of_mixed_persons(
    persons: npt.NDArray[np.intp], is_positive: Mask
) -> list[npt.NDArray[np.intp]]:
    """Return the rows of each person with records of both classes."""
    positives = np.bincount(persons, is_positive)
    is_mixed = (positives > 0) & (positives < np.bincount(persons))
    rows = np.flatnonzero(is_mixed[persons])
    rows = rows[np.argsort(persons[rows], kind="stable")]
    return np.split(rows, np.flatnonzero(np.diff(persons[rows])) + 1)


def rounding_of_weights(num_records: int, num_persons: int) -> float:
    r"""Return the share of the sensitivity to add for sums of weights.

    Sums of N terms have a relative error of at most N u with u = 2^-53, in any order.
    U is such a sum of products with such a sum, and at most n^2 / 4 for n persons. So
    it has an error of at most N n^2 u (2 N u is less than 1). The errors of two
    neighbours are at most 2 N n^2 u, and (n - 1) times 4 N n u for n >= 2.
    """
    return num_records * num_persons * 2.0**-51


def _wrong_weight(scores: Array, is_positive: Mask, weights: Array) -> float:
    negatives = np.argsort(scores[~is_positive], kind="stable")
    ranked = scores[~is_positive][negatives]
    below = np.concatenate([[0.0], np.cumsum(weights[~is_positive][negatives])])
    ours = scores[is_positive]
    at_most = below[np.searchsorted(ranked, ours, side="right")]
    lower = below[np.searchsorted(ranked, ours, side="left")]
    above = below[-1] - (at_most + lower) / 2  # ties count as half
    return float(np.sum(weights[is_positive] * above))
