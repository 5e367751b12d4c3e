"""Figure 7 of Papernot and Steinke, with epsilon and delta instead of Renyi divergence.

The figure shows the expected accuracy of the best of a random number K of DP-SGD runs
over the privacy of the selection. The accuracies are those that the authors published:
1,012 runs with learning rates between 1e-4 and 1, of which the figure uses the 400 with
the largest learning rates. A run has batches of 256 out of 60,000 records, 60 epochs
and noise multiplier 1.1. As in the paper, the accuracy itself is the score: it has no
noise, and its cost is not counted.

References:
    .. [Papernot2022tuning] N. Papernot and T. Steinke. Hyperparameter Tuning with Renyi
        Differential Privacy. ICLR, 2022.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from scipy.optimize import brentq

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import PoissonGaussianEvent, PrivacyAccountant
from botorch_dp.privacy.counts import (
    AtLeast,
    Count,
    Poisson,
    TruncatedNegativeBinomial,
)
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.renyi import RDP_ORDERS
from botorch_dp.privacy.selection import SelectionEvent, base_profile

FloatArray = npt.NDArray[np.float64]
NUM_SHOWN = 400
SAMPLING_RATE, NUM_STEPS, NOISE, DELTA = 256 / 60_000, 14_062, 1.1, 1e-5
MEANS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30, 40, 60, 80, 100, 150, 300)
RUN = PoissonGaussianEvent(NOISE, SAMPLING_RATE)
_LARGEST = 40.0  # epsilons above are not of interest
CHANCE = 0.1  # the accuracy of a model that was not trained


def negative_binomial(shape: float, floor: int = 1) -> Callable[[float], Count]:
    """Return the truncated negative binomial counts of a shape, by their mean."""

    def count(mean: float) -> Count:
        base = TruncatedNegativeBinomial(mean - floor + 1, shape)
        return base if floor == 1 else AtLeast(base, floor)

    return count


COUNTS: dict[str, Callable[[float], Count]] = {
    "Poisson": Poisson,
    "shape 4": negative_binomial(4.0),
    "shape 2": negative_binomial(2.0),
    "geometric": negative_binomial(1.0),
    "shape 0.5": negative_binomial(0.5),
    "logarithmic": negative_binomial(0.0),
    "shape -0.5": negative_binomial(-0.5),
    "geometric, at least 2": negative_binomial(1.0, 2),
    "geometric, at least 3": negative_binomial(1.0, 3),
    "geometric, at least 4": negative_binomial(1.0, 4),
    "shape 2, at least 2": negative_binomial(2.0, 2),
    "shape 2, at least 3": negative_binomial(2.0, 3),
}


def counts_of(name: str, means: Sequence[float] = MEANS) -> list[Count]:
    """Return the counts of a kind that exist, for increasing means."""
    found = []
    for mean in means:
        try:
            found.append(COUNTS[name](mean))
        except InvalidArgumentError:  # the mean is below the floor, or too large
            continue
    return found


def shown_accuracies(arrays: dict[str, npt.NDArray[Any]]) -> FloatArray:
    """Return the accuracies of the runs with the largest learning rates, sorted."""
    order = np.argsort(arrays["learning_rate"])[-NUM_SHOWN:]
    return np.sort(arrays["accuracy"][order])


def expected_best(count: Count, accuracies: FloatArray) -> float:
    """Return the expected accuracy of the best of K runs.

    Runs are drawn from the given ones with replacement, as in the paper: with phi the
    generating function of K, the i-th of n sorted accuracies is the best one with
    probability phi(i / n) - phi((i - 1) / n).

    Args:
        count: The distribution of the number of runs.
        accuracies: The accuracies of runs, sorted.
    """
    shares = np.linspace(0.0, 1.0, len(accuracies) + 1)
    with np.errstate(divide="ignore"):
        generating = np.exp(count.log_generating(shares))
    return float(np.diff(generating) @ accuracies + generating[0] * CHANCE)


def best_of_fixed(num_runs: int, accuracies: FloatArray) -> float:
    """Return the expected accuracy of the best of a fixed number of runs."""
    shares = np.linspace(0.0, 1.0, len(accuracies) + 1)
    return float(np.diff(shares**num_runs) @ accuracies)


def bounds_of(count: Count) -> dict[str, float]:
    """Return the epsilon of a selection of the figure's runs, by each bound.

    Args:
        count: The distribution of the number of runs.

    Returns:
        ``"smallest"``, which the library reports; ``"trade-off"``, the library's own
        bound; ``"simple"``, delta(epsilon) <= E[K] delta_Q(epsilon - L) with the
        largest loss L that the selection adds; ``"Renyi"``, dp-accounting's
        implementation of [Papernot2022tuning]_; and for Poisson counts ``"Renyi with
        PLD"``, Theorem 6 with the run's delta from its privacy loss distribution.
    """
    event = SelectionEvent(((RUN, NUM_STEPS),), count)
    epsilons = {
        "smallest": event.epsilon_at(DELTA),
        "trade-off": event.bound.epsilon(DELTA),
        "simple": _simple_bound(event),
    }
    renyi = _renyi_bound(count)
    if renyi is not None:
        epsilons["Renyi"] = renyi
    if isinstance(count, Poisson) and count.mean >= 1:
        profile = _symmetric_profile(event)
        deltas = profile.delta(np.log1p(1 / (RDP_ORDERS - 1)))
        divergences = total_rdp() + math.log(count.mean) / (RDP_ORDERS - 1)
        divergences = divergences + count.mean * deltas
        epsilons["Renyi with PLD"] = float(
            compute_epsilon(RDP_ORDERS, divergences, DELTA)[0]
        )
    return epsilons


def composed_epsilon(num_runs: int) -> float:
    """Return the epsilon of composed runs."""
    accountant = PrivacyAccountant()
    accountant.compose(RUN, num_runs * NUM_STEPS)
    return accountant.get_epsilon(DELTA)


@lru_cache(maxsize=1)
def total_rdp() -> FloatArray:
    """Return the Renyi divergences of one run."""
    return NUM_STEPS * RUN.rdp()


def _symmetric_profile(event: SelectionEvent) -> Profile:
    """Return the larger delta of both directions of one run."""
    profile = base_profile(frozenset(event.base))
    deltas = np.maximum(profile.deltas, profile.reverse)
    return Profile(profile.epsilons, deltas, deltas)


def _simple_bound(event: SelectionEvent) -> float:
    """Return the epsilon at which E[K] delta_Q(epsilon - L) is delta."""
    profile, count = _symmetric_profile(event), event.count
    if count.least > 1:  # the slope of the generating function vanishes at 0
        return math.inf
    small = np.geomspace(1e-12, 0.5, 4000)
    t = np.concatenate([[0.0], small, 1 - small[::-1][1:]])
    f = np.concatenate([[1.0], 1 - small, small[::-1][1:]])
    least = profile.other_share(t, f)  # the neighbour's probability to rank below
    loss = float((count.log_slope(f) - count.log_slope(least)).max())
    return float(
        brentq(
            lambda e: count.mean * float(profile.delta(np.array(e - loss))) - DELTA,
            0.0,
            loss + _LARGEST,
        )
    )


def _renyi_bound(count: Count) -> float | None:
    if isinstance(count, Poisson):
        shape = math.inf
    # dp-accounting refuses negative shapes.
    elif isinstance(count, TruncatedNegativeBinomial) and count.shape >= 0:
        shape = count.shape
    else:
        return None
    run = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            SAMPLING_RATE, dp_accounting.GaussianDpEvent(NOISE)
        ),
        NUM_STEPS,
    )
    accountant = RdpAccountant(RDP_ORDERS)
    accountant.compose(RepeatAndSelectDpEvent(run, count.mean, shape))
    return float(accountant.get_epsilon(DELTA))
