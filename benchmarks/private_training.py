"""The cost of a training step with JointBudget, with Opacus and without privacy.

Writes ``benchmarks/results/private_training.json`` and the table made from it. Run it
with ``make benchmarks``.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._common import Row, race, report
from botorch_dp import GDP
from botorch_dp.integrations.opacus import JointBudget

BATCH = 128
NUM_STEPS = 100_000  # more than are ever taken


def networks() -> dict[str, Callable[[], nn.Module]]:
    return {
        "linear, 64 x 10": lambda: nn.Linear(64, 10),
        "64 x 128 x 10": lambda: nn.Sequential(
            nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)
        ),
        "two convolutions": lambda: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(16 * 64, 10),
        ),
        "64 x 1000 x 1000 x 10": lambda: nn.Sequential(
            nn.Linear(64, 1000),
            nn.Tanh(),
            nn.Linear(1000, 1000),
            nn.Tanh(),
            nn.Linear(1000, 10),
        ),
        "wide convolutions": lambda: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 320, 3, stride=2),
            nn.Tanh(),
            nn.Conv2d(320, 340, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(340, 10),
        ),
    }


def parts(network: Callable[[], nn.Module]) -> dict[str, Any]:
    """A network, its optimizer and its records, all of them in every batch."""
    torch.manual_seed(0)
    module = network()
    records = TensorDataset(torch.rand(BATCH, 64), torch.randint(10, (BATCH,)))
    return {
        "module": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.01),
        "data_loader": DataLoader(records, batch_size=BATCH),
    }


def step_of(
    module: Any, optimizer: Any, loader: Any, criterion: Any = None
) -> Callable[[], None]:
    """A step as in any training loop, from reading the batch on."""
    loss = nn.functional.cross_entropy if criterion is None else criterion

    def step() -> None:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss(module(inputs), labels).backward()
            optimizer.step()

    return step


def steps() -> list[Row]:
    """Milliseconds for a step, batches of 128 records of 64 numbers, one thread

    All records are in every batch, so that batches have one size. `JointBudget` clips
    and adds up in double precision, draws noise from the operating system's entropy
    and checks every step. It stores the gradients of linear layers as factors, and
    reads a batch of tensors at once; the loader of Opacus and of torch reads one record
    at a time. With a criterion, the loss is
    computed for each record on its own. Opacus has its defaults.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name, network in networks().items():
        plain = parts(network)
        engine = PrivacyEngine().make_private(
            **parts(network),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        budget = JointBudget(
            GDP(1.0),
            tuning="composition",
            num_runs=2,
            sample_rate=1.0,
            steps_per_run=NUM_STEPS,
        )
        private = budget.make_private(**parts(network), max_grad_norm=1.0)
        module, optimizer, criterion, loader = budget.make_private(
            **parts(network),
            max_grad_norm=1.0,
            criterion=nn.CrossEntropyLoss(reduction="none"),
        )
        times = race(
            {
                "JointBudget": step_of(*private),
                "with a criterion": step_of(module, optimizer, loader, criterion),
                "Opacus": step_of(*engine),
                "not private": step_of(*plain.values()),
            },
            slice_seconds=0.2,
        )
        rows.append(
            {
                "network": name,
                "parameters": sum(p.numel() for p in plain["module"].parameters()),
                **{contestant: 1e3 * taken for contestant, taken in times.items()},
                "JointBudget / Opacus": times["JointBudget"] / times["Opacus"],
                "criterion / Opacus": times["with a criterion"] / times["Opacus"],
            }
        )
    return rows


def main() -> None:
    report("private_training", "Private training steps, measured", (steps,))


if __name__ == "__main__":
    main()
