r"""Losses of single records whose mean is a score, by name and by parameters.

A score is private at the price of its sensitivity. The mean over n records of a loss in
``loss_range = (low, high)`` moves by at most ``(high - low) / n`` if one record is
replaced, whatever the records are. All scores here are such means.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from botorch_dp._validation import check_count, check_positive, check_probability
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.record_losses import Array, Scoring
from botorch_dp.integrations.sklearn.records import copied

# Probabilities below 1 % count as 1 %, so the log loss is at most 4.6.
_LARGEST_LOG_LOSS = float(np.log(100.0))
_PROBABILITIES = ("predict_proba",)
RANKS = ("predict_proba", "decision_function")


def errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return 1 for each record with a wrong prediction in any of its targets."""
    wrong = _columns(estimator.predict(X)) != _columns(y)
    return np.asarray(wrong.any(axis=1), dtype=np.float64)


def log_losses(estimator: Any, X: Any, y: Any) -> Array:
    """Return minus the log of the predicted probability of each record's class."""
    probabilities, index, is_known = _probabilities("neg_log_loss", estimator, X, y)
    right = probabilities[np.arange(len(index)), index]
    return -np.log(np.where(is_known, right, 0.0))


def brier_losses(estimator: Any, X: Any, y: Any) -> Array:
    """Return half the squared distance from the probabilities to each record's class.

    It is between 0 and 1. For two classes it is the square of one minus the predicted
    probability of the record's class.
    """
    probabilities, index, is_known = _probabilities("neg_brier_score", estimator, X, y)
    distance = probabilities.copy()
    distance[np.arange(len(index)), index] -= 1.0
    return np.where(is_known, np.square(distance).sum(axis=1) / 2, 1.0)


def squared_errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return the mean squared error of each record over its targets."""
    return np.square(_differences(estimator, X, y)).mean(axis=1)


def absolute_errors(estimator: Any, X: Any, y: Any) -> Array:
    """Return the mean absolute error of each record over its targets."""
    return np.abs(_differences(estimator, X, y)).mean(axis=1)


def poisson_deviances(estimator: Any, X: Any, y: Any) -> Array:
    """Return the Poisson deviance of each record's counts."""
    counts = _columns(y).astype(np.float64)
    rates = _columns(estimator.predict(X)).astype(np.float64)
    with np.errstate(all="ignore"):
        log = np.where(counts == 0, 0.0, counts * np.log(counts / rates))
        deviances = 2.0 * (log - counts + rates)
    # A rate of 0 or less is no rate: the loss is the largest, not a number to follow.
    return np.where((rates > 0) & (counts >= 0), deviances, np.inf).mean(axis=1)


def huber_loss(delta: float = 1.0) -> Scoring:
    """Return a squared error that is linear beyond ``delta``.

    Args:
        delta: Where the loss becomes linear, in units of the target.

    Example:
        >>> huber_loss(delta=2.0).name
        'huber_loss(2)'
    """
    delta = check_positive("delta", delta)
    return Scoring(f"huber_loss({delta:g})", partial(_huber, delta=delta), None)


def pinball_loss(quantile: float = 0.5) -> Scoring:
    """Return the loss of a model that predicts a quantile.

    Args:
        quantile: The quantile, strictly between 0 and 1.
    """
    quantile = check_probability("quantile", quantile)
    name = f"pinball_loss({quantile:g})"
    return Scoring(name, partial(_pinball, quantile=quantile), None)


def top_k_accuracy(k: int = 2) -> Scoring:
    """Return the share of records whose class is among the k most likely ones.

    Args:
        k: The number of classes that count as a hit.
    """
    loss = partial(_top_k_errors, k=check_count("k", k))
    name = f"top_k_accuracy({k})"
    return Scoring(name, loss, (0.0, 1.0), perfect=1.0, needs=RANKS)


def class_weighted(
    scoring: str | Scoring, shares: Mapping[Any, float], *, name: str | None = None
) -> Scoring:
    r"""Return a score in which every class counts the same.

    The loss of a record of class c is multiplied by :math:`1 / (C p_c)`, with C the
    number of classes and :math:`p_c` the share of c. If the shares are those of the
    private records, the score of ``"accuracy"`` is the balanced accuracy. They must be
    public, however: shares among training records, or from the literature. The range of
    the loss, and with it the noise, grows with the largest weight.

    Args:
        scoring: A score of classifiers whose loss starts at 0.
        shares: The public share of every class. They are divided by their sum.
        name: The name of the score; by default the original one, with the shares.

    Example:
        >>> weighted = class_weighted("accuracy", {"healthy": 0.9, "ill": 0.1})
        >>> weighted.loss_range
        (0.0, 5.0)
    """
    base = named_scoring(scoring) if isinstance(scoring, str) else scoring
    if base.loss_range is None or base.loss_range[0] != 0.0:
        raise InvalidArgumentError(
            "scoring must be a score of classifiers with a loss from 0 to a known "
            f"bound, got {base.name!r} with loss_range={base.loss_range!r}."
        )
    values = [check_positive("shares", share) for share in shares.values()]
    if len(values) < 2:
        raise InvalidArgumentError(
            f"shares must have at least two classes, got {dict(shares)!r}."
        )
    scale = sum(values) / len(values)
    weights = dict(zip(shares, (scale / value for value in values), strict=True))
    largest = base.loss_range[1] * max(weights.values())
    return replace(
        base,
        name=name or f"class_weighted({base.name}, {dict(shares)})",
        loss=partial(_weighted, base=base, weights=weights),
        loss_range=(0.0, largest),
    )


