r"""Events: what a release cost, in the units that accountants compose.

An event says all an accountant needs to know and nothing about the data. Noise is
divided by the sensitivity of the value it protects, so that what is composed is the
pair N(0, z^2) against N(1, z^2) (or its Laplace twin): the adjacency is already in the
sensitivity, and no accounting library may apply it a second time.

References:
    .. [Balle2018amplification] B. Balle, G. Barthe and M. Gaboardi. Privacy
        Amplification by Subsampling: Tight Analyses via Couplings and Divergences.
        NeurIPS 2018.
    .. [Cesar2021bounding] M. Cesar and R. Rogers. Bounding, Concentrating, and
        Truncating: Unifying Privacy Loss Composition for Data Analytics. ALT 2021.
        The exponential mechanism is epsilon^2/8-zCDP.
    .. [Wang2019subsampled] Y.-X. Wang, B. Balle and S. P. Kasiviswanathan. Subsampled
        Renyi Differential Privacy and Analytical Moments Accountant. AISTATS 2019.
    .. [Zhu2022characteristic] Y. Zhu, J. Dong and Y.-X. Wang. Optimal Accounting of
        Differential Privacy via Characteristic Function. AISTATS 2022.
"""

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import dp_accounting
import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_positive,
    check_probability,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import curves
from botorch_dp.privacy.curves import FloatArray

PLD: TypeAlias = Any  # dp-accounting is untyped

ADJACENCIES = ("replace_one", "zero_out", "add_or_remove_one")
_RANGE = (1e-10, 1e10)

# Whole orders only: dp-accounting's series for the sampled Gaussian at fractional ones
# does not always converge. 1024 serves small epsilons.
RDP_ORDERS: FloatArray = np.concatenate(
    [np.arange(2.0, 65.0), [80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0]]
)
# The time of dp-accounting's bound for fixed-size samples grows with the order cubed.
_MOST_FIXED_SIZE_ORDERS = 63
# The probability of infinite loss in a PLD of ours; dp-accounting's own choice.
_TAIL_MASS = math.exp(-50)
# Larger losses count as infinite, so that no grid fills the memory.
_MOST_LOSSES = 2**21
# dp-accounting takes the exponential of epsilon, which overflows at 709.
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class PrivacyEvent:
    """The cost of one release.

    Every view is an upper bound on the same privacy loss; None (or infinity) means
    that this kind of event has no such bound.

    Attributes:
        adjacencies: The neighbouring data sets for which such a cost can be stated.
    """

    adjacencies: ClassVar[tuple[str, ...]] = ADJACENCIES

    @property
    def gdp_mu(self) -> float | None:
        """The mu of the Gaussian pair, if that is exactly what the event is."""
        return None

    @property
    def zcdp_rho(self) -> float | None:
        """A zero-concentrated bound."""
        if self.pure_epsilon is None:
            return None
        return curves.pure_zcdp_rho(self.pure_epsilon)

    @property
    def pure_epsilon(self) -> float | None:
        """A pure bound."""
        return None

    @property
    def approx(self) -> tuple[float, float] | None:
        """An (epsilon, delta) bound that needs no accounting."""
        return None if self.pure_epsilon is None else (self.pure_epsilon, 0.0)

    @property
    def mu_bound(self) -> float:
        """A mu such that the event is mu-GDP, infinity if none is known."""
        bound = math.inf if self.gdp_mu is None else self.gdp_mu
        if self.pure_epsilon is not None:
            bound = min(bound, curves.pure_gdp_mu(self.pure_epsilon))
        return bound

    def rdp_at(self, order: float) -> float:
        """Return a bound on the Renyi divergence at any ``order`` above 1."""
        bound = math.inf if self.zcdp_rho is None else order * self.zcdp_rho
        if self.pure_epsilon is not None:
            bound = min(bound, curves.pure_rdp(self.pure_epsilon, order))
        return bound

    def epsilon_at(self, delta: float) -> float | None:
        """Return the epsilon of one release, if it has a closed form."""
        del delta
        return None

    def delta_at(self, epsilon: float) -> float | None:
        """Return the delta of one release, if it has a closed form."""
        del epsilon
        return None

    def rdp(self) -> FloatArray:
        """Return bounds on the Renyi divergences at ``RDP_ORDERS``."""
        return np.array([self.rdp_at(order) for order in RDP_ORDERS])

    def pld(self, interval: float) -> PLD | None:
        """Return dp-accounting's privacy loss distribution on a grid, rounded up."""
        del interval
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain numbers, for JSON."""
        return {"type": type(self).__name__, **vars(self)}

    @staticmethod
    def from_dict(state: dict[str, Any]) -> "PrivacyEvent":
        """Return the event that ``to_dict`` described."""
        kinds = {  # those of this module: another process has no others
            kind.__name__: kind
            for kind in PrivacyEvent.__subclasses__()
            if kind.__module__ == __name__
        }
        kind = kinds.get(state.get("type", ""))
        values = {key: value for key, value in state.items() if key != "type"}
        if kind is None or set(values) != {field.name for field in fields(kind)}:
            raise InvalidArgumentError(
                f"state must describe one of {', '.join(kinds)}, got {state!r}."
            )
        return kind(**values)


@dataclass(frozen=True)
class GaussianEvent(PrivacyEvent):
    """A value released with Gaussian noise.

    Args:
        noise_multiplier: Standard deviation over L2 sensitivity.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "noise_multiplier")

    @property
    def gdp_mu(self) -> float:
        """The mu of the Gaussian pair."""
        return 1.0 / self.noise_multiplier

    @property
    def zcdp_rho(self) -> float:
        """The zero-concentrated cost, mu^2 / 2."""
        return 0.5 / self.noise_multiplier**2

    def pld(self, interval: float) -> PLD:
        """Return dp-accounting's privacy loss distribution on a grid, rounded up."""
        return _gaussian_pld(self.noise_multiplier, 1.0, interval)


