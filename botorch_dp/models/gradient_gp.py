r"""A Gaussian process with the posterior of its gradient, from values alone.

With training points D, :math:`K = k(D, D) + s^2 I` and a prior mean m, the gradient at
x is Gaussian with

.. math::
    \mu' = \nabla m(x) + \nabla_1 k(x, D) K^{-1} (y - m(D)), \qquad
    \Sigma' = \nabla_1 \nabla_2^\top k(x, x)
        - \nabla_1 k(x, D) K^{-1} k(D, x) \nabla_2^\top.

Everything except y is geometry, which is public and reused.

References:
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021. The gradient posterior of GIBO.
"""

import copy
import math
import warnings
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import Standardize
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, Mean, ZeroMean
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_dp._validation import check_like, check_positive, check_tensor
from botorch_dp.exceptions import IllConditionedWarning, InvalidArgumentError
from botorch_dp.models.gradient_posterior import GradientPosterior
from botorch_dp.models.kernels.derivatives import (
    check_twice_differentiable,
    kernel_gradient,
    kernel_value,
    prior_gradient_covariance,
)

# For inputs in the unit cube, from the measured DP-GIBO experiments.
_DEFAULT_LENGTHSCALE = 0.5
_LEAST_NOISE = 1e-12
# Above this product of condition number and rounding unit, gradients are only noise.
_MOST_ROUNDING = 0.1


