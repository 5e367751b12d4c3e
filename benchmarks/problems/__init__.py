"""Problems and data sets of the papers that only benchmarks use."""

from benchmarks.problems.data import DATASETS, Dataset, load_dataset
from benchmarks.problems.gp_lengthscales import GPLengthscales
from benchmarks.problems.gp_streams import FriedmanStream, GPStream, SineStream
from benchmarks.problems.noisy import NoisyObservations
from benchmarks.problems.online_network import OnlineNeuralNetwork
from benchmarks.problems.payment_streams import (
    CreditCardStream,
    PaymentStream,
    UberStream,
)
from benchmarks.problems.split_agents import (
    KernelClassifier,
    Records,
    SoftmaxRegression,
    Tables,
    TunedModel,
)
from benchmarks.problems.svm_agents import (
    ActivityAgents,
    ClassifierAgents,
    LandmineAgents,
)
from benchmarks.problems.svm_lengthscales import SVMLengthscales

__all__ = [
    "DATASETS",
    "ActivityAgents",
    "ClassifierAgents",
    "CreditCardStream",
    "Dataset",
    "FriedmanStream",
    "GPLengthscales",
    "GPStream",
    "KernelClassifier",
    "LandmineAgents",
    "NoisyObservations",
    "OnlineNeuralNetwork",
    "PaymentStream",
    "Records",
    "SVMLengthscales",
    "SineStream",
    "SoftmaxRegression",
    "Tables",
    "TunedModel",
    "UberStream",
    "load_dataset",
]
