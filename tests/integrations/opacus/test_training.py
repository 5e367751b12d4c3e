"""Runs with a criterion at any sample rate: the batch must come first."""

from itertools import pairwise

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import SystemNoise
from tests.integrations.opacus.runs import RENYI, joint_budget, no_noise, seeded
from tests.integrations.opacus.test_criterion import TimeFirst
from tests.integrations.opacus.test_time_first import Recurrent, Transposing, linear

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore:Full backward hook"),
]

N, T = 30, 6


def sum_of(x, _):
    return x.flatten(1).sum(1)


def run(module, times=T, steps=4):
    x = 0.01 * torch.randn(N, times, 2, generator=seeded(1))
    budget = joint_budget(RENYI, num_runs=1, sample_rate=0.5, steps_per_run=steps)
    return budget.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        criterion=sum_of,
        data_loader=DataLoader(TensorDataset(x, torch.zeros(N)), batch_size=N // 2),
        max_grad_norm=1.0,
    )


def choose_sizes(monkeypatch, *sizes):
    """Let batches have these sizes: always the first records."""
    left = list(sizes)

    def sample(self, shape, rate, device):
        chosen = torch.zeros(shape, dtype=torch.bool, device=device)
        chosen[: left.pop(0)] = True
        return chosen

    monkeypatch.setattr(SystemNoise, "poisson_sample", sample)


def step(parts, batch, change=lambda x: x):
    module, optimizer, criterion, _ = parts
    optimizer.zero_grad()
    criterion(module(change(batch[0])), batch[1]).backward()
    optimizer.step()


class TestSampledBatches:
    def test_batch_first(self, monkeypatch):
        no_noise(monkeypatch)
        # Empty, of one record, as many as times, as many as dummies, others.
        choose_sizes(monkeypatch, 0, 1, 9, 2, T, 3)
        module = linear()
        parts = run(module, steps=6)
        moves = []
        for _ in range(3):
            for batch in parts[3]:
                before = module.weight.detach().clone()
                step(parts, batch)
                moves.append(float((module.weight.detach() - before).norm()))
        assert moves[0] == 0
        assert all(move > 0 for move in moves[1:])
        assert parts[1].steps_left == 0

    @pytest.mark.parametrize("part", [None, T])
    def test_one_record_does_not_decide_whether_others_count(self, part, monkeypatch):
        no_noise(monkeypatch)
        weights = []
        # Batches that have as many records as times, parts of them, and others.
        for first in (T - 1, T, T + 1, 2 * T - 1, 2 * T):
            choose_sizes(monkeypatch, first, 9)
            module = linear()
            nn.init.zeros_(module.weight)
            parts = run(module)
            batches = parts[3]
            if part is not None:
                batches = BatchMemoryManager(
                    data_loader=batches,
                    max_physical_batch_size=part,
                    optimizer=parts[1],
                ).__enter__()
            found = {}
            for batch in batches:
                step(parts, batch)
                found[parts[1].steps_left] = module.weight.detach().clone()
            weights.append([found[3], found[2] - found[3]])
        one = 1.0 / 15  # of 15 records in an expected batch, one moves a step by this
        for (a, later_a), (b, later_b) in pairwise(weights):
            sizes = 5 if a is weights[2][0] else 1
            assert float((b - a).norm()) <= sizes * one * (1 + 1e-6)
            assert torch.allclose(later_a, later_b)  # whatever the first step was

    @pytest.mark.parametrize("size", [2, 3, 5, 9])
    @pytest.mark.parametrize(
        ("make", "change"),
        [(Transposing, lambda x: x), (linear, lambda x: x.transpose(0, 1))],
    )
    def test_time_first_is_refused(self, make, change, size, monkeypatch):
        choose_sizes(monkeypatch, size, size)
        module = make()
        parts = run(module)
        before = [p.detach().clone() for p in module.parameters()]
        with pytest.raises(InvalidArgumentError, match="first dimension") as error:
            step(parts, next(iter(parts[3])), change)
        assert not any(letter.isdigit() for letter in str(error.value))
        assert all(map(torch.equal, module.parameters(), before))

    @pytest.mark.parametrize(
        ("make", "change"),
        [(Transposing, lambda x: x), (linear, lambda x: x.transpose(0, 1))],
    )
    def test_time_first_is_refused_at_the_next_batch(self, make, change, monkeypatch):
        choose_sizes(monkeypatch, T, 9)
        module = make()
        parts = run(module)
        batches = iter(parts[3])
        step(parts, next(batches), change)  # as many records as times: nothing shows
        before = [p.detach().clone() for p in module.parameters()]
        with pytest.raises(InvalidArgumentError, match="first dimension"):
            step(parts, next(batches), change)
        assert all(map(torch.equal, module.parameters(), before))

    def test_outputs_with_time_first_are_remembered(self, monkeypatch):
        choose_sizes(monkeypatch, 9, T)
        parts = run(TimeFirst())
        for batch in parts[3]:  # the second one has as many records as times
            with pytest.raises(InvalidArgumentError, match="criterion must be given"):
                parts[2](parts[0](batch[0])[0], batch[1])

    @pytest.mark.parametrize("batch_first", [True, False])
    def test_recurrent_layers_by_their_own_rule(self, batch_first, monkeypatch):
        choose_sizes(monkeypatch, 9, 5)
        parts = run(Recurrent(batch_first=batch_first))
        for batch in parts[3]:
            step(parts, batch, lambda x: x if batch_first else x.transpose(0, 1))
        assert parts[1].steps_left == 2

    def test_parts_of_a_batch(self, monkeypatch):
        no_noise(monkeypatch)
        choose_sizes(monkeypatch, 13, 9)
        module = linear()
        parts = run(module)
        manager = BatchMemoryManager(
            data_loader=parts[3], max_physical_batch_size=5, optimizer=parts[1]
        )
        with manager as batches:
            for batch in batches:
                step(parts, batch)
        assert parts[1].steps_left == 2
        assert float(module.weight.detach().norm()) > 0

    def test_a_module_without_tensors_is_refused(self, monkeypatch):
        class Fixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 1)

            def forward(self, values):
                return self.layer(torch.tensor(values))

        choose_sizes(monkeypatch, 9, 9)
        parts = run(Fixed())
        inputs, _ = next(iter(parts[3]))
        with pytest.raises(InvalidArgumentError, match="first dimension"):
            parts[0](inputs.mean(1).tolist())
