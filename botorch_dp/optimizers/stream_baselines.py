"""Methods to compare LDP-BO with: true gradients, and no privacy at all.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Section 5.
"""

from typing import Any, Protocol, cast

from torch import Tensor

from botorch_dp.optimizers.ldp_bo import LDPBO, Stream
from botorch_dp.optimizers.local_release import LocalRelease
from botorch_dp.optimizers.step_schedules import StepSchedule
from botorch_dp.privacy import GDP, Certificate


class GradientStream(Stream, Protocol):
    """Users who know their gradients."""

    def gradients(self, step: int, x: Tensor) -> Tensor:
        """Return ``batch_shape x p`` gradients at ``batch_shape x p`` points."""
        ...


class LDPSGD(LDPBO):
    """Stochastic gradient descent under local privacy, with every user's true gradient.

    The same as :class:`LDPBO` but for where gradients come from: ``ask`` returns the
    current parameter, ``tell`` takes gradients there.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> from botorch_dp.problems import LinearStream
        >>> stream = LinearStream(dim=2)
        >>> opt = LDPSGD(stream.initial_x, ApproxDP(2.0, 1e-3), stream.gradient_bound)
        >>> opt.run(stream, num_steps=10, progress=False).x.shape
        torch.Size([2])
    """

    name = "ldp-sgd"
    noun = "the gradient of the user's loss"

    def ask(self) -> Tensor:
        """Return where the next user has to take its gradient, ``batch_shape x p``."""
        return self.x.clone()  # what a user does to it stays with the user

    def tell(self, losses: Tensor) -> None:
        """Take a step with the next user, who is never asked again.

        Args:
            losses: Its private gradient at :meth:`ask`, a ``batch_shape x p`` tensor.
        """
        self._check("gradients", losses, self.x.shape)
        self._step(losses)

    def _visit(self, stream: Stream) -> None:
        stream = cast(GradientStream, stream)
        self.tell(stream.gradients(self.num_asked + 1, self.ask()))


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
