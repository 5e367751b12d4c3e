"""Audits: lower bounds on the privacy lost, from samples on neighbouring data.

A guarantee bounds how well anyone can tell two neighbouring data sets apart. An audit
runs such a test on outputs from both, bounds the test's errors with exact
(Clopper-Pearson) confidence intervals, and turns them into a lower bound on mu or
epsilon. A bound above the claim disproves the claim, up to the stated confidence; a
bound below it proves nothing.

The threshold of the test is given, or learned on the first half of the samples and
applied to the second. For finitely many outputs whose probabilities are known, use
:func:`worst_log_ratio`, which needs no samples.

References:
    .. [Nasr2023tight] M. Nasr et al. Tight Auditing of Differentially Private Machine
        Learning. USENIX Security 2023. Auditing mu-GDP by one threshold.
    .. [Jagielski2020auditing] M. Jagielski, J. Ullman and A. Oprea. Auditing
        Differentially Private Machine Learning. NeurIPS 2020.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom
from torch import Tensor

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_nonnegative,
    check_positive,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.guarantees import GDP, ApproxDP, Guarantee, PureDP

FloatArray: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = Any  # a count, or an array of counts

_MOST_THRESHOLDS = 512


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        lower_bound: The lower bound on the privacy loss.
        unit: ``"mu"`` or ``"epsilon"``.
        confidence: The probability, over the samples, that the bound is true.
        num_samples: The number of samples per data set behind the bound.
        delta: The delta at which epsilon is bounded; zero for mu.
    """

    lower_bound: float
    unit: str
    confidence: float
    num_samples: int
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_nonnegative("lower_bound", self.lower_bound)
        check_choice("unit", self.unit, ("mu", "epsilon"))
        check_probability("confidence", self.confidence)
        check_count("num_samples", self.num_samples)
        _check_delta(self.delta)
        if self.unit == "mu" and self.delta:
            raise InvalidArgumentError(
                f"delta must be 0 for a bound on mu, got {self.delta!r}."
            )

    def __str__(self) -> str:
        at = f" at delta={self.delta:.3g}" if self.delta else ""
        return (
            f"{self.unit} is at least {self.lower_bound:.4g}{at} with confidence "
            f"{self.confidence:.4g}, from {self.num_samples} samples per data set"
        )

    def rejects(self, claim: Guarantee | float) -> bool:
        """Return whether the claim is disproved.

        Args:
            claim: A ``GDP`` or ``PureDP``, or the number in it; or an ``ApproxDP``
                whose delta is at most that of the audit.
        """
        if isinstance(claim, GDP) and self.unit == "mu":
            claim = claim.mu
        elif self.unit == "epsilon" and (
            isinstance(claim, PureDP)
            or (isinstance(claim, ApproxDP) and claim.delta <= self.delta)
        ):
            claim = claim.epsilon
        if not isinstance(claim, float | int):
            raise InvalidArgumentError(
                f"claim must be in the audit's unit, {self.unit}, got {claim!r}."
            )
        return self.lower_bound > claim


def audit_mu(
    samples: Tensor,
    neighbour_samples: Tensor,
    *,
    confidence: float = 0.99,
    threshold: float | None = None,
) -> AuditResult:
    """Bound mu from below by testing which data set an output came from.

    Args:
        samples: ``n`` real outputs on one data set. Project vectors first, ideally on
            the difference of the two values.
        neighbour_samples: ``n`` outputs on a neighbouring data set.
        confidence: The confidence of the bound.
        threshold: The test attributes outputs above it to the neighbouring data set,
            whose samples must have the larger mean. Choose it without looking at the
            samples, or None to learn threshold and direction on half of them.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(10_000, generator=generator)
        >>> result = audit_mu(x, x.flip(0) + 2.0)
        >>> result.rejects(GDP(mu=1.0)), result.rejects(GDP(mu=2.0))
        (True, False)
    """
    x, y = _check_samples(samples, neighbour_samples)
    alpha = (1 - check_probability("confidence", confidence)) / 2

    def bound(false_positives: Counts, false_negatives: Counts, num: int) -> FloatArray:
        error_one = _upper(false_positives, num, alpha)
        error_two = _upper(false_negatives, num, alpha)
        return -ndtri(error_one) - ndtri(error_two)

    return _audit_threshold(x, y, bound, "mu", confidence, threshold)


