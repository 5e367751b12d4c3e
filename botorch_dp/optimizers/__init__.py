"""Optimizers: ask, tell, run, and a certificate at the end."""

from typing import TYPE_CHECKING

from botorch_dp._imports import lazy_imports

if TYPE_CHECKING:
    from botorch_dp.optimizers.auto.expect import Expectation, expect
    from botorch_dp.optimizers.auto.minimize import minimize
    from botorch_dp.optimizers.auto.search_plan import SearchPlan, plan_search
    from botorch_dp.optimizers.baselines.fts import FTSDE, ThompsonSampling
    from botorch_dp.optimizers.baselines.gibo import GIBO
    from botorch_dp.optimizers.baselines.local.descent import (
        FittedGIBO,
        MostProbableDescent,
    )
    from botorch_dp.optimizers.baselines.local.regions import (
        GradientTrustRegion,
        MinUCB,
    )
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
    from botorch_dp.optimizers.fts.late_messages import LastMessages
    from botorch_dp.optimizers.fts.posterior_scale import (
        PosteriorScale,
        confidence_scale,
        feature_information_gain,
    )
    from botorch_dp.optimizers.fts.regret import RegretTerms, regret_terms
    from botorch_dp.optimizers.fts.server import DPFTSServer
    from botorch_dp.optimizers.fts.simulation import (
        DPFTSDE,
        FederatedResult,
        FederatedSimulation,
    )
    from botorch_dp.optimizers.gibo.dp_gibo import DPGIBO
    from botorch_dp.optimizers.gibo.noisy_gradient_descent import NoisyGradientDescent
    from botorch_dp.optimizers.gibo.trust_region import DPTrustRegion
    from botorch_dp.optimizers.ldp.bounds import (
        PublishedTerms,
        compression_bias,
        dictionary_size_bound,
        message_mean_square,
        published_terms,
        squared_error_bound,
        squared_gradient_bound,
    )
    from botorch_dp.optimizers.ldp.client import LDPBOClient
    from botorch_dp.optimizers.ldp.drift import DriftDetector
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
    "DPTrustRegion",
    "DriftDetector",
    "Election",
    "Expectation",
    "FTSAgent",
    "FTSAgents",
    "FederatedResult",
    "FederatedSimulation",
    "Federation",
    "FittedGIBO",
    "GPProposals",
    "GradientTrustRegion",
    "LDPAnswer",
    "LDPBOClient",
    "LDPBOServer",
    "LDPQuery",
    "LastMessages",
    "LocalRelease",
    "MinUCB",
    "MostProbableDescent",
    "NoisyGradientDescent",
    "OnlineBO",
    "OnlineSGD",
    "OptimizationResult",
    "Optimizer",
    "PosteriorScale",
    "PrivateBO",
    "PrivateOptimizer",
    "PrivateSelection",
    "PrivateVote",
    "Proposals",
    "PublishedTerms",
    "RandomSearch",
    "RankBallot",
    "RegretBallot",
    "RegretTerms",
    "RunMeter",
    "ScoreBallot",
    "SearchPlan",
    "SelectionResult",
    "Step",
    "StepSchedule",
    "ThompsonSampling",
    "VoteResult",
    "VoteServer",
    "compression_bias",
    "confidence_scale",
    "dictionary_size_bound",
    "expect",
    "feature_information_gain",
    "longest_message",
    "mallows_weighted",
    "message_mean_square",
    "minimize",
    "plan_search",
    "published_privacy_loss",
    "published_terms",
    "regret_terms",
    "squared_error_bound",
    "squared_gradient_bound",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(
        __name__, renamed={"Answer": "LDPAnswer", "Query": "LDPQuery"}
    )
