r"""How often a private selection runs: distributions of a random number K.

A selection makes K runs and releases the best. Its cost depends on the distribution of
K through the generating function :math:`\phi(z) = E[z^K]`: the density of what is
released is :math:`\phi'(F(y)) q(y)`, where q is the density of one run and F(y) the
probability that a run scores below y (see docs/theory/selection.md).

References:
    .. [Papernot2022tuning] N. Papernot and T. Steinke. Hyperparameter Tuning with
        Renyi Differential Privacy. ICLR 2022.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, xlog1py, xlogy

from botorch_dp._validation import check_count, check_instance, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.count import Count
from botorch_dp.privacy.curves import FloatArray

__all__ = [
    "AtLeast",
    "AtMost",
    "Binomial",
    "Count",
    "Poisson",
    "TruncatedNegativeBinomial",
]

# The largest mean, number of trials, minimum and maximum: tables of probabilities must
# fit into the memory.
_LARGEST = 100_000
# The least success probability of a truncated negative binomial, for the same reason.
_LEAST_GAMMA = 1e-5
# Shapes closer to zero than this make no difference.
_FLAT = 1e-13
# Tables end where the runs beyond add less than this share to the slope of the
# generating function, which is below the rounding errors of doubles.
_NEGLIGIBLE = 2.0**-60
_SMALLEST = 1e-290


@dataclass(frozen=True)
class Poisson(Count):
    """A Poisson number of runs; it may be zero.

    Args:
        mean: The expected number of runs.

    Example:
        >>> Poisson(2.0).probabilities(2).round(4)
        array([0.1353, 0.2707, 0.2707])
    """

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _check_mean(self.mean))

    @property
    def least(self) -> int:
        """The smallest number of runs: none."""
        return 0

    @property
    def most(self) -> int:
        """A number of runs that is practically never exceeded."""
        # Beyond twice the mean a probability is at most half of the one before it.
        first = math.ceil(2 * self.mean) + 2
        log_limit = math.log(_NEGLIGIBLE) + math.log(self.mean) - self.mean
        log_limit = max(log_limit, math.log(_SMALLEST))
        k = first + np.arange(first + 1000, dtype=np.float64)
        small = k * np.log(self.mean) - self.mean - gammaln(k) < log_limit - 1
        return first + int(np.argmax(small))

    def log_generating(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[z^K]."""
        return -self.mean * (1 - z)

    def log_slope(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[K z^(K-1)]."""
        return math.log(self.mean) - self.mean * (1 - z)

    def probabilities(self, most: int) -> FloatArray:
        """Return P(K = 0), ..., P(K = most)."""
        k = np.arange(most + 1, dtype=np.float64)
        return np.exp(k * math.log(self.mean) - self.mean - gammaln(k + 1))


@dataclass(frozen=True)
class TruncatedNegativeBinomial(Count):
    r"""A truncated negative binomial number of runs, at least one.

    With a parameter :math:`\gamma` that follows from the mean,
    :math:`\phi'(z) = E[K] (\gamma / (1 - (1 - \gamma) z))^{\eta + 1}`:
    [Papernot2022tuning]_, Definition 1.

    Args:
        mean: The expected number of runs, at least 1.
        shape: The number eta above -1: 1 is the geometric distribution and 0 the
            logarithmic one.

    Example:
        >>> TruncatedNegativeBinomial(mean=4.0, shape=1.0).probabilities(3).round(4)
        array([0.    , 0.25  , 0.1875, 0.1406])
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _check_mean(self.mean, minimum=1.0))
        shape = self.shape
        if isinstance(shape, bool) or not isinstance(shape, int | float):
            raise InvalidArgumentError(f"shape must be a number, got {shape!r}.")
        if not -1 < shape <= 1000:
            raise InvalidArgumentError(
                f"shape must lie above -1 and be at most 1000, got {shape!r}."
            )
        object.__setattr__(self, "shape", float(shape))
        if self._mean_at(-math.log(_LEAST_GAMMA)) < self.mean:
            raise InvalidArgumentError(
                f"mean is too large for shape={shape!r}, got {self.mean!r}: the number "
                "of runs would often be far above its mean."
            )

    @property
    def gamma(self) -> float:
        """The parameter gamma that gives the mean."""
        return math.exp(-self._log_inverse_gamma)

    @property
    def least(self) -> int:
        """The smallest number of runs."""
        return 1

    @property
    def most(self) -> int:
        """A number of runs that is practically never exceeded."""
        if self.mean == 1:
            return 1
        gamma = self.gamma
        # E[K; K > k] is at most a polynomial in k times (1 - gamma)^k.
        margin = 10 + 2 * (1 + abs(self.shape)) * math.log(1 + 1 / gamma)
        log_first = float(np.log(self.probabilities(1)[1]))
        digits = margin - math.log(_NEGLIGIBLE) - max(log_first, math.log(_SMALLEST))
        rate = -math.log1p(-gamma)
        k = digits / rate
        # The polynomial has degree shape, which matters where shape is large.
        return math.ceil(k + max(0.0, self.shape) * math.log1p(k) / rate)

    def log_generating(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[z^K]."""
        x = self._log_inverse_gamma
        if x == 0:
            return _log(z)
        growth = -np.log1p(math.expm1(-x) * z)  # -log(1 - (1 - gamma) z)
        if abs(self.shape) < _FLAT:
            return _log(growth / x)
        return _log(np.expm1(self.shape * growth) / math.expm1(self.shape * x))

    def log_slope(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[K z^(K-1)]."""
        excess = math.expm1(self._log_inverse_gamma) * (1 - z)  # (1-gamma)(1-z)/gamma
        return math.log(self.mean) - (self.shape + 1) * np.log1p(excess)

    def probabilities(self, most: int) -> FloatArray:
        """Return P(K = 0), ..., P(K = most)."""
        result = np.zeros(most + 1)
        x, shape = self._log_inverse_gamma, self.shape
        if most == 0:
            return result
        if x == 0:
            result[1] = 1.0
            return result
        k = np.arange(1, most + 1, dtype=np.float64)
        # P(K = k) = P(K = k - 1) (1 - gamma) (k - 1 + shape) / k
        ratios = np.log((k - 1 + shape) / k, where=k > 1, out=np.zeros_like(k))
        log_first = (1 + shape) * -x + math.log(self.mean)  # the slope at 0
        result[1:] = np.exp(
            log_first + np.cumsum(ratios) + (k - 1) * math.log(-math.expm1(-x))
        )
        return result

    @property
    def _log_inverse_gamma(self) -> float:
        if self.mean == 1:
            return 0.0
        highest = -math.log(_LEAST_GAMMA)
        root = brentq(lambda x: self._mean_at(x) - self.mean, 0.0, highest, xtol=1e-15)
        return float(root)

    def _mean_at(self, x: float) -> float:
        """Return the mean at log(1 / gamma) = x."""
        if x == 0:
            return 1.0
        flat = abs(self.shape) < _FLAT
        width = x if flat else -math.expm1(-self.shape * x) / self.shape
        return math.expm1(x) / width


@dataclass(frozen=True)
class Binomial(Count):
    """A binomial number of runs; a probability of 1 makes it a fixed number.

    Args:
        num_trials: The largest number of runs.
        probability: The probability of each of them.

    Example:
        >>> Binomial(num_trials=2, probability=0.5).probabilities(2)
        array([0.25, 0.5 , 0.25])
    """

    num_trials: int
    probability: float

    def __post_init__(self) -> None:
        trials = _check_size("num_trials", self.num_trials)
        probability = check_positive("probability", self.probability)
        if probability > 1:
            raise InvalidArgumentError(
                f"probability must be at most 1, got {probability!r}."
            )
        object.__setattr__(self, "num_trials", trials)
        object.__setattr__(self, "probability", probability)

    @property
    def mean(self) -> float:  # type: ignore[override]
        """The expected number of runs."""
        return self.num_trials * self.probability

    @property
    def least(self) -> int:
        """The smallest number of runs."""
        return self.num_trials if self.probability == 1 else 0

    @property
    def most(self) -> int:
        """The largest number of runs."""
        return self.num_trials

    def log_generating(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[z^K]."""
        return self.num_trials * self._log_trial(z)

    def log_slope(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[K z^(K-1)]."""
        others = self.num_trials - 1
        power = others * self._log_trial(z) if others else 0.0 * z
        return math.log(self.mean) + power

    def probabilities(self, most: int) -> FloatArray:
        """Return P(K = 0), ..., P(K = most)."""
        result = np.zeros(most + 1)
        n, p = self.num_trials, self.probability
        k = np.arange(min(most, n) + 1, dtype=np.float64)
        choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        result[: len(k)] = np.exp(choose + xlogy(k, p) + xlog1py(n - k, -p))
        return result

    def _log_trial(self, z: FloatArray) -> FloatArray:
        """Return log(1 - p + p z)."""
        return (
            _log(z) if self.probability == 1 else np.log1p(-self.probability * (1 - z))
        )


@dataclass(frozen=True)
class AtLeast(Count):
    """A number of runs with a floor: another count, shifted so that it starts there.

    K is K0 plus the difference of ``minimum`` and the least value of K0.

    Args:
        count: The distribution of K0.
        minimum: The least number of runs.

    Example:
        >>> floor = AtLeast(TruncatedNegativeBinomial(mean=15.0, shape=1.0), minimum=2)
        >>> floor.mean
        16.0
    """

    count: Count
    minimum: int

    def __post_init__(self) -> None:
        check_instance("count", self.count, Count)
        minimum = _check_size("minimum", self.minimum)
        if minimum < self.count.least:
            raise InvalidArgumentError(
                f"minimum must be at least {self.count.least}, the least value of "
                f"{self.count!r}, got {minimum!r}."
            )
        object.__setattr__(self, "minimum", minimum)

    @property
    def shift(self) -> int:
        """The number of runs that is added to the other count."""
        return self.minimum - self.count.least

    @property
    def mean(self) -> float:  # type: ignore[override]
        """The expected number of runs."""
        return self.shift + self.count.mean

    @property
    def least(self) -> int:
        """The smallest number of runs."""
        return self.minimum

    @property
    def most(self) -> int:
        """A number of runs that is practically never exceeded."""
        return self.shift + self.count.most

    def log_generating(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[z^K]."""
        return self._log_power(z, self.shift) + self.count.log_generating(z)

    def log_slope(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[K z^(K-1)]."""
        if self.shift == 0:
            return self.count.log_slope(z)
        first = self._log_power(z, self.shift - 1) + self.count.log_generating(z)
        second = self._log_power(z, self.shift) + self.count.log_slope(z)
        return np.logaddexp(math.log(self.shift) + first, second)

    def probabilities(self, most: int) -> FloatArray:
        """Return P(K = 0), ..., P(K = most)."""
        result = np.zeros(most + 1)
        if most >= self.shift:
            result[self.shift :] = self.count.probabilities(most - self.shift)
        return result

    @staticmethod
    def _log_power(z: FloatArray, power: int) -> FloatArray:
        return power * _log(z) if power else 0.0 * z


@dataclass(frozen=True)
class AtMost(Count):
    """A number of runs with a ceiling: the smaller of another count and the ceiling.

    Args:
        count: The distribution of K0.
        maximum: The largest number of runs.

    Example:
        >>> AtMost(Poisson(1.0), maximum=1).probabilities(1).round(4)
        array([0.3679, 0.6321])
    """

    count: Count
    maximum: int

    def __post_init__(self) -> None:
        check_instance("count", self.count, Count)
        maximum = _check_size("maximum", self.maximum)
        if maximum < self.count.least:
            raise InvalidArgumentError(
                f"maximum must be at least {self.count.least}, the least value of "
                f"{self.count!r}, got {maximum!r}."
            )
        object.__setattr__(self, "maximum", maximum)

    @property
    def mean(self) -> float:  # type: ignore[override]
        """The expected number of runs."""
        table = self._table()
        return float(table @ np.arange(len(table)))

    @property
    def least(self) -> int:
        """The smallest number of runs."""
        return self.count.least

    @property
    def most(self) -> int:
        """The largest number of runs."""
        return self.maximum

    def log_generating(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[z^K]."""
        return _log_polynomial(self._table(), z)

    def log_slope(self, z: FloatArray) -> FloatArray:
        """Return the logarithm of E[K z^(K-1)]."""
        table = self._table()
        return _log_polynomial((table * np.arange(len(table)))[1:], z)

    def probabilities(self, most: int) -> FloatArray:
        """Return P(K = 0), ..., P(K = most)."""
        result = np.zeros(most + 1)
        table = self._table()[: most + 1]
        result[: len(table)] = table
        return result

    def _table(self) -> FloatArray:
        """Return P(K = 0), ..., P(K = maximum)."""
        return _capped_table(self.count, self.maximum)


def _check_mean(value: float, *, minimum: float = 0.0) -> float:
    mean = check_positive("mean", value)
    if not minimum <= mean <= _LARGEST:
        raise InvalidArgumentError(
            f"mean must lie between {minimum:g} and {_LARGEST}, got {value!r}."
        )
    return mean


def _check_size(name: str, value: int) -> int:
    size = check_count(name, value)
    if size > _LARGEST:
        raise InvalidArgumentError(f"{name} must be at most {_LARGEST}, got {value!r}.")
    return size


@lru_cache(maxsize=64)
def _capped_table(count: Count, maximum: int) -> FloatArray:
    table = count.probabilities(max(maximum, count.most))
    tail = table[maximum:].sum()  # a sum of small numbers keeps their digits
    return np.append(table[:maximum], tail)


def _log(z: FloatArray) -> FloatArray:
    """Return the logarithm, minus infinity at zero without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(z)


def _log_polynomial(coefficients: FloatArray, z: FloatArray) -> FloatArray:
    """Return the log of a polynomial with nonnegative coefficients, by Horner."""
    result = np.zeros_like(z, dtype=np.float64)
    for coefficient in coefficients[::-1]:
        result = result * z + coefficient
    return _log(result)
