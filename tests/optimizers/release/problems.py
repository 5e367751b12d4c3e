"""Small data sets for the tests of private releases."""

import torch

from botorch_dp import PrivateBO, PureDP
from tests.optimizers.problems import (
    DOUBLE,
    seeded,
)

N, D = 40, 2


def candidates(count=N, seed=1):
    return torch.rand(count, D, generator=seeded(seed), **DOUBLE)


class Bowls:
    """Record i loses the squared distance to its own point, over the range."""

    def __init__(self, n=300, seed=0):
        self.records = torch.rand(n, D, generator=seeded(seed), **DOUBLE)

    def __call__(self, X):
        return (X - self.records.unsqueeze(1)).square().sum(dim=-1) / D


def make(n=300, num_steps=6, guarantee=PureDP(1.0), **kwargs):  # noqa: B008
    kwargs.setdefault("generator", seeded())
    if "bounds" not in kwargs:
        kwargs.setdefault("candidates", candidates())
    kwargs.setdefault("loss_range", (0.0, 1.0))
    if "what" not in kwargs:
        kwargs.setdefault("output", "both")
    return PrivateBO(num_records=n, guarantee=guarantee, num_steps=num_steps, **kwargs)


def not_to_be_evaluated(X):
    raise AssertionError("nothing may be evaluated")
