"""The prior of a GPyTorch model whose ``forward`` is more than a mean and a kernel."""

from typing import Any

import torch
from gpytorch import settings
from gpytorch.kernels import Kernel
from gpytorch.models import ExactGP
from linear_operator import to_dense
from torch import Tensor

from botorch_dp.models.kernels.derivatives import kernel_value

# Points at which a model is compared with its parts.
_MOST_POINTS = 50


class PriorOfModel(Kernel):
    """The covariance that a model's ``forward`` returns, as a kernel.

    A model may transform its inputs in ``forward``, as deep kernels do. Its derivatives
    come from autograd, after the check of :mod:`botorch_dp.models.kernels.autograd`:
    a model whose own kernel has no correct derivatives at coincident points, such as
    GPyTorch's Matern kernel, is refused.

    Args:
        model: An exact model, in evaluation mode.
    """

    def __init__(self, model: ExactGP) -> None:
        shape = model.train_targets.shape[:-1]
        super().__init__(batch_shape=shape)
        self._model = (model,)  # in a tuple: its parameters are not the kernel's

    def forward(self, x1: Tensor, x2: Tensor, **_: Any) -> Tensor:
        """Return the prior covariance of values at x1 and x2."""
        shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        both = [x.expand(*shape, *x.shape[-2:]) for x in (x1, x2)]
        covariance = self._prior(torch.cat(both, dim=-2)).lazy_covariance_matrix
        n = x1.shape[-2]
        return to_dense(covariance)[..., :n, n:]

    def prior_mean(self, X: Tensor) -> Tensor:
        """Return the prior mean of values at X."""
        return self._prior(X).mean

    def _prior(self, X: Tensor) -> Any:
        with settings.lazily_evaluate_kernels(False):
            return self._model[0].forward(X)

    @classmethod
    @torch.no_grad()
    def agrees_with_parts(cls, model: ExactGP) -> bool:
        """Return whether ``forward`` is the model's mean and kernel, and no more."""
        kernel, mean = (
            getattr(model, name, None) for name in ("covar_module", "mean_module")
        )
        if not isinstance(kernel, Kernel) or mean is None:
            return False
        inputs = model.train_inputs[0][..., :_MOST_POINTS, :]
        # Not only the points of the data: a transform may be the identity there.
        X = torch.cat([inputs, 0.97 * inputs + 0.01], dim=-2)
        prior = cls(model)
        try:
            pairs = (
                (prior.prior_mean(X), mean(X)),
                (prior.forward(X, X), kernel_value(kernel, X, X)),
            )
            return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)
        except RuntimeError:  # shapes that do not fit
            return False
