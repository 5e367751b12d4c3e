"""Posteriors of a gradient, as BoTorch posteriors: a Gaussian, and a mixture."""

import torch
from botorch.posteriors.posterior import Posterior
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


class GradientPosterior(Posterior):
    """A Gaussian over the gradient at each of q points.

    Covariances are those of the d partial derivatives at one point. Different points
    are treated as independent.

    Args:
        mean: A ``batch_shape x q x d`` tensor.
        covariance: A ``batch_shape x q x d x d`` tensor.
    """

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        self._mean = mean
        self._covariance = covariance

    @property
    def mean(self) -> Tensor:
        """The ``batch_shape x q x d`` mean gradients."""
        return self._mean

    @property
    def covariance(self) -> Tensor:
        """The ``batch_shape x q x d x d`` covariances."""
        return self._covariance

    @property
    def variance(self) -> Tensor:
        """The ``batch_shape x q x d`` variances of the partial derivatives."""
        return self._covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def device(self) -> torch.device:
        """The device of the posterior."""
        return self._mean.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the posterior."""
        return self._mean.dtype

    @property
    def base_sample_shape(self) -> torch.Size:
        """The shape of the base samples: that of the mean."""
        return self._mean.shape

    @property
    def batch_range(self) -> tuple[int, int]:
        """The dimensions that samplers treat as t-batches."""
        return (0, -2)

    def _extended_shape(
        self,
        sample_shape: torch.Size = torch.Size(),  # noqa: B008 (BoTorch's signature)
    ) -> torch.Size:
        return sample_shape + self._mean.shape

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Return ``sample_shape x batch_shape x q x d`` samples, differentiable."""
        sample_shape = torch.Size([1]) if sample_shape is None else sample_shape
        base_samples = torch.randn(
            sample_shape + self._mean.shape, dtype=self.dtype, device=self.device
        )
        return self.rsample_from_base_samples(sample_shape, base_samples)

    def rsample_from_base_samples(
        self, sample_shape: torch.Size, base_samples: Tensor
    ) -> Tensor:
        """Transform standard normal samples of the same shape."""
        del sample_shape  # given by the base samples
        root = psd_safe_cholesky(self._covariance)
        return self._mean + (root @ base_samples.unsqueeze(-1)).squeeze(-1)


class GradientMixturePosterior(GradientPosterior):
    """A mixture of Gaussians over the gradient, one for each member of an ensemble.

    ``mean`` and ``covariance`` are those of the members, with the members in the third
    dimension from the right of the mean: ``batch_shape x members x q x d``.

    Args:
        mean: A ``batch_shape x members x q x d`` tensor.
        covariance: A ``batch_shape x members x q x d x d`` tensor.
    """

    @property
    def mixture_mean(self) -> Tensor:
        """The ``batch_shape x q x d`` means of the mixtures."""
        return self._mean.mean(dim=-3)

    @property
    def mixture_covariance(self) -> Tensor:
        """The ``batch_shape x q x d x d`` covariances of the mixtures."""
        centered = self._mean - self._mean.mean(dim=-3, keepdim=True)
        between = centered.unsqueeze(-1) * centered.unsqueeze(-2)
        return (self._covariance + between).mean(dim=-4)

    @property
    def mixture_variance(self) -> Tensor:
        """The ``batch_shape x q x d`` variances of the partial derivatives."""
        return self.mixture_covariance.diagonal(dim1=-2, dim2=-1)
