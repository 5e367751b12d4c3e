"""Acquisition functions that work with BoTorch's optimizers."""

from botorch_dp.acquisition import input_constructors  # noqa: F401 (registers them)
from botorch_dp.acquisition.design import Design, design_traces, optimal_design
from botorch_dp.acquisition.gradient_information import GradientInformation
from botorch_dp.acquisition.private_ucb import PrivateUpperConfidenceBound, ucb_beta

__all__ = [
    "Design",
    "GradientInformation",
    "PrivateUpperConfidenceBound",
    "design_traces",
    "optimal_design",
    "ucb_beta",
]