def audit_epsilon(
    samples: Tensor,
    neighbour_samples: Tensor,
    *,
    delta: float = 0.0,
    confidence: float = 0.99,
    threshold: float | None = None,
) -> AuditResult:
    """Bound epsilon at ``delta`` from below by the odds of one event.

    Args:
        samples: ``n`` real outputs on one data set.
        neighbour_samples: ``n`` outputs on a neighbouring data set.
        delta: The delta at which to bound epsilon; zero for a pure guarantee.
        confidence: The confidence of the bound.
        threshold: The event is an output above it, or one below it;
            ``neighbour_samples`` must have the larger mean. Choose it without looking
            at the samples, or None to learn threshold and direction on half of them.
    """
    x, y = _check_samples(samples, neighbour_samples)
    _check_delta(delta)
    alpha = (1 - check_probability("confidence", confidence)) / 4

    def bound(false_positives: Counts, false_negatives: Counts, num: int) -> FloatArray:
        # The event above the threshold, and the one below it from the other side.
        return np.maximum(
            _log_odds(num - false_negatives, false_positives, num, alpha, delta),
            _log_odds(num - false_positives, false_negatives, num, alpha, delta),
        )

    found = _audit_threshold(x, y, bound, "epsilon", confidence, threshold)
    return replace(found, delta=delta)


def audit_epsilon_finite(
    samples: Tensor,
    neighbour_samples: Tensor,
    *,
    num_outcomes: int,
    delta: float = 0.0,
    confidence: float = 0.99,
) -> AuditResult:
    """Bound epsilon from below for a mechanism with finitely many outputs.

    The event (a set of outcomes) and the direction are learned on the first half of
    the samples and applied to the second.

    Args:
        samples: ``n`` outcomes from 0 to ``num_outcomes - 1``, on one data set.
        neighbour_samples: ``n`` outcomes on a neighbouring data set.
        num_outcomes: The number of possible outcomes.
        delta: The delta at which to bound epsilon; zero for a pure guarantee.
        confidence: The confidence of the bound.
    """
    check_count("num_outcomes", num_outcomes, minimum=2)
    _check_delta(delta)
    x, y = _check_samples(samples, neighbour_samples)
    if min(x.min(), y.min()) < 0 or max(x.max(), y.max()) >= num_outcomes:
        raise InvalidArgumentError(
            f"samples must lie from 0 to num_outcomes - 1 = {num_outcomes - 1}."
        )
    alpha = (1 - check_probability("confidence", confidence)) / 2
    half = len(x) // 2
    counts = [
        np.bincount(part.astype(np.int64), minlength=num_outcomes)
        for part in (x[:half], x[half:], y[:half], y[half:])
    ]
    best, event, forward = -math.inf, np.arange(0), True
    for direction in (True, False):
        many, few = (counts[0], counts[2]) if direction else (counts[2], counts[0])
        order = np.argsort(-(many + 0.5) / (few + 0.5), kind="stable")
        hits, misses = many[order].cumsum(), few[order].cumsum()
        scores = _log_odds(hits, misses, half, alpha, delta)[:-1]  # not all outcomes
        if scores.max() > best:
            size = int(scores.argmax()) + 1
            best, event, forward = float(scores.max()), order[:size], direction
    many, few = (counts[1], counts[3]) if forward else (counts[3], counts[1])
    num = len(x) - half
    found = _log_odds(many[event].sum(), few[event].sum(), num, alpha, delta)
    return AuditResult(max(0.0, float(found)), "epsilon", confidence, num, delta)


def worst_log_ratio(log_probabilities: Tensor, neighbour: Tensor) -> float:
    """Return the exact pure epsilon between two distributions on finitely many outputs.

    Args:
        log_probabilities: The log-probabilities of all outputs on one data set.
        neighbour: Those of the same outputs on a neighbouring data set.
    """
    if log_probabilities.shape != neighbour.shape or log_probabilities.numel() == 0:
        raise InvalidArgumentError(
            "neighbour must have the shape of log_probabilities, "
            f"{tuple(log_probabilities.shape)}, got {tuple(neighbour.shape)}."
        )
    return float((log_probabilities - neighbour).abs().max())


