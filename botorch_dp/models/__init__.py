"""Models of public points: kernels with derivatives, gradients of processes."""

from typing import TYPE_CHECKING

from botorch_dp._imports import lazy_imports

if TYPE_CHECKING:
    from botorch_dp.models.candidate_posterior import CandidatePosterior
    from botorch_dp.models.dictionary import (
        KernelDictionary,
        LeaveOneOut,
        nearest_points,
    )
    from botorch_dp.models.fourier import FourierFeatures
    from botorch_dp.models.gradient_gaussians import (
        GradientMixturePosterior,
        GradientPosterior,
    )
    from botorch_dp.models.gradient_gp import GradientGP
    from botorch_dp.models.gradient_weights import GradientWeights
    from botorch_dp.models.gradients import gradient_posterior
    from botorch_dp.models.kernels.dataset_kernel import (
        DatasetKernel,
        dataset_correlation,
        sample_neighbours,
    )
    from botorch_dp.models.kernels.derivatives import (
        check_twice_differentiable,
        kernel_cross_hessian,
        kernel_gradient,
        kernel_value,
        kernel_value_and_gradient,
        prior_gradient_covariance,
    )
    from botorch_dp.models.kernels.describe import describe_kernel
    from botorch_dp.models.kernels.radial import RadialKernel, radial_kernel
    from botorch_dp.models.linear_models import LinearModels
    from botorch_dp.models.surrogates.base import GradientSurrogate
    from botorch_dp.models.surrogates.budget import BudgetSchedule
    from botorch_dp.models.surrogates.compressed import CompressedSurrogate, compress
    from botorch_dp.models.surrogates.fixed import (
        NystromSurrogate,
        RandomFeatureSurrogate,
    )
    from botorch_dp.models.surrogates.padded_dictionary import (
        PaddedDictionary,
        PaddedGradient,  # noqa: F401 (deprecated)
    )
    from botorch_dp.models.surrogates.stencil import Stencil
    from botorch_dp.models.surrogates.wasserstein import (
        leave_one_out_distances,
        projection_directions,
        sliced_wasserstein,
    )

__all__ = [
    "BudgetSchedule",
    "CandidatePosterior",
    "CompressedSurrogate",
    "DatasetKernel",
    "FourierFeatures",
    "GradientGP",
    "GradientMixturePosterior",
    "GradientPosterior",
    "GradientSurrogate",
    "GradientWeights",
    "KernelDictionary",
    "LeaveOneOut",
    "LinearModels",
    "NystromSurrogate",
    "PaddedDictionary",
    "RadialKernel",
    "RandomFeatureSurrogate",
    "Stencil",
    "check_twice_differentiable",
    "compress",
    "dataset_correlation",
    "describe_kernel",
    "gradient_posterior",
    "kernel_cross_hessian",
    "kernel_gradient",
    "kernel_value",
    "kernel_value_and_gradient",
    "leave_one_out_distances",
    "nearest_points",
    "prior_gradient_covariance",
    "projection_directions",
    "radial_kernel",
    "sample_neighbours",
    "sliced_wasserstein",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
