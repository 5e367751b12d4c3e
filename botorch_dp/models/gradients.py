"""The posterior of the gradient of any exact Gaussian process."""

import math
from typing import Any

import torch
from botorch.exceptions.errors import BotorchError
from botorch.models import ModelListGP
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp._validation import check_like, check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.chain_rules import outcome_scale, transform_points
from botorch_dp.models.gradient_gaussians import (
    GradientMixturePosterior,
    GradientPosterior,
)
from botorch_dp.models.latent_gp import LatentGP, check_exact, latent_gp


def gradient_posterior(
    model: ExactGP | ModelListGP, X: Tensor, *, latent: bool = False
) -> GradientPosterior:
    """Return the posterior of the gradient of a model that was fitted to public data.

    Any exact GPyTorch or BoTorch model with independent outputs is supported: with
    input transforms, with ``Standardize``, with fixed noise, batched, conditioned on
    fantasies, and ensembles of hyperparameters (fully Bayesian and MAP-SAAS). The
    gradient is in the original units of inputs and outcomes. Columns that the kernel
    compares as categories have a derivative of zero with variance zero. The model is
    put into evaluation mode.

    Hyperparameters and transforms that were fitted to private data leak them, and so
    does this posterior.

    Args:
        model: The model.
        X: A ``batch_shape x q x d`` tensor of points. The posterior is differentiable
            in it.
        latent: Whether the gradient is that of the outcome after the outcome transform,
            as the model sees it. Only this gradient is Gaussian if the transform is not
            affine, e.g. for ``Log``.

    Returns:
        The posterior, with mean ``batch_shape x q x d`` and covariance
        ``batch_shape x q x d x d``. With m > 1 outputs there is a dimension before q:
        ``batch_shape x m x q x d``. An ensemble has its members in that place, and the
        posterior is a mixture with ``mixture_mean`` and ``mixture_covariance``.

    Example:
        >>> from botorch.models import SingleTaskGP
        >>> from botorch.models.transforms import Normalize
        >>> X = torch.rand(20, 2, dtype=torch.float64)
        >>> model = SingleTaskGP(X, X.prod(-1, True), input_transform=Normalize(2))
        >>> posterior = gradient_posterior(model, X[:3])
        >>> posterior.mean.shape, posterior.covariance.shape
        (torch.Size([3, 2]), torch.Size([3, 2, 2]))
    """
    if isinstance(model, ModelListGP):
        parts = [gradient_posterior(part, X, latent=latent) for part in model.models]
        return parts[0] if len(parts) == 1 else _stack(model, parts)
    check_exact(model)
    check_points("X", X, model)
    known = latent_gp(model)
    mean, covariance = latent_gradient(model, known, X)
    scale = None if latent else outcome_scale(model)
    if scale is not None:
        mean, covariance = mean * scale, covariance * scale.square().unsqueeze(-1)
    if getattr(model, "_is_ensemble", False):
        return GradientMixturePosterior(mean, covariance)
    return GradientPosterior(mean, covariance)


def latent_gradient(
    model: ExactGP, known: LatentGP, X: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the moments of the gradient in X, before the outcome transform."""
    Z, jacobian = transformed(model, known, X)
    mean, covariance = known.gradient(Z)
    if jacobian is not None:
        mean = (jacobian.mT @ mean.unsqueeze(-1)).squeeze(-1)
        covariance = jacobian.mT @ covariance @ jacobian
    return mean, covariance


def transformed(
    model: ExactGP, known: LatentGP, X: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return points in the coordinates of the kernel, and the Jacobians.

    With the dimension of outputs or members that the kernel has, as BoTorch adds it.
    """
    if getattr(model, "_is_ensemble", False):
        X = X.unsqueeze(-3)
    Z, jacobian = transform_points(model, X, input_batch_shape(model, known))
    if getattr(model, "num_outputs", 1) > 1:
        Z = Z.unsqueeze(-3)
        jacobian = None if jacobian is None else jacobian.unsqueeze(-4)
    return Z, jacobian


def input_batch_shape(model: ExactGP, known: LatentGP) -> torch.Size:
    """Return the batch shape of a model without the dimension of its outputs."""
    shape: torch.Size = known.root.shape[:-2]
    return shape[:-1] if getattr(model, "num_outputs", 1) > 1 else shape


def check_points(name: str, X: Any, model: ExactGP) -> None:
    """Check that X has the features, dtype and device of the training points.

    With an input transform, the features after it count: ``AppendFeatures`` adds some
    to points that the model predicts, but none to those that it was trained on.
    """
    transform = getattr(model, "input_transform", None)
    inputs = model.train_inputs[0]
    check_like(
        name, X, ("...", "q", inputs.shape[-1] if transform is None else "d"), inputs
    )
    if X.shape[-2] == 0:
        raise InvalidArgumentError(f"{name} must have at least one point (q >= 1).")
    # The sum is not finite if an entry is not, or if it overflows: look again.
    if not math.isfinite(X.detach().sum()):
        check_tensor(name, X.detach(), finite=True)
    if transform is not None:
        _check_features(name, X, model)


def _check_features(name: str, X: Tensor, model: ExactGP) -> None:
    model.eval()
    features = model.train_inputs[0].shape[-1]
    reason: Exception | None = None
    try:
        found = model.transform_inputs(X.detach().flatten(0, -2)[:1]).shape[-1]
    except (BotorchError, RuntimeError, IndexError) as error:
        found, reason = None, error
    if found != features:
        raise InvalidArgumentError(
            f"{name} must have the features that {type(model.input_transform).__name__}"
            f" turns into the {features} of the model, got shape {tuple(X.shape)}."
        ) from reason


def _stack(model: ModelListGP, parts: list[GradientPosterior]) -> GradientPosterior:
    rows: list[tuple[Tensor, Tensor]] = []
    for part, submodel in zip(parts, model.models, strict=True):
        if isinstance(part, GradientMixturePosterior):
            raise InvalidArgumentError(
                "model must not have ensembles in a ModelListGP; call "
                "gradient_posterior for each of its models."
            )
        if submodel.num_outputs > 1:
            rows += zip(part.mean.unbind(-3), part.covariance.unbind(-4), strict=True)
        else:
            rows.append((part.mean, part.covariance))
    means, covariances = zip(*rows, strict=True)
    return GradientPosterior(
        torch.stack(torch.broadcast_tensors(*means), dim=-3),
        torch.stack(torch.broadcast_tensors(*covariances), dim=-4),
    )
