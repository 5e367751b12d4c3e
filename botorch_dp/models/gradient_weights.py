r"""The weights that turn losses at public points into the gradient at another point.

With points D, :math:`K = k(D, D) + s^2 I` and :math:`C = \nabla k(\theta, D)`, the
posterior of the gradient at :math:`\theta` has

.. math::
    \text{mean} \; W l, \quad W = C K^{-1}, \qquad
    \text{covariance} \; \Sigma = \nabla \nabla^\top k(\theta, \theta) - W C^\top,

where l are the losses at D. All of it but l is public: it depends on points and on a
kernel with fixed hyperparameters. Private losses enter once, linearly.

If the prior mean is an unknown constant, it is estimated by generalized least squares
(ordinary kriging, [Rasmussen2006gp]_). This changes W by a rank-one term, after which
the weights of every partial derivative sum to zero and the same formula gives
:math:`\Sigma`.

References:
    .. [Rasmussen2006gp] C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for
        Machine Learning. MIT Press, 2006. Equations 2.41 and 2.42.
"""

from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp.models.dictionary import KernelDictionary
from botorch_dp.models.kernels.derivatives import (
    kernel_gradient,
    prior_gradient_covariance,
)


@dataclass(frozen=True)
class GradientWeights:
    r"""The posterior of a gradient, up to the losses that the weights apply to.

    Attributes:
        weights: A ``batch_shape x d x M`` tensor W.
        trace: The ``batch_shape`` traces of the posterior covariance.
        cross_covariance: A ``batch_shape x d x M`` tensor C.
        prior_covariance: A ``batch_shape x d x d`` tensor.
    """

    weights: Tensor
    trace: Tensor
    cross_covariance: Tensor
    prior_covariance: Tensor

    @classmethod
    def from_solution(
        cls, weights: Tensor, cross_covariance: Tensor, prior_covariance: Tensor
    ) -> "GradientWeights":
        """Compute the trace, in O(d M), for weights that are known.

        Args:
            weights: A ``batch_shape x d x M`` tensor W.
            cross_covariance: A ``batch_shape x d x M`` tensor C.
            prior_covariance: A ``batch_shape x d x d`` tensor.
        """
        prior = prior_covariance.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        trace = prior - (weights * cross_covariance).sum(dim=(-2, -1))
        return cls(weights, trace, cross_covariance, prior_covariance)

    @property
    def covariance(self) -> Tensor:
        r"""The ``batch_shape x d x d`` posterior covariance, in O(d^2 M)."""
        sigma = self.prior_covariance - self.weights @ self.cross_covariance.mT
        return (sigma + sigma.mT) / 2


@torch.no_grad()
def gradient_weights(
    kernel: Kernel,
    theta: Tensor,
    points: Tensor,
    *,
    noise_variance: float,
    constant_mean: bool = False,
) -> GradientWeights:
    """Return the weights, covariance and trace of the gradient at a point.

    Args:
        kernel: A twice differentiable kernel with fixed hyperparameters.
        theta: A ``batch_shape x d`` tensor: the point whose gradient is estimated.
        points: A ``batch_shape x M x d`` tensor: where losses are known.
        noise_variance: The variance of the observations' noise. See
            :class:`~botorch_dp.models.KernelDictionary` for its lower limit.
        constant_mean: Whether the prior mean is an unknown constant, estimated from
            the losses, instead of zero.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> points = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1]]).double()
        >>> theta = torch.zeros(2, dtype=torch.float64)
        >>> found = gradient_weights(RBFKernel(), theta, points, noise_variance=1e-6)
        >>> (found.weights @ points[:, 0]).round(decimals=1)
        tensor([1., 0.], dtype=torch.float64)
    """
    x = theta.unsqueeze(-2)
    dictionary = KernelDictionary(kernel, points, noise_variance=noise_variance)
    cross = kernel_gradient(kernel, x, points).squeeze(-3)  # batch_shape x M x d
    # With a zero mean nobody needs the last column. Solving for it anyway costs next to
    # nothing, and the other columns are rounded in the same way in both cases.
    rhs = torch.cat([cross, torch.ones_like(points[..., :1])], dim=-1)
    solved = dictionary.solve(rhs)
    W, ones = solved[..., :-1].mT, solved[..., -1]  # K^-1 1 is batch_shape x M
    prior = prior_gradient_covariance(kernel, x).squeeze(-3)
    found = GradientWeights.from_solution(W, cross.mT, prior)
    if not constant_mean:
        return found
    # W loses what it makes of a constant, and the trace gains its uncertainty.
    of_constants = W.sum(dim=-1)  # batch_shape x d
    total = ones.sum(dim=-1)  # 1^T K^-1 1
    trace = found.trace + of_constants.square().sum(dim=-1) / total
    rank_one = of_constants.unsqueeze(-1) * ones.unsqueeze(-2) / total[..., None, None]
    return GradientWeights(W - rank_one, trace, cross.mT, prior)
