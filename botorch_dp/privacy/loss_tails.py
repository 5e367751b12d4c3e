"""Epsilons and deltas from a stretch of a tilted distribution of losses."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.signal import lfilter

from botorch_dp.privacy.curves import FloatArray

# The exponential of a larger number overflows; it stands for a delta of one.
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, eq=False)
class LossTail:
    """The tilted distribution of a total loss on a stretch of a grid.

    ``docs/theory/accounting.md`` explains the tilt and its errors.

    Attributes:
        t: The tilt.
        interval: The interval of the grid.
        first: The index of the first loss.
        probs: The tilted probabilities.
        log_moment: The logarithm of the factor by which they were divided.
        error: A bound on the Euclidean norm of their rounding errors.
        mass_error: A bound on the sum of the other rounding errors.
        infinite: A bound on the probability of losses beyond the stretch.
    """

    t: float
    interval: float
    first: int
    probs: FloatArray
    log_moment: float
    error: float
    mass_error: float
    infinite: float

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta``; infinity if it is not on this stretch."""
        deltas = self._deltas
        index = int(np.searchsorted(-deltas, -delta))
        if index == len(deltas):
            return math.inf
        if index == 0:
            return float(self._epsilon_of(0))
        if math.isinf(deltas[index - 1]):
            return float(self._epsilon_of(index))
        # Delta is convex in e^epsilon: a chord is an upper bound.
        share = (deltas[index - 1] - delta) / (deltas[index - 1] - deltas[index])
        step = math.log1p(share * math.expm1(self.interval))
        return float(self._epsilon_of(index - 1) + step)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Return the deltas at many epsilons: one before, and the last one beyond."""
        deltas, last = self._deltas, len(self._deltas) - 1
        positions = epsilons / self.interval - self.first
        index = np.clip(np.floor(positions), 0, last - 1).astype(int)
        rest = np.clip(epsilons - self._epsilon_of(index), 0.0, self.interval)
        # Delta is convex in e^epsilon: a chord is an upper bound.
        share = np.expm1(rest) / math.expm1(self.interval)
        found = deltas[index] + share * (deltas[index + 1] - deltas[index])
        return np.where((positions < 0) | np.isnan(found), 1.0, np.minimum(1.0, found))

    def _epsilon_of(self, index: Any) -> Any:
        return self.interval * (self.first + index)

    @cached_property
    def _deltas(self) -> FloatArray:
        """The deltas at all losses of the stretch."""
        # Sums over larger losses of e^(-t y) and of e^(-t y) (1 - e^-y), where y is the
        # distance. They are recursions from the end.
        t, interval = self.t, self.interval
        decay, fade = math.exp(-t * interval), math.exp(-interval)
        unit = -math.expm1(-interval)  # 1 - fade would lose the digits of a small one
        above = lfilter([0.0, decay], [1.0, -decay], self.probs[::-1])
        sums = lfilter([unit], [1.0, -decay * fade], above)[::-1]
        distances = interval * np.arange(1, len(self.probs))
        weights = np.exp(-t * distances) * -np.expm1(-distances)
        sums = sums + self.error * np.linalg.norm(weights)
        sums += self.mass_error * weights.max()
        losses = self._epsilon_of(0) + interval * np.arange(len(self.probs))
        factors = np.exp(np.minimum(self.log_moment - t * losses, _LARGEST_EXPONENT))
        deltas = factors * sums + self.infinite
        # Where something overflowed nothing is known, and a bound is infinite.
        return np.where(np.isnan(deltas), np.inf, deltas)
