r"""Epsilons and deltas of a history, from the distribution of its total privacy loss.

The loss of a history is the sum of the losses of its releases, and Fourier transforms
turn its distribution into a product [Koskela2020computing]_. Three things make the
result an upper bound for any number of releases and any delta:

* Releases are replaced by pairs that dominate them
  (:mod:`botorch_dp.privacy.loss_pairs`), and each loss moves to its two neighbours on
  a grid in a way that also dominates.
* All probabilities are multiplied by :math:`e^{tL}` first, where L is the loss, and
  divided by it in the end. With the right t the losses near epsilon become the likely
  ones, so that rounding errors of the transforms are small compared with *delta*, not
  with one. A bound on them is added.
* Transforms are circular. Losses beyond the end of the grid count as infinite, with a
  bound on their probability by Chernoff; losses below its start reappear at its end,
  where they only add to delta.

``docs/theory/accounting.md`` has the proofs.

References:
    .. [Koskela2020computing] A. Koskela, J. Jalko and A. Honkela. Computing Tight
        Differential Privacy Guarantees Using FFT. AISTATS 2020.
"""

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.loss_pairs import LossDistribution, LossPair
from botorch_dp.privacy.loss_tails import LossTail

# The share of epsilon by which the grid may raise it.
_TOLERANCE = 2e-5
# The grid has at least this many points below epsilon, and at most so many in total.
_LEAST_POINTS = 2048
_MOST_POINTS = 2**20
# Losses that are so rare, as a share of delta, count as infinite at once.
_CUT = 1e-6
# The share of the tilted probability that may lie outside of the grid, on each side.
# Its bounds are computed with tilts that differ by these many standard deviations.
_OUTSIDE = 1e-10
_SHIFTS = np.array([0.5, 1.5, 4.0, 7.0])
_UNIT = 2.0**-53  # the relative rounding error of one operation
# In units of the above: the error of a transform, for each doubling of its length; of a
# power, for each factor; of the probabilities of one release, all together; and of a
# sum, for each summand.
_TRANSFORM_ERROR = 8.0
_POWER_ERROR = 16.0
_MASS_ERROR = 1e6
_SUM_ERROR = 8.0
# Raises losses by more than the rounding error of their position on the grid.
_POSITION_ERROR = 1e-15


_LEAST_VARIANCE = 1e-30
# The deltas around which a whole curve is computed.
_LADDER = (1e-1, 1e-3, 1e-6, 1e-10, 1e-15, 1e-20, 1e-25, 1e-30)
# Tilts are searched up to this number over the size of the loss, in so many steps, to
# this relative accuracy.
_MOST_TILT = 1e5
_MOST_STEPS = 50
_TILT_TOLERANCE = 0.02
_LEAST_SIZE = 16
_MOST_GRIDS = 20
# A wider grid helps no more: it raises losses faster than it covers them.
_LARGEST_INTERVAL = 100.0
# Sums of exponents and of losses are raised by this much for their rounding.
_EXPONENT_ERROR = 1e-9
_LARGEST_EXPONENT = 600.0


class _Cumulants(NamedTuple):
    """The logarithm of E e^(tL) of a loss L, and its two derivatives."""

    log_moment: float
    mean: float
    variance: float