def ranking_accuracy(
    X_reference: Any, y_reference: Any, *, smoothing: float = 0.0
) -> Scoring:
    r"""Return an AUC against a public sample, which is a mean over private records.

    The AUC is the share of pairs, one record of each class, that a model ranks right:
    it is not a mean over records, and the loss of a record would depend on others.
    Here every private record is compared with the *public* records of the other class.
    Its loss, the share of them on the wrong side, depends on that record alone and is
    between 0 and 1. If the public sample resembles the private records, one minus the
    mean loss estimates the AUC.

    Args:
        X_reference: The inputs of the public sample. The models must not be trained on
            these records, which would be ranked too well.
        y_reference: Its targets, of two classes. The larger one is the positive class.
        smoothing: The width of the step from right to wrong, in units of the standard
            deviation of the model's scores of the sample. Zero counts ties as half.

    Example:
        >>> X, y = [[0.0], [1.0], [2.0]], [0, 0, 1]
        >>> ranking_accuracy(X, y).loss_range
        (0.0, 1.0)
    """
    labels = np.asarray(y_reference)
    classes = np.unique(labels)
    if labels.ndim != 1 or len(classes) != 2:
        raise InvalidArgumentError(
            "y_reference must contain two classes, one label for each record, got "
            f"shape {labels.shape} and {len(classes)} classes."
        )
    if smoothing != 0.0:
        smoothing = check_positive("smoothing", smoothing)
    is_positive = labels == classes[1]
    loss = partial(
        _ranked_wrongly,
        X_reference=copied(X_reference),
        is_positive=is_positive,
        classes=classes,
        smoothing=smoothing,
    )
    name = f"ranking_accuracy({len(labels)} public records, {smoothing:g})"
    return Scoring(name, loss, (0.0, 1.0), perfect=1.0, needs=RANKS)


def named_scoring(name: str) -> Scoring:
    """Return the score of this name."""
    if name not in NAMED:
        raise InvalidArgumentError(
            f"scoring must be one of {', '.join(map(repr, NAMED))}, "
            f"'balanced_accuracy', 'roc_auc', 'f1', 'precision', 'recall', or a "
            "callable (estimator, X, y) that returns one loss for each record."
            f"{_ADVICE.get(name, '')} Got {name!r}."
        )
    return NAMED[name]


def class_shares(targets: Any) -> dict[Any, float]:
    """Return the share of every class among public targets."""
    labels, counts = np.unique(np.asarray(targets), return_counts=True)
    return dict(zip(labels.tolist(), (counts / counts.sum()).tolist(), strict=True))


def _huber(estimator: Any, X: Any, y: Any, *, delta: float) -> Array:
    distance = np.abs(_differences(estimator, X, y))
    linear = delta * (distance - delta / 2)
    return np.where(distance <= delta, distance**2 / 2, linear).mean(axis=1)


def _pinball(estimator: Any, X: Any, y: Any, *, quantile: float) -> Array:
    above = -_differences(estimator, X, y)  # target minus prediction
    return np.maximum(quantile * above, (quantile - 1) * above).mean(axis=1)


def _top_k_errors(estimator: Any, X: Any, y: Any, *, k: int) -> Array:
    scores = np.asarray(_class_scores(estimator, X), dtype=np.float64)
    if scores.ndim == 1:  # the decision function of two classes
        scores = np.stack([-scores, scores], axis=1)
    index, is_known = _index_of(estimator, _labels("top_k_accuracy", y))
    own = scores[np.arange(len(index)), index][:, None]
    is_before = scores > own
    # Of classes with the same score, scikit-learn counts later ones as more likely.
    is_tie = (scores == own) & (np.arange(scores.shape[1]) > index[:, None])
    is_hit = is_known & ((is_before | is_tie).sum(axis=1) < k)
    return np.where(is_hit & ~np.isnan(own[:, 0]), 0.0, 1.0)


