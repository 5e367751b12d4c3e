"""Noise added to a tensor: the Gaussian and the Laplace mechanism.

References:
    .. [Dwork2014foundations] C. Dwork and A. Roth. The Algorithmic Foundations of
        Differential Privacy. 2014. Theorem 3.6 (Laplace).
"""

from abc import abstractmethod

from torch import Tensor

from botorch_dp._validation import check_count, check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.calibration import (
    gaussian_noise_std,
    laplace_scale,
    zcdp_noise_std,
)
from botorch_dp.privacy.events import (
    GaussianEvent,
    LaplaceEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
)
from botorch_dp.privacy.ledger import Chargeable
from botorch_dp.privacy.mechanisms.base import CalibratedMechanism
from botorch_dp.privacy.noise import SecureNoise

# What a coarser grid of secure noise may add to the cost, which is charged.
_MOST_GRID_COST = 0.05


class _AdditiveMechanism(CalibratedMechanism):
    """Adds independent noise to every entry of a tensor."""

    @abstractmethod
    def event(self, size: int) -> PrivacyEvent:
        """Return what releasing ``size`` numbers costs."""

    @abstractmethod
    def _add_noise(self, private_value: Tensor) -> Tensor: ...

    def release(
        self, private_value: Tensor, *, ledger: Chargeable, batch_dims: int = 0
    ) -> Tensor:
        """Charge the ledger, then return the value plus noise.

        Args:
            private_value: A tensor of float32 or float64 and any shape. With
                ``batch_dims=0`` all of it is one release: the sensitivity bounds the
                distance between whole tensors.
            ledger: A ledger or an accountant, charged before any noise is drawn.
            batch_dims: How many leading dimensions index separate releases, each of
                this sensitivity and each charged.

        Returns:
            A tensor of the same shape, dtype and device, which may be published.

        Raises:
            BudgetExceededError: If the ledger's cap does not allow it.
        """
        check_private_tensor("private_value", private_value)
        check_count("batch_dims", batch_dims, minimum=0)
        if batch_dims > private_value.dim():
            raise InvalidArgumentError(
                f"batch_dims must be at most {private_value.dim()}, the dimensions of "
                f"private_value, got {batch_dims!r}."
            )
        count = private_value.shape[:batch_dims].numel()
        event = self.event(private_value.numel() // count)
        self._charge(ledger, event, count, private_value.device)
        return self._add_noise(private_value.detach().nan_to_num(0.0, 0.0, 0.0))


class GaussianMechanism(_AdditiveMechanism):
    """Releases a tensor with Gaussian noise calibrated to its L2 sensitivity.

    Args:
        guarantee: What one release has to meet: ``GDP``, ``ApproxDP`` or ``RDP``.
        sensitivity: The largest L2 distance between neighbouring values.
        adjacency: For which neighbours the sensitivity is stated.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise. Only zero-concentrated privacy is proven of it, so
            that ``ApproxDP`` needs a few per cent more noise, and a release under
            ``GDP(mu)`` is charged as mu^2/2-zCDP, from which a ``GDP`` total does not
            follow.

    Example:
        >>> from botorch_dp.privacy import GDP, Ledger
        >>> ledger = Ledger()
        >>> mechanism = GaussianMechanism(GDP(mu=0.5), sensitivity=0.02)
        >>> mechanism.noise_std
        0.04
        >>> mechanism.release(torch.zeros(3), ledger=ledger).shape
        torch.Size([3])
    """

    name = "gaussian"

    def _calibrate(self) -> None:
        exact = not isinstance(self.noise_source, SecureNoise)
        noise_std = gaussian_noise_std if exact else zcdp_noise_std
        self.noise_std = noise_std(self.guarantee, sensitivity=self.sensitivity)

    def event(self, size: int) -> PrivacyEvent:
        """Return what releasing ``size`` numbers costs."""
        if isinstance(self.noise_source, SecureNoise):
            rho = self.noise_source.gaussian_rho(
                size=size, std=self.noise_std, sensitivity=self.sensitivity
            )
            intended = self.sensitivity**2 / (2 * self.noise_std**2)
            return ZCDPEvent(_check_grid(self.noise_source, rho, intended))
        return GaussianEvent(self.noise_std / self.sensitivity)

    def _add_noise(self, private_value: Tensor) -> Tensor:
        return self.noise_source.add_gaussian(private_value, self.noise_std)


class LaplaceMechanism(_AdditiveMechanism):
    """Releases a tensor with Laplace noise calibrated to its L1 sensitivity.

    Args:
        guarantee: What one release has to meet; usually ``PureDP``.
        sensitivity: The largest L1 distance between neighbouring values; after clipping
            in the L2 norm that is sqrt(d) times larger than the L2 distance.
        adjacency: For which neighbours the sensitivity is stated.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.

    Example:
        >>> from botorch_dp.privacy import Ledger, PureDP
        >>> mechanism = LaplaceMechanism(PureDP(epsilon=0.5), sensitivity=0.02)
        >>> mechanism.scale
        0.04
    """

    name = "laplace"

    def _calibrate(self) -> None:
        self.scale = laplace_scale(self.guarantee, sensitivity=self.sensitivity)

    def event(self, size: int) -> PrivacyEvent:
        """Return what releasing ``size`` numbers costs."""
        if isinstance(self.noise_source, SecureNoise):
            epsilon = self.noise_source.laplace_epsilon(
                size=size, scale=self.scale, sensitivity=self.sensitivity
            )
            intended = self.sensitivity / self.scale
            return PureEvent(_check_grid(self.noise_source, epsilon, intended))
        return LaplaceEvent(self.scale / self.sensitivity)

    def _add_noise(self, private_value: Tensor) -> Tensor:
        return self.noise_source.add_laplace(private_value, self.scale)


def _check_grid(source: SecureNoise, cost: float, intended: float) -> float:
    """Return the cost if rounding to the grid adds little to it."""
    if cost > intended * (1 + _MOST_GRID_COST):
        raise InvalidArgumentError(
            f"secure has a grid, 2^{source.grid_exponent}, that is too coarse for this "
            f"noise: the release would cost {cost / intended:.3g} times what was asked "
            "for. Choose a smaller grid_exponent."
        )
    return cost