class LossComposition:
    """The total privacy loss of releases that each have a dominating pair.

    Args:
        parts: The pairs, each with the number of its releases.

    Example:
        >>> from botorch_dp.privacy.loss_pairs import poisson_pair
        >>> total = LossComposition([(poisson_pair(1.0, 0.01), 1000)])
        >>> round(total.epsilon(1e-5), 3)
        1.828
    """

    def __init__(self, parts: Iterable[tuple[LossPair, int]]) -> None:
        parts = list(parts)
        num_ways = max((len(pair.ways) for pair, _ in parts), default=1)
        self._ways = [
            _OneWay([(pair.way(index), count) for pair, count in parts])
            for index in range(num_ways)
        ]

    @property
    def infinite(self) -> float:
        """A bound on the probability of an infinite loss."""
        return max(way.infinite for way in self._ways)

    @property
    def largest(self) -> float:
        """The largest finite loss, rounded up."""
        return max(way.largest for way in self._ways)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta``, rounded up; infinity if there is none."""
        return max(way.epsilon(delta) for way in self._ways)

    def delta(self, epsilon: float) -> float:
        """Return the delta at ``epsilon``, rounded up."""
        return max(way.delta(epsilon) for way in self._ways)

    def deltas(self, epsilons: FloatArray) -> tuple[FloatArray, ...]:
        """Return the deltas at many epsilons from zero, rounded up.

        Returns:
            Those of both orders of the two data sets; one array if they are the same.
        """
        return tuple(way.deltas(epsilons) for way in self._ways)


class _OneWay:
    """The total loss with the two data sets in one order."""

    def __init__(self, parts: list[tuple[LossDistribution, int]]) -> None:
        self._parts = parts
        self._counts = np.array([float(count) for _, count in parts])
        self._losses = np.concatenate([part.losses for part, _ in parts])
        self._log_masses = np.concatenate([part.log_masses for part, _ in parts])
        self._sizes = np.array([len(part.losses) for part, _ in parts])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.infinite = 1.0
        if all(part.infinite < 1 for part, _ in parts):
            finite = math.fsum(n * math.log1p(-part.infinite) for part, n in parts)
            self.infinite = -math.expm1(finite)
        self._largest = np.array([part.losses[-1] for part, _ in parts])
        self.largest = float(self._counts @ self._largest) * (1 + _EXPONENT_ERROR)
        # Losses of randomized response that lie on the grid are not rounded at all.
        steps = [part.losses[-1] for part, _ in parts if len(part.losses) == 3]
        self._step = min((step for step in steps if step > 0), default=0.0)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta``."""
        if self.infinite > delta or self.infinite == 1:
            return math.inf
        tail = self._tail_of_delta(delta)
        found = math.inf if tail is None else tail.epsilon(delta)
        if math.isnan(found):  # which max would take for a small number
            return self.largest
        return max(0.0, min(found, self.largest))

    def delta(self, epsilon: float) -> float:
        """Return the delta at ``epsilon``."""
        if epsilon >= self.largest or self.infinite == 1:
            return self.infinite
        return float(self._tail_of_epsilon(epsilon).deltas(np.array([epsilon]))[0])

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Return the deltas at many epsilons, each from the best of several tilts."""
        if self.infinite == 1:
            return np.ones_like(epsilons)
        tails = [self._tail_of_epsilon(0.0), *map(self._tail_of_delta, _LADDER)]
        found = [tail.deltas(epsilons) for tail in tails if tail is not None]
        return np.where(epsilons < self.largest, np.min(found, axis=0), self.infinite)

    def _tail_of_delta(self, delta: float) -> LossTail | None:
        """Return the tail around the epsilon at ``delta``; None if there is none."""
        cut = self._cut(delta)
        if cut.infinite >= delta:
            return None
        log_delta = math.log(delta - cut.infinite)

        # The order t + 1 at which Renyi privacy gives the smallest epsilon.
        def excess(t: float, total: _Cumulants) -> tuple[float, float]:
            value = t * total.mean - total.log_moment + log_delta + math.log1p(t)
            return value, t * total.variance + 1 / (t + 1)

        t, total = cut._tilt(excess, math.sqrt(-2 * log_delta) / cut._deviation)
        epsilon = (total.log_moment - log_delta - math.log1p(t)) / t - math.log1p(1 / t)
        return cut._tail(t, total, max(0.0, epsilon))

    def _tail_of_epsilon(self, epsilon: float) -> LossTail:
        """Return the tail around ``epsilon``."""

        # The order t + 1 at which Renyi privacy gives the smallest delta.
        def excess(t: float, total: _Cumulants) -> tuple[float, float]:
            value = total.mean - math.log1p(1 / t) - epsilon
            return value, total.variance + 1 / (t * (t + 1))

        start = (epsilon + self._deviation) / self._deviation**2
        t, total = self._tilt(excess, start)
        log_delta = total.log_moment - t * (epsilon + math.log1p(1 / t)) - math.log1p(t)
        cut = self._cut(math.exp(min(0.0, log_delta)))
        return cut._tail(*cut._tilt(excess, t), epsilon)

    def _cut(self, delta: float) -> "_OneWay":
        """Return the same loss with rare large losses counted as infinite."""
        mass = _CUT * delta / self._counts.sum()
        return _OneWay([(part.cut(mass), count) for part, count in self._parts])

    @cached_property
    def _untilted(self) -> _Cumulants:
        return self._cumulants(0.0)

    @property
    def _deviation(self) -> float:
        """The standard deviation of the total loss."""
        return math.sqrt(max(self._untilted.variance, _LEAST_VARIANCE))

    def _tilted(self, t: float) -> tuple[FloatArray, FloatArray]:
        """Return the log-moments of all parts, and the tilted probabilities."""
        exponents = self._log_masses + t * self._losses
        largest = np.maximum.reduceat(exponents, self._starts)
        exponents -= np.repeat(largest, self._sizes)
        tilted = np.exp(exponents, out=exponents)
        sums = np.add.reduceat(tilted, self._starts)
        tilted /= np.repeat(sums, self._sizes)
        return largest + np.log(sums), tilted

    def _cumulants(self, t: float) -> _Cumulants:
        log_moments, tilted = self._tilted(t)
        tilted *= self._losses
        means = np.add.reduceat(tilted, self._starts)
        tilted *= self._losses
        squares = np.add.reduceat(tilted, self._starts)
        return _Cumulants(
            float(self._counts @ log_moments),
            float(self._counts @ means),
            float(self._counts @ np.maximum(0.0, squares - means**2)),
        )

    def _tilt(
        self,
        excess: Callable[[float, _Cumulants], tuple[float, float]],
        start: float,
    ) -> tuple[float, _Cumulants]:
        """Return about the root of a rising function of t, and the cumulants there.

        How tight the result is depends on its accuracy; that it is a bound does not.
        """
        most = _MOST_TILT / (self._deviation + abs(self._untilted.mean))
        low, high, t = most * 1e-12, most, min(start, most)
        for _ in range(_MOST_STEPS):
            total = self._cumulants(t)
            value, slope = excess(t, total)
            low, high = (low, t) if value > 0 else (t, high)
            after = t - value / slope
            if abs(after - t) < _TILT_TOLERANCE * t:
                break
            t = after if low < after < high else math.sqrt(low * high)
        return t, total

    def _tail(self, t: float, total: _Cumulants, epsilon: float) -> LossTail:
        """Return the distribution of the total loss around ``epsilon``.

        Args:
            t: The tilt.
            total: The cumulants there.
            epsilon: About where the distribution is needed.
        """
        interval, first, size, beyond = self._stretch(t, total, epsilon)
        log_moment, probs = self._transformed(t, interval, size)
        number = float(self._counts.sum())
        rounding = _TRANSFORM_ERROR * math.log2(size) + _POWER_ERROR
        return LossTail(
            t=t,
            interval=interval,
            first=first,
            probs=np.roll(probs, -first),
            log_moment=log_moment,
            error=_growth((number + 1) * rounding * _UNIT),
            mass_error=_growth((number * _MASS_ERROR + size * _SUM_ERROR) * _UNIT),
            infinite=self.infinite + beyond,
        )

    def _stretch(
        self, t: float, total: _Cumulants, epsilon: float
    ) -> tuple[float, int, int, float]:
        """Return where on a grid the tilted distribution lies.

        Returns:
            The interval of the grid, the index of the first loss, the number of losses,
            and a bound on the probability of losses beyond the last one.
        """
        number, scale = self._counts.sum(), max(epsilon, self._deviation / 10)
        # The grid raises the log-moment by at most interval^2 t (t + 1) / 8 a release.
        interval = math.sqrt(8 * _TOLERANCE * scale / (number * (t + 1)))
        interval = min(interval, scale / _LEAST_POINTS)
        if self._step > interval:
            interval = self._step / math.ceil(self._step / interval)
        # Chernoff's bounds on both tails of the tilted distribution.
        shifts = _SHIFTS / math.sqrt(max(total.variance, _LEAST_VARIANCE))
        before, after = (
            np.array([self._cumulants(t + sign * s).log_moment for s in shifts])
            for sign in (-1, 1)
        )
        log_outside = math.log(_OUTSIDE)
        start = float(np.max((total.log_moment - before + log_outside) / shifts))
        start = min(start, epsilon)
        for _ in range(_MOST_GRIDS):
            most = self._counts @ (self._largest // interval + 2)
            raised = after + number * interval**2 * (t + shifts) * (t + shifts + 1) / 8
            end = np.min((raised - total.log_moment - log_outside) / shifts)
            first = math.floor(start / interval) - 1
            size = max(_LEAST_SIZE, math.ceil(min(end / interval, most)) - first + 2)
            if size <= _MOST_POINTS:
                break
            interval = min(1.1 * interval * size / _MOST_POINTS, _LARGEST_INTERVAL)
        size = fft.next_fast_len(min(size, _MOST_POINTS), real=True)
        if first + size >= most:
            return interval, first, size, 0.0
        exponents = raised - (t + shifts) * (first + size) * interval
        return interval, first, size, _exp(float(exponents.min()) + _EXPONENT_ERROR)

    def _transformed(
        self, t: float, interval: float, size: int
    ) -> tuple[float, FloatArray]:
        """Return the tilted distribution of the total loss, on a circle.

        Returns:
            The log-moment of the total loss, and the probability of each remainder of
            its position modulo ``size``.
        """
        log_moments, tilted = self._tilted(t)
        positions = self._losses / interval
        positions += np.abs(positions) * _POSITION_ERROR
        lower = np.floor(positions)
        rest = (positions - lower) * interval
        # The two neighbours keep both totals: see docs/theory/accounting.md.
        share = np.expm1(-rest) / math.expm1(-interval)
        low = tilted * (1 - share) * np.exp(-t * rest)
        high = tilted * share * np.exp(t * (interval - rest))
        remainders = np.mod(lower, size).astype(np.int64)
        product: NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
        total = 0.0
        for part, start in enumerate(self._starts):
            chosen = slice(start, start + self._sizes[part])
            probs = np.bincount(remainders[chosen], low[chosen], minlength=size + 1)
            probs[1:] += np.bincount(remainders[chosen], high[chosen], minlength=size)
            probs[0] += probs[size]
            mass, count = float(probs[:size].sum()), self._counts[part]
            if not 0 < mass < math.inf:  # the tilt overflows on this grid
                return math.nan, np.full(size, math.nan)
            transform = fft.rfft(probs[:size] / mass)
            product *= transform if count == 1 else transform**count
            total += count * (log_moments[part] + math.log(mass))
        return total, fft.irfft(product, size)


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, _LARGEST_EXPONENT))


def _growth(errors: float) -> float:
    """Return the relative error of a product of factors with these errors in total."""
    return math.expm1(min(errors, _LARGEST_EXPONENT))
