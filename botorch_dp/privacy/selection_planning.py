"""The least noise of training runs of which a selection, or all, are released."""

import math
from collections.abc import Callable
from functools import lru_cache

from botorch_dp._validation import check_count, check_instance
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import curves
from botorch_dp.privacy.accountant import PrivacyAccountant
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.counts import Count
from botorch_dp.privacy.events import GaussianEvent, PoissonGaussianEvent, PrivacyEvent
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.history import total_losses
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.selection import SelectionEvent
from botorch_dp.privacy.selection_bounds import selection_bound

_TOLERANCE = 2e-3
_LARGEST_NOISE = 1e6
# Less noise than this protects nothing, and its losses do not fit into a grid.
_LEAST_NOISE = 1e-2


def least_noise(
    guarantee: Guarantee,
    *,
    sampling_rate: float,
    num_steps: int,
    score: GaussianEvent | None = None,
    count: Count | None = None,
    num_runs: int = 1,
) -> float:
    """Return the least noise multiplier of training runs that meet a guarantee.

    A run is a number of training steps, each on a Poisson sample of the records, and a
    score. Either the best of a random number of runs is released, or all of a fixed
    number.

    Args:
        guarantee: The guarantee of everything that is released.
        sampling_rate: The probability that a record takes part in a step.
        num_steps: The number of steps of a run.
        score: The cost of the score of a run; None if it costs nothing.
        count: The distribution of the number of runs of a selection; None if all runs
            are released.
        num_runs: The number of runs that are released without a selection.

    Returns:
        The noise multiplier, at most 1 % above the least one. The accountant confirms
        that it meets the guarantee.

    Example:
        >>> from botorch_dp.privacy import Poisson
        >>> budget = ApproxDP(epsilon=4.0, delta=1e-5)
        >>> one = least_noise(budget, sampling_rate=0.02, num_steps=500)
        >>> best = least_noise(
        ...     budget, sampling_rate=0.02, num_steps=500, count=Poisson(16.0)
        ... )
        >>> round(one, 1), round(best, 1)
        (0.9, 1.3)
    """
    check_guarantee("guarantee", guarantee)
    check_instance("score", score, (GaussianEvent, type(None)))
    check_instance("count", count, (Count, type(None)))
    check_count("num_steps", num_steps)
    check_count("num_runs", num_runs)
    if count is not None and num_runs != 1:
        raise InvalidArgumentError(
            "num_runs must be 1 with a count, which gives their number, got "
            f"{num_runs}."
        )
    return _least_noise(guarantee, sampling_rate, num_steps, score, count, num_runs)


@lru_cache(maxsize=256)
def _least_noise(
    guarantee: Guarantee,
    sampling_rate: float,
    num_steps: int,
    score: GaussianEvent | None,
    count: Count | None,
    num_runs: int,
) -> float:
    def run(noise: float) -> tuple[tuple[PrivacyEvent, int], ...]:
        steps = (PoissonGaussianEvent(noise, sampling_rate), num_runs * num_steps)
        return (steps,) if score is None else (steps, (score, num_runs))

    def epsilon(noise: float, budget: ApproxDP) -> float:
        if count is None:
            losses = total_losses(frozenset(run(noise)))
            if losses is None:  # they are too large
                return math.inf
            return losses.epsilon(budget.delta)
        bounds = SelectionEvent(run(noise), count).bounds_at(budget.delta)
        return next(bounds)[0]

    def meets(noise: float) -> bool:
        accountant = PrivacyAccountant()
        if count is None:
            for event, number in run(noise):
                accountant.compose(event, number)
        else:
            accountant.compose(SelectionEvent(run(noise), count))
        return accountant.within(guarantee)

    if isinstance(guarantee, ApproxDP):
        first = _first_guess(
            guarantee, sampling_rate, num_steps, score, count, num_runs
        )
        noise = _solve(lambda z: epsilon(z, guarantee), guarantee.epsilon, first)
        if noise > _LARGEST_NOISE:  # the Renyi bound can be smaller at tiny epsilons
            noise = _bisect(meets) if meets(_LARGEST_NOISE) else math.inf
    else:
        noise = _bisect(meets)
    while noise <= _LARGEST_NOISE and not meets(noise):
        noise *= 1 + _TOLERANCE
    if noise > _LARGEST_NOISE:
        raise InvalidArgumentError(
            f"guarantee cannot be met by any noise of the training steps, got "
            f"{guarantee!r} with score={score!r} and count={count!r}."
        )
    return noise


def _first_guess(
    guarantee: ApproxDP,
    sampling_rate: float,
    num_steps: int,
    score: GaussianEvent | None,
    count: Count | None,
    num_runs: int,
) -> float:
    """Return a noise that is about right: a run of many steps is almost Gaussian."""
    delta = guarantee.delta
    if count is None:
        mu = curves.gdp_mu(guarantee.epsilon, delta) / math.sqrt(num_runs)
    else:
        inverse = _solve(
            lambda z: selection_bound(Profile.of_gaussian(1 / z), count).epsilon(delta),
            guarantee.epsilon,
            4 / guarantee.epsilon,
            tolerance=0.02,
        )
        mu = 1 / inverse
    square = mu**2 - (0.0 if score is None else score.gdp_mu**2)
    square = max(square, 0.01 * mu**2) / (num_steps * sampling_rate**2)
    return min(max(1 / math.sqrt(math.log1p(square)), 0.1), 1e4)


def _solve(
    epsilon: Callable[[float], float],
    target: float,
    first: float,
    tolerance: float = _TOLERANCE,
) -> float:
    """Return a noise at which a falling epsilon is just below a target.

    The logarithm of epsilon is close to a line in the logarithm of the noise: the
    secant method with a bracket needs about three evaluations.
    """
    low, high = -math.inf, math.inf  # logarithms of too little and of enough noise
    x, slope = math.log(first), -1.3
    before: tuple[float, float] | None = None
    while x <= math.log(_LARGEST_NOISE):
        value = epsilon(math.exp(x))
        y = math.log(max(value, 1e-12) / target) if value < math.inf else math.inf
        low, high = (x, high) if y > 0 else (low, x)
        if -tolerance <= y <= 0 or high - low < tolerance / 2:
            return math.exp(high)
        if high <= math.log(_LEAST_NOISE):
            return _LEAST_NOISE
        if before is not None and math.isfinite(y) and x != before[0]:
            slope = min(-0.3, max(-8.0, (y - before[1]) / (x - before[0])))
        before = (x, y) if math.isfinite(y) else None
        # Aim a little below the target, so that the search ends there.
        step = -(y + tolerance / 2) / slope if math.isfinite(y) else 1.0
        x = max(x + min(max(step, -1.0), 1.0), math.log(_LEAST_NOISE))
        if not low < x < high:
            x = (low + high) / 2
    return math.exp(x)


def _bisect(meets: Callable[[float], bool]) -> float:
    """Return the least noise that meets a guarantee, up to the tolerance."""
    high = 1.0
    while not meets(high):
        high *= 2.0
        if high > _LARGEST_NOISE:
            return high
    low = high / 2.0
    while high > 1e-3 and meets(low):
        low, high = low / 2.0, low
    while high / low > 1 + _TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
