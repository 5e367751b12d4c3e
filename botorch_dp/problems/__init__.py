"""The papers' experiments as test problems with one loss per private record."""

from botorch_dp.problems.base import PerRecordProblem
from botorch_dp.problems.data import DATASETS, Dataset, load_dataset
from botorch_dp.problems.gp_lengthscales import GPLengthscales
from botorch_dp.problems.huber_regression import HuberRegression
from botorch_dp.problems.noisy import NoisyObservations
from botorch_dp.problems.normal_location import NormalLocation
from botorch_dp.problems.svm_lengthscales import SVMLengthscales

__all__ = [
    "DATASETS",
    "Dataset",
    "GPLengthscales",
    "HuberRegression",
    "NoisyObservations",
    "NormalLocation",
    "PerRecordProblem",
    "SVMLengthscales",
    "load_dataset",
]
