"""The parts of a fitted model, in the original units of its outcome."""

import copy
from typing import Any, NamedTuple

import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    Likelihood,
)
from gpytorch.means import ConstantMean, Mean, ZeroMean
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.chain_rules import outcome_scale, outcome_shift
from botorch_dp.models.latent_gp import latent_gp
from botorch_dp.models.prior_of_model import PriorOfModel

LEAST_NOISE = 1e-12


class Parts(NamedTuple):
    """What a ``SingleTaskGP`` without outcome transform is made of."""

    train_X: Tensor
    train_Y: Tensor
    covar_module: Kernel
    mean_module: Mean
    likelihood: Likelihood
    input_transform: InputTransform | None


class AffineMean(Mean):
    """Another mean, scaled and shifted.

    Args:
        base_mean: The mean.
        scale: A tensor that broadcasts with its values.
        shift: The same.
    """

    def __init__(self, base_mean: Mean, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.base_mean = base_mean
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """Return the prior mean of values at x."""
        return self.scale * self.base_mean(x) + self.shift


@torch.no_grad()
def folded_parts(model: ExactGP) -> Parts:
    """Copy the parts of a model, with ``Standardize`` folded into mean and kernel.

    Args:
        model: An exact model with independent outputs; an ensemble becomes a batch.
    """
    known = latent_gp(model)  # in evaluation mode
    if isinstance(known.kernel, PriorOfModel):
        raise InvalidArgumentError(
            f"model must have a mean and a kernel, but {type(model).__name__}.forward "
            "does more. gradient_posterior(model, X) supports it."
        )
    covar_module, mean_module = copy.deepcopy((model.covar_module, model.mean_module))
    shape = known.root.shape[:-1]  # batch_shape x (m) x n
    targets, noise = model.train_targets.expand(shape), known.noise.expand(shape)
    scale = outcome_scale(model)
    if scale is not None:
        scale, shift = scale.squeeze(-1), outcome_shift(model).squeeze(-1)
        covar_module = _scaled_kernel(covar_module, scale.squeeze(-1))
        mean_module = _affine_mean(mean_module, scale, shift)
        targets, noise = targets * scale + shift, noise * scale.square()
    inputs = model.train_inputs[0]
    if getattr(model, "input_transform", None) is not None:
        inputs = model._original_train_inputs
    several = getattr(model, "num_outputs", 1) > 1
    batch = shape[:-2] if several else shape[:-1]
    if inputs.dim() > len(batch) + 2:  # once for each output
        inputs = inputs[..., 0, :, :]
    return Parts(
        train_X=inputs.expand(*batch, *inputs.shape[-2:]),
        train_Y=targets.mT if several else targets.unsqueeze(-1),
        covar_module=covar_module,
        mean_module=mean_module,
        likelihood=make_likelihood(noise),
        input_transform=_frozen(getattr(model, "input_transform", None)),
    )


def make_likelihood(noise: Tensor) -> Likelihood:
    """Return the likelihood with these noise variances, ``batch_shape x n``.

    With one noise level for all points of a batch element if they are equal.
    """
    level = noise[..., :1]
    likelihood: Likelihood
    with noise.device:
        if noise.shape[-1] == 0 or not torch.allclose(noise, level.expand_as(noise)):
            likelihood = FixedNoiseGaussianLikelihood(
                noise, batch_shape=noise.shape[:-1]
            )
            likelihood.noise_covar.noise = noise  # GPyTorch may have rounded it up
            return likelihood.to(noise)
        likelihood = GaussianLikelihood(
            noise_constraint=GreaterThan(LEAST_NOISE), batch_shape=noise.shape[:-1]
        )
    likelihood = likelihood.to(noise)
    likelihood.noise = level.clone()
    return likelihood


def _scaled_kernel(kernel: Kernel, scale: Tensor) -> Kernel:
    with scale.device:
        scaled = ScaleKernel(kernel, batch_shape=scale.shape)
    scaled = scaled.to(scale)
    scaled.outputscale = scale.square()
    return scaled


def _affine_mean(mean: Mean, scale: Tensor, shift: Tensor) -> Mean:
    if not isinstance(mean, ConstantMean | ZeroMean):
        return AffineMean(mean, scale, shift)
    constant: Any = mean.constant.unsqueeze(-1) if isinstance(mean, ConstantMean) else 0
    value = (constant * scale + shift).squeeze(-1)
    with scale.device:
        folded = ConstantMean(batch_shape=value.shape)
    folded = folded.to(scale)
    folded.constant = value
    return folded


def _frozen(transform: InputTransform | None) -> InputTransform | None:
    if transform is None:
        return None
    transform = copy.deepcopy(transform).eval()
    for part in transform.modules():
        if getattr(part, "learn_coefficients", False):
            part.learn_coefficients = False
    # A model transforms its training points when it is made, as points to train on.
    return transform.train()
