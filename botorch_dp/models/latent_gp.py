r"""What an exact Gaussian process knows, in the coordinates of its kernel.

Behind its transforms, every exact GPyTorch or BoTorch model has a prior mean m, a
kernel k, points D, targets y and noise S, of which one factorization
:math:`k(D, D) + S = L L^\top` is needed. Outputs, fantasies and posterior samples of
hyperparameters are batch dimensions. The posterior of the gradient at z is

.. math::
    \mu = \nabla m(z) + \nabla_1 k(z, D) (L L^\top)^{-1} (y - m(D)), \qquad
    \Sigma = \nabla_1 \nabla_2^\top k(z, z) - U U^\top, \quad
    U = \nabla_1 k(z, D) L^{-\top}.
"""

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_dp.exceptions import IllConditionedWarning, InvalidArgumentError
from botorch_dp.models.kernels.derivatives import (
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)
from botorch_dp.models.prior_of_model import PriorOfModel

# Above this product of condition number and rounding unit, gradients are only noise.
_MOST_ROUNDING = 0.1

# Of each model: the state that a factorization belongs to, and the factorization.
_KNOWN: WeakKeyDictionary[ExactGP, tuple[list[Tensor], Tensor, Tensor]] = (
    WeakKeyDictionary()
)
_WARNED: WeakKeyDictionary[ExactGP, bool] = WeakKeyDictionary()


@dataclass(frozen=True)
class LatentGP:
    """An exact Gaussian process in the coordinates of its kernel.

    Attributes:
        kernel: The kernel k.
        prior_mean: The prior mean m, from ``... x n x d`` points to ``... x n``.
        inputs: The points D, ``batch_shape x n x d``.
        noise: The noise variances, ``batch_shape x n``.
        root: The Cholesky factor L, ``batch_shape x n x n``.
        weights: The solution of L L^T w = y - m(D), ``batch_shape x n``.
    """

    kernel: Kernel
    prior_mean: Callable[[Tensor], Tensor]
    inputs: Tensor
    noise: Tensor
    root: Tensor
    weights: Tensor

    def gradient(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the covariance of the gradient at each point.

        Args:
            points: A ``batch_shape x q x d`` tensor.

        Returns:
            A ``batch_shape x q x d`` tensor, and a ``batch_shape x q x d x d`` tensor.
        """
        cross, _, covariance = self.gradient_covariance(points)
        mean = (cross * self.weights[..., None, :, None]).sum(dim=-2)
        return mean + self._mean_gradient(points), covariance

    def gradient_covariance(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Return the covariance of the gradient at each point, and its parts.

        This is the covariance of :mod:`botorch_dp.models.gradient_weights`, but from
        half of a solution, :math:`L^{-1} C^\top`: it is differentiable in the points,
        and candidates of an acquisition function are solved for in the same way.

        Args:
            points: A ``batch_shape x q x d`` tensor.

        Returns:
            The ``batch_shape x q x n x d`` tensors :math:`C^\top = \nabla k(z, D)` and
            :math:`L^{-1} C^\top`, and the ``batch_shape x q x d x d`` covariances.
        """
        cross = kernel_gradient(self.kernel, points, self.inputs, categories=True)
        root = self.root.unsqueeze(-3)
        half = torch.linalg.solve_triangular(root, cross, upper=False)
        prior = prior_gradient_covariance(self.kernel, points, categories=True)
        return cross, half, prior - half.mT @ half

    def _mean_gradient(self, points: Tensor) -> Tensor:
        if isinstance(self.prior_mean, ConstantMean | ZeroMean):
            return torch.zeros_like(points)
        shape = torch.broadcast_shapes(points.shape[:-2], self.root.shape[:-2])
        keep = points.requires_grad and torch.is_grad_enabled()
        with torch.enable_grad():
            at = points if keep else points.detach()
            at = at.expand(*shape, *points.shape[-2:])
            at = at if keep else at.requires_grad_()
            total = self.prior_mean(at).sum()
            if not total.requires_grad:
                return torch.zeros_like(at)
            return torch.autograd.grad(
                total, at, create_graph=keep, materialize_grads=True
            )[0]


def latent_gp(model: ExactGP) -> LatentGP:
    """Return what an exact model knows, and put the model into evaluation mode.

    The factorization is kept until a hyperparameter or the training data change,
    except while gradients with respect to hyperparameters are needed.

    Args:
        model: An exact GPyTorch or BoTorch model with one output per batch element.

    Raises:
        InvalidArgumentError: If it is another kind of model.
        UnsupportedError: If the model's outputs are correlated.
    """
    check_exact(model)
    model.eval()
    prior = _prior(model)
    inputs, targets = model.train_inputs[0], model.train_targets
    noise = _noise(model)
    state = [inputs, targets, noise, *model.parameters(), *model.buffers()]
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in state)
    known = _KNOWN.get(model)
    if tracked or known is None or not _equal(known[0], state):
        kernel_matrix = kernel_value(prior[0], inputs, inputs)
        root = psd_safe_cholesky(kernel_matrix + noise.diag_embed())
        if root.numel():
            _warn_once_if_ill_conditioned(model, root.detach())
        residual = (targets - prior[1](inputs)).unsqueeze(-1)
        weights = torch.cholesky_solve(residual, root).squeeze(-1)
        known = ([t.detach().clone() for t in state], root, weights)
        if not tracked:
            _KNOWN[model] = known
    return LatentGP(*prior, inputs, noise, *known[1:])