def _weighted(
    estimator: Any, X: Any, y: Any, *, base: Scoring, weights: dict[Any, float]
) -> Array:
    assert base.loss_range is not None
    losses = np.asarray(base.loss(estimator, X, y), dtype=np.float64)
    of_record = [weights.get(label, np.nan) for label in _labels(base.name, y).tolist()]
    # Clipped before it is weighted, so that a common class cannot exceed its weight.
    return np.clip(losses, *base.loss_range) * np.array(of_record)


def _ranked_wrongly(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    X_reference: Any,
    is_positive: npt.NDArray[np.bool_],
    classes: npt.NDArray[Any],
    smoothing: float,
) -> Array:
    labels = _labels("ranking_accuracy", y)
    # A copy: a model that works in place must not carry anything to other calls, whose
    # number may depend on private records.
    reference, scores = (
        ranking_scores(estimator, inputs, classes[1])
        for inputs in (copied(X_reference), X)
    )
    width = smoothing * reference.std()
    losses = np.full(len(scores), np.nan)  # for classes that the sample does not have
    for is_other, label, sign in (
        (~is_positive, classes[1], 1.0),
        (is_positive, classes[0], -1.0),
    ):
        of_class = labels == label
        others = np.sort(sign * reference[is_other])
        ours = sign * scores[of_class]
        losses[of_class] = _share_above(others, ours, width)
    return losses


def _share_above(others: Array, ours: Array, width: float) -> Array:
    """Return the share of ``others``, sorted, above each of ``ours``."""
    if width > 0:
        steps = (others - ours[:, None]) / width
        with np.errstate(over="ignore"):
            return np.asarray((1.0 / (1.0 + np.exp(-steps))).mean(axis=1))
    at_most = np.searchsorted(others, ours, side="right")
    below = np.searchsorted(others, ours, side="left")
    share = 1.0 - (at_most + below) / (2.0 * len(others))  # ties count as half
    return np.where(np.isnan(ours), np.nan, share)


def ranking_scores(estimator: Any, X: Any, positive: Any) -> Array:
    """Return scores that are larger where the positive class is more likely."""
    scores = np.asarray(_class_scores(estimator, X), dtype=np.float64)
    column = np.asarray(estimator.classes_).tolist().index(positive)
    if scores.ndim == 2:
        return scores[:, column]
    return scores if column == 1 else -scores  # the decision function of two classes


def _class_scores(estimator: Any, X: Any) -> Any:
    if hasattr(estimator, "predict_proba"):
        return estimator.predict_proba(X)
    return estimator.decision_function(X)


def _probabilities(
    name: str, estimator: Any, X: Any, y: Any
) -> tuple[Array, npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return probabilities, the index of each record's class, and whether it exists."""
    return np.asarray(estimator.predict_proba(X)), *_index_of(
        estimator, _labels(name, y)
    )


def _index_of(
    estimator: Any, labels: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    classes = np.asarray(estimator.classes_)
    index = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    return index, classes[index] == labels


def _labels(name: str, y: Any) -> npt.NDArray[Any]:
    columns = _columns(y)
    if columns.shape[1] > 1:
        raise InvalidArgumentError(
            f"scoring={name!r} needs one target per record, got {columns.shape[1]}. "
            "Use scoring='accuracy'."
        )
    return columns[:, 0]


def _differences(estimator: Any, X: Any, y: Any) -> Array:
    targets = _columns(y).astype(np.float64)
    return np.asarray(_columns(estimator.predict(X)) - targets)


def _columns(values: Any) -> npt.NDArray[Any]:
    """Return targets as a table with one row per record."""
    array = np.asarray(values)
    return array.reshape(len(array), -1)


NAMED = {
    "accuracy": Scoring("accuracy", errors, (0.0, 1.0), perfect=1.0),
    "neg_log_loss": Scoring(
        "neg_log_loss", log_losses, (0.0, _LARGEST_LOG_LOSS), needs=_PROBABILITIES
    ),
    "neg_brier_score": Scoring(
        "neg_brier_score", brier_losses, (0.0, 1.0), needs=_PROBABILITIES
    ),
    "top_k_accuracy": top_k_accuracy(),
    "neg_mean_squared_error": Scoring("neg_mean_squared_error", squared_errors, None),
    "neg_mean_absolute_error": Scoring(
        "neg_mean_absolute_error", absolute_errors, None
    ),
    "neg_mean_poisson_deviance": Scoring(
        "neg_mean_poisson_deviance", poisson_deviances, None
    ),
    "neg_mean_huber_loss": huber_loss(),
    "neg_mean_pinball_loss": pinball_loss(),
}
_NO_MEAN = " Scores that are not a mean over records are not supported."
_ADVICE = {
    "neg_root_mean_squared_error": (
        f"{_NO_MEAN} Use 'neg_mean_squared_error', which has the same optimum."
    ),
    "r2": f"{_NO_MEAN} Use 'neg_mean_squared_error', which has the same optimum.",
}
