"""The least noise of training runs of which a selection, or all, are released."""

import math
from collections.abc import Callable
from functools import lru_cache

from botorch_dp._validation import check_count, check_instance
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.accountant import PrivacyAccountant
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.composition import Groups, pld_on_grid
from botorch_dp.privacy.counts import Count
from botorch_dp.privacy.events import GaussianEvent, PoissonGaussianEvent, PrivacyEvent
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.selection import SelectionEvent
from botorch_dp.privacy.selection_bounds import selection_bound

# The noise is found on grids of so many losses below the target's epsilon, then checked
# by exact accounting and raised by this factor until it passes.
_COARSE_POINTS = 2000
_TOLERANCE = 1e-3
_LARGEST_NOISE = 1e6


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
        The noise multiplier, at most 0.2 % above the least one; the accountant confirms
        that it meets the guarantee.

    Example:
        >>> from botorch_dp.privacy import Poisson
        >>> budget = ApproxDP(epsilon=4.0, delta=1e-5)
        >>> one = least_noise(budget, sampling_rate=0.02, num_steps=500)
        >>> best = least_noise(
        ...     budget, sampling_rate=0.02, num_steps=500, count=Poisson(16.0)
        ... )
        >>> round(one, 2), round(best, 2)
        (0.84, 1.24)
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

    def meets(noise: float) -> bool:
        accountant = PrivacyAccountant()
        if count is None:
            for event, number in run(noise):
                accountant.compose(event, number)
        else:
            accountant.compose(SelectionEvent(run(noise), count))
        return accountant.within(guarantee)

    if isinstance(guarantee, ApproxDP):
        target, delta = guarantee.epsilon, guarantee.delta
        noise = _solve(
            lambda z: _coarse_epsilon(frozenset(run(z)), count, delta, target), target
        )
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


@lru_cache(maxsize=1024)
def _coarse_epsilon(
    groups: Groups, count: Count | None, delta: float, scale: float
) -> float:
    """Return the epsilon of runs, from a PLD on a coarse grid."""
    pld = pld_on_grid(groups, scale / _COARSE_POINTS)
    assert pld is not None  # Gaussian releases always have one
    if count is None:
        return float(pld.get_epsilon_for_delta(delta))
    return selection_bound(Profile.of_pld(pld), count).epsilon(delta)


def _solve(epsilon: Callable[[float], float], target: float) -> float:
    """Return a noise at which a falling epsilon is just below a target.

    The logarithm of epsilon is close to a line in the logarithm of the noise: the
    secant method with a bracket needs about six evaluations.
    """
    goal = math.log(target)
    low, high = -math.inf, math.inf  # logarithms of too little and of enough noise
    points: list[tuple[float, float]] = []
    x = 0.0
    while True:
        value = epsilon(math.exp(x))
        y = math.log(max(value, 1e-12)) - goal if value < math.inf else math.inf
        low, high = (x, high) if y > 0 else (low, x)
        if -_TOLERANCE <= y <= 0 or high - low < _TOLERANCE / 2:
            return math.exp(high)
        if x > math.log(_LARGEST_NOISE):
            return math.exp(x)
        points.append((x, y))
        slope = -1.0
        if len(points) > 1 and points[-2][0] != x:
            (x0, y0), (x1, y1) = points[-2:]
            slope = min(-0.1, max(-10.0, (y1 - y0) / (x1 - x0)))
        # Aim a little below the target, so that the search ends from above.
        guess = x - (y + _TOLERANCE / 2) / slope if y < math.inf else x + 1.0
        guess = min(max(guess, x - 1.5), x + 1.5)
        if not low < guess < high:
            guess = (low + high) / 2
        x = guess


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