class GradientGP(SingleTaskGP):
    r"""A single-output BoTorch model with a posterior over the gradient.

    Hyperparameters are fixed, because a kernel fitted to private targets would leak
    them. On public data, ``model.requires_grad_(True)`` and ``fit_gpytorch_mll`` fit
    them as usual. Targets are not standardized. They must be public, or released
    through a mechanism, since the model keeps them.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of points; with n = 0 the posterior of
            the gradient is its prior.
        train_Y: A ``batch_shape x n x 1`` tensor of values.
        covar_module: A twice differentiable GPyTorch kernel. By default an RBF kernel
            with length scale 0.5, for points in the unit cube.
        noise_variance: The variance of the observations' noise, which also keeps the
            kernel matrix well conditioned.
        mean_module: The prior mean, zero by default.
        input_transform: A ``Normalize`` with given bounds, which sees no data.
            Gradients are in the original coordinates.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.float64)
        >>> Y = X.square().sum(dim=-1, keepdim=True)
        >>> model = GradientGP(X, Y, noise_variance=1e-8)
        >>> posterior = model.gradient_posterior(torch.full((1, 2), 0.5).double())
        >>> posterior.mean.shape, posterior.covariance.shape
        (torch.Size([1, 2]), torch.Size([1, 2, 2]))
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        covar_module: Kernel | None = None,
        noise_variance: float = 1e-6,
        mean_module: Mean | None = None,
        input_transform: InputTransform | None = None,
    ) -> None:
        _check_training_data(train_X, train_Y)
        _check_input_transform(input_transform)
        noise_variance = check_positive("noise_variance", noise_variance)
        if noise_variance <= _LEAST_NOISE:
            raise InvalidArgumentError(
                f"noise_variance must be above {_LEAST_NOISE}, got {noise_variance!r}."
            )
        if covar_module is None:
            with train_X.device:
                covar_module = RBFKernel()
                covar_module.lengthscale = _DEFAULT_LENGTHSCALE
        check_twice_differentiable(covar_module)
        with train_X.device:
            likelihood = GaussianLikelihood(noise_constraint=GreaterThan(_LEAST_NOISE))
        likelihood = likelihood.to(train_X)
        # A tensor, because GPyTorch would round a float to single precision first.
        likelihood.noise = torch.tensor(
            noise_variance, dtype=train_X.dtype, device=train_X.device
        )
        super().__init__(
            train_X,
            train_Y,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=ZeroMean() if mean_module is None else mean_module,
            outcome_transform=None,
            input_transform=input_transform,
        )
        self._cache: tuple[list[Tensor], Tensor, Tensor] | None = None
        self._warned = False
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def from_model(cls, model: SingleTaskGP) -> "GradientGP":
        """Copy data and hyperparameters of a model fitted to public data.

        A ``Standardize`` outcome transform becomes part of the mean and the kernel, so
        that gradients are in the original units. The posterior stays the same.

        Args:
            model: A single-output ``SingleTaskGP`` with one noise level, and without
                input transform or with one that ``GradientGP`` supports.
        """
        if not isinstance(model, SingleTaskGP) or model.num_outputs != 1:
            raise InvalidArgumentError(
                f"model must be a SingleTaskGP with one output, got {model!r}."
            )
        noise = model.likelihood.noise.detach()
        if noise.numel() > 1 and not torch.allclose(noise, noise.flatten()[0]):
            raise InvalidArgumentError(
                "model must have the same noise variance at all points, got values "
                f"from {float(noise.min()):.3g} to {float(noise.max()):.3g}."
            )
        covar_module = copy.deepcopy(model.covar_module)
        mean_module = copy.deepcopy(model.mean_module)
        targets = model.train_targets.unsqueeze(-1)
        variance = noise.flatten()[0]
        transform = getattr(model, "outcome_transform", None)
        if transform is not None:
            if not isinstance(transform, Standardize):
                raise InvalidArgumentError(
                    "model must have a Standardize outcome transform or none, got "
                    f"{type(transform).__name__}."
                )
            shift, scale = transform.means.squeeze(-2), transform.stdvs.squeeze(-2)
            mean_module = _affine_mean(
                mean_module, shift.squeeze(-1), scale.squeeze(-1)
            )
            with targets.device:
                covar_module = ScaleKernel(covar_module, batch_shape=shift.shape[:-1])
            covar_module = covar_module.to(targets)
            covar_module.outputscale = scale.squeeze(-1).square()
            targets = targets * scale.unsqueeze(-2) + shift.unsqueeze(-2)
            if scale.numel() > 1:
                raise InvalidArgumentError(
                    "model must not be batched if it has an outcome transform, got "
                    f"batch_shape {tuple(shift.shape[:-1])}."
                )
            variance = variance * scale.flatten()[0].square()
        train_X = model.train_inputs[0]
        if model.training is False and getattr(model, "input_transform", None):
            train_X = model._original_train_inputs
        return cls(
            train_X,
            targets,
            covar_module=covar_module,
            noise_variance=float(variance),
            mean_module=mean_module,
            input_transform=copy.deepcopy(getattr(model, "input_transform", None)),
        )

    @property
    def noise_variance(self) -> Tensor:
        """The variance of the observations' noise."""
        return self.likelihood.noise.squeeze(-1)

    def gradient_posterior(self, X: Tensor) -> GradientPosterior:
        """Return the posterior of the gradient at each point.

        Args:
            X: A ``batch_shape x q x d`` tensor. Means and covariances are
                differentiable in it.

        Returns:
            A posterior with mean ``batch_shape x q x d`` and covariance
            ``batch_shape x q x d x d``.
        """
        self.check_points("X", X)
        root, weights = self.geometry()
        points = self.transform_inputs(X)
        cross, _, covariance = self.gradient_covariance(points, root)
        mean = self._mean_gradient(points) + (cross * weights[..., None, :, None]).sum(
            dim=-2
        )
        scale = _input_scale(self)
        if scale is not None:
            mean = mean * scale
            covariance = covariance * scale.unsqueeze(-1) * scale.unsqueeze(-2)
        return GradientPosterior(mean, covariance)

    def gradient_covariance(
        self, points: Tensor, root: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Return the covariance of the gradient at each point, and its parts.

        This is the covariance of :mod:`botorch_dp.models.gradient_weights`, but from
        half of a solution, :math:`L^{-1} C^\top`: it is differentiable in the points,
        and candidates of an acquisition function are solved for in the same way.

        Args:
            points: A ``batch_shape x q x d`` tensor of transformed inputs.
            root: The ``batch_shape x n x n`` factor L, see :meth:`geometry`.

        Returns:
            The ``batch_shape x q x n x d`` tensors :math:`C^\top = \nabla k(x, D)` and
            :math:`L^{-1} C^\top`, and the ``batch_shape x q x d x d`` covariances, all
            in transformed coordinates.
        """
        cross = kernel_gradient(self.covar_module, points, self.train_inputs[0])
        half = torch.linalg.solve_triangular(root.unsqueeze(-3), cross, upper=False)
        prior = prior_gradient_covariance(self.covar_module, points)
        return cross, half, prior - half.mT @ half

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, **kwargs: Any
    ) -> "GradientGP":
        """Return the model with more observations, as BoTorch's models do.

        Args:
            X: A ``batch_shape x n' x d`` tensor of points.
            Y: A ``batch_shape x n' x 1`` tensor of values.
            **kwargs: Passed on to BoTorch.
        """
        self.check_points("X", X)
        if self.prediction_strategy is None:  # GPyTorch needs a prediction first
            with torch.no_grad():
                self.posterior(X)
        return super().condition_on_observations(X, Y, **kwargs)

    def geometry(self) -> tuple[Tensor, Tensor]:
        """Return the Cholesky factor of K and the weights of the targets.

        They are cached until a hyperparameter or the training data change, except
        while gradients with respect to hyperparameters are needed.
        """
        if self.training:
            self.eval()
        inputs, targets = self.train_inputs[0], self.train_targets
        parameters = [*self.parameters()]
        state = [inputs, targets, *parameters, *self.covar_module.buffers()]
        tracked = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        if not tracked and self._cache is not None and _equal(self._cache[0], state):
            return self._cache[1:]
        noise = self.likelihood.noise.unsqueeze(-1)  # ... x 1 x 1
        identity = torch.eye(inputs.shape[-2], dtype=inputs.dtype, device=inputs.device)
        root = psd_safe_cholesky(
            kernel_value(self.covar_module, inputs, inputs) + noise * identity
        )
        if root.numel():
            self._warn_once_if_ill_conditioned(root.detach())
        residual = (targets - self.mean_module(inputs)).unsqueeze(-1)
        weights = torch.cholesky_solve(residual, root).squeeze(-1)
        if not tracked:
            self._cache = ([t.detach().clone() for t in state], root, weights)
        return root, weights

    def _warn_once_if_ill_conditioned(self, root: Tensor) -> None:
        pivots = root.diagonal(dim1=-2, dim2=-1).square()
        condition = float((pivots.amax(dim=-1) / pivots.amin(dim=-1)).max())
        if self._warned or condition * torch.finfo(root.dtype).eps < _MOST_ROUNDING:
            return
        self._warned = True
        warnings.warn(
            f"The kernel matrix has a condition number of at least {condition:.1e}, "
            f"with which {root.dtype} leaves no correct digits in a gradient: use "
            "torch.float64, a larger noise_variance or points further apart.",
            IllConditionedWarning,
            stacklevel=4,
        )

    def check_points(self, name: str, X: Tensor) -> None:
        """Check that X has the features, dtype and device of the training points."""
        inputs = self.train_inputs[0]
        check_like(name, X, ("...", "q", inputs.shape[-1]), inputs)
        if X.shape[-2] == 0:
            raise InvalidArgumentError(f"{name} must have at least one point (q >= 1).")
        # The sum is not finite if an entry is not, or if it overflows: look again.
        if not math.isfinite(X.detach().sum()):
            check_tensor(name, X.detach(), finite=True)

    def _mean_gradient(self, points: Tensor) -> Tensor:
        if isinstance(self.mean_module, ConstantMean | ZeroMean):
            return torch.zeros_like(points)
        with torch.enable_grad():
            at = points if points.requires_grad else points.detach().requires_grad_()
            total = self.mean_module(at).sum()
            keep = points.requires_grad
            return torch.autograd.grad(total, at, create_graph=keep)[0]


def _check_training_data(train_X: Tensor, train_Y: Tensor) -> None:
    shape = ("...", "n", "d")
    check_tensor("train_X", train_X, shape, finite=True, allow_empty=True)
    check_tensor("train_Y", train_Y, (*train_X.shape[:-1], 1))


def _check_input_transform(transform: InputTransform | None) -> None:
    if transform is None:
        return
    if not isinstance(transform, Normalize) or transform.learn_coefficients:
        raise InvalidArgumentError(
            "input_transform must be a BoTorch Normalize with bounds, so that it does "
            f"not learn from data, got {type(transform).__name__}"
            f"{' without bounds' if isinstance(transform, Normalize) else ''}."
        )


def _input_scale(model: GradientGP) -> Tensor | None:
    """Return the derivative of the input transform, ``1 x d``."""
    transform = getattr(model, "input_transform", None)
    return None if transform is None else transform.coefficient.reciprocal()


def _affine_mean(mean: Mean, shift: Tensor, scale: Tensor) -> Mean:
    if not isinstance(mean, ConstantMean | ZeroMean):
        raise InvalidArgumentError(
            "model must have a constant mean if it has an outcome transform, got "
            f"{type(mean).__name__}."
        )
    constant = mean.constant if isinstance(mean, ConstantMean) else 0.0
    with shift.device:
        folded = ConstantMean(batch_shape=shift.shape)
    folded = folded.to(shift)
    folded.constant = constant * scale + shift
    return folded


def _equal(cached: list[Tensor], state: list[Any]) -> bool:
    return len(cached) == len(state) and all(map(torch.equal, cached, state))
