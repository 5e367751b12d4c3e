"""What a budget can be expected to buy, before anything is spent.

``measured.json`` has what :func:`botorch_dp.minimize` left of the excess loss of the
start in every cell of ``benchmarks/arena.py``: the mean regret of the result over that
of the start, on fresh records. The tasks are synthetic (quadratic, multimodal, 0-1 and
heavy-tailed losses), so this is a guide, not a promise for another task.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from botorch_dp._validation import check_count
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee, PureDP

# The delta at which other guarantees are compared with the arena's.
DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
_QUANTILES = (0.1, 0.5, 0.9)
# How far a cell may be away to count: factors of ten in n epsilon, of two in d.
_WIDTH_OF_SIGNAL, _WIDTH_OF_DIM = 0.3, 1.0
# An outlook needs about as much weight as three cells of just this size have.
_LEAST_WEIGHT = 3.0


@dataclass(frozen=True)
class Outlook:
    """What is left of the start's excess loss, as a share, at one budget.

    Attributes:
        epsilon: The epsilon at delta = 1e-5.
        median: The share that half of the comparable tasks stay below.
        low: The share that a tenth of them stay below.
        high: The share that nine tenths of them stay below.
        is_measured: Whether the arena has cells of this size.
    """

    epsilon: float
    median: float
    low: float
    high: float
    is_measured: bool

    def __str__(self) -> str:
        note = "" if self.is_measured else "  (beyond what was measured)"
        return (
            f"{self.epsilon:9.3g}  {self.median:10.1%}  {self.low:9.1%} to "
            f"{self.high:.1%}{note}"
        )


@dataclass(frozen=True)
class Expectation:
    """What :func:`botorch_dp.minimize` can be expected to achieve; print it.

    Attributes:
        num_records: The number n of records.
        dim: The number d of parameters.
        outlook: The outlook for the guarantee that was asked for.
        alternatives: The outlooks for other epsilons, in ascending order.
    """

    num_records: int
    dim: int
    outlook: Outlook
    alternatives: tuple[Outlook, ...]

    def __str__(self) -> str:
        rows = sorted({*self.alternatives, self.outlook}, key=lambda row: row.epsilon)
        lines = [
            f"minimize with {self.num_records:,} records and {self.dim} parameters:",
            "what is left of the start's excess loss (0 % is the optimum)",
            "",
            "    epsilon      median  10 % to 90 % of tasks",
        ]
        for row in rows:
            lines.append(f"{'>' if row == self.outlook else ' '} {row}")
        return "\n".join(lines)


def expect(num_records: int, dim: int, guarantee: Guarantee) -> Expectation:
    """Return what a guarantee can be expected to buy, from measured tasks.

    Uses no private data and spends nothing.

    Args:
        num_records: The number n of records.
        dim: The number d of parameters.
        guarantee: The guarantee that the search would have.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> expectation = expect(800, 20, ApproxDP(epsilon=1.0, delta=1e-5))
        >>> expectation.outlook.median < 0.5
        True
    """
    n, d = check_count("num_records", num_records), check_count("dim", dim)
    epsilon = _epsilon(check_guarantee("guarantee", guarantee))
    return Expectation(
        n,
        d,
        _outlook(n, d, epsilon),
        tuple(_outlook(n, d, other) for other in EPSILONS),
    )


def _epsilon(guarantee: Guarantee) -> float:
    if isinstance(guarantee, ApproxDP | PureDP):
        return guarantee.epsilon
    return guarantee.to_approx(DELTA).epsilon


def _outlook(n: int, d: int, epsilon: float) -> Outlook:
    cells, signal = measured_cells(), math.log10(n * epsilon)

    def weight(cell: tuple[float, int, float]) -> float:
        far = (math.log10(cell[0]) - signal) / _WIDTH_OF_SIGNAL
        off = math.log2(cell[1] / d) / _WIDTH_OF_DIM
        return max(1e-300, math.exp(-(far**2 + off**2) / 2))

    weights = [weight(cell) for cell in cells]
    # Far from all cells, the nearest ones decide, and the outlook says so.
    is_measured = math.fsum(weights) >= _LEAST_WEIGHT
    low, median, high = _quantiles([cell[2] for cell in cells], weights, _QUANTILES)
    return Outlook(epsilon, median, low, high, is_measured)


def _quantiles(
    values: Sequence[float], weights: Sequence[float], levels: Sequence[float]
) -> list[float]:
    """Return weighted quantiles: the least value whose weight sum reaches a level."""
    order = np.argsort(values)
    reached = np.cumsum(np.asarray(weights)[order])
    places = np.searchsorted(reached, np.asarray(levels) * reached[-1])
    return [float(values[order[min(place, len(order) - 1)]]) for place in places]


@lru_cache
def measured_cells() -> tuple[tuple[float, int, float], ...]:
    """Return n epsilon, d and the share of the excess loss left, for every cell."""
    text = resources.files(__package__).joinpath("measured.json").read_text("utf-8")
    return tuple((float(s), int(d), float(left)) for s, d, left in json.loads(text))
