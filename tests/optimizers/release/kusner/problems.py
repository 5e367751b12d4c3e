"""Small runs of the published releases."""

import warnings

import torch

from botorch_dp import ApproxDP, PrivateBO, PureDP
from botorch_dp.exceptions import (
    UselessReleaseWarning,
)
from tests.optimizers.problems import DOUBLE, seeded
from tests.optimizers.release.problems import Bowls, candidates

N, D, T, RECORDS = 40, 2, 6, 300


RHO, SIGMA2 = 0.99, 0.01


BUDGET = ApproxDP(1.0, 0.1)


# What the library leaves of each half of delta, so that the halves add up to less.
HALF = 0.05 * (1 - 1e-6)


WHOLE = 0.1 * (1 - 1e-6)


REGRET = {"regret_scale": 4.0, "regret_rate": 0.1}


RELEASES = ("kusner", "kusner-noise-free", "lipschitz")


def make(release="kusner", quiet=True, **kwargs):
    """Return an optimizer; its noise is known to be large, so that is not news."""
    if release == "lipschitz":
        regularizations = torch.linspace(1.0, 1.25, N, **DOUBLE).unsqueeze(-1)
        kwargs = {"guarantee": PureDP(1.0), "lipschitz": 0.5, **kwargs}
        kwargs.setdefault("candidates", regularizations)
    else:
        kwargs = {"correlation": RHO, "noise_variance": SIGMA2, **kwargs}
    if release == "kusner-noise-free":
        kwargs = {**REGRET, **kwargs}
    settings = {
        "num_records": RECORDS,
        "num_steps": T,
        "guarantee": BUDGET,
        "loss_range": (0.0, 1.0),
        "candidates": candidates(),
        "generator": seeded(),
        **kwargs,
    }
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", UselessReleaseWarning)
        return PrivateBO(release=release, **settings)


class Models:
    """Record i loses |w - r_i| / 2 with the weight w = 1 / lambda."""

    def __init__(self, n=RECORDS, seed=0):
        self.records = 2 * torch.rand(n, 1, generator=seeded(seed), **DOUBLE)

    def __call__(self, X):
        return (1 / X.mT - self.records).abs() / 2


def problem_of(release, seed=0):
    return (Models if release == "lipschitz" else Bowls)(n=RECORDS, seed=seed)


def run(opt, seed=0):
    return opt.run(problem_of(opt.release, seed), progress=False)


def asked_points(opt, problem):
    points = []
    while not opt.done:
        points.append(opt.ask())
        opt.tell(problem(points[-1]))
    return torch.cat(points)
