r"""Events: the cost of a release, in the units that accountants compose.

An event contains everything that an accountant needs and nothing about the data. Noise
is divided by the sensitivity of the value it protects, so the pair that is composed is
N(0, z^2) against N(1, z^2), or its Laplace counterpart. The adjacency is already in the
sensitivity, and no accounting library may apply it a second time.

References:
    .. [Cesar2021bounding] M. Cesar and R. Rogers. Bounding, Concentrating, and
        Truncating: Unifying Privacy Loss Composition for Data Analytics. ALT 2021.
        The exponential mechanism is epsilon^2/8-zCDP.
"""

from dataclasses import dataclass

from botorch_dp.privacy import curves, loss_pairs
from botorch_dp.privacy.loss_pairs import SPACING, LossPair
from botorch_dp.privacy.privacy_event import ADJACENCIES, PrivacyEvent, check_event
from botorch_dp.privacy.renyi import RDP_ORDERS
from botorch_dp.privacy.sampled_events import (
    FixedSizeGaussianEvent,
    PoissonGaussianEvent,
)

__all__ = [
    "ADJACENCIES",
    "RDP_ORDERS",
    "ApproxEvent",
    "AssumedEvent",
    "ExponentialEvent",
    "FixedSizeGaussianEvent",
    "GaussianEvent",
    "LaplaceEvent",
    "PermuteAndFlipEvent",
    "PoissonGaussianEvent",
    "PrivacyEvent",
    "PureEvent",
    "ZCDPEvent",
    "check_event",
]


@dataclass(frozen=True)
class GaussianEvent(PrivacyEvent):
    """A value released with Gaussian noise.

    Args:
        noise_multiplier: The standard deviation over the L2 sensitivity.
    """

    noise_multiplier: float

    @property
    def gdp_mu(self) -> float:
        """The mu of the Gaussian pair."""
        return 1.0 / self.noise_multiplier

    @property
    def zcdp_rho(self) -> float:
        """The zero-concentrated cost, mu^2 / 2."""
        return 0.5 / self.noise_multiplier**2

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        return loss_pairs.gaussian_pair(1.0 / self.noise_multiplier, spacing)


@dataclass(frozen=True)
class ZCDPEvent(PrivacyEvent):
    """A release with a zero-concentrated bound only, such as discrete Gaussian noise.

    Args:
        rho: The bound.
    """

    rho: float

    @property
    def zcdp_rho(self) -> float:
        """The bound itself."""
        return self.rho

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        del spacing
        return loss_pairs.zcdp_pair(self.rho)


@dataclass(frozen=True)
class LaplaceEvent(PrivacyEvent):
    """A value released with Laplace noise.

    Args:
        noise_multiplier: The scale over the L1 sensitivity.
    """

    noise_multiplier: float

    @property
    def pure_epsilon(self) -> float:
        """The pure cost."""
        return 1.0 / self.noise_multiplier

    def rdp_at(self, order: float) -> float:
        """Return the Renyi divergence at any ``order`` above 1."""
        return curves.laplace_rdp(self.pure_epsilon, order)

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        return loss_pairs.laplace_pair(self.pure_epsilon, spacing)


@dataclass(frozen=True)
class PureEvent(PrivacyEvent):
    """A release with a pure bound, such as randomized response.

    Args:
        epsilon: The pure cost.
    """

    epsilon: float

    @property
    def pure_epsilon(self) -> float:
        """The bound itself."""
        return self.epsilon

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        del spacing
        return loss_pairs.approx_pair(self.epsilon, 0.0)


@dataclass(frozen=True)
class ExponentialEvent(PureEvent):
    """A choice by the exponential mechanism.

    Args:
        epsilon: The pure cost, including the factor two of general scores.
    """

    @property
    def zcdp_rho(self) -> float:
        """The cost by bounded range, epsilon^2 / 8: [Cesar2021bounding]_.

        It is below the cost of other pure releases unless epsilon is large.
        """
        return min(self.epsilon**2 / 8, curves.pure_zcdp_rho(self.epsilon))


@dataclass(frozen=True)
class PermuteAndFlipEvent(PureEvent):
    """A choice by the permute-and-flip mechanism.

    Only its pure cost is known: bounded range, and with it the smaller cost of
    :class:`ExponentialEvent`, is proven for the exponential mechanism only.

    Args:
        epsilon: The pure cost, including the factor two of general scores.
    """


@dataclass(frozen=True)
class AssumedEvent(PrivacyEvent):
    """A release that is epsilon-DP unless an assumed bound fails.

    Several such releases may rest on the same random draw of what is assumed. They may
    then fail together or one after the other, not independently, so only the sums of
    their epsilons and of their deltas are valid bounds.

    Args:
        epsilon: The pure cost while the bound is true.
        delta: The probability that the bound fails.
    """

    epsilon: float
    delta: float

    @property
    def approx(self) -> tuple[float, float]:
        """The bound itself."""
        return self.epsilon, self.delta


@dataclass(frozen=True)
class ApproxEvent(PrivacyEvent):
    """A release by another library's mechanism that is known to be (epsilon, delta)-DP.

    Args:
        epsilon: The epsilon of the release.
        delta: The delta of the release.
    """

    epsilon: float
    delta: float

    @property
    def approx(self) -> tuple[float, float]:
        """The bound itself."""
        return self.epsilon, self.delta

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        del spacing
        return loss_pairs.approx_pair(self.epsilon, self.delta)
