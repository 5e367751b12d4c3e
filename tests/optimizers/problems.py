"""Small private data sets for the optimizers' tests."""

import torch

from botorch_dp import DPGIBO, GDP

CPU = torch.device("cpu")
DOUBLE = {"dtype": torch.float64, "device": CPU}


def unit_box(d, **tkwargs):
    tkwargs = tkwargs or DOUBLE
    return torch.stack([torch.zeros(d, **tkwargs), torch.ones(d, **tkwargs)])


def seeded(seed=0):
    return torch.Generator(device="cpu").manual_seed(seed)


class Quadratics:
    """Record i loses ||x - r_i||^2 / 2, so that the optimum is the mean record."""

    def __init__(self, n=200, d=3, seed=0, **tkwargs):
        tkwargs = tkwargs or DOUBLE
        self.records = torch.rand(n, d, generator=seeded(seed), **tkwargs)

    def __call__(self, X):
        return (X - self.records.unsqueeze(1)).square().sum(dim=-1) / 2  # n x b

    def gradients(self, x):
        return x - self.records


def make(d=3, n=200, num_steps=5, clip_norm=1.0, mu=1.0, seed=0, cls=DPGIBO, **kwargs):
    bounds = kwargs.pop("bounds", unit_box(d))
    kwargs.setdefault("generator", seeded(seed))
    guarantee = kwargs.pop("guarantee", GDP(mu))
    return cls(bounds, n, guarantee, num_steps, clip_norm, **kwargs)


def same_state(first, second):
    """Return whether two states are equal, tensors to the bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            same_state(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_state, first, second))
    return first == second
