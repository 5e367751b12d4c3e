r"""What a guarantee buys: the noise of one run, of many, and of the best of many.

:func:`plan_training` compares the ways to spend a guarantee on training and tuning. All
of them follow from public facts.

The recommendation comes from reasoning, not from a benchmark. A selection draws each
run's candidate at random. Suppose that one candidate in five is good. The probability
that no run has a good one is :math:`E[0.8^K]`, for the number K of runs. The plan
recommends the option with the least noise for which this is at most 1/8. Counts that
often draw one or two runs (geometric, logarithmic) need less noise but miss more often,
and a Poisson number, which varies little, needs more noise.

Both numbers are judgements. The limit 1/8 was set after the noise and misses of about
20 counts had been seen. With 1/10, the default plan recommends the Poisson count, with
about 30 % more noise at epsilon 4.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.plan import check_sample_rate
from botorch_dp.integrations.opacus.score import plan_score
from botorch_dp.privacy import (
    ApproxDP,
    AtLeast,
    Count,
    GaussianEvent,
    Guarantee,
    Poisson,
    PoissonGaussianEvent,
    PrivacyEvent,
    TruncatedNegativeBinomial,
    least_noise,
)
from botorch_dp.privacy.history import total_losses
from botorch_dp.privacy.loss_composition import LossComposition
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.selection_bounds import selection_bound

_MEAN = 16  # the expected number of runs of the default options
_GOOD = 0.2  # the share of good candidates
_LARGEST_MISS = 1 / 8
# How many times fewer points than usual the profiles of a plan have, and the relative
# precision of its epsilon. Fewer points overestimate epsilon, so the noise is rounded
# up.
_COARSENESS = 4
_PRECISION = 2e-3
_MOST_STEPS = 40


@dataclass(frozen=True)
class TrainingOption:
    """One way to spend a guarantee on training.

    Attributes:
        name: What is done.
        count: The distribution of the number of runs; None if it is fixed.
        expected_runs: The expected number of runs.
        noise_multiplier: The noise of a training step over the clipping norm.
        at_most_one: The probability of at most one run.
        miss: The probability that no run has one of the best fifth of the candidates.
    """

    name: str
    count: Count | None
    expected_runs: float
    noise_multiplier: float
    at_most_one: float
    miss: float


@dataclass(frozen=True)
class TrainingOptions:
    """The ways to spend a guarantee on training and tuning.

    Attributes:
        guarantee: The guarantee of everything together.
        options: The ways.
        recommended: The recommended one.
        reason: Why it is recommended.
    """

    guarantee: Guarantee
    options: tuple[TrainingOption, ...]
    recommended: TrainingOption
    reason: str

    def __str__(self) -> str:
        width = max(len(option.name) for option in self.options)
        lines = [
            f"{self.guarantee!r}",
            f"  {'':{width}}  noise multiplier  expected runs  P(K <= 1)  miss",
        ]
        for option in self.options:
            mark = "*" if option == self.recommended else " "
            lines.append(
                f"{mark} {option.name:{width}}  {option.noise_multiplier:16.3f}  "
                f"{option.expected_runs:13.3g}  {option.at_most_one:9.2g}  "
                f"{option.miss:.2g}"
            )
        return "\n".join(
            [
                *lines,
                "miss: the probability that no run has one of the best fifth of the "
                "candidates",
                f"* recommended: {self.reason}",
            ]
        )


def recommended_count(mean: float = _MEAN) -> Count:
    """Return the count that :func:`plan_training` usually recommends.

    For the same expected number of runs, a negative binomial count of shape 3 misses
    about half as often as a geometric one and needs far less noise than a Poisson one.

    Args:
        mean: The expected number of runs.
    """
    return TruncatedNegativeBinomial(mean=mean, shape=3.0)


def default_counts(mean: int = _MEAN) -> dict[str, Count]:
    """Return the counts that a plan compares, by name.

    Args:
        mean: Their expected number of runs, at least 5.
    """
    check_count("mean", mean, minimum=5)
    geometric = {
        least: TruncatedNegativeBinomial(mean=mean - least + 1, shape=1.0)
        for least in (1, 2, 4)
    }
    return {
        "best of Poisson": Poisson(mean),
        "best of negative binomial, shape 3": recommended_count(mean),
        "best of geometric": geometric[1],
        "best of shape 0.5": TruncatedNegativeBinomial(mean=mean, shape=0.5),
        "best of logarithmic": TruncatedNegativeBinomial(mean=mean, shape=0.0),
        "best of geometric, at least 2": AtLeast(geometric[2], 2),
        "best of geometric, at least 4": AtLeast(geometric[4], 4),
    }


def plan_training(
    guarantee: Guarantee,
    *,
    sample_rate: float,
    steps_per_run: int,
    num_records: int,
    counts: Sequence[Count] | None = None,
    num_runs: int = _MEAN,
    score_noise: float | None = None,
    score_range: tuple[float, float] = (0.0, 1.0),
) -> TrainingOptions:
    """Return the noise of each way to spend a guarantee, and recommend one.

    Records are shared: scores come from records that may be training records. A single
    run needs no score.

    Args:
        guarantee: The guarantee of everything together.
        sample_rate: The probability that a record is in a batch.
        steps_per_run: The number of steps of a run.
        num_records: The number of records with a score.
        counts: Distributions of the number of runs; by default several with the same
            expected number.
        num_runs: The number of runs of the composition, and the expected number of the
            default counts.
        score_noise: The standard deviation of the noise of a score, see
            :class:`JointBudget`.
        score_range: The range of a record's score.

    Example:
        >>> plan = plan_training(
        ...     ApproxDP(epsilon=4.0, delta=1e-5),
        ...     sample_rate=1 / 16,
        ...     steps_per_run=200,
        ...     num_records=2000,
        ... )
        >>> plan.recommended.name
        'best of negative binomial, shape 3'
    """
    rate = check_sample_rate(sample_rate)
    check_count("steps_per_run", steps_per_run)
    check_count("num_runs", num_runs)
    score = plan_score(
        guarantee,
        num_records=num_records,
        score_range=score_range,
        noise_std=score_noise,
    ).event
    named = (
        default_counts(max(num_runs, 5))
        if counts is None
        else {f"best of {count!r}": count for count in counts}
    )
    noise = _Noise(guarantee, rate, steps_per_run)
    options = [
        TrainingOption("one run", None, 1, noise.of_runs(1, None), 1.0, 1 - _GOOD)
    ]
    for name, count in named.items():
        options.append(
            TrainingOption(
                name,
                count,
                count.mean,
                noise.of_selection(count, score),
                float(count.probabilities(1).sum()),
                float(np.exp(count.log_generating(np.array([1 - _GOOD]))[0])),
            )
        )
    options.append(
        TrainingOption(
            f"{num_runs} runs composed",
            None,
            num_runs,
            noise.of_runs(num_runs, score),
            float(num_runs == 1),
            (1 - _GOOD) ** num_runs,
        )
    )
    return _recommend(guarantee, tuple(options))


def _recommend(
    guarantee: Guarantee, options: tuple[TrainingOption, ...]
) -> TrainingOptions:
    fitting = [option for option in options if option.miss <= _LARGEST_MISS]
    if fitting:
        best = min(fitting, key=lambda option: option.noise_multiplier)
        reason = (
            f"the least noise of those that miss with a probability of at most "
            f"{_LARGEST_MISS:g}. If good settings are known, one run with them has "
            "less noise."
        )
    else:
        best = min(options, key=lambda option: option.miss)
        reason = (
            f"it misses least; none misses with a probability of at most "
            f"{_LARGEST_MISS:g}."
        )
    return TrainingOptions(guarantee, options, best, reason)


class _Noise:
    """The noise of several options, which share privacy loss distributions of runs."""

    def __init__(self, guarantee: Guarantee, rate: float, num_steps: int) -> None:
        self._guarantee, self._rate, self._num_steps = guarantee, rate, num_steps
        self._profiles: dict[tuple[float, GaussianEvent], Profile] = {}
        self._last = 0.0  # the logarithm of the noise found last

    def of_runs(self, num_runs: int, score: GaussianEvent | None) -> float:
        """Return the noise of runs that are all released."""
        guarantee = self._guarantee
        if not isinstance(guarantee, ApproxDP):
            return least_noise(
                guarantee,
                sampling_rate=self._rate,
                num_steps=self._num_steps,
                score=score,
                num_runs=num_runs,
            )
        delta = guarantee.delta

        def epsilon(x: float) -> float:
            return self._losses(x, num_runs, score).epsilon(delta)

        return self._solve(epsilon, guarantee.epsilon, [])

    def of_selection(self, count: Count, score: GaussianEvent) -> float:
        """Return the noise of the best of a random number of runs."""
        guarantee = self._guarantee
        if not isinstance(guarantee, ApproxDP):
            return least_noise(
                guarantee,
                sampling_rate=self._rate,
                num_steps=self._num_steps,
                score=score,
                count=count,
            )
        delta = guarantee.delta

        def epsilon(x: float) -> float:
            key = (x, score)
            if key not in self._profiles:
                self._profiles[key] = Profile.of_losses(
                    self._losses(x, 1, score), _COARSENESS
                )
            return selection_bound(self._profiles[key], count).epsilon(delta)

        known = sorted(x for x, _ in self._profiles)
        return self._solve(epsilon, guarantee.epsilon, known)

    def _losses(
        self, x: float, num_runs: int, score: GaussianEvent | None
    ) -> LossComposition:
        """Return the total privacy loss of runs with noise exp(x)."""
        step = PoissonGaussianEvent(math.exp(x), self._rate)
        groups: set[tuple[PrivacyEvent, int]] = {(step, num_runs * self._num_steps)}
        if score is not None:
            groups.add((score, num_runs))
        losses = total_losses(frozenset(groups))
        assert losses is not None  # Gaussian releases always have one
        return losses

    def _solve(
        self, epsilon: Callable[[float], float], target: float, known: list[float]
    ) -> float:
        """Return the least noise for which epsilon is at most the target.

        The logarithm of epsilon is a smooth function of that of the noise. A parabola
        through the nearest points finds the target in a few steps. The first points are
        those whose distributions are known, where the bound costs little.
        """
        points: dict[float, float] = {}  # the excess over the target
        for x in sorted(known, key=lambda x: abs(x - self._last)):
            if len(points) < 3 and all(abs(x - other) > 0.03 for other in points):
                points[x] = self._excess(epsilon, x, target)
        x = self._next(points) if points else self._last
        for _ in range(_MOST_STEPS):
            points[x] = self._excess(epsilon, x, target)
            low = max((x for x, excess in points.items() if excess > 0), default=None)
            high = min((x for x, excess in points.items() if excess <= 0), default=None)
            if high is not None and (
                points[high] > -_PRECISION
                or (low is not None and high - low < _PRECISION)
            ):
                self._last = high
                return math.exp(high)
            x = self._next(points)
            if low is not None and high is not None and not low < x < high:
                x = (low + high) / 2
        raise InvalidArgumentError(
            "guarantee cannot be met by any noise of the training steps, got "
            f"{self._guarantee!r}."
        )

    @staticmethod
    def _excess(epsilon: Callable[[float], float], x: float, target: float) -> float:
        return math.log(min(max(epsilon(x), 1e-12), 1e12) / target)

    @staticmethod
    def _next(points: dict[float, float]) -> float:
        """Return where the excess should be just below zero."""
        nearest = sorted(points.items(), key=lambda point: abs(point[1]))[:3]
        x, excess = nearest[0]
        guess = x + excess + _PRECISION / 2  # as if epsilon were 1 / noise
        if len(nearest) > 1:
            xs, excesses = zip(*nearest, strict=True)
            weights = np.polyfit(excesses, xs, len(nearest) - 1)
            guess = float(np.polyval(weights, -_PRECISION / 2))
        return min(max(guess, x - 1.0), x + 1.0)
