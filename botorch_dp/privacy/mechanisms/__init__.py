"""Mechanisms: the only door from private tensors to what may be published.

All of them release in one way (:meth:`Mechanism.release`): they check parameters and
shapes, charge the cost, and then draw noise. Checks and charges may raise, but nothing
that raises, warns or logs looks at the values of private tensors. An entry that is not
finite is released as zero plus noise; after clipping
(:mod:`botorch_dp.privacy.clipping`) there are none.
"""

from botorch_dp.privacy.mechanisms.additive import GaussianMechanism, LaplaceMechanism
from botorch_dp.privacy.mechanisms.base import CalibratedMechanism, Mechanism
from botorch_dp.privacy.mechanisms.exponential import ExponentialMechanism
from botorch_dp.privacy.mechanisms.permute_and_flip import PermuteAndFlipMechanism
from botorch_dp.privacy.mechanisms.shared import SharedGaussianMechanism
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
    "PermuteAndFlipMechanism",
    "SharedGaussianMechanism",
    "SubsampledGaussianMechanism",
    "noise_multiplier_for",
]
