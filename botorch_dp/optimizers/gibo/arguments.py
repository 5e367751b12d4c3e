"""Arguments of the geometry of DP-GIBO: the kernel and the variances of the noise."""

import copy
from collections.abc import Sequence

from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_dp._validation import check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import check_twice_differentiable, prior_gradient_covariance

_DEFAULT_LENGTHSCALE = 0.5  # for the unit cube, from the measured experiments


def check_variances(noise_variance: float | Sequence[float]) -> tuple[float, ...]:
    """Return one variance, or one for each step, after checking them."""
    if not isinstance(noise_variance, Sequence):
        noise_variance = (noise_variance,)
    if not noise_variance:
        raise InvalidArgumentError("noise_variance must not be empty.")
    return tuple(check_positive("noise_variance", value) for value in noise_variance)


def fixed_kernel(kernel: Kernel | None, start: Tensor) -> Kernel:
    """Return a copy of the kernel, fixed, with the dtype and device of the start.

    Args:
        kernel: A twice differentiable kernel; by default RBF with length scale 0.5.
        start: Where the run starts, a ``d`` tensor.
    """
    if kernel is None:
        with start.device:
            kernel = RBFKernel()
            kernel.lengthscale = _DEFAULT_LENGTHSCALE
    check_twice_differentiable(kernel)
    kernel = copy.deepcopy(kernel).to(start).requires_grad_(False).eval()
    if kernel.batch_shape:
        raise InvalidArgumentError(
            f"kernel must not be batched, got batch_shape {kernel.batch_shape}."
        )
    prior = prior_gradient_covariance(kernel, start.unsqueeze(0))
    if not (prior.diagonal(dim1=-2, dim2=-1) > 0).all():
        raise InvalidArgumentError(
            f"kernel must vary in all {len(start)} dimensions, so that there are "
            f"gradients to learn, got {kernel!r}."
        )
    return kernel
