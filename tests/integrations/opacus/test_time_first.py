"""Inputs with time first, as many times as records: no row is of one record."""

import pytest
import torch
from opacus.layers import DPLSTM
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.exceptions import InvalidArgumentError
from tests.integrations.opacus.runs import (
    RENYI,
    draw,
    full_batch,
    joint_budget,
    no_noise,
    seeded,
    step,
)

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore:Full backward hook"),
]

N = T = 40


class Transposing(nn.Module):
    """Takes sequences with the batch first, and has time first inside."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.layer(x.transpose(0, 1))


class Recurrent(nn.Module):
    """A recurrent network and a linear layer."""

    def __init__(self, *, batch_first):
        super().__init__()
        self.recurrent = DPLSTM(2, 3, batch_first=batch_first)
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.recurrent(x)[1][0][-1])


class Fixed(nn.Module):
    """A module for batches of one size."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x.view(N, 6))


def records(count=N, times=T):
    """Small records, and one that is large at all times."""
    x = 0.01 * torch.randn(count, times, 2, generator=seeded(1))
    x[0] = 100.0
    return x


def run(module, inputs, **kwargs):
    return full_batch(**kwargs).make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(inputs), batch_size=len(inputs)),
        max_grad_norm=1.0,
        loss_reduction="sum",
    )


def transpose(x):
    return x.transpose(0, 1)


def same(x):
    return x


def linear():
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


class TestTimeFirst:
    """Clipping bounds times then, of which one record can change all."""

    @pytest.mark.parametrize(
        ("make", "change"), [(Transposing, same), (linear, transpose)]
    )
    @pytest.mark.parametrize("split", [False, True])
    def test_is_refused(self, make, change, split):
        times = 10 if split else T
        module, inputs = make(), records(times=times)
        private, optimizer, loader = run(module, inputs)
        manager = BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=times, optimizer=optimizer
        )

        def train():
            if not split:
                step(private, optimizer, change(draw(loader)))
                return
            with manager as batches:
                for (batch,) in batches:
                    step(private, optimizer, change(batch))

        before = [p.detach().clone() for p in module.parameters()]
        with pytest.raises(InvalidArgumentError, match="first dimension") as error:
            train()
        assert not any(letter.isdigit() for letter in str(error.value))
        assert all(map(torch.equal, module.parameters(), before))
        assert optimizer.steps_left == 3

    def test_batch_first_counts_no_more_than_the_norm(self, monkeypatch):
        no_noise(monkeypatch)
        moved = []
        for present in (True, False):
            inputs = records()
            if not present:
                inputs[0] = 0.0
            private, optimizer, loader = run(linear(), inputs)
            private(draw(loader)).sum().backward()
            optimizer.step()
            moved.append(private._module.weight.detach().clone())
        assert 0.5 < float((moved[0] - moved[1]).norm()) <= 1 + 1e-5

    @pytest.mark.parametrize("count", [2, 3, 4])
    def test_few_records(self, count):
        private, optimizer, loader = run(Transposing(), records(count, count))
        with pytest.raises(InvalidArgumentError, match="first dimension"):
            step(private, optimizer, draw(loader))

    def test_univariate_series(self):
        private, optimizer, loader = run(nn.Linear(N, 1), records()[:, :, 0])
        with pytest.raises(InvalidArgumentError, match="may have time first"):
            step(private, optimizer, draw(loader).T)

    def test_a_module_for_one_size_is_refused_without_its_own_error(self):
        inputs = torch.rand(N, 3, 2)
        private, _, loader = run(Fixed(), inputs)
        with pytest.raises(InvalidArgumentError, match="batches of other sizes") as e:
            private(draw(loader))
        assert e.value.__cause__ is None
        assert e.value.__suppress_context__ or e.value.__context__ is None

    def test_recurrent_layers_by_their_own_rule(self):
        x = records(times=7)
        for batch_first in (True, False):
            private, optimizer, loader = run(Recurrent(batch_first=batch_first), x)
            batch = draw(loader)
            step(private, optimizer, batch if batch_first else transpose(batch))
            assert optimizer.steps_left == 2


