"""What the tests share: budgets, parts of a run, loops."""

import io
import math
import pickle

import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    TensorDataset,
)

from botorch_dp import GDP, RDP, ApproxDP
from botorch_dp.integrations.opacus import JointBudget
from botorch_dp.integrations.opacus.rows import OuterRows
from botorch_dp.privacy import (
    GaussianMechanism,
    SystemNoise,
)

CPU = torch.device("cpu")


DOUBLE = {"dtype": torch.float64, "device": CPU}


RENYI = RDP(8.0, 4.0)  # plans of sampled runs take no time


GUARANTEES = [GDP(0.7), ApproxDP(2.0, 1e-5), RDP(8.0, 0.9)]


def joint_budget(guarantee, **plan):
    plan = {"records": "disjoint", "tuning": "composition", **plan}
    return JointBudget(guarantee, **plan)


def seeded(seed=0):
    return torch.Generator(device="cpu").manual_seed(seed)


def full_batch(guarantee=None, num_runs=2, steps_per_run=3, **kwargs):
    return joint_budget(
        guarantee or GDP(1.0),
        num_runs=num_runs,
        sample_rate=1.0,
        steps_per_run=steps_per_run,
        **kwargs,
    )


def spend_on_tuning(budget, num_steps=3):
    """Release as much as the plan gives to tuning."""
    mu = budget.tuning.to_gdp().mu / math.sqrt(num_steps)
    mechanism = GaussianMechanism(
        GDP(mu), sensitivity=1.0, adjacency="zero_out", generator=seeded()
    )
    for _ in range(num_steps):
        mechanism.release(torch.zeros(2, **DOUBLE), ledger=budget.tuning_ledger)


def parts(inputs, batches=1, lr=1.0, weight=0.0):
    """A linear model without a bias whose loss is its output: gradients are inputs."""
    module = nn.Linear(inputs.shape[1], 1, bias=False).to(inputs)
    nn.init.constant_(module.weight, weight)
    loader = DataLoader(
        TensorDataset(inputs), batch_size=math.ceil(len(inputs) / batches)
    )
    return {
        "module": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=lr),
        "data_loader": loader,
        "max_grad_norm": 1.0,
    }


def step(module, optimizer, batch):
    optimizer.zero_grad()
    module(batch).mean().backward()
    optimizer.step()


def epochs(loader, number):
    for _ in range(number):
        yield from loader


def draw(loader):
    """The first batch of a new epoch."""
    return next(iter(loader))[0]


def rows_of(parameter):
    """The gradients of records that a parameter stores, in its own precision."""
    rows = parameter.grad_sample
    return (rows.dense() if isinstance(rows, OuterRows) else rows).to(parameter.dtype)


def is_of_records(value):
    """Whether an attribute of a parameter may contain gradients of records."""
    return isinstance(value, torch.Tensor | OuterRows)


def no_noise(monkeypatch):
    monkeypatch.setattr(SystemNoise, "add_gaussian", lambda self, value, std: value)


class TensorSpy(pickle.Pickler):
    """Pickles, and sees every tensor in what it pickles."""

    def __init__(self):
        super().__init__(io.BytesIO())
        self.tensors = []

    def reducer_override(self, value):
        if torch.is_tensor(value):
            self.tensors.append(value)
        return NotImplemented


def saved_beside_state(module):
    """The tensors that are saved with a module, but for parameters and buffers."""
    spy = TensorSpy()
    spy.dump(module)
    state = [*module.parameters(), *module.buffers()]
    known = {tensor.data_ptr() for tensor in state}
    assert len(spy.tensors) >= len(state)
    return [tensor for tensor in spy.tensors if tensor.data_ptr() not in known]


def network(inputs, trained=slice(None), **kwargs):
    """A network of two layers, and the parts of a run that trains some parameters."""
    module = nn.Sequential(nn.Linear(inputs.shape[1], 2), nn.Tanh(), nn.Linear(2, 1))
    followed = list(module.parameters())[trained]
    return {
        "module": module,
        "optimizer": torch.optim.SGD(followed, lr=1.0),
        "data_loader": DataLoader(TensorDataset(inputs), batch_size=len(inputs)),
        "max_grad_norm": 1.0,
        **kwargs,
    }


class Layers(nn.Module):
    """Two layers, and a way for the records to go through them."""

    def __init__(self, forward):
        super().__init__()
        self.first, self.second = nn.Linear(2, 1), nn.Linear(2, 1)
        self.forward = lambda x: forward(self, x)
