"""Events of Gaussian releases of a random sample of the records.

References:
    .. [Balle2018amplification] B. Balle, G. Barthe and M. Gaboardi. Privacy
        Amplification by Subsampling: Tight Analyses via Couplings and Divergences.
        NeurIPS 2018. Theorem 8 (Poisson samples) and Theorem 9 (fixed size).
    .. [Wang2019subsampled] Y.-X. Wang, B. Balle and S. P. Kasiviswanathan. Subsampled
        Renyi Differential Privacy and Analytical Moments Accountant. AISTATS 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import curves, loss_pairs, renyi
from botorch_dp.privacy.curves import FloatArray
from botorch_dp.privacy.loss_pairs import SPACING, LossPair
from botorch_dp.privacy.privacy_event import PrivacyEvent
from botorch_dp.privacy.renyi import RDP_ORDERS

# The time of dp-accounting's bound for fixed-size samples grows with the order cubed.
_MOST_FIXED_SIZE_ORDERS = 63


@dataclass(frozen=True)
class _SampledGaussianEvent(PrivacyEvent):
    """A Gaussian release of a random sample of the records."""

    noise_multiplier: float

    @property
    def rate(self) -> float:
        """The probability that a record is in the sample."""
        raise NotImplementedError

    @property
    def gdp_mu(self) -> float | None:
        """The mu of the Gaussian pair, if the sample contains all records."""
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
        """Return the epsilon of one release: [Balle2018amplification]_."""
        return curves.sampled_gdp_epsilon(self.mu_bound, self.rate, delta)

    def delta_at(self, epsilon: float) -> float:
        """Return the delta of one release: [Balle2018amplification]_."""
        return curves.sampled_gdp_delta(self.mu_bound, self.rate, epsilon)

    def rdp_at(self, order: float) -> float:
        """Return a bound on the Renyi divergence at any ``order`` above 1."""
        unsampled = order * 0.5 / self.noise_multiplier**2
        return min(unsampled, renyi.interpolated_rdp(self.rdp(), order))


@dataclass(frozen=True)
class PoissonGaussianEvent(_SampledGaussianEvent):
    """A Gaussian release of a Poisson sample of the records.

    Its cost is for adjacencies in which a record is absent on one side.

    Args:
        noise_multiplier: The standard deviation over the L2 norm that one record can
            add.
        sampling_rate: The probability of each record; one means no sampling.
    """

    adjacencies: ClassVar[tuple[str, ...]] = ("zero_out", "add_or_remove_one")

    sampling_rate: float

    @property
    def rate(self) -> float:
        """The probability that a record is in the sample."""
        return self.sampling_rate

    def rdp(self) -> FloatArray:
        """Return bounds on the Renyi divergences at ``RDP_ORDERS``."""
        if self.sampling_rate == 1:
            return self.zcdp_rho * RDP_ORDERS
        return renyi.poisson_rdp(self.mu_bound, self.sampling_rate)

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        if self.sampling_rate == 1:
            return loss_pairs.gaussian_pair(self.mu_bound, spacing)
        return loss_pairs.poisson_pair(self.mu_bound, self.sampling_rate, spacing)


@dataclass(frozen=True)
class FixedSizeGaussianEvent(_SampledGaussianEvent):
    """A Gaussian release of a random subset of fixed size, for replace-one adjacency.

    Args:
        noise_multiplier: The standard deviation over the replace-one L2 sensitivity on
            the subset, which is *twice* the norm to which records are clipped.
        sample_size: The size of the subset.
        num_records: The number of records.
    """

    adjacencies: ClassVar[tuple[str, ...]] = ("replace_one",)

    sample_size: int
    num_records: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_size > self.num_records:
            raise InvalidArgumentError(
                f"sample_size must be at most num_records={self.num_records}, got "
                f"{self.sample_size!r}."
            )

    @property
    def rate(self) -> float:
        """The share of the records in the subset."""
        return self.sample_size / self.num_records

    def rdp(self) -> FloatArray:
        """Return bounds on the Renyi divergences at ``RDP_ORDERS``.

        They are those of [Wang2019subsampled]_, or of all records where those are
        smaller: sampling never costs privacy. At large orders, where the former take
        long and gain little, they are the latter.
        """
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            self.num_records, self.sample_size, gaussian
        )
        sampled = renyi.library_rdp(event, "replace_one", _MOST_FIXED_SIZE_ORDERS)
        bound = self.zcdp_rho * RDP_ORDERS
        bound[: len(sampled)] = np.minimum(bound[: len(sampled)], sampled)
        return bound

    def loss_pair(self, spacing: float = SPACING) -> LossPair:
        """Return a pair of discrete distributions that dominates the release."""
        if self.rate == 1:
            return loss_pairs.gaussian_pair(self.mu_bound, spacing)
        return loss_pairs.fixed_size_pair(self.mu_bound, self.rate, spacing)