class TestSquareInputs:
    """As many features, or times, as records, and the batch first."""

    @pytest.mark.parametrize("shape", [(N, N), (N, N, 2), (2, 2), (3, 3, 3)])
    @pytest.mark.parametrize("change", [same, torch.Tensor.double, torch.clone])
    def test_as_the_loader_gives_them(self, shape, change):
        x = torch.randn(*shape, generator=seeded(2))
        module = nn.Linear(shape[-1], 1).to(change(x))
        private, optimizer, loader = run(module, x)
        for _ in range(2):
            step(private, optimizer, change(draw(loader)))
            private.passes.tried.clear()  # so that the next ones are tried, too
        assert optimizer.steps_left == 1

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_whatever_the_records_are(self, value):
        x = torch.randn(N, N, generator=seeded(2))
        x[0] = value
        private, optimizer, loader = run(nn.Linear(N, 1), x)
        step(private, optimizer, draw(loader))
        assert optimizer.steps_left == 2

    def test_tokens(self):
        module = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(3 * N, 1))
        tokens = torch.randint(9, (N, N), generator=seeded(3))
        private, optimizer, loader = run(module, tokens)
        step(private, optimizer, draw(loader))
        private, _, loader = run(nn.Embedding(9, 3), tokens)
        with pytest.raises(InvalidArgumentError, match="may have time first"):
            private(draw(loader).T)

    @pytest.mark.parametrize("features", [2, 3])
    def test_parts_of_a_batch(self, features):
        # In parts of three, three and two records.
        x = torch.randn(8, features, generator=seeded(2))
        private, optimizer, loader = run(nn.Linear(features, 1), x)
        manager = BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=3, optimizer=optimizer
        )
        with manager as batches:
            for (batch,) in batches:
                step(private, optimizer, batch)
        assert optimizer.steps_left == 2

    def test_what_was_changed_on_the_way(self):
        x = torch.randn(N, N, generator=seeded(2))
        private, _, loader = run(nn.Linear(N, 1), x)
        with pytest.raises(InvalidArgumentError, match="batch of the loader"):
            private(2 * draw(loader))


class Counting(nn.Module):
    """Counts its calls, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout, self.sizes = nn.Linear(2, 4), nn.Dropout(0.5), []

    def forward(self, x):
        self.sizes.append(len(x))
        self.last = self.dropout(self.layer(x))
        return self.last


class TestTrials:
    def test_are_made_once_and_leave_nothing(self):
        module = Counting()
        private, optimizer, loader = run(module, torch.rand(5, 2))
        batch = draw(loader)
        torch.manual_seed(3)
        found = private(batch)
        assert module.sizes == [5, 2, 3, 5]
        assert module.last.shape == found.shape  # of the pass that counts
        torch.manual_seed(3)
        with torch.no_grad():
            assert torch.equal(module.dropout(module.layer(batch)), found)
        found.sum().backward()
        optimizer.step()
        step(private, optimizer, draw(loader))
        assert module.sizes == [5, 2, 3, 5, 5]
        assert optimizer.steps_left == 1

    def test_where_batches_have_all_records_only(self):
        module = Counting()
        budget = joint_budget(RENYI, num_runs=1, sample_rate=0.5, steps_per_run=2)
        private, optimizer, loader = budget.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
            data_loader=DataLoader(TensorDataset(torch.rand(30, 2)), batch_size=15),
            max_grad_norm=1.0,
        )
        for (batch,) in loader:
            step(private, optimizer, batch)
        assert len(module.sizes) == 2

    def test_not_where_nothing_is_learned(self):
        module = Counting()
        private, _, loader = run(module, torch.rand(5, 2))
        with torch.no_grad():
            private(draw(loader))
        private.eval()(draw(loader))
        assert module.sizes == [5, 5]
        private.train()(draw(loader))
        assert module.sizes == [5, 5, 5, 2, 3, 5]

    def test_again_when_other_layers_learn(self):
        module = nn.Sequential(nn.Linear(2, 2), Transposing())
        private, _, loader = run(module, records())
        module[1].requires_grad_(False)
        private(draw(loader))
        module[1].requires_grad_(True)
        with pytest.raises(InvalidArgumentError, match="first dimension"):
            private(draw(loader))
