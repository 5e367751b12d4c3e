"""Differentially private Bayesian optimization for BoTorch."""

from botorch_dp.acquisition import GradientInformation, optimal_design
from botorch_dp.models import GradientGP
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
    "GDP",
    "RDP",
    "ApproxDP",
    "Certificate",
    "ExponentialMechanism",
    "GaussianMechanism",
    "GradientGP",
    "GradientInformation",
    "LaplaceMechanism",
    "Ledger",
    "PrivacyAccountant",
    "PureDP",
    "SubsampledGaussianMechanism",
    "optimal_design",
]
