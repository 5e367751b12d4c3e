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
    NoisyGradientDescent,
    PrivateBO,
    RandomSearch,
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
    "RDP",
    "ApproxDP",
    "Certificate",
    "ExponentialMechanism",
    "GaussianMechanism",
    "GradientGP",
    "GradientInformation",
    "LaplaceMechanism",
    "Ledger",
    "NoisyGradientDescent",
    "PrivacyAccountant",
    "PrivateBO",
    "PrivateUpperConfidenceBound",
    "PureDP",
    "RandomSearch",
    "SubsampledGaussianMechanism",
    "optimal_design",
]
