"""LDP-SGD: users send their true gradients instead of gradients from losses.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Section 5.
"""

from typing import Protocol, cast

from torch import Tensor

from botorch_dp.optimizers.ldp.simulation import LDPBO, Stream


class GradientStream(Stream, Protocol):
    """Users who know their gradients."""

    def gradients(self, step: int, x: Tensor) -> Tensor:
        """Return ``batch_shape x p`` gradients at ``batch_shape x p`` points."""
        ...


class LDPSGD(LDPBO):
    """Stochastic gradient descent under local privacy, with users' true gradients.

    It differs from :class:`LDPBO` only in where gradients come from: ``ask`` returns
    the current parameter, and ``tell`` takes a gradient there.

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
        """Return the point for the next user's gradient, ``batch_shape x p``."""
        return self.x.clone()  # a user may change it

    def tell(self, losses: Tensor) -> None:
        """Take a step with the gradient of the next user.

        Args:
            losses: The user's private gradient at :meth:`ask`, a ``batch_shape x p``
                tensor.
        """
        self._check("gradients", losses, self.x.shape)
        self._step(losses)

    def _visit(self, stream: Stream) -> None:
        stream = cast(GradientStream, stream)
        self.tell(stream.gradients(self.num_asked + 1, self.ask()))