def mu_audit_power(
    *, true_mu: float, claimed_mu: float, num_samples: int, confidence: float = 0.99
) -> float:
    """Return the power of :func:`audit_mu` against a false claim about Gaussian noise.

    The result is exact for the threshold half way between the two means.

    Args:
        true_mu: The mu of the noise.
        claimed_mu: The mu that is claimed.
        num_samples: The number of outputs per data set.
        confidence: The confidence of the audit.

    Example:
        >>> power = mu_audit_power(true_mu=1.5, claimed_mu=1.0, num_samples=1000)
        >>> power > 0.99
        True
    """
    true_mu = check_positive("true_mu", true_mu)
    claimed_mu = check_positive("claimed_mu", claimed_mu)
    check_count("num_samples", num_samples)
    alpha = (1 - check_probability("confidence", confidence)) / 2
    error = ndtr(-true_mu / 2)
    low, high = binom.ppf([1e-12, 1 - 1e-12], num_samples, error)
    errors = np.arange(low, high + 1)
    mass = binom.pmf(errors, num_samples, error)
    quantiles = -ndtri(_upper(errors, num_samples, alpha))
    rejected = quantiles[:, None] + quantiles[None, :] > claimed_mu
    return float(mass @ rejected @ mass)


def _audit_threshold(
    x: FloatArray,
    y: FloatArray,
    bound: Callable[[Counts, Counts, int], FloatArray],
    unit: str,
    confidence: float,
    threshold: float | None,
) -> AuditResult:
    if threshold is None:
        half = len(x) // 2
        sign, threshold = _learn_threshold(x[:half], y[:half], bound)
        x, y = sign * x[half:], sign * y[half:]
    elif x.mean() > y.mean():
        raise InvalidArgumentError(
            "neighbour_samples must have the larger mean if a threshold is given, got "
            f"{y.mean():.3g} against {x.mean():.3g}: swap the two."
        )
    found = float(bound((x > threshold).sum(), (y <= threshold).sum(), len(x)))
    return AuditResult(max(0.0, found), unit, confidence, len(x))


def _learn_threshold(
    x: FloatArray,
    y: FloatArray,
    bound: Callable[[Counts, Counts, int], FloatArray],
) -> tuple[float, float]:
    """Return the direction and the threshold that are best on these samples."""
    sign = 1.0 if y.mean() >= x.mean() else -1.0
    x, y = np.sort(sign * x), np.sort(sign * y)
    both = np.sort(np.concatenate([x, y]))
    candidates = both[:: max(1, len(both) // _MOST_THRESHOLDS)]
    above = len(x) - np.searchsorted(x, candidates, side="right")
    below = np.searchsorted(y, candidates, side="right")
    return sign, float(candidates[np.argmax(bound(above, below, len(x)))])


def _log_odds(
    hits: Counts, misses: Counts, num: int, alpha: float, delta: float
) -> FloatArray:
    """Return a lower bound on log((P(event) - delta) / Q(event))."""
    likely = 1.0 - _upper(num - np.asarray(hits), num, alpha)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(likely - delta, 0.0)) - np.log(
            _upper(misses, num, alpha)
        )


def _upper(count: Counts, num: int, alpha: float) -> FloatArray:
    """Return the upper Clopper-Pearson limit on a probability, at level alpha."""
    count = np.asarray(count, dtype=np.float64)
    limit = beta.ppf(1 - alpha, count + 1, np.maximum(num - count, 1e-300))
    return np.where(count >= num, 1.0, limit)


def _check_samples(
    samples: Tensor, neighbour_samples: Tensor
) -> tuple[FloatArray, FloatArray]:
    for name, value in (("samples", samples), ("neighbour_samples", neighbour_samples)):
        if not isinstance(value, Tensor) or value.dim() != 1 or len(value) < 4:
            shape = tuple(value.shape) if isinstance(value, Tensor) else value
            raise InvalidArgumentError(
                f"{name} must be a tensor of at least 4 numbers, got {shape!r}."
            )
    if len(samples) != len(neighbour_samples):
        raise InvalidArgumentError(
            f"neighbour_samples must have as many numbers as samples, {len(samples)}, "
            f"got {len(neighbour_samples)}."
        )
    x, y = (
        value.detach().cpu().to(torch.float64).numpy()
        for value in (samples, neighbour_samples)
    )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InvalidArgumentError("samples must be finite.")
    return x, y


def _check_delta(delta: float) -> None:
    if check_nonnegative("delta", delta) >= 1.0:
        raise InvalidArgumentError(f"delta must lie in [0, 1), got {delta!r}.")