@dataclass(frozen=True)
class ZCDPEvent(PrivacyEvent):
    """A release of which only a zero-concentrated bound is known.

    Such as discrete Gaussian noise.

    Args:
        rho: The bound.
    """

    rho: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "rho")

    @property
    def zcdp_rho(self) -> float:
        """The bound itself."""
        return self.rho


@dataclass(frozen=True)
class LaplaceEvent(PrivacyEvent):
    """A value released with Laplace noise.

    Args:
        noise_multiplier: Scale over L1 sensitivity.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "noise_multiplier")

    @property
    def pure_epsilon(self) -> float:
        """The pure cost."""
        return 1.0 / self.noise_multiplier

    def rdp_at(self, order: float) -> float:
        """Return the Renyi divergence at any ``order`` above 1."""
        return curves.laplace_rdp(self.pure_epsilon, order)

    def pld(self, interval: float) -> PLD | None:
        """Return dp-accounting's privacy loss distribution on a grid, rounded up."""
        return _laplace_pld(self.noise_multiplier, interval)


@dataclass(frozen=True)
class PureEvent(PrivacyEvent):
    """A release of which only a pure epsilon is known, such as randomized response.

    Args:
        epsilon: The pure cost.
    """

    epsilon: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "epsilon")

    @property
    def pure_epsilon(self) -> float:
        """The cost itself."""
        return self.epsilon

    def pld(self, interval: float) -> PLD:
        """Return dp-accounting's privacy loss distribution on a grid, rounded up."""
        return _parameter_pld(self.epsilon, 0.0, interval)


