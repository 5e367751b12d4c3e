"""Test problems: three bases, and the examples of the papers that need no data."""

from botorch_dp.problems.agents import (
    AgentProblem,
    PerturbedGPDraws,
    TabulatedAgents,
)
from botorch_dp.problems.base import PerRecordProblem
from botorch_dp.problems.huber_regression import HuberRegression
from botorch_dp.problems.linear_stream import LinearStream
from botorch_dp.problems.normal_location import NormalLocation
from botorch_dp.problems.stream_asymptotics import variance_floor
from botorch_dp.problems.stream_regression import (
    LogisticStream,
    RegressionStream,
    ReLUStream,
)
from botorch_dp.problems.streams import StreamProblem

__all__ = [
    "AgentProblem",
    "HuberRegression",
    "LinearStream",
    "LogisticStream",
    "NormalLocation",
    "PerRecordProblem",
    "PerturbedGPDraws",
    "ReLUStream",
    "RegressionStream",
    "StreamProblem",
    "TabulatedAgents",
    "variance_floor",
]
