"""Mechanisms: the only door from private tensors to what may be published.

All of them release in one way. They check parameters and shapes, which may raise; they
charge the cost, which may raise; then they draw noise. Nothing that raises, warns or
logs looks at the values of private tensors. An entry that is not finite is released as
zero plus noise: what bounds the sensitivity (:mod:`botorch_dp.privacy.clipping`) leaves
none.
"""

from botorch_dp.privacy.mechanisms.additive import GaussianMechanism, LaplaceMechanism
from botorch_dp.privacy.mechanisms.base import CalibratedMechanism, Mechanism
from botorch_dp.privacy.mechanisms.exponential import ExponentialMechanism
from botorch_dp.privacy.mechanisms.subsampled import (
    SubsampledGaussianMechanism,
    noise_multiplier_for,
)

__all__ = [
    "CalibratedMechanism",
    "ExponentialMechanism",
    "GaussianMechanism",
    "LaplaceMechanism",
    "Mechanism",
    "SubsampledGaussianMechanism",
    "noise_multiplier_for",
]
