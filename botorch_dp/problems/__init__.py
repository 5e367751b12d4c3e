"""The papers' experiments as test problems with one loss per private record."""

from botorch_dp.problems.agents import (
    AgentProblem,
    PerturbedGPDraws,
    TabulatedAgents,
)
from botorch_dp.problems.base import PerRecordProblem
from botorch_dp.problems.data import DATASETS, Dataset, load_dataset
from botorch_dp.problems.gp_lengthscales import GPLengthscales
from botorch_dp.problems.gp_streams import FriedmanStream, GPStream, SineStream
from botorch_dp.problems.huber_regression import HuberRegression
from botorch_dp.problems.linear_stream import LinearStream
from botorch_dp.problems.noisy import NoisyObservations
from botorch_dp.problems.normal_location import NormalLocation
from botorch_dp.problems.online_network import OnlineNeuralNetwork
from botorch_dp.problems.payment_streams import (
    CreditCardStream,
    PaymentStream,
    UberStream,
)
from botorch_dp.problems.stream_asymptotics import variance_floor
from botorch_dp.problems.stream_regression import (
    LogisticStream,
    RegressionStream,
    ReLUStream,
)
from botorch_dp.problems.streams import StreamProblem
from botorch_dp.problems.svm_agents import (
    ActivityAgents,
    ClassifierAgents,
    LandmineAgents,
)
from botorch_dp.problems.svm_lengthscales import SVMLengthscales

__all__ = [
    "DATASETS",
    "ActivityAgents",
    "AgentProblem",
    "ClassifierAgents",
    "CreditCardStream",
    "Dataset",
    "FriedmanStream",
    "GPLengthscales",
    "GPStream",
    "HuberRegression",
    "LandmineAgents",
    "LinearStream",
    "LogisticStream",
    "NoisyObservations",
    "NormalLocation",
    "OnlineNeuralNetwork",
    "PaymentStream",
    "PerRecordProblem",
    "PerturbedGPDraws",
    "ReLUStream",
    "RegressionStream",
    "SVMLengthscales",
    "SineStream",
    "StreamProblem",
    "TabulatedAgents",
    "UberStream",
    "load_dataset",
    "variance_floor",
]