def check_exact(model: Any) -> None:
    """Raise unless the model is an exact Gaussian process with independent outputs."""
    if not isinstance(model, ExactGP):
        raise InvalidArgumentError(
            "model must be an exact Gaussian process, a GPyTorch ExactGP like "
            f"SingleTaskGP, got {type(model).__name__}."
        )
    fitted = getattr(model, "_check_if_fitted", None)
    if fitted is not None:
        fitted()
    if model.train_inputs is None or len(model.train_inputs) != 1:
        raise InvalidArgumentError("model must have training data, and one input.")
    if hasattr(model, "_task_feature"):
        raise UnsupportedError(
            f"{type(model).__name__} has correlated tasks, which are not supported. "
            "Use a ModelListGP of independent models."
        )


def _prior(model: ExactGP) -> tuple[Kernel, Callable[[Tensor], Tensor]]:
    """Return the kernel and the mean, from the parts of the model or its forward."""
    known = type(model).forward is SingleTaskGP.forward or getattr(
        model, "_is_fully_bayesian", False
    )
    if known or PriorOfModel.agrees_with_parts(model):
        return model.covar_module, model.mean_module
    prior = PriorOfModel(model)
    return prior, prior.prior_mean


def _noise(model: ExactGP) -> Tensor:
    """Return the noise variance of every observation, ``batch_shape x n``."""
    zeros = torch.zeros_like(model.train_targets)
    nothing = MultivariateNormal(zeros, DiagLinearOperator(zeros))
    with_noise = model.likelihood(nothing, list(model.train_inputs))
    return with_noise.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)


def candidate_noise(model: ExactGP, latent: LatentGP) -> Tensor:
    """Return the noise variance of a new observation, ``batch_shape``.

    With known variances it is their mean, as in BoTorch's models.
    """
    if latent.noise.shape[-1]:
        return latent.noise.mean(dim=-1)
    level: Tensor = model.likelihood.noise[..., 0]
    return level


@torch.no_grad()
def member(kernel: Kernel, index: tuple[int, ...]) -> Kernel:
    """Return one kernel of a batch, as a copy.

    Args:
        kernel: A kernel whose batch shape broadcasts with the model's.
        index: The position in the model's batch shape.
    """
    if isinstance(kernel, PriorOfModel):
        raise UnsupportedError("A batched model must have a mean and a kernel module.")
    chosen = copy.deepcopy(kernel)
    for part in (chosen, *chosen.sub_kernels()):
        # A ScaleKernel without a batch shape of its own may scale a batch of kernels.
        scales = isinstance(part, ScaleKernel)
        shape = part.raw_outputscale.shape if scales else part._batch_shape
        last = index[len(index) - len(shape) :]
        own = tuple(i if size > 1 else 0 for i, size in zip(last, shape, strict=True))
        for parameter in part.parameters(recurse=False):
            parameter.data = parameter.data[own]
        part.batch_shape = torch.Size()
    return chosen


def _warn_once_if_ill_conditioned(model: ExactGP, root: Tensor) -> None:
    pivots = root.diagonal(dim1=-2, dim2=-1).square()
    condition = float((pivots.amax(dim=-1) / pivots.amin(dim=-1)).max())
    small = condition * torch.finfo(root.dtype).eps < _MOST_ROUNDING
    if small or not math.isfinite(condition) or _WARNED.get(model):
        return
    _WARNED[model] = True
    warnings.warn(
        f"The kernel matrix has a condition number of at least {condition:.1e}, "
        f"with which {root.dtype} leaves no correct digits in a gradient: use "
        "torch.float64, a larger noise_variance or points further apart.",
        IllConditionedWarning,
        stacklevel=4,
    )


def _equal(known: list[Tensor], state: list[Tensor]) -> bool:
    return len(known) == len(state) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.device == b.device
        and torch.equal(a, b)
        for a, b in zip(known, state, strict=True)
    )
