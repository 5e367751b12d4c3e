"""Input constructors, with which BoTorch's registry makes acquisition functions."""

from typing import Any

import torch
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from torch import Tensor

from botorch_dp._deprecated import warn_deprecated
from botorch_dp.acquisition.gradient_information import GradientInformation
from botorch_dp.acquisition.private_ucb import PrivateUpperConfidenceBound
from botorch_dp.exceptions import InvalidArgumentError


@acqf_input_constructor(GradientInformation)
def construct_inputs_gradient_information(
    model: Model,
    X_center: Tensor | None = None,
    X_pending: Tensor | None = None,
    posterior_transform: PosteriorTransform | None = None,
    X_baseline: Tensor | None = None,
    *,
    X_at: Tensor | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Return the arguments of :class:`GradientInformation`.

    Args:
        model: Any exact model with independent outputs.
        X_center: The point whose gradient is wanted. By default the one among
            ``X_baseline`` with the highest posterior mean.
        X_pending: Points under evaluation.
        posterior_transform: Combines several outputs into one.
        X_baseline: The points observed so far, which Ax passes.
        X_at: The deprecated name of ``X_center``.
    """
    # Not @renamed_argument: BoTorch reads the names of arguments from the signature.
    if X_at is not None:
        warn_deprecated("X_at=", "X_center=")
        X_center = X_at
    if X_center is None and X_baseline is not None:
        X_center = _incumbent(model, X_baseline, posterior_transform)
    return {
        "model": model,
        "X_center": X_center,
        "X_pending": X_pending,
        "posterior_transform": posterior_transform,
    }


@torch.no_grad()
def _incumbent(model: Model, X: Tensor, transform: PosteriorTransform | None) -> Tensor:
    """Return the point with the highest posterior mean."""
    posterior = model.posterior(X, posterior_transform=transform)
    mean: Tensor = getattr(posterior, "mixture_mean", posterior.mean)
    if mean.shape != (len(X), 1):
        raise InvalidArgumentError(
            "X_center must be given if the model has several outputs and no "
            f"posterior_transform: posterior means have shape {tuple(mean.shape)}."
        )
    return X[mean.argmax()]


@acqf_input_constructor(PrivateUpperConfidenceBound)
def construct_inputs_private_ucb(
    model: Model,
    step: int,
    num_candidates: int,
    delta: float,
    constants: str = "repaired",
    posterior_transform: PosteriorTransform | None = None,
    maximize: bool = True,
    X_pending: Tensor | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Return the arguments of :class:`PrivateUpperConfidenceBound`.

    Args:
        model: A single-outcome model.
        step: The step t, starting at 1.
        num_candidates: The number of candidates.
        delta: The probability that the bounds of the release may fail.
        constants: The constants, see :func:`ucb_beta`.
        posterior_transform: Combines several outcomes into one.
        maximize: False if the model predicts losses.
        X_pending: Points under evaluation, which are not supported.
    """
    return {
        "model": model,
        "step": step,
        "num_candidates": num_candidates,
        "delta": delta,
        "constants": constants,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
        "X_pending": X_pending,
    }
