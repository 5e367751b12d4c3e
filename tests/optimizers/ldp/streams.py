"""Streams of users, and optimizers for them, that several test files share."""

import torch

from botorch_dp import GDP, LDPBO
from tests.optimizers.problems import DOUBLE, seeded

P, R = 3, 4


class Means:
    """User t of replication r loses ||x - z||^2 / 2 with z around one."""

    def __init__(self, seed=0, count=600, **tkwargs):
        tkwargs = tkwargs or DOUBLE
        noise = torch.randn(count, R, P, generator=seeded(seed), **tkwargs)
        self.records = 1.0 + 0.5 * noise
        self.seen = []

    def losses(self, step, X):
        self.seen.append(step)
        return (X - self.records[step - 1].unsqueeze(-2)).square().sum(dim=-1) / 2

    def gradients(self, step, x):
        self.seen.append(step)
        return x - self.records[step - 1]


def make(cls=LDPBO, seed=1, guarantee=None, **kwargs):
    x = kwargs.pop("x", torch.zeros(R, P, **DOUBLE))
    generator = kwargs.pop("generator", seeded(seed))
    guarantee = GDP(2.0) if guarantee is None else guarantee
    return cls(x, guarantee, clip_norm=2.0, generator=generator, **kwargs)


class Alone:
    """The first replication of a stream."""

    def __init__(self, stream):
        self.records = stream.records[:, 0]

    def losses(self, step, X):
        return (X - self.records[step - 1]).square().sum(dim=-1) / 2
