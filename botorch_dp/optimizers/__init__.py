"""Optimizers: ask, tell, run, and a certificate at the end."""

from botorch_dp.optimizers.base import OptimizationResult, PrivateOptimizer, Step
from botorch_dp.optimizers.baselines import (
    GIBO,
    GPUCB,
    NoisyGradientDescent,
    RandomSearch,
)
from botorch_dp.optimizers.dp_gibo import DPGIBO
from botorch_dp.optimizers.private_bo import PrivateBO

__all__ = [
    "DPGIBO",
    "GIBO",
    "GPUCB",
    "NoisyGradientDescent",
    "OptimizationResult",
    "PrivateBO",
    "PrivateOptimizer",
    "RandomSearch",
    "Step",
]
