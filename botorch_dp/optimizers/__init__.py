"""Optimizers: ask, tell, run, and a certificate at the end."""

from botorch_dp.optimizers.base import OptimizationResult, PrivateOptimizer, Step
from botorch_dp.optimizers.baselines import (
    GIBO,
    GPUCB,
    NoisyGradientDescent,
    RandomSearch,
)
from botorch_dp.optimizers.dp_gibo import DPGIBO
from botorch_dp.optimizers.ldp_bo import LDPBO
from botorch_dp.optimizers.ldp_client import LDPBOClient
from botorch_dp.optimizers.ldp_messages import Answer, Query
from botorch_dp.optimizers.ldp_server import LDPBOServer
from botorch_dp.optimizers.local_release import LocalRelease
from botorch_dp.optimizers.private_bo import PrivateBO
from botorch_dp.optimizers.private_losses import mallows_weighted
from botorch_dp.optimizers.step_schedules import StepSchedule
from botorch_dp.optimizers.stream_baselines import LDPSGD, OnlineBO, OnlineSGD

__all__ = [
    "DPGIBO",
    "GIBO",
    "GPUCB",
    "LDPBO",
    "LDPSGD",
    "Answer",
    "LDPBOClient",
    "LDPBOServer",
    "LocalRelease",
    "NoisyGradientDescent",
    "OnlineBO",
    "OnlineSGD",
    "OptimizationResult",
    "PrivateBO",
    "PrivateOptimizer",
    "Query",
    "RandomSearch",
    "Step",
    "StepSchedule",
    "mallows_weighted",
]
