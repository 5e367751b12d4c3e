"""How BoTorch's registry makes this library's acquisition functions."""

from typing import Any

from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from torch import Tensor

from botorch_dp.acquisition.gradient_information import GradientInformation
from botorch_dp.acquisition.private_ucb import PrivateUpperConfidenceBound


@acqf_input_constructor(GradientInformation)
def construct_inputs_gradient_information(
    model: Model, X_at: Tensor, X_pending: Tensor | None = None, **_: Any
) -> dict[str, Any]:
    """Return the arguments of :class:`GradientInformation`.

    Args:
        model: A :class:`GradientGP`.
        X_at: The point whose gradient is wanted.
        X_pending: Points under evaluation.
    """
    return {"model": model, "X_at": X_at, "X_pending": X_pending}


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
        step: The step t, the first is 1.
        num_candidates: The number of candidates.
        delta: The probability that the bounds of the release may fail.
        constants: Which constants.
        posterior_transform: Makes one outcome of several.
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
