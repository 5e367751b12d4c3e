"""Modules, optimizers and loaders that are refused before anything is charged."""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from botorch_dp.exceptions import (
    InvalidArgumentError,
)
from tests.integrations.opacus.runs import (
    RENYI,
    full_batch,
    joint_budget,
    parts,
    seeded,
)


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.ones(2)


class Stream(Endless):
    def __len__(self):
        return 4


class Pairs(BatchSampler):
    """Says that it is a BatchSampler, and may do anything."""


def loaders():
    """Loaders of one batch that do not go over four records once."""
    records = TensorDataset(torch.ones(4, 2))

    def sampled(sampler, **kwargs):
        return DataLoader(records, sampler=sampler, batch_size=4, **kwargs)

    def batched(batches):
        return DataLoader(records, batch_sampler=batches)

    generator = {"generator": seeded()}
    return {
        "subset": sampled(SubsetRandomSampler([0, 1], **generator)),
        "weighted": sampled(WeightedRandomSampler([1.0, 1.0, 0.0, 0.0], 4)),
        "replaced": sampled(RandomSampler(records, replacement=True)),
        "fewer": sampled(RandomSampler(records, num_samples=3)),
        "repeated": sampled(RandomSampler(range(2), num_samples=4)),
        "others": sampled(SequentialSampler(range(3))),
        "list": sampled([0, 1, 2]),
        "batched subset": batched(BatchSampler(SubsetRandomSampler([0, 1]), 4, False)),
        "own batches": batched(Pairs(SequentialSampler(records), 4, False)),
        "listed batches": batched([[0, 1]]),
        "no batches": DataLoader(records, batch_size=None),
    }


@pytest.mark.default_device
@pytest.mark.parametrize("name", list(loaders()))
def test_samplers_that_would_be_ignored(name):
    budget = full_batch()
    made = {**parts(torch.ones(4, 2)), "data_loader": loaders()[name]}
    with pytest.raises(InvalidArgumentError, match=r"data_loader must go over.*Subset"):
        budget.make_private(**made)
    assert len(budget.training_ledger) == 0


@pytest.mark.default_device
def test_nearly_the_planned_rate():
    budget = joint_budget(RENYI, num_runs=1, sample_rate=1 / 20, steps_per_run=2)
    with pytest.raises(InvalidArgumentError, match=r"must have 20 batches.*got 21"):
        budget.make_private(**parts(torch.ones(42, 2), batches=21))
    assert len(budget.training_ledger) == 0


def broken_parts():
    good = parts(torch.ones(4, 2))
    other = nn.Linear(2, 1)
    private = full_batch().make_private(**parts(torch.ones(4, 2)))
    distributed = nn.parallel.DistributedDataParallel.__new__(
        nn.parallel.DistributedDataParallel
    )
    container = private[0]._module
    whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    full_batch().make_private(
        **{
            **good,
            "module": whole,
            "optimizer": torch.optim.SGD(whole.parameters(), lr=1.0),
        }
    )
    scattered = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1, device="meta")])
    return {
        "no module": ({"module": None}, "module must be a plain"),
        "private module": ({"module": private[0]}, "neither already private"),
        "its inside": ({"module": private[0]._module}, "to_standard_module"),
        "one inside": ({"module": nn.Sequential(container)}, "a part nor a container"),
        "a part of one": ({"module": whole[1]}, "a part nor a container"),
        "distributed": ({"module": distributed}, "nor distributed"),
        "batch norm": ({"module": nn.BatchNorm1d(2)}, "module must pass the Mod"),
        "max norm": (
            {"module": nn.Sequential(nn.Embedding(4, 2, max_norm=1.0))},
            "not use max_norm, but '0' does",
        ),
        "evaluation": ({"module": nn.Linear(2, 1).eval()}, "training mode"),
        "no optimizer": ({"optimizer": None}, "optimizer must be a torch.optim"),
        "private optimizer": ({"optimizer": private[1]}, "not private yet"),
        "other parameters": ({"module": other}, "only have parameters of module"),
        "two devices": (
            {
                "module": scattered,
                "optimizer": torch.optim.SGD(scattered.parameters(), lr=1.0),
            },
            "on one device",
        ),
        **{
            f"{dtype}": (
                {
                    "module": low,
                    "optimizer": torch.optim.SGD(low.parameters(), lr=1.0),
                },
                f"float32 or torch.float64, got .*{dtype}",
            )
            for dtype in (torch.bfloat16, torch.float16)
            for low in [nn.Linear(2, 1).to(dtype)]
        },
        "no loader": ({"data_loader": [torch.ones(2)]}, "data_loader must be a torch"),
        "endless": ({"data_loader": DataLoader(Endless())}, "with a length"),
        "stream": ({"data_loader": DataLoader(Stream(), batch_size=4)}, "indexed"),
        "no batch": (
            {
                "data_loader": DataLoader(
                    good["data_loader"].dataset, batch_size=5, drop_last=True
                )
            },
            r"data_loader must have 1 batches.*got 0",
        ),
        "another rate": (
            {"data_loader": DataLoader(good["data_loader"].dataset, batch_size=2)},
            r"data_loader must have 1 batches.*got 2",
        ),
        "no norm": ({"max_grad_norm": 0.0}, "max_grad_norm must be"),
        "reduction": ({"loss_reduction": "max"}, "loss_reduction must be one of"),
        "generator": ({"generator": 7}, "generator must be a torch.Generator"),
    }


@pytest.mark.default_device
@pytest.mark.parametrize(
    "name",
    [
        "no module",
        "private module",
        "its inside",
        "one inside",
        "a part of one",
        "distributed",
        "batch norm",
        "max norm",
        "evaluation",
        "no optimizer",
        "private optimizer",
        "other parameters",
        "two devices",
        "torch.bfloat16",
        "torch.float16",
        "no loader",
        "endless",
        "stream",
        "no batch",
        "another rate",
        "no norm",
        "reduction",
        "generator",
    ],
)
def test_refused_before_anything_is_charged(name):
    broken, match = broken_parts()[name]
    budget = full_batch()
    with pytest.raises(InvalidArgumentError, match=match):
        budget.make_private(**{**parts(torch.ones(4, 2)), **broken})
    assert len(budget.training_ledger) == 0
