"""The mechanisms that tests share, sound ones and broken ones."""

import math

import torch

from botorch_dp import (
    GDP,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
    PureDP,
    SubsampledGaussianMechanism,
)
from botorch_dp.privacy import SecureNoise

NAN, INF = math.nan, math.inf


def make(kind, **kwargs):
    if kind == "gaussian":
        return GaussianMechanism(GDP(1.0), sensitivity=0.5, **kwargs)
    if kind == "laplace":
        return LaplaceMechanism(PureDP(1.0), sensitivity=0.5, **kwargs)
    if kind == "exponential":
        return ExponentialMechanism(PureDP(1.0), sensitivity=0.5, **kwargs)
    if kind == "permute_and_flip":
        return PermuteAndFlipMechanism(PureDP(1.0), sensitivity=0.5, **kwargs)
    if kind == "poisson":
        return SubsampledGaussianMechanism(
            noise_multiplier=1.0, clip_norm=0.5, sampling_rate=0.5, **kwargs
        )
    return SubsampledGaussianMechanism(
        noise_multiplier=1.0, clip_norm=0.5, sample_size=2, num_records=4, **kwargs
    )


CHOICES = ["exponential", "permute_and_flip"]
KINDS = ["gaussian", "laplace", *CHOICES, "poisson", "fixed_size"]


def private_value(kind, **tkwargs):
    return torch.ones((4, 3) if kind in ("poisson", "fixed_size") else 3, **tkwargs)


class Broken:
    """Makes the noise of a mechanism 1.5 times too small without telling its ledger."""

    @staticmethod
    def noise(mechanism):
        for name in ("noise_std", "scale"):
            if hasattr(mechanism, name):
                setattr(mechanism, name, getattr(mechanism, name) / 1.5)
        return mechanism


SOURCES = ["seeded", "system", "secure"]


def noise_arguments(source, generator):
    return {
        "seeded": {"generator": generator},
        "system": {},
        "secure": {"secure": SecureNoise(-20)},
    }[source]


def confidence_for(source):
    return 0.99 if source == "seeded" else 1 - 1e-6
