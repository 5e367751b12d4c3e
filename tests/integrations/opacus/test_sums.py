"""Sums of clipped gradients: one row for each record, none longer than the norm."""

import contextlib
import math

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import (
    DataLoader,
    TensorDataset,
)

from botorch_dp.exceptions import (
    InvalidArgumentError,
)
from botorch_dp.integrations.opacus import steps
from botorch_dp.privacy import (
    SystemNoise,
)
from tests.integrations.opacus.runs import (
    DOUBLE,
    RENYI,
    Layers,
    draw,
    full_batch,
    joint_budget,
    network,
    no_noise,
    parts,
    saved_beside_state,
    seeded,
    step,
)


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestFrozenParameters:
    def test_some_frozen_before_the_step(self):
        made = network(torch.rand(4, 3))
        module, optimizer, loader = full_batch().make_private(**made)
        body, head = made["module"][0], made["module"][2]
        before = [p.detach().clone() for p in module.parameters()]
        module(next(iter(loader))[0]).mean().backward()
        body.requires_grad_(False)
        optimizer.step()
        assert torch.equal(body.weight, before[0])
        assert torch.equal(body.bias, before[1])
        assert not torch.equal(head.weight, before[2])
        assert optimizer.steps_left == 2

    def test_all_frozen_before_the_step(self):
        made = network(torch.rand(4, 3))
        module, optimizer, loader = full_batch().make_private(**made)
        before = [p.detach().clone() for p in module.parameters()]
        module(next(iter(loader))[0]).mean().backward()
        module.requires_grad_(False)
        with pytest.raises(InvalidArgumentError, match="but all of them are frozen"):
            optimizer.step()
        assert all(map(torch.equal, module.parameters(), before))
        assert optimizer.steps_left == 3
        assert saved_beside_state(module) == []


def sum_of(inputs, max_grad_norm):
    """The sum of clipped gradients, before noise."""
    made = {**parts(inputs), "max_grad_norm": max_grad_norm}
    module, optimizer, loader = full_batch().make_private(**made, loss_reduction="sum")
    module(draw(loader)).sum().backward()
    optimizer.clip_and_accumulate()
    return optimizer._sums[module._module.weight].flatten()


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestSums:
    @pytest.mark.parametrize("chunk", [None, 4, 100])
    def test_one_record_of_many_counts_no_more_than_the_norm(self, monkeypatch, chunk):
        # Single precision rounds a sum of 4096 by more than the margin of clipping.
        if chunk is not None:  # entries at a time
            monkeypatch.setattr(steps, "_CHUNK", chunk)
        bound, sums = 0.1, []
        for present in range(4096 - 8, 4096 + 1):
            inputs = torch.zeros(4096, 2)
            inputs[:present] = torch.tensor([3.0, 4.0])
            sums.append(sum_of(inputs, bound))
            exact = present * bound * torch.tensor([0.6, 0.8], **DOUBLE)
            torch.testing.assert_close(sums[-1], exact, rtol=2e-6, atol=0.0)
        moved = torch.stack(sums).diff(dim=0).norm(dim=-1)
        assert (moved <= bound).all()
        assert (moved >= bound * (1 - 2e-6)).all()

    @pytest.mark.parametrize("bound", [1e-6, 1.0, 1e6])
    @pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20, 3e37])
    def test_no_clipped_gradient_is_longer(self, bound, scale, tkwargs):
        for seed in range(5):
            inputs = scale * torch.randn(1, 50, generator=seeded(seed)).to(**tkwargs)
            exact = inputs.double().flatten()
            clipped = sum_of(inputs, bound)
            assert clipped.dtype == torch.float64
            assert clipped.norm() <= bound
            expected = exact * min(1.0, bound / float(exact.norm()))
            torch.testing.assert_close(clipped, expected, rtol=2e-6, atol=0.0)

    def test_a_norm_past_all_doubles_counts_as_zero(self):
        inputs = torch.tensor([[1e200, -1e200], [0.25, 0.5]], **DOUBLE)
        assert sum_of(inputs, 1.0).tolist() == [0.25, 0.5]

    def test_noise_is_added_in_double(self, monkeypatch):
        seen = []

        def add_gaussian(self, value, std):
            seen.append(value.dtype)
            return value

        monkeypatch.setattr(SystemNoise, "add_gaussian", add_gaussian)
        module, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
        step(module, optimizer, next(iter(loader))[0])
        assert seen == [torch.float64]
        assert module._module.weight.grad.dtype == torch.float32

    def test_norms_are_over_all_parameters(self, monkeypatch):
        no_noise(monkeypatch)
        inputs = torch.rand(6, 3, generator=seeded()) * 5
        made = network(inputs, max_grad_norm=0.5)
        first = [p.detach().clone() for p in made["module"].parameters()]
        expected = [torch.zeros_like(p) for p in first]
        for row in inputs:
            output = made["module"](row.unsqueeze(0)).sum()
            gradients = torch.autograd.grad(output, list(made["module"].parameters()))
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            for total, gradient in zip(expected, gradients, strict=True):
                total += gradient * min(1.0, 0.5 / float(norm)) / 6
        module, optimizer, loader = full_batch().make_private(**made)
        step(module, optimizer, draw(loader))
        for before, after, change in zip(
            first, module.parameters(), expected, strict=True
        ):
            torch.testing.assert_close(before - after.detach(), change)


