"""Differentially private Bayesian optimization for BoTorch."""

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
    "LaplaceMechanism",
    "Ledger",
    "PrivacyAccountant",
    "PureDP",
    "SubsampledGaussianMechanism",
]
