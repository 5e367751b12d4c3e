"""Sums of clipped gradients: one row for each record, none longer than the norm."""

import contextlib
import math
from fractions import Fraction

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
from botorch_dp.integrations.opacus import sums as rounding
from botorch_dp.integrations.opacus.rows import OuterRows
from botorch_dp.integrations.opacus.sums import (
    CompensatedSum,
    clip_factors,
    norm_with_room,
)
from botorch_dp.privacy import (
    SystemNoise,
)
from tests.integrations.opacus.runs import (
    DOUBLE,
    RENYI,
    Layers,
    draw,
    full_batch,
    is_of_records,
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


def sum_of(inputs, max_grad_norm, kind="outer"):
    """The sum of clipped gradients, before noise."""
    made = {**parts(inputs), "max_grad_norm": max_grad_norm}
    module, optimizer, loader = full_batch().make_private(**made, loss_reduction="sum")
    batch = draw(loader)
    # With a dimension of tokens, Opacus adds up products.
    module(batch if kind == "outer" else batch.unsqueeze(1)).sum().backward()
    stored = module._module.weight.grad_sample
    is_outer = kind == "outer" and inputs.dtype != torch.float64
    assert isinstance(stored, OuterRows) == is_outer
    optimizer.clip_and_accumulate()
    return optimizer._sums[module._module.weight].value()


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestSums:
    @pytest.mark.parametrize(
        ("kind", "chunk"),
        [("outer", None), ("dense", None), ("dense", 4), ("dense", 100)],
    )
    def test_one_record_of_many_counts_no_more_than_the_norm(
        self, monkeypatch, kind, chunk
    ):
        # Single precision rounds a sum of 4096 by more than the margin of clipping.
        if chunk is not None:  # entries at a time
            monkeypatch.setattr(rounding, "_CHUNK", chunk)
        bound, sums = 0.1, []
        for present in range(4096 - 8, 4096 + 1):
            inputs = torch.zeros(4096, 2)
            inputs[:present] = torch.tensor([3.0, 4.0])
            sums.append(sum_of(inputs, bound, kind))
            exact = present * bound * torch.tensor([0.6, 0.8], **DOUBLE)
            torch.testing.assert_close(sums[-1], exact, rtol=2e-6, atol=0.0)
        moved = torch.stack(sums).diff(dim=0).norm(dim=-1)
        assert (moved <= bound).all()
        assert (moved >= bound * (1 - 2e-6)).all()

    @pytest.mark.parametrize("kind", ["outer", "dense"])
    @pytest.mark.parametrize("bound", [1e-6, 1.0, 1e6])
    @pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20, 3e37])
    def test_no_clipped_gradient_is_longer(self, bound, scale, kind, tkwargs):
        for seed in range(5):
            inputs = scale * torch.randn(1, 50, generator=seeded(seed)).to(**tkwargs)
            exact = inputs.double().flatten()
            clipped = sum_of(inputs, bound, kind)
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


N = 11  # records
HOSTILE = {
    "ordinary": lambda shape: torch.randn(shape, generator=seeded()),
    "huge": lambda shape: 3e38 * (2 * torch.rand(shape, generator=seeded()) - 1),
    "denormal": lambda shape: torch.randint(-3, 4, shape, generator=seeded()) * 1e-45,
    "all magnitudes": lambda shape: (
        torch.randn(shape, generator=seeded())
        * 10.0 ** torch.linspace(-40, 37, shape[0]).unsqueeze(-1)
    ),
    "magnitudes within a record": lambda shape: (
        torch.randn(shape, generator=seeded())
        * 10.0 ** torch.linspace(-40, 37, shape[1])
    ),
    "cancelling": lambda shape: (
        (torch.tensor([[1.0], [-1.0]]).repeat(shape[0], 1)[: shape[0]])
        * (1 + 1e-7 * torch.rand(shape, generator=seeded()))
    ),
    "equal": lambda shape: torch.full(shape, 1 / 3),
    "zero": torch.zeros,
}


def hostile_gradients(name, kind):
    """Gradients of N records for a layer and its bias."""
    outputs, inputs = HOSTILE[name]((N, 2)), HOSTILE[name]((N, 3)).flip(0)
    if kind == "outer":
        return [OuterRows(outputs.double(), inputs.double()), outputs]
    return [inputs, outputs]


def fractions(rows):
    """Rows in rational arithmetic."""
    dense = rows.dense().flatten(1) if isinstance(rows, OuterRows) else rows
    return [[Fraction(entry) for entry in row] for row in dense.tolist()]


def selected(rows, keep):
    if isinstance(rows, OuterRows):
        return OuterRows(rows.outputs[keep], rows.inputs[keep])
    return rows[keep]


