"""Optimizers: ask, tell, run, and a certificate at the end."""

from typing import TYPE_CHECKING

from botorch_dp._lazy import lazy_imports

if TYPE_CHECKING:
    from botorch_dp.optimizers.base import OptimizationResult, PrivateOptimizer, Step
    from botorch_dp.optimizers.baselines import (
        GIBO,
        GPUCB,
        NoisyGradientDescent,
        RandomSearch,
    )
    from botorch_dp.optimizers.dp_fts import (
        DPFTSDE,
        FTSDE,
        FederatedResult,
        ThompsonSampling,
    )
    from botorch_dp.optimizers.dp_gibo import DPGIBO
    from botorch_dp.optimizers.federation import Federation
    from botorch_dp.optimizers.fts_accounting import published_privacy_loss
    from botorch_dp.optimizers.fts_agents import FTSAgent, FTSAgents
    from botorch_dp.optimizers.fts_server import DPFTSServer
    from botorch_dp.optimizers.ldp_bo import LDPBO
    from botorch_dp.optimizers.ldp_client import LDPBOClient
    from botorch_dp.optimizers.ldp_messages import Answer, Query
    from botorch_dp.optimizers.ldp_server import LDPBOServer
    from botorch_dp.optimizers.local_release import LocalRelease, longest_message
    from botorch_dp.optimizers.private_bo import PrivateBO
    from botorch_dp.optimizers.private_losses import mallows_weighted
    from botorch_dp.optimizers.step_schedules import StepSchedule
    from botorch_dp.optimizers.stream_baselines import LDPSGD, OnlineBO, OnlineSGD

__all__ = [
    "DPFTSDE",
    "DPGIBO",
    "FTSDE",
    "GIBO",
    "GPUCB",
    "LDPBO",
    "LDPSGD",
    "Answer",
    "DPFTSServer",
    "FTSAgent",
    "FTSAgents",
    "FederatedResult",
    "Federation",
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
    "ThompsonSampling",
    "longest_message",
    "mallows_weighted",
    "published_privacy_loss",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
