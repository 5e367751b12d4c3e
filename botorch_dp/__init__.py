"""Differentially private Bayesian optimization for BoTorch."""

from typing import TYPE_CHECKING

from botorch_dp import _deprecated
from botorch_dp._imports import lazy_imports

if TYPE_CHECKING:
    from botorch_dp.acquisition import (
        GradientInformation,
        PrivateUpperConfidenceBound,
        optimal_design,
    )
    from botorch_dp.models import GradientGP, gradient_posterior
    from botorch_dp.optimizers import (
        DPFTSDE,
        DPGIBO,
        GIBO,
        GPUCB,
        LDPBO,
        LDPSGD,
        DPFTSServer,
        DPTrustRegion,
        Election,
        Federation,
        FittedGIBO,
        GradientTrustRegion,
        LDPBOClient,
        LDPBOServer,
        MinUCB,
        MostProbableDescent,
        NoisyGradientDescent,
        PrivateBO,
        PrivateSelection,
        PrivateVote,
        RandomSearch,
        StepSchedule,
        expect,
        minimize,
    )
    from botorch_dp.privacy import (
        GDP,
        RDP,
        ApproxDP,
        Certificate,
        ExponentialMechanism,
        GaussianMechanism,
        LaplaceMechanism,
        Ledger,
        PermuteAndFlipMechanism,
        PrivacyAccountant,
        PureDP,
        SubsampledGaussianMechanism,
    )

    __version__: str

__all__ = [
    "DPFTSDE",
    "DPGIBO",
    "GDP",
    "GIBO",
    "GPUCB",
    "LDPBO",
    "LDPSGD",
    "RDP",
    "ApproxDP",
    "Certificate",
    "DPFTSServer",
    "DPTrustRegion",
    "Election",
    "ExponentialMechanism",
    "Federation",
    "FittedGIBO",
    "GaussianMechanism",
    "GradientGP",
    "GradientInformation",
    "GradientTrustRegion",
    "LDPBOClient",
    "LDPBOServer",
    "LaplaceMechanism",
    "Ledger",
    "MinUCB",
    "MostProbableDescent",
    "NoisyGradientDescent",
    "PermuteAndFlipMechanism",
    "PrivacyAccountant",
    "PrivateBO",
    "PrivateSelection",
    "PrivateUpperConfidenceBound",
    "PrivateVote",
    "PureDP",
    "RandomSearch",
    "StepSchedule",
    "SubsampledGaussianMechanism",
    "expect",
    "gradient_posterior",
    "minimize",
    "optimal_design",
]

_deprecated.install()

if not TYPE_CHECKING:
    _get, __dir__ = lazy_imports(__name__)

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("botorch-dp")
        return _get(name)