def joined(items):
    return torch.cat([record for (record,) in items])


def some_only(module, x):
    chosen = x[:, 0, 0].nonzero().flatten()
    return module.first(x).index_add(0, chosen, module.second(x[chosen]))


def some_again(module, x):
    chosen = x[:, 0, 0].nonzero().flatten()
    return module.first(x).index_add(0, chosen, module.first(x[chosen]))


NOT_RECORDS = {
    "tokens": lambda module, x: module.first(x.reshape(-1, 2)),
    "sequence first": lambda module, x: module.first(x.transpose(0, 1)),
    "tokens in one layer": lambda module, x: (
        module.first(x).mean() + module.second(x.reshape(-1, 2)).mean()
    ),
    "a mean over records": lambda module, x: module.first(x.mean(0, keepdim=True)),
    "some records only": some_only,
    "some records twice": some_again,
    "joined": lambda module, x: module.first(x),
}


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestRowsAreRecords:
    def run(self, forward, inputs, batches=1, **options):
        budget = joint_budget(
            RENYI, num_runs=1, sample_rate=1 / batches, steps_per_run=2 * batches
        )
        module = Layers(forward)
        return budget.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
            data_loader=DataLoader(
                TensorDataset(inputs), batch_size=len(inputs) // batches, **options
            ),
            max_grad_norm=1.0,
        )

    @pytest.mark.parametrize("how", list(NOT_RECORDS))
    @pytest.mark.parametrize("split", [False, True])
    def test_others_are_refused(self, how, split):
        inputs = torch.ones(30, 3, 2)
        inputs[0] = 0.0
        options = {"collate_fn": joined} if how == "joined" else {}
        module, optimizer, loader = self.run(NOT_RECORDS[how], inputs, **options)
        before = [p.detach().clone() for p in module.parameters()]
        manager = BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=10, optimizer=optimizer
        )

        def train():
            with manager if split else contextlib.nullcontext(loader) as batches:
                for batch in batches:
                    rows = batch if how == "joined" else batch[0]
                    optimizer.zero_grad()
                    module(rows).mean().backward()
                    optimizer.step()

        with pytest.raises(InvalidArgumentError, match="first dimension") as error:
            train()
        assert not any(letter.isdigit() for letter in str(error.value))
        assert optimizer.steps_left == 2
        assert all(map(torch.equal, module.parameters(), before))
        for parameter in module.parameters():
            assert not any(map(torch.is_tensor, vars(parameter).values()))
            assert parameter.grad is None

    def test_fewer_or_more_than_the_batch(self):
        inputs = torch.rand(4, 2)
        module, optimizer, loader = full_batch().make_private(**parts(inputs))
        for rows in (inputs[:3], torch.cat([inputs, inputs[:1]]), inputs[:0]):
            draw(loader)
            with pytest.raises(InvalidArgumentError, match="for each record") as error:
                step(module, optimizer, rows)
            assert not any(letter.isdigit() for letter in str(error.value))
        assert module._module.weight.tolist() == [[0.0, 0.0]]
        step(module, optimizer, draw(loader))
        assert optimizer.steps_left == 2

    @pytest.mark.parametrize("first", [True, False])
    def test_a_layer_that_was_not_used_has_zeros(self, monkeypatch, first):
        inputs = torch.full((4, 2), 0.3)
        module, optimizer, loader = self.run(
            lambda m, x: (m.first if first else m.second)(x), inputs
        )
        noised = []
        monkeypatch.setattr(
            SystemNoise, "add_gaussian", lambda _, v, std: noised.append(v) or v
        )
        step(module, optimizer, draw(loader))
        used, unused = (0, 2) if first else (2, 0)
        expected = torch.full((2,), 4 * 0.3, **DOUBLE) / math.sqrt(1.18)
        torch.testing.assert_close(noised[used], expected, rtol=1e-5, atol=0.0)
        assert noised[unused].tolist() == [0.0, 0.0]
        assert noised[unused].dtype == torch.float64
        assert len(noised) == 4  # noise on all of them
        assert optimizer.steps_left == 1

    def test_a_parameter_of_another_module(self):
        module, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
        other = nn.Parameter(torch.zeros(2))
        optimizer.original_optimizer.add_param_group({"params": [other]})
        batch = draw(loader)
        (module(batch).mean() + (batch @ other).mean()).backward()
        with pytest.raises(
            InvalidArgumentError, match="only have parameters that module had"
        ):
            optimizer.step()
        assert other.grad is None
        assert other.tolist() == [0.0, 0.0]
