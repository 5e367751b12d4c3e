"""Stream optimizers without privacy, to compare with LDP-BO.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Section 5.
"""

from typing import Any

from torch import Tensor

from botorch_dp._deprecated import renamed_argument
from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
from botorch_dp.optimizers.ldp.sgd import LDPSGD
from botorch_dp.optimizers.ldp.simulation import LDPBO
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule
from botorch_dp.privacy.certificate import Certificate
from botorch_dp.privacy.guarantees import GDP


class _NotPrivate(LDPBO):
    """Follows users' gradients as they are."""

    @renamed_argument("step", "step_sizes")
    def __init__(
        self, initial_x: Tensor, *, step_sizes: StepSchedule, **kwargs: Any
    ) -> None:
        # The guarantee and the bound have no effect.
        super().__init__(initial_x, GDP(mu=1.0), 1.0, step_sizes=step_sizes, **kwargs)

    def _message(self, release: LocalRelease, private_gradients: Tensor) -> Tensor:
        release.charge(self._spent, size=private_gradients.shape[-1])
        return private_gradients

    def _noise_std(self, release: LocalRelease) -> float:
        del release
        return 0.0

    def certificate(self) -> Certificate:
        """Return a certificate that guarantees nothing."""
        hidden = ("bounds", "clip_norm", "mechanism", "asked for")
        return Certificate.not_private(
            f"{self.name} follows users' gradients without noise",
            parameters={k: v for k, v in self.settings().items() if k not in hidden},
        )


class OnlineBO(_NotPrivate):
    """LDP-BO without privacy: no clipping, no noise.

    Args:
        initial_x: The start, a ``batch_shape x p`` tensor.
        step_sizes: The step sizes.
        **kwargs: Further arguments of :class:`LDPBO`.
    """

    name = "online-bo"


class OnlineSGD(_NotPrivate, LDPSGD):
    """Stochastic gradient descent without privacy: no clipping, no noise.

    Args:
        initial_x: The start, a ``batch_shape x p`` tensor.
        step_sizes: The step sizes.
        **kwargs: Further arguments of :class:`LDPBO`.
    """

    name = "online-sgd"
