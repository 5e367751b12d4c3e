"""Models of public points: kernels with derivatives, gradients of processes."""

from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.models.dataset_kernel import (
    DatasetKernel,
    dataset_correlation,
    sample_neighbours,
)
from botorch_dp.models.describe import describe_kernel
from botorch_dp.models.dictionary import KernelDictionary, LeaveOneOut, nearest_points
from botorch_dp.models.gradient_gp import GradientGP
from botorch_dp.models.gradient_posterior import GradientPosterior
from botorch_dp.models.kernel_gradients import (
    check_twice_differentiable,
    kernel_cross_hessian,
    kernel_gradient,
    kernel_value,
    kernel_value_and_gradient,
    prior_gradient_covariance,
)
from botorch_dp.models.radial import RadialKernel, radial_kernel

__all__ = [
    "CandidatePosterior",
    "DatasetKernel",
    "GradientGP",
    "GradientPosterior",
    "KernelDictionary",
    "LeaveOneOut",
    "RadialKernel",
    "check_twice_differentiable",
    "dataset_correlation",
    "describe_kernel",
    "kernel_cross_hessian",
    "kernel_gradient",
    "kernel_value",
    "kernel_value_and_gradient",
    "nearest_points",
    "prior_gradient_covariance",
    "radial_kernel",
    "sample_neighbours",
]
