"""A step has the batch that was drawn for it, whole or in parts."""

import contextlib
import math

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from botorch_dp.exceptions import (
    InvalidArgumentError,
)
from botorch_dp.integrations.opacus.batches import (
    ColumnDataset,
    PoissonBatches,
    poisson_loader,
)
from botorch_dp.privacy import (
    SeededNoise,
    SystemNoise,
)
from tests.integrations.opacus.runs import (
    RENYI,
    draw,
    full_batch,
    joint_budget,
    no_noise,
    parts,
    saved_beside_state,
    seeded,
    step,
)


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestStepsHaveBatches:
    def run(self, workers=0, batches=5):
        budget = joint_budget(
            RENYI, num_runs=1, sample_rate=1 / batches, steps_per_run=4 * batches
        )
        made = parts(torch.rand(50, 2, generator=seeded()), batches)
        given = made["data_loader"] = DataLoader(
            made["data_loader"].dataset, batch_size=50 // batches, num_workers=workers
        )
        return given, *budget.make_private(**made)

    def refused(self, module, optimizer, batch, match="one step for each of its"):
        before = module._module.weight.detach().clone()
        left = optimizer.steps_left
        with pytest.raises(InvalidArgumentError, match=match) as error:
            step(module, optimizer, batch)
        assert not any(letter.isdigit() for letter in str(error.value))
        assert torch.equal(module._module.weight, before)
        assert optimizer.steps_left == left
        assert saved_beside_state(module) == []

    def test_batches_of_the_loader_that_was_given(self):
        given, module, optimizer, _ = self.run()
        for (batch,) in given:
            self.refused(module, optimizer, batch)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_an_epoch_drawn_first(self, workers):
        _, module, optimizer, loader = self.run(workers)
        drawn = [batch for (batch,) in loader]
        for batch in drawn:
            step(module, optimizer, batch)
        assert optimizer.steps_left == 15
        self.refused(module, optimizer, drawn[0])

    @pytest.mark.parametrize("workers", [0, 1])
    def test_an_epoch_broken_off(self, workers):
        _, module, optimizer, loader = self.run(workers)
        unfinished = iter(loader)
        step(module, optimizer, next(unfinished)[0])
        next(unfinished)  # and no step
        for (batch,) in loader:
            step(module, optimizer, batch)
        assert optimizer.steps_left == 20 - 1 - 5
        self.refused(module, optimizer, next(unfinished)[0])

    def test_a_batch_without_its_step(self, monkeypatch):
        module, optimizer, loader = self.run()[1:]
        sizes = iter([2, 0, 3, 3, 1, 4])

        def sample(self, shape, rate, device):
            return torch.arange(*shape, device=device) < next(sizes)

        monkeypatch.setattr(SystemNoise, "poisson_sample", sample)
        epoch = iter(loader)
        step(module, optimizer, next(epoch)[0])
        next(epoch)
        match = r"Each batch, even an empty one, needs its step"
        self.refused(module, optimizer, next(epoch)[0], match)

    def test_a_refused_step_has_used_its_batch(self):
        module, optimizer, loader = self.run()[1:]
        for number, (batch,) in enumerate(list(loader)):
            if number == 1:
                optimizer.max_grad_norm = 2.0
                with pytest.raises(InvalidArgumentError, match="must stay"):
                    step(module, optimizer, batch)
                optimizer.max_grad_norm = 1.0
            else:
                step(module, optimizer, batch)
        assert optimizer.steps_left == 20 - 4


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestOtherWaysToStep:
    @pytest.mark.parametrize("value", [1.0, float("inf")])
    @pytest.mark.parametrize("unscales", [True, False])
    def test_a_scaler(self, value, unscales):
        inputs = torch.tensor([[value, 0.0], [0.5, 0.5]])
        module, optimizer, loader = full_batch().make_private(**parts(inputs))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(module(draw(loader)).mean()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        with pytest.raises(InvalidArgumentError, match=r"GradScaler.*autocast without"):
            scaler.step(optimizer)
        assert module._module.weight.tolist() == [[0.0, 0.0]]
        assert module._module.weight.grad is None
        assert optimizer.steps_left == 3

    def test_without_a_scaler(self):
        module, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module(draw(loader)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert module._module.weight.dtype == torch.float32
        assert optimizer.steps_left == 2

    def test_the_optimizer_that_was_given(self):
        made = parts(torch.ones(4, 2))
        module, optimizer, loader = full_batch().make_private(**made)
        schedule = torch.optim.lr_scheduler.StepLR(made["optimizer"], 1)
        step(module, optimizer, draw(loader))  # through it
        schedule.step()
        before = made["module"].weight.detach().clone()
        module(draw(loader)).mean().backward()
        with pytest.raises(InvalidArgumentError, match="make_private returned"):
            made["optimizer"].step()
        assert torch.equal(made["module"].weight, before)
        assert made["module"].weight.grad is None
        assert optimizer.steps_left == 2

    def test_also_after_a_step_that_was_interrupted(self):
        made = parts(torch.ones(4, 2))
        module, optimizer, loader = full_batch().make_private(**made)

        def interrupt(*_):
            raise KeyboardInterrupt

        hook = made["optimizer"].register_step_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            step(module, optimizer, draw(loader))
        hook.remove()
        with pytest.raises(InvalidArgumentError, match="make_private returned"):
            made["optimizer"].step()

    def test_an_optimizer_of_two_runs(self):
        budget, made = full_batch(num_runs=2), parts(torch.ones(4, 2))
        first = budget.make_private(**made)
        step(*first[:2], draw(first[2]))
        made["module"] = first[0].to_standard_module()
        module, optimizer, loader = budget.make_private(**made)
        step(module, optimizer, draw(loader))
        assert optimizer.steps_left == 2

    def test_a_closure(self):
        module, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
        batch = draw(loader)
        optimizer.step(lambda: module(batch).mean().backward())
        assert optimizer.steps_left == 2


class Records(Dataset):
    """Records that are dictionaries."""

    def __len__(self):
        return 40

    def __getitem__(self, number):
        return {"x": torch.full((2,), float(number)), "y": number}


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestPartsOfBatches:
    """Batches that Opacus's BatchMemoryManager splits."""

    def run(self, batches=4, workers=0, **kwargs):
        budget = joint_budget(
            RENYI, num_runs=1, sample_rate=1 / batches, steps_per_run=2 * batches
        )
        inputs = torch.rand(40, 2, generator=seeded(3))
        made = parts(inputs, batches)
        made["data_loader"] = DataLoader(
            TensorDataset(inputs), batch_size=40 // batches, num_workers=workers
        )
        return budget.make_private(**made, **kwargs)

    def managed(self, optimizer, loader):
        return BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=3, optimizer=optimizer
        )

    @pytest.mark.parametrize("workers", [0, 1])
    def test_as_without_parts(self, workers):
        found = []
        for split in (True, False):
            module, optimizer, loader = self.run(workers=workers, generator=seeded(4))
            whole = contextlib.nullcontext(loader)
            with self.managed(optimizer, loader) if split else whole as batches:
                sizes = []
                for _ in range(2):
                    for (batch,) in batches:
                        sizes.append(len(batch))
                        step(module, optimizer, batch)
            assert (max(sizes) <= 3) == split
            assert optimizer.steps_left == 0
            found.append(module._module.weight.detach().clone())
        if workers == 0:  # batches drawn ahead take other random numbers
            torch.testing.assert_close(*found)

    def test_more_records_than_there_are(self):
        inputs = torch.ones(4, 1)
        module, optimizer, loader = full_batch().make_private(**parts(inputs))
        draw(loader)
        optimizer.signal_skip_step(True)
        step(module, optimizer, inputs)
        optimizer.signal_skip_step(True)
        with pytest.raises(InvalidArgumentError, match="for each record of a batch"):
            step(module, optimizer, inputs[:1])
        assert module._module.weight.item() == 0.0
        step(module, optimizer, inputs)  # the signal was of the step before
        assert optimizer.steps_left == 2

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_batch_without_its_step(self, workers):
        module, optimizer, loader = self.run(workers=workers)

        def epoch(forgotten):
            with self.managed(optimizer, loader) as batches:
                for number, (batch,) in enumerate(batches):
                    if number != forgotten:
                        step(module, optimizer, batch)

        with pytest.raises(InvalidArgumentError, match=r"needs its step\(\)"):
            epoch(forgotten=1)
        assert saved_beside_state(module) == []
        left = optimizer.steps_left
        epoch(forgotten=None)
        assert optimizer.steps_left == left - 4

    @pytest.mark.parametrize("managed", [True, False])
    def test_a_batch_that_was_left_undone(self, monkeypatch, managed):
        no_noise(monkeypatch)
        module, optimizer, loader = self.run(batches=1, loss_reduction="sum")
        with self.managed(optimizer, loader) as batches:
            for number, (batch,) in enumerate(batches):
                optimizer.zero_grad()
                module(batch).sum().backward()
                if number == 3:
                    break  # three parts were added up, the fourth was not
                optimizer.step()
        again = self.managed(optimizer, loader)
        with again if managed else contextlib.nullcontext(loader) as batches:
            for (batch,) in batches:
                optimizer.zero_grad()
                module(batch).sum().backward()
                optimizer.step()
        assert optimizer.steps_left == 1
        records = torch.stack([record for (record,) in loader.dataset])
        norms = records.norm(dim=-1, keepdim=True)
        expected = -(records / norms.clamp(min=1.0)).sum(dim=0, keepdim=True)
        torch.testing.assert_close(
            module._module.weight.detach(), expected, rtol=1e-5, atol=1e-5
        )


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestPoissonBatches:
    def loader(self, num_records, batches, generator=None):
        budget = joint_budget(
            RENYI, num_runs=1, sample_rate=1 / batches, steps_per_run=1
        )
        inputs = torch.arange(num_records, dtype=torch.float32).unsqueeze(-1)
        made = parts(inputs, batches)
        return budget.make_private(**made, generator=generator)[2]

    @pytest.mark.parametrize("batches", [4, 93])  # 1 / (1 / 93) < 93
    def test_as_many_as_before(self, batches):
        loader = self.loader(10 * batches, batches)
        assert len(loader) == len(list(loader)) == batches

    def test_each_record_on_its_own(self):
        # 20,000 batches of 8 records at 1/4: sizes are binomial, and so are counts.
        loader = self.loader(8, 4, seeded())
        epochs = [batch.flatten() for _ in range(5000) for (batch,) in loader]
        sizes = torch.tensor([len(batch) for batch in epochs]).double()
        assert float(sizes.mean()) == pytest.approx(2.0, abs=4 * 1.2247 / 141)
        assert float(sizes.var()) == pytest.approx(1.5, rel=0.05)
        counts = torch.cat(epochs).long().bincount(minlength=8)
        assert (counts - 5000).abs().max() < 5 * math.sqrt(20_000 * 3 / 16)
        assert all(len(batch.unique()) == len(batch) for batch in epochs[:100])
        assert (sizes == 0).any()

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_an_empty_batch_is_like_the_others(self, monkeypatch, caplog, drop_last):
        budget = joint_budget(RENYI, num_runs=1, sample_rate=0.1, steps_per_run=1)
        made = parts(torch.ones(40, 2))
        made["data_loader"] = DataLoader(Records(), batch_size=4, drop_last=drop_last)
        monkeypatch.setattr(
            SystemNoise,
            "poisson_sample",
            lambda self, shape, rate, device: torch.zeros(shape, dtype=torch.bool),
        )
        *_, loader = budget.make_private(**made)
        batch = next(iter(loader))
        assert (batch["x"].shape, batch["x"].dtype) == ((0, 2), torch.float32)
        assert (batch["y"].shape, batch["y"].dtype) == ((0,), torch.int64)
        assert caplog.records == []

    @pytest.mark.parametrize(
        "options",
        [
            {"batch_size": 4, "shuffle": True},
            {"sampler": SequentialSampler(range(8)), "batch_size": 4},
            {"batch_sampler": BatchSampler(RandomSampler(range(8)), 4, False)},
        ],
        ids=["shuffled", "in order", "in given batches"],
    )
    def test_samplers_of_all_records(self, options):
        budget = joint_budget(RENYI, num_runs=1, sample_rate=0.5, steps_per_run=1)
        made = parts(torch.ones(8, 2))
        made["data_loader"] = DataLoader(made["data_loader"].dataset, **options)
        assert len(budget.make_private(**made)[2]) == 2

    def test_a_step_on_nothing(self, monkeypatch):
        monkeypatch.setattr(
            SystemNoise,
            "poisson_sample",
            lambda self, shape, rate, device: torch.zeros(shape, dtype=torch.bool),
        )
        budget = joint_budget(RENYI, num_runs=1, sample_rate=0.5, steps_per_run=2)
        made = parts(torch.ones(2, 1), batches=2)
        module, optimizer, loader = budget.make_private(**made)
        step(module, optimizer, draw(loader))
        assert module._module.weight.item() != 0.0
        assert module._module.weight.isfinite().all()


def seeded_batches(records):
    """A loader of seeded Poisson batches, and the batches."""
    given = DataLoader(records, batch_size=math.ceil(len(records) / 4))
    batches = PoissonBatches(
        num_records=len(records),
        sample_rate=0.25,
        num_batches=4,
        noise_source=SeededNoise(seeded()),
        device=torch.device("cpu"),
    )
    return poisson_loader(given, batches), batches


@pytest.mark.default_device
class TestColumns:
    """Batches of tensors are read at once."""

    @pytest.mark.parametrize("num_tensors", [1, 2, 3])
    @pytest.mark.parametrize("num_records", [1, 3, 40])
    def test_as_one_record_at_a_time(self, num_tensors, num_records):
        tensors = [
            torch.randn(num_records, 3, generator=seeded()),
            torch.arange(num_records),
            torch.rand(num_records, 2, 2, generator=seeded()).double(),
        ][:num_tensors]
        records = TensorDataset(*tensors)
        at_once, _ = seeded_batches(records)
        one_by_one, _ = seeded_batches(Subset(records, range(num_records)))
        assert isinstance(at_once.dataset, ColumnDataset)
        assert isinstance(one_by_one.dataset, Subset)
        for _ in range(3):
            for batch, expected in zip(at_once, one_by_one, strict=True):
                assert type(batch) is type(expected)
                assert len(batch) == len(expected)
                for a, b in zip(batch, expected, strict=True):
                    assert a.dtype == b.dtype
                    assert torch.equal(a, b)

    def test_a_batch_is_a_copy(self):
        (records,) = tensors = [torch.ones(4, 2)]
        loader, _ = seeded_batches(TensorDataset(*tensors))
        for (batch,) in [*loader, *loader]:
            batch.fill_(7.0)
        assert torch.equal(records, torch.ones(4, 2))

    def test_the_same_numbers_of_torch_are_drawn(self):
        records = TensorDataset(torch.ones(4, 2))
        states = []
        for given in (records, Subset(records, range(4))):
            loader, _ = seeded_batches(given)
            torch.manual_seed(0)
            list(loader)
            states.append(torch.random.get_rng_state())
        assert torch.equal(*states)

    def test_records_of_another_kind_are_read_one_by_one(self):
        class Doubled(TensorDataset):
            def __getitem__(self, index):
                return [2 * value for value in super().__getitem__(index)]

        loader, _ = seeded_batches(Doubled(torch.ones(40, 1)))
        assert all((batch == 2.0).all() for (batch,) in loader)
        given = DataLoader(
            TensorDataset(torch.ones(4, 1)),
            collate_fn=lambda items: default_collate(items)[0] + 1,
        )
        loader = poisson_loader(given, seeded_batches(given.dataset)[1])
        assert not isinstance(loader.dataset, ColumnDataset)
        assert all((batch == 2.0).all() for batch in loader)
