"""Private gradient descent on true gradients, for comparison with DP-GIBO.

References:
    .. [Avella2023noisy] M. Avella-Medina, C. Bradshaw and P.-L. Loh. Differentially
        Private Inference via Noisy Optimization. Annals of Statistics, 2023.
"""

from typing import ClassVar

from torch import Tensor

from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import Losses, checked_chunks
from botorch_dp.optimizers.gibo.gradient_descent import PrivateGradientDescent


class NoisyGradientDescent(PrivateGradientDescent):
    """Private gradient descent on true per-record gradients [Avella2023noisy]_.

    This is what DP-GIBO would do if gradients were available: ``ask`` returns the
    current point and ``tell`` takes an ``n x d`` tensor of gradients in the original
    coordinates. See :class:`PrivateGradientDescent` for the arguments.

    Example:
        >>> from botorch_dp import GDP
        >>> records = torch.rand(1000, 2, dtype=torch.float64)  # private
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> opt = NoisyGradientDescent(
        ...     bounds, 1000, GDP(mu=1.0), num_steps=10, clip_norm=1.0
        ... )
        >>> result = opt.run(lambda x: x - records, progress=False)
        >>> result.certificate.guarantee
        GDP(mu=1)
    """

    name = "noisy gradient descent"
    noun: ClassVar[str] = "the gradient of each record"

    def _propose(self) -> Tensor:
        return self._parameter.unsqueeze(0)

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        slope = self._box.slope(self._parameter).to(self.bounds.device)
        X, dim = self._points_of(points), self.search_box.dim
        chunks = checked_chunks(losses, X, self.num_records, dim, self.noun)
        private_mean = self._clipped_mean(chunk * slope for chunk in chunks)
        return self._follow(self._release(private_mean), num_points=len(points))
