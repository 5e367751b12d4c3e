"""The noise of every way to tune, at one guarantee, for the benchmark of selection."""

import math
from functools import lru_cache

from benchmarks._selection_figure import COUNTS
from benchmarks._training_pools import Task
from botorch_dp.integrations.opacus.plan import JointPlan
from botorch_dp.privacy import ApproxDP, GaussianEvent, PoissonGaussianEvent
from botorch_dp.privacy.counts import Count
from botorch_dp.privacy.history import total_losses
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.selection import SelectionEvent
from botorch_dp.privacy.selection_bounds import selection_bound
from botorch_dp.privacy.selection_planning import least_noise

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
NUM_RUNS = 16
COARSENESS = 4  # of the profile of a run in an adaptive selection's plan
MOST_NOISE = 9.0  # of an adaptive selection; more is not worth it
# The standard deviation of a score's noise, where scores lie in [0, 1]: this, or what
# makes the noise this many times the sensitivity, if that is more.
SCORE_NOISE, SCORE_MULTIPLIER = 0.002, 40.0


def score_event(task: Task) -> GaussianEvent:
    """Return the cost of a run's score, the mean over the training records."""
    return GaussianEvent(score_noise(task) * task.num_records)


def score_noise(task: Task) -> float:
    """Return the standard deviation of the noise of a score."""
    return max(SCORE_NOISE, SCORE_MULTIPLIER / task.num_records)


def noise_of_one(task: Task, epsilon: float) -> float:
    """Return the noise multiplier of one run without a score."""
    return _noise(epsilon, task.sampling_rate, task.num_steps, None, None, 1)


def noise_of_selection(
    task: Task,
    epsilon: float,
    count: Count,
    ratios: tuple[float, float] = (1.0, 1.0),
) -> float:
    """Return the noise multiplier of runs of which the best is selected.

    Args:
        task: The task.
        epsilon: The epsilon of the selection.
        count: The distribution of the number of runs.
        ratios: The limits of adaptive proposals.
    """
    score = score_event(task)
    if ratios != (1.0, 1.0):
        return _adaptive_noise(
            epsilon, task.sampling_rate, task.num_steps, score, count, ratios
        )
    return _noise(epsilon, task.sampling_rate, task.num_steps, score, count, 1)


def noise_of_composition(task: Task, epsilon: float) -> float:
    """Return the noise multiplier of 16 composed runs with a score each."""
    score = score_event(task)
    return _noise(epsilon, task.sampling_rate, task.num_steps, score, None, NUM_RUNS)


@lru_cache(maxsize=4096)
def noise_of_joint_plan(
    epsilon: float, sampling_rate: float, num_steps: int
) -> tuple[float, float]:
    """Return the noise of JointBudget with its default share for tuning.

    Returns:
        The noise multiplier of training, and the mu of all scores together.
    """
    plan = JointPlan(
        ApproxDP(epsilon, DELTA),
        num_runs=NUM_RUNS,
        sample_rate=sampling_rate,
        steps_per_run=num_steps,
    )
    return plan.noise_multiplier, plan.tuning.to_gdp().mu


@lru_cache(maxsize=4096)
def _noise(
    epsilon: float,
    sampling_rate: float,
    num_steps: int,
    score: GaussianEvent | None,
    count: Count | None,
    num_runs: int,
) -> float:
    return least_noise(
        ApproxDP(epsilon, DELTA),
        sampling_rate=sampling_rate,
        num_steps=num_steps,
        score=score,
        count=count,
        num_runs=num_runs,
    )


@lru_cache(maxsize=256)
def _adaptive_noise(
    epsilon: float,
    sampling_rate: float,
    num_steps: int,
    score: GaussianEvent,
    count: Count,
    ratios: tuple[float, float],
) -> float:
    """Return the least noise of adaptive proposals, up to half a percent.

    It is infinite if the proposals alone cost too much.
    """

    def is_enough(noise: float) -> bool:
        step = PoissonGaussianEvent(noise, sampling_rate)
        run = frozenset({(step, num_steps), (score, 1)})
        profile = Profile.of_losses(total_losses(run), COARSENESS)
        return selection_bound(profile, count, ratios).epsilon(DELTA) <= epsilon

    low, high = 0.3, MOST_NOISE
    if not is_enough(high):
        return math.inf
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    while True:  # the accountant has the last word
        step = PoissonGaussianEvent(high, sampling_rate)
        event = SelectionEvent(((step, num_steps), (score, 1)), count, ratios)
        if event.epsilon_at(DELTA) <= epsilon:
            return high
        high *= 1.001


def count_named(name: str, mean: float) -> Count:
    """Return the count of a kind of :data:`COUNTS`."""
    return COUNTS[name](mean)