@dataclass(frozen=True)
class ExponentialEvent(PrivacyEvent):
    """A choice by the exponential mechanism.

    Args:
        epsilon: The pure cost, the factor two of general scores included.
    """

    epsilon: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "epsilon")

    @property
    def pure_epsilon(self) -> float:
        """The pure cost."""
        return self.epsilon

    @property
    def zcdp_rho(self) -> float:
        """The cost by bounded range, epsilon^2 / 8: [Cesar2021bounding]_.

        Less than the cost of a pure release unless epsilon is large.
        """
        return min(self.epsilon**2 / 8, curves.pure_zcdp_rho(self.epsilon))

    def pld(self, interval: float) -> PLD:
        """Return dp-accounting's privacy loss distribution on a grid, rounded up."""
        return _parameter_pld(self.epsilon, 0.0, interval)


@dataclass(frozen=True)
class ApproxEvent(PrivacyEvent):
    """A release by a mechanism from elsewhere, known to be (epsilon, delta)-DP.

    Args:
        epsilon: Its epsilon.
        delta: Its delta.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "epsilon")
        object.__setattr__(self, "delta", check_probability("delta", self.delta))

    @property
    def approx(self) -> tuple[float, float]:
        """The bound itself."""
        return self.epsilon, self.delta

    def pld(self, interval: float) -> PLD:
        """Return dp-accounting's privacy loss distribution on a grid, rounded up."""
        return _parameter_pld(self.epsilon, self.delta, interval)


@dataclass(frozen=True)
class AssumedEvent(PrivacyEvent):
    """A release that is epsilon-DP unless an assumed bound fails.

    Several such releases may rest on the same draw of what is assumed, and then they
    fail together or one after the other, not independently: all that holds of them is
    that epsilons and deltas add up.

    Args:
        epsilon: The pure cost while the bound holds.
        delta: The probability that it does not.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "epsilon")
        object.__setattr__(self, "delta", check_probability("delta", self.delta))

    @property
    def approx(self) -> tuple[float, float]:
        """The bound itself."""
        return self.epsilon, self.delta


@dataclass(frozen=True)
class PoissonGaussianEvent(PrivacyEvent):
    """A Gaussian release of a Poisson sample of the records.

    For adjacencies in which a record is absent on one side (zero-out, add or remove).

    Args:
        noise_multiplier: Standard deviation over the L2 norm one record can add.
        sampling_rate: The probability of each record; one means no sampling.
    """

    adjacencies: ClassVar[tuple[str, ...]] = ("zero_out", "add_or_remove_one")

    noise_multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        _check_positive_field(self, "noise_multiplier")
        _check_positive_field(self, "sampling_rate")
        if self.sampling_rate > 1:
            raise InvalidArgumentError(
                f"sampling_rate must be at most 1, got {self.sampling_rate!r}."
            )

    @property
    def gdp_mu(self) -> float | None:
        """The mu of the Gaussian pair, when nothing is sampled away."""
        return 1.0 / self.noise_multiplier if self.sampling_rate == 1 else None

    @property
    def zcdp_rho(self) -> float:
        """The cost without sampling: sampling costs no privacy."""
        return 0.5 / self.noise_multiplier**2

    @property
    def mu_bound(self) -> float:
        """The mu without sampling: sampling costs no privacy."""
        return 1.0 / self.noise_multiplier

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon of one release: [Balle2018amplification]_, Theorem 8."""
        return curves.sampled_gdp_epsilon(self.mu_bound, self.sampling_rate, delta)

    def delta_at(self, epsilon: float) -> float:
        """Return the delta of one release: [Balle2018amplification]_, Theorem 8."""
        return curves.sampled_gdp_delta(self.mu_bound, self.sampling_rate, epsilon)

    def rdp_at(self, order: float) -> float:
        """Return a bound on the Renyi divergence at any ``order`` above 1."""
        return _sampled_rdp_at(self, order)

    def rdp(self) -> FloatArray:
        """Return Renyi divergences at ``RDP_ORDERS``."""
        return _library_rdp(
            dp_accounting.PoissonSampledDpEvent(
                self.sampling_rate, dp_accounting.GaussianDpEvent(self.noise_multiplier)
            ),
            "add_or_remove_one",
        )

    def pld(self, interval: float) -> PLD:
        """Return dp-accounting's privacy loss distribution on a grid, rounded up."""
        return _gaussian_pld(self.noise_multiplier, self.sampling_rate, interval)


