"""Optimizers: ask, tell, run, and a certificate at the end."""

from typing import TYPE_CHECKING

from botorch_dp._imports import lazy_imports

if TYPE_CHECKING:
    from botorch_dp.optimizers.auto.expect import Expectation, expect
    from botorch_dp.optimizers.auto.minimize import minimize
    from botorch_dp.optimizers.auto.search_plan import SearchPlan, plan_search
    from botorch_dp.optimizers.baselines.fts import FTSDE, ThompsonSampling
    from botorch_dp.optimizers.baselines.gibo import GIBO
    from botorch_dp.optimizers.baselines.searches import GPUCB, RandomSearch
    from botorch_dp.optimizers.baselines.streams import OnlineBO, OnlineSGD
    from botorch_dp.optimizers.core.optimizer import (
        OptimizationResult,
        Optimizer,
        Step,
    )
    from botorch_dp.optimizers.core.private_optimizer import PrivateOptimizer
    from botorch_dp.optimizers.core.private_values import mallows_weighted
    from botorch_dp.optimizers.fts.accounting import published_privacy_loss
    from botorch_dp.optimizers.fts.agents import FTSAgent, FTSAgents
    from botorch_dp.optimizers.fts.federation import Federation
    from botorch_dp.optimizers.fts.server import DPFTSServer
    from botorch_dp.optimizers.fts.simulation import (
        DPFTSDE,
        FederatedResult,
        FederatedSimulation,
    )
    from botorch_dp.optimizers.gibo.dp_gibo import DPGIBO
    from botorch_dp.optimizers.gibo.noisy_gradient_descent import NoisyGradientDescent
    from botorch_dp.optimizers.ldp.client import LDPBOClient
    from botorch_dp.optimizers.ldp.gradient_release import LocalRelease, longest_message
    from botorch_dp.optimizers.ldp.messages import LDPAnswer, LDPQuery
    from botorch_dp.optimizers.ldp.server import LDPBOServer
    from botorch_dp.optimizers.ldp.sgd import LDPSGD
    from botorch_dp.optimizers.ldp.simulation import LDPBO
    from botorch_dp.optimizers.ldp.step_sizes import StepSchedule
    from botorch_dp.optimizers.release.private_bo import PrivateBO
    from botorch_dp.optimizers.selection.adaptive import GPProposals, Proposals
    from botorch_dp.optimizers.selection.composed_selection import (
        ComposedResult,
        ComposedSelection,
    )
    from botorch_dp.optimizers.selection.meter import RunMeter
    from botorch_dp.optimizers.selection.private_selection import PrivateSelection
    from botorch_dp.optimizers.selection.result import SelectionResult
    from botorch_dp.optimizers.vote.ballots import (
        ApprovalBallot,
        Ballot,
        CenteredBallot,
        RankBallot,
        RegretBallot,
        ScoreBallot,
    )
    from botorch_dp.optimizers.vote.election import Election
    from botorch_dp.optimizers.vote.server import VoteResult, VoteServer
    from botorch_dp.optimizers.vote.simulation import PrivateVote

__all__ = [
    "DPFTSDE",
    "DPGIBO",
    "FTSDE",
    "GIBO",
    "GPUCB",
    "LDPBO",
    "LDPSGD",
    "ApprovalBallot",
    "Ballot",
    "CenteredBallot",
    "ComposedResult",
    "ComposedSelection",
    "DPFTSServer",
    "Election",
    "Expectation",
    "FTSAgent",
    "FTSAgents",
    "FederatedResult",
    "FederatedSimulation",
    "Federation",
    "GPProposals",
    "LDPAnswer",
    "LDPBOClient",
    "LDPBOServer",
    "LDPQuery",
    "LocalRelease",
    "NoisyGradientDescent",
    "OnlineBO",
    "OnlineSGD",
    "OptimizationResult",
    "Optimizer",
    "PrivateBO",
    "PrivateOptimizer",
    "PrivateSelection",
    "PrivateVote",
    "Proposals",
    "RandomSearch",
    "RankBallot",
    "RegretBallot",
    "RunMeter",
    "ScoreBallot",
    "SearchPlan",
    "SelectionResult",
    "Step",
    "StepSchedule",
    "ThompsonSampling",
    "VoteResult",
    "VoteServer",
    "expect",
    "longest_message",
    "mallows_weighted",
    "minimize",
    "plan_search",
    "published_privacy_loss",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(
        __name__, renamed={"Answer": "LDPAnswer", "Query": "LDPQuery"}
    )
