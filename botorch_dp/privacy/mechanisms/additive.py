"""Noise added to a tensor: the Gaussian and the Laplace mechanism.

References:
    .. [Dwork2014foundations] C. Dwork and A. Roth. The Algorithmic Foundations of
        Differential Privacy. 2014. Theorem 3.6 (Laplace).
"""

from typing import Any

from torch import Tensor

from botorch_dp._validation import check_private_tensor
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
from botorch_dp.privacy.mechanisms.base import CalibratedMechanism
from botorch_dp.privacy.noise import SecureNoise

# The largest relative cost, which is charged, that the grid of secure noise may add.
_MOST_GRID_COST = 0.05


class _AdditiveMechanism(CalibratedMechanism):
    """Adds independent noise to every entry of a tensor of any shape.

    With ``batch_dims=0`` the whole tensor is one release: the sensitivity bounds the
    distance between whole tensors.
    """

    def _check(self, private_value: Any) -> tuple[Tensor, Tensor]:
        check_private_tensor("private_value", private_value)
        value = private_value.detach().nan_to_num(0.0, 0.0, 0.0)
        return value, value


class GaussianMechanism(_AdditiveMechanism):
    """Releases a tensor with Gaussian noise calibrated to its L2 sensitivity.

    Args:
        guarantee: The guarantee that one release has to meet: ``GDP``, ``ApproxDP`` or
            ``RDP``.
        sensitivity: The largest L2 distance between neighbouring values.
        adjacency: The neighbouring data sets for which the sensitivity is stated.
        generator: A seeded generator for the noise, for experiments only.
        secure: Whether to draw exact discrete noise. Only zero-concentrated privacy is
            proven for it. ``ApproxDP`` therefore needs a few per cent more noise, and a
            release under ``GDP(mu)`` is charged as mu^2/2-zCDP, which does not imply a
            ``GDP`` total.

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

    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one release of ``size`` numbers."""
        if isinstance(self.noise_source, SecureNoise):
            rho = self.noise_source.gaussian_rho(
                size=size, std=self.noise_std, sensitivity=self.sensitivity
            )
            intended = self.sensitivity**2 / (2 * self.noise_std**2)
            return ZCDPEvent(_check_grid(self.noise_source, rho, intended))
        return GaussianEvent(self.noise_std / self.sensitivity)

    def _draw(self, private_value: Tensor) -> Tensor:
        return self.noise_source.add_gaussian(private_value, self.noise_std)


class LaplaceMechanism(_AdditiveMechanism):
    """Releases a tensor with Laplace noise calibrated to its L1 sensitivity.

    Args:
        guarantee: The guarantee that one release has to meet; usually ``PureDP``.
        sensitivity: The largest L1 distance between neighbouring values. For rows
            clipped in the L2 norm it is sqrt(d) times the L2 distance.
        adjacency: The neighbouring data sets for which the sensitivity is stated.
        generator: A seeded generator for the noise, for experiments only.
        secure: Whether to draw exact discrete noise.

    Example:
        >>> from botorch_dp.privacy import Ledger, PureDP
        >>> mechanism = LaplaceMechanism(PureDP(epsilon=0.5), sensitivity=0.02)
        >>> mechanism.scale
        0.04
    """

    name = "laplace"

    def _calibrate(self) -> None:
        self.scale = laplace_scale(self.guarantee, sensitivity=self.sensitivity)

    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one release of ``size`` numbers."""
        if isinstance(self.noise_source, SecureNoise):
            epsilon = self.noise_source.laplace_epsilon(
                size=size, scale=self.scale, sensitivity=self.sensitivity
            )
            intended = self.sensitivity / self.scale
            return PureEvent(_check_grid(self.noise_source, epsilon, intended))
        return LaplaceEvent(self.scale / self.sensitivity)

    def _draw(self, private_value: Tensor) -> Tensor:
        return self.noise_source.add_laplace(private_value, self.scale)


def _check_grid(source: SecureNoise, cost: float, intended: float) -> float:
    """Return the cost if rounding to the grid adds little to it."""
    if cost > intended * (1 + _MOST_GRID_COST):
        raise InvalidArgumentError(
            f"secure has a grid of 2^{source.grid_exponent}, which is too coarse for "
            f"this noise: the release would cost {cost / intended:.3g} times what the "
            "guarantee allows. Choose a smaller grid_exponent."
        )
    return cost
