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

from typing import Any, NoReturn

import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, RBFKernel
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp._validation import check_instance, check_positive, check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.chain_rules import outcome_scale
from botorch_dp.models.folding import LEAST_NOISE, folded_parts
from botorch_dp.models.gradient_gaussians import GradientPosterior
from botorch_dp.models.gradients import check_points, gradient_posterior
from botorch_dp.models.kernels.derivatives import check_twice_differentiable
from botorch_dp.models.latent_gp import candidate_noise, latent_gp

# For inputs in the unit cube, from the measured DP-GIBO experiments.
_DEFAULT_LENGTHSCALE = 0.5
_DEFAULT_NOISE = 1e-6


class GradientGP(SingleTaskGP):
    r"""A BoTorch model with a posterior over the gradient.

    **Fixed hyperparameters, the default.** A kernel fitted to private targets would
    leak them. So hyperparameters are what you pass, targets are not standardized, and
    ``fit_gpytorch_mll`` refuses the model. Targets must be public, or released
    through a mechanism, since the model keeps them. Transforms that learn from the
    inputs see points, which are public here.

    **With ``fixed=False``,** for public data, what is not given is as in
    ``SingleTaskGP``: its priors, its likelihood, ``Standardize``, and
    ``fit_gpytorch_mll`` trains the model.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of points; with n = 0 the posterior of
            the gradient is its prior.
        train_Y: A ``batch_shape x n x m`` tensor of values.
        covar_module: A twice differentiable GPyTorch kernel. By default an RBF kernel
            with length scale 0.5, for points in the unit cube.
        noise_variance: The variance of the observations' noise, which also keeps the
            kernel matrix well conditioned; by default 1e-6.
        mean_module: The prior mean, zero by default.
        input_transform: An input transform. Gradients are in the original coordinates.
        train_Yvar: Known noise variances in the shape of ``train_Y``, instead of one
            ``noise_variance``.
        outcome_transform: ``Standardize``, or None. Gradients are in the original
            units.
        likelihood: A likelihood, instead of ``noise_variance`` and ``train_Yvar``.
        fixed: Whether hyperparameters are fixed.

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
        noise_variance: float | None = None,
        mean_module: Mean | None = None,
        input_transform: InputTransform | None = None,
        train_Yvar: Tensor | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        likelihood: Likelihood | None = None,
        fixed: bool = True,
    ) -> None:
        _check_training_data(train_X, train_Y, train_Yvar)
        if input_transform is not None:
            check_instance("input_transform", input_transform, InputTransform)
        noises = (noise_variance, train_Yvar, likelihood)
        if sum(noise is not None for noise in noises) > 1:
            raise InvalidArgumentError(
                "noise_variance, train_Yvar and likelihood exclude each other: give "
                "one of them."
            )
        if fixed:
            covar_module = _default_kernel(train_X, covar_module)
            mean_module = ZeroMean() if mean_module is None else mean_module
            if outcome_transform == DEFAULT:
                outcome_transform = None
            if noise_variance is None and train_Yvar is None and likelihood is None:
                noise_variance = _DEFAULT_NOISE
        if covar_module is not None:
            check_twice_differentiable(covar_module, categories=True)
        if noise_variance is not None:
            likelihood = _make_likelihood(train_X, train_Y, noise_variance)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        outcome_scale(self)  # raises if the transform is not affine
        if fixed:
            self.requires_grad_(False)
            self.eval()
            self.custom_fit = _refuse_to_fit  # fit_gpytorch_mll calls it

    @classmethod
    def from_model(cls, model: ExactGP | ModelListGP) -> "GradientGP | ModelListGP":
        """Copy data and hyperparameters of a model fitted to public data.

        A ``Standardize`` outcome transform becomes part of the mean and the kernel, so
        that gradients are in the original units. The posterior stays the same, and its
        factorization is computed once.

        Args:
            model: An exact model with independent outputs. An ensemble of
                hyperparameters becomes a batch of models, and a ``ModelListGP`` one of
                :class:`GradientGP`.

        Example:
            >>> from botorch.models.transforms import Normalize
            >>> X = 5 * torch.rand(20, 2, dtype=torch.float64)
            >>> gp = SingleTaskGP(X, X.prod(-1, True), input_transform=Normalize(2))
            >>> model = GradientGP.from_model(gp)
            >>> torch.allclose(model.posterior(X).mean, gp.posterior(X).mean)
            True
        """
        if isinstance(model, ModelListGP):
            return ModelListGP(*(cls.from_model(part) for part in model.models))
        return cls(**folded_parts(model)._asdict())

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, *, fixed: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of a model, for Ax.

        Args:
            training_data: Public data.
            fixed: Whether hyperparameters are fixed. Ax fits them, so they are not.
            **kwargs: Other arguments of the model, such as ``noise_variance``.
        """
        inputs = super().construct_inputs(training_data=training_data)
        return {**inputs, "fixed": fixed, **kwargs}

    @property
    def noise_variance(self) -> Tensor:
        """The variance of a new observation's noise, ``batch_shape x (m)``.

        In the units of ``train_Y``. With known variances it is their mean.
        """
        level = candidate_noise(self, latent_gp(self))
        scale = outcome_scale(self)
        return level if scale is None else level * scale.square()[..., 0, 0]

    def gradient_posterior(self, X: Tensor) -> GradientPosterior:
        """Return the posterior of the gradient at each point.

        Args:
            X: A ``batch_shape x q x d`` tensor. Means and covariances are
                differentiable in it.

        Returns:
            A posterior with mean ``batch_shape x q x d`` and covariance
            ``batch_shape x q x d x d``, see :func:`gradient_posterior`.
        """
        return gradient_posterior(self, X)

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

        They are kept until a hyperparameter or the training data change, except while
        gradients with respect to hyperparameters are needed.
        """
        known = latent_gp(self)
        return known.root, known.weights

    def check_points(self, name: str, X: Tensor) -> None:
        """Check that X has the features, dtype and device of the training points."""
        check_points(name, X, self)


def _refuse_to_fit(mll: MarginalLogLikelihood, **kwargs: Any) -> NoReturn:
    raise InvalidArgumentError(
        f"{type(mll.model).__name__} has fixed hyperparameters, and nothing to fit. "
        "If the data are public, create it with fixed=False, or fit a SingleTaskGP and "
        "copy it with GradientGP.from_model."
    )


def _check_training_data(
    train_X: Tensor, train_Y: Tensor, train_Yvar: Tensor | None
) -> None:
    shape = ("...", "n", "d")
    check_tensor("train_X", train_X, shape, finite=True, allow_empty=True)
    check_tensor("train_Y", train_Y, (*train_X.shape[:-1], "m"), allow_empty=True)
    if train_Yvar is not None:
        check_tensor("train_Yvar", train_Yvar, train_Y.shape, allow_empty=True)


def _default_kernel(train_X: Tensor, covar_module: Kernel | None) -> Kernel:
    if covar_module is None:
        with train_X.device:
            covar_module = RBFKernel()
            covar_module.lengthscale = _DEFAULT_LENGTHSCALE
    return covar_module


def _make_likelihood(
    train_X: Tensor, train_Y: Tensor, noise_variance: float
) -> Likelihood:
    noise_variance = check_positive("noise_variance", noise_variance)
    if noise_variance <= LEAST_NOISE:
        raise InvalidArgumentError(
            f"noise_variance must be above {LEAST_NOISE}, got {noise_variance!r}."
        )
    with train_X.device:
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(LEAST_NOISE))
    likelihood = likelihood.to(train_X)
    # A tensor, because GPyTorch would round a float to single precision first.
    likelihood.noise = torch.tensor(
        noise_variance, dtype=train_X.dtype, device=train_X.device
    )
    return likelihood
