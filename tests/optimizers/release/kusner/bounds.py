"""Settings and shorthands for the tests of the bounds."""

import dataclasses
import functools

import torch
from gpytorch.kernels import RBFKernel
from hypothesis import strategies as st

from botorch_dp.optimizers.release.kusner.sensitivity import (
    NoiseFreeValueSensitivity,
    PointSensitivity,
    ValueSensitivity,
)
from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
from tests.optimizers.problems import DEVICE

POINT = {"num_steps": 20, "num_candidates": 300, "delta": 0.1, "correlation": 0.9}


VALUE = {**POINT, "noise_variance": 0.04, "gamma": 12.0}


NOISE_FREE = {**POINT, "num_dims": 3, "regret_scale": 4.0, "regret_rate": 0.2}


LIPSCHITZ = {
    "lipschitz": 2.0,
    "min_regularization": 0.5,
    "max_regularization": 4.0,
    "num_records": 50,
}


SETTINGS = {
    "num_steps": st.integers(2, 300),
    "num_candidates": st.integers(1, 10**6),
    "delta": st.floats(1e-12, 0.99),
    "correlation": st.floats(0.0, 0.999),
}


def rbf(lengthscale, dtype=torch.float64):
    with DEVICE:
        kernel = RBFKernel().to(dtype)
        kernel.lengthscale = lengthscale
    return kernel.requires_grad_(False)


def bound(kind, **numbers):
    """Return a bound from the numbers of its setting and its own, in one dictionary."""
    names = {field.name for field in dataclasses.fields(KusnerSetting)}
    setting = {name: numbers.pop(name) for name in names & numbers.keys()}
    return kind(KusnerSetting(**setting), **numbers)


point_sensitivity = functools.partial(bound, PointSensitivity)
value_sensitivity = functools.partial(bound, ValueSensitivity)
noise_free_sensitivity = functools.partial(bound, NoiseFreeValueSensitivity)
