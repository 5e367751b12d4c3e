"""Differentially private Bayesian optimization for BoTorch."""

from botorch_dp.acquisition import (
    GradientInformation,
    PrivateUpperConfidenceBound,
    optimal_design,
)
from botorch_dp.models import GradientGP
from botorch_dp.optimizers import (
    DPGIBO,
    GIBO,
    GPUCB,
    LDPBO,
    LDPSGD,
    LDPBOClient,
    LDPBOServer,
    NoisyGradientDescent,
    PrivateBO,
    RandomSearch,
    StepSchedule,
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
    PrivacyAccountant,
    PureDP,
    SubsampledGaussianMechanism,
)

__all__ = [
    "DPGIBO",
    "GDP",
    "GIBO",
    "GPUCB",
    "LDPBO",
    "LDPSGD",
    "RDP",
    "ApproxDP",
    "Certificate",
    "ExponentialMechanism",
    "GaussianMechanism",
    "GradientGP",
    "GradientInformation",
    "LDPBOClient",
    "LDPBOServer",
    "LaplaceMechanism",
    "Ledger",
    "NoisyGradientDescent",
    "PrivacyAccountant",
    "PrivateBO",
    "PrivateUpperConfidenceBound",
    "PureDP",
    "RandomSearch",
    "StepSchedule",
    "SubsampledGaussianMechanism",
    "optimal_design",
]