def clipped_sums(gradients, keep, num_parts, clip_norm):
    """The sums as computed, of some records in parts of a batch."""
    totals = [CompensatedSum() for _ in gradients]
    for part in keep.tensor_split(num_parts):
        rows = [selected(rows, part) for rows in gradients]
        factors = clip_factors(rows, clip_norm)
        for total, some in zip(totals, rows, strict=True):
            total.add_weighted(factors, some)
    return [Fraction(x) for total in totals for x in total.value().tolist()]


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestRounding:
    """Against rational arithmetic."""

    @pytest.mark.parametrize("kind", ["outer", "dense"])
    @pytest.mark.parametrize("name", HOSTILE)
    @pytest.mark.parametrize("bound", [1e-100, 1.0, 1e100])
    def test_no_record_changes_the_sum_by_more_than_the_norm(
        self, monkeypatch, name, kind, bound
    ):
        monkeypatch.setattr(rounding, "_MOST_ROWS", 3)
        monkeypatch.setattr(rounding, "_CHUNK", 4)
        gradients = hostile_gradients(name, kind)
        clip_norm = norm_with_room(bound, N)
        everyone = torch.arange(N)
        for num_parts in (1, 4):
            total = clipped_sums(gradients, everyone, num_parts, clip_norm)
            for i in range(N):
                others = everyone[everyone != i]
                rest = clipped_sums(gradients, others, num_parts, clip_norm)
                moved = sum((a - b) ** 2 for a, b in zip(total, rest, strict=True))
                assert moved <= Fraction(bound) ** 2

    @pytest.mark.parametrize("kind", ["outer", "dense"])
    @pytest.mark.parametrize("name", HOSTILE)
    def test_factors_clip_to_just_below_the_norm(self, name, kind):
        gradients = hostile_gradients(name, kind)
        clip_norm = norm_with_room(0.1, N)
        factors = clip_factors(gradients, clip_norm).tolist()
        rows = zip(*map(fractions, gradients), strict=True)
        for factor, row in zip(factors, rows, strict=True):
            square = sum(entry**2 for part in row for entry in part)
            clipped = Fraction(factor) ** 2 * square
            assert clipped <= Fraction(0.1) ** 2
            is_long = square > Fraction(0.1) ** 2
            assert is_long == (factor < 1)
            if is_long:
                assert clipped >= (Fraction(0.1) * Fraction(1 - 2e-6)) ** 2

    @pytest.mark.parametrize("kind", ["outer", "dense"])
    @pytest.mark.parametrize("name", HOSTILE)
    def test_errors_are_within_the_bound(self, monkeypatch, name, kind):
        most, u = 3, Fraction(1, 2**53)
        monkeypatch.setattr(rounding, "_MOST_ROWS", most)
        gradients = hostile_gradients(name, kind)
        factors = torch.rand(N, generator=seeded(1), dtype=torch.float64)
        for rows in gradients:
            total = CompensatedSum()
            total.add_weighted(factors, rows)
            weighted = [
                [Fraction(f) * entry for entry in row]
                for f, row in zip(factors.tolist(), fractions(rows), strict=True)
            ]
            columns = zip(total.value().tolist(), *weighted, strict=True)
            for computed, *column in columns:
                error = abs(Fraction(computed) - sum(column))
                terms = sum(map(abs, column))
                assert error <= ((most + 8) * u + 2 * (N * u) ** 2) * terms

    def test_small_terms_beside_large_ones_are_not_lost(self):
        # 2^12 terms of half the last digit, each of which rounding would drop.
        total = CompensatedSum()
        total.add(torch.ones(1, **DOUBLE))
        for _ in range(2**12):
            total.add(torch.full((1,), 2.0**-53, **DOUBLE))
        assert total.value().item() == 1 + 2.0**-41

    def test_blocks_of_many_rows_are_compensated(self, monkeypatch):
        monkeypatch.setattr(rounding, "_MOST_ROWS", 1)
        rows = torch.full((2**12 + 1, 1), 2.0**-53)
        rows[0] = 1.0
        total = CompensatedSum()
        total.add_weighted(torch.ones(len(rows), **DOUBLE), rows)
        assert total.value().item() == 1 + 2.0**-41

    def test_parts_of_a_batch_are_compensated(self):
        inputs = torch.full((2**8 + 1, 1), 2.0**-54)
        inputs[0] = 0.5
        module, optimizer, loader = full_batch().make_private(
            **parts(inputs), loss_reduction="sum"
        )
        for row in draw(loader).split(1):
            module(row).sum().backward()
            optimizer.clip_and_accumulate()
        total = optimizer._sums[module._module.weight].value().item()
        assert total == 0.5 + 2.0**-46

    @pytest.mark.parametrize("num_records", [1, 10**3, 10**6, 10**9])
    def test_the_room_covers_two_errors(self, num_records):
        u, most = Fraction(1, 2**53), 2**12
        assert most == rounding._MOST_ROWS
        error = num_records * ((most + 8) * u + 2 * (num_records * u) ** 2)
        clip_norm = Fraction(norm_with_room(1.0, num_records))
        longest = (1 + Fraction(10**9 + 11) * u) * clip_norm
        assert (1 + 2 * error) * longest <= 1
        assert clip_norm >= 1 - Fraction(11, 10**7) - 2 * error

    def test_no_room_is_left_for_too_many_records(self):
        assert norm_with_room(1.0, 10**13) == 0.0


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
            assert not any(map(is_of_records, vars(parameter).values()))
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
        (noised,) = noised  # noise on all of them, from one draw
        assert noised.dtype == torch.float64
        assert len(noised) == 6
        noised = noised.split([2, 1, 2, 1])
        torch.testing.assert_close(noised[used], expected, rtol=1e-5, atol=0.0)
        assert noised[unused].tolist() == [0.0, 0.0]
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
