"""Small private data sets for the optimizers' tests."""

import torch

from botorch_dp import DPGIBO, GDP
from tests.devices import DEVICE, seeded

DOUBLE = {"dtype": torch.float64, "device": DEVICE}


def unit_box(d, **tkwargs):
    tkwargs = tkwargs or DOUBLE
    return torch.stack([torch.zeros(d, **tkwargs), torch.ones(d, **tkwargs)])


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


def held_numbers(thing, path="", found=None, seen=None):
    """Return every tensor and number that can be reached from an object, by path."""
    found, seen = ({}, set()) if found is None else (found, seen)
    if isinstance(thing, torch.Tensor):
        found[path] = thing.detach().clone()
    elif isinstance(thing, int | float):
        found[path] = thing
    elif id(thing) not in seen and not isinstance(thing, str | bytes | type):
        seen.add(id(thing))
        parts = getattr(thing, "__dict__", {})
        if isinstance(thing, torch.nn.Module):
            parts = thing.state_dict()
        elif isinstance(thing, dict):
            parts = thing
        elif isinstance(thing, list | tuple | set | frozenset):
            parts = dict(enumerate(thing))
        for name, part in parts.items():
            held_numbers(part, f"{path}/{name}", found, seen)
    return found


def differing(first, second):
    """Return the paths at which two objects do not hold the same numbers."""
    first, second = held_numbers(first), held_numbers(second)
    return sorted(
        path
        for path in first.keys() | second.keys()
        if path not in first
        or path not in second
        or not same_number(first[path], second[path])
    )


def same_number(first, second):
    first, second = (torch.as_tensor(x, device=DEVICE) for x in (first, second))
    return first.shape == second.shape and torch.allclose(
        first.double(), second.double(), rtol=0.0, atol=0.0, equal_nan=True
    )