@dataclass(frozen=True)
class FixedSizeGaussianEvent(PrivacyEvent):
    """A Gaussian release of a random subset of fixed size, for replace-one adjacency.

    Args:
        noise_multiplier: Standard deviation over the replace-one L2 sensitivity on the
            subset: *twice* the norm to which records are clipped.
        sample_size: The size of the subset.
        num_records: The number of records.
    """

    adjacencies: ClassVar[tuple[str, ...]] = ("replace_one",)

    noise_multiplier: float
    sample_size: int
    num_records: int

    def __post_init__(self) -> None:
        _check_positive_field(self, "noise_multiplier")
        for name in ("sample_size", "num_records"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if self.sample_size > self.num_records:
            raise InvalidArgumentError(
                f"sample_size must be at most num_records={self.num_records}, got "
                f"{self.sample_size!r}."
            )

    @property
    def rate(self) -> float:
        """The share of the records in the subset."""
        return self.sample_size / self.num_records

    @property
    def gdp_mu(self) -> float | None:
        """The mu of the Gaussian pair, when nothing is sampled away."""
        return 1.0 / self.noise_multiplier if self.rate == 1 else None

    @property
    def zcdp_rho(self) -> float:
        """The cost without sampling: sampling costs no privacy."""
        return 0.5 / self.noise_multiplier**2

    @property
    def mu_bound(self) -> float:
        """The mu without sampling: sampling costs no privacy."""
        return 1.0 / self.noise_multiplier

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon of one release: [Balle2018amplification]_, Theorem 9."""
        return curves.sampled_gdp_epsilon(self.mu_bound, self.rate, delta)

    def delta_at(self, epsilon: float) -> float:
        """Return the delta of one release: [Balle2018amplification]_, Theorem 9."""
        return curves.sampled_gdp_delta(self.mu_bound, self.rate, epsilon)

    def rdp_at(self, order: float) -> float:
        """Return a bound on the Renyi divergence at any ``order`` above 1."""
        return _sampled_rdp_at(self, order)

    def rdp(self) -> FloatArray:
        """Return Renyi divergences at ``RDP_ORDERS``: [Wang2019subsampled]_.

        Sampling never costs privacy, so the bound is never above that of all records;
        at large orders, where the former takes long and gains little, it is the latter.
        """
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            self.num_records,
            self.sample_size,
            dp_accounting.GaussianDpEvent(self.noise_multiplier),
        )
        sampled = _library_rdp(event, "replace_one", _MOST_FIXED_SIZE_ORDERS)
        bound = GaussianEvent(self.noise_multiplier).rdp()
        bound[: len(sampled)] = np.minimum(bound[: len(sampled)], sampled)
        return bound

    def pld(self, interval: float) -> PLD:
        """Return a privacy loss distribution on a grid that dominates the release."""
        return _fixed_size_pld(self.noise_multiplier, self.rate, interval)


def _sampled_rdp_at(
    event: PoissonGaussianEvent | FixedSizeGaussianEvent, order: float
) -> float:
    """Interpolate the bounds at ``RDP_ORDERS``, and cap them by no sampling at all.

    The logarithm of the moment, (order - 1) times the divergence, is convex in the
    order and zero at 1, so a line between two bounds on it is a bound as well.
    """
    unsampled = order * 0.5 / event.noise_multiplier**2
    if order > RDP_ORDERS[-1]:
        return unsampled
    log_moments = (RDP_ORDERS - 1) * event.rdp()
    log_moment = np.interp(order - 1, [0.0, *(RDP_ORDERS - 1)], [0.0, *log_moments])
    return min(unsampled, float(log_moment) / (order - 1))


@lru_cache(maxsize=4096)
def _library_rdp(
    event: dp_accounting.DpEvent, relation: str, num_orders: int | None = None
) -> FloatArray:
    accountant = RdpAccountant(
        RDP_ORDERS[:num_orders], dp_accounting.NeighboringRelation[relation.upper()]
    )
    accountant.compose(event)
    divergences: FloatArray = np.maximum(accountant.rdp, 0.0)
    divergences.flags.writeable = False
    return divergences


@lru_cache(maxsize=64)
def _gaussian_pld(noise_multiplier: float, rate: float, interval: float) -> PLD:
    # Add-or-remove adjacency is the one that leaves the pair as it is.
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


@lru_cache(maxsize=16)
def _fixed_size_pld(noise_multiplier: float, rate: float, interval: float) -> PLD:
    """Connect the dots of the curve of [Balle2018amplification]_.

    The curve, continued to negative epsilons by the symmetry of replace-one, is that of
    a pair of distributions that dominates the release: docs/theory. The pair is
    symmetric, so a loss of -l has e^-l times the probability of l.
    """
    mu = 1.0 / noise_multiplier
    largest = curves.sampled_gdp_epsilon(mu, rate, _TAIL_MASS)
    if largest > _LARGEST_EXPONENT:
        return _gaussian_pld(noise_multiplier, 1.0, interval)
    num_losses = min(math.ceil(largest / interval), _MOST_LOSSES)
    losses = np.arange(num_losses + 1, dtype=np.float64) * interval
    deltas = curves.sampled_gdp_deltas(mu, rate, losses)
    falls = -np.diff(deltas)
    gains = math.exp(interval) * falls - np.append(falls[1:], 0.0)
    above = np.maximum(0.0, gains) / math.expm1(interval)
    below = above * np.exp(-losses[1:])
    at_zero = max(0.0, 1.0 - above.sum() - below.sum() - deltas[-1])
    pmf = pld_pmf.DensePLDPmf(
        discretization=interval,
        lower_loss=-num_losses,
        probs=np.concatenate([below[::-1], [at_zero], above]),
        infinity_mass=deltas[-1],
        pessimistic_estimate=True,
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


@lru_cache(maxsize=64)
def _laplace_pld(noise_multiplier: float, interval: float) -> PLD | None:
    if 1 / noise_multiplier > _LARGEST_EXPONENT:
        return None
    return privacy_loss_distribution.from_laplace_mechanism(
        parameter=noise_multiplier, value_discretization_interval=interval
    )


@lru_cache(maxsize=64)
def _parameter_pld(epsilon: float, delta: float, interval: float) -> PLD | None:
    if epsilon > _LARGEST_EXPONENT:
        return None
    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta),
        value_discretization_interval=interval,
    )


def check_event(event: PrivacyEvent, adjacency: str) -> None:
    """Raise unless the event is one, and can be stated for this adjacency."""
    if not isinstance(event, PrivacyEvent):
        raise InvalidArgumentError(f"event must be a PrivacyEvent, got {event!r}.")
    check_choice("adjacency", adjacency, ADJACENCIES)
    if adjacency not in event.adjacencies:
        raise InvalidArgumentError(
            f"adjacency must be one of {', '.join(map(repr, event.adjacencies))} for "
            f"{event!r}, got {adjacency!r}."
        )


def _check_positive_field(event: PrivacyEvent, name: str) -> None:
    value = check_positive(name, getattr(event, name))
    low, high = _RANGE
    if name in ("noise_multiplier", "epsilon", "rho") and not low <= value <= high:
        raise InvalidArgumentError(
            f"{name} must lie between {low:g} and {high:g}, got {value!r}: nothing can "
            "be computed about a cost beyond."
        )
    object.__setattr__(event, name, value)
