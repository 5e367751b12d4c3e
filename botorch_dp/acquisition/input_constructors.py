"""How BoTorch's registry makes this library's acquisition functions."""

from typing import Any

from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.models.model import Model
from torch import Tensor

from botorch_dp.acquisition.gradient_information import GradientInformation


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
