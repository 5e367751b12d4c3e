"""Streams without privacy, to compare LDP-BO with.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Section 5.
"""

from typing import Any

from torch import Tensor

from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
from botorch_dp.optimizers.ldp.sgd import LDPSGD
from botorch_dp.optimizers.ldp.simulation import LDPBO
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule
from botorch_dp.privacy import GDP, Certificate


class _NotPrivate(LDPBO):
    """Follows users' gradients as they are."""

    def __init__(self, initial_x: Tensor, *, step: StepSchedule, **kwargs: Any) -> None:
        # The guarantee and the bound are of no consequence: nothing is released.
        super().__init__(initial_x, GDP(mu=1.0), 1.0, step=step, **kwargs)

    def _message(self, release: LocalRelease, private_gradients: Tensor) -> Tensor:
        release.charge(self._spent, size=private_gradients.shape[-1])
        return private_gradients

    def _noise_std(self, release: LocalRelease) -> float:
        del release
        return 0.0

    def certificate(self) -> Certificate:
        """Return that nothing is guaranteed."""
        hidden = ("bounds", "clip_norm", "mechanism", "asked for")
        return Certificate.not_private(
            f"{self.name} follows users' gradients without noise",
            parameters={k: v for k, v in self.settings().items() if k not in hidden},
        )


class OnlineBO(_NotPrivate):
    """LDP-BO without privacy: no clipping, no noise.

    Args:
        initial_x: Where to start, ``batch_shape x p``.
        step: The step sizes.
        **kwargs: As of :class:`LDPBO`.
    """

    name = "online-bo"


class OnlineSGD(_NotPrivate, LDPSGD):
    """Stochastic gradient descent without privacy: no clipping, no noise.

    Args:
        initial_x: Where to start, ``batch_shape x p``.
        step: The step sizes.
        **kwargs: As of :class:`LDPBO`.
    """

    name = "online-sgd"
