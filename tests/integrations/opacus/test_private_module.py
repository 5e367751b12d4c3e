"""What a module does with its records when it is called."""

import io
import itertools

import pytest
import torch
from opacus.layers import DPLSTM
from opacus.layers.dp_rnn import DPGRUCell
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import SystemNoise
from tests.integrations.opacus.runs import (
    RENYI,
    draw,
    full_batch,
    joint_budget,
    no_noise,
    parts,
    seeded,
    step,
)

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore:Full backward hook"),
]


class Sequences(nn.Module):
    """A recurrent network over sequences of different lengths."""

    def __init__(self, *, is_sorted, is_packed=True):
        super().__init__()
        self.is_sorted, self.is_packed = is_sorted, is_packed
        self.embedding = nn.Embedding(8, 3)
        self.recurrent = DPLSTM(3, 3, batch_first=True)
        self.head = nn.Linear(3, 1)

    def forward(self, x, lengths):
        x = self.embedding(x)
        if self.is_packed:
            x = pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=self.is_sorted
            )
        _, (h, _) = self.recurrent(x)
        return self.head(h[-1]).squeeze(-1)


def private_sequences(scales, **kwargs):
    """A run over five sequences, longest first, with losses of these scales."""
    torch.manual_seed(0)
    module = Sequences(**kwargs)
    tokens = torch.randint(8, (5, 4), generator=seeded())
    records = TensorDataset(tokens, torch.tensor([4, 4, 3, 2, 1]), scales)
    made = full_batch().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(records, batch_size=5),
        max_grad_norm=1.0,
        loss_reduction="sum",
    )
    return module, *made


def train(private, optimizer, loader):
    tokens, lengths, scales = next(iter(loader))
    (private(tokens, lengths) * scales).sum().backward()
    optimizer.step()


def moved(scales, **kwargs):
    module, *made = private_sequences(scales, **kwargs)
    before = [p.detach().clone() for p in module.parameters()]
    train(*made)
    after = module.parameters()
    return torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)])


class TestSequences:
    @pytest.mark.parametrize("is_packed", [True, False])
    def test_one_record_counts_no_more_than_the_norm(self, monkeypatch, is_packed):
        no_noise(monkeypatch)
        scales = torch.tensor([100.0, 1.0, 1.0, 1.0, 100.0])
        kwargs = {"is_sorted": True, "is_packed": is_packed}
        whole = moved(scales, **kwargs).detach()
        for record in range(5):
            without = scales.clone()
            without[record] = 0.0
            change = (whole - moved(without, **kwargs).detach()).norm()
            assert change <= 1 + 1e-5
        assert whole.norm() > 0.5

    def test_unsorted_ones_are_refused(self):
        # Also where they happen to be sorted: whether they are is private.
        module, *made = private_sequences(torch.ones(5), is_sorted=False)
        before = [p.detach().clone() for p in module.parameters()]
        with pytest.raises(InvalidArgumentError, match="enforce_sorted=True"):
            train(*made)
        assert all(map(torch.equal, module.parameters(), before))

    def test_they_are_free_where_nothing_is_learned(self):
        _, private, _, loader = private_sequences(torch.ones(5), is_sorted=False)
        tokens, lengths, _ = next(iter(loader))
        with torch.no_grad():
            assert private(tokens, lengths).shape == (5,)
        assert private.eval()(tokens, lengths).shape == (5,)


class Cells(nn.Module):
    """A recurrent network by hand: cells go on with the sequences that do."""

    def __init__(self, *, is_whole):
        super().__init__()
        self.is_whole = is_whole
        self.cell, self.head = DPGRUCell(3, 4, bias=True), nn.Linear(4, 1)

    def forward(self, x, lengths):
        h = x.new_zeros(len(x), 4)
        for t in range(x.shape[1]):
            goes_on = (lengths > t) | self.is_whole
            h = h.masked_scatter(
                goes_on.unsqueeze(-1), self.cell(x[goes_on, t], h[goes_on])
            )
        return self.head(h).squeeze(-1)


@pytest.mark.parametrize("is_whole", [True, False])
def test_cells_by_themselves(is_whole):
    module = Cells(is_whole=is_whole)
    records = TensorDataset(torch.rand(4, 3, 3), torch.tensor([1, 3, 2, 3]))
    private, optimizer, loader = full_batch().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(records, batch_size=4),
        max_grad_norm=1.0,
    )
    private(*next(iter(loader))).mean().backward()
    if is_whole:
        optimizer.step()
        assert optimizer.steps_left == 2
    else:
        with pytest.raises(InvalidArgumentError, match="for each record"):
            optimizer.step()
        assert optimizer.steps_left == 3


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.head = DPLSTM(3, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.recurrent(input=x)[0][:, -1])


def test_sequences_by_name():
    module = Named()
    private, optimizer, loader = full_batch().make_private(
        **{
            **parts(torch.rand(4, 2, 3).flatten(1)),
            "module": module,
            "optimizer": torch.optim.SGD(module.parameters(), lr=1.0),
        }
    )
    step(private, optimizer, draw(loader).unflatten(1, (2, 3)))
    assert optimizer.steps_left == 2


class TestTwoBatches:
    """A record that is in both would count twice."""

    def run(self, monkeypatch, workers=0):
        draws = itertools.cycle(
            [torch.tensor(drawn) for drawn in ([1, 1, 0, 0], [0, 1, 1, 0])]
        )
        monkeypatch.setattr(
            SystemNoise,
            "poisson_sample",
            lambda self, shape, rate, device: next(draws).bool(),
        )
        budget = joint_budget(RENYI, num_runs=1, sample_rate=0.5, steps_per_run=4)
        made = parts(torch.ones(4, 1), batches=2)
        made["data_loader"] = DataLoader(
            made["data_loader"].dataset, batch_size=2, num_workers=workers
        )
        return budget.make_private(**made)

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("is_new_epoch", [True, False])
    def test_in_one_loss(self, monkeypatch, is_new_epoch, workers):
        private, optimizer, loader = self.run(monkeypatch, workers)
        batches = iter(loader)
        first = private(next(batches)[0]).sum()
        if is_new_epoch:
            batches = iter(loader)
            next(batches)  # the same batch as before: take the other
        second = private(next(batches)[0]).sum()
        with pytest.raises(InvalidArgumentError, match="a loss of one batch"):
            (first + second).backward()
        with pytest.raises(InvalidArgumentError, match="for each record"):
            optimizer.step()
        assert optimizer.steps_left == 4
        assert private._module.weight.item() == 0.0

    def test_a_pass_that_nothing_follows(self, monkeypatch):
        private, optimizer, loader = self.run(monkeypatch)
        private(draw(loader))
        step(private, optimizer, draw(loader))
        assert optimizer.steps_left == 3


class Renormalizing(nn.Module):
    """Looks up weights, and changes those that were looked up."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 2), nn.Linear(2, 1)

    def forward(self, x):
        weight = self.embedding.weight
        found = nn.functional.embedding(x, weight, max_norm=0.1)
        return self.head(found + self.embedding(x))


def test_parameters_that_change_when_they_are_used():
    module = Renormalizing()
    records = TensorDataset(torch.tensor([0, 1, 1]))
    private, _, loader = full_batch().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(records, batch_size=3),
        max_grad_norm=1.0,
    )
    with pytest.raises(InvalidArgumentError, match="must not change its parameters"):
        private(draw(loader))


def test_parameters_may_change_between_steps():
    private, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
    for _ in range(2):
        step(private, optimizer, draw(loader))
        with torch.no_grad():
            private._module.weight.clamp_(-0.5, 0.5)
    assert optimizer.steps_left == 1


def test_two_runs_of_one_module_do_not_share_sums(monkeypatch):
    no_noise(monkeypatch)
    monkeypatch.setattr(
        SystemNoise,
        "poisson_sample",
        lambda self, shape, rate, device: torch.ones(shape, dtype=torch.bool),
    )
    budget = joint_budget(RENYI, num_runs=2, sample_rate=0.5, steps_per_run=4)
    made = {**parts(torch.ones(4, 1), batches=2), "loss_reduction": "sum"}
    private, first, loader = budget.make_private(**made)
    batch = draw(loader)
    first.signal_skip_step(True)
    private(batch).sum().backward()
    first.step()  # a part: its sum waits for the others
    made["module"] = private.to_standard_module()
    private, second, loader = budget.make_private(**made)
    batch = draw(loader)
    private(batch).sum().backward()
    second.step()
    assert made["module"].weight.item() == pytest.approx(-4.0, rel=1e-5)


def test_passes_are_not_saved():
    private, _, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
    private(draw(loader))
    assert private.passes.sizes() == {4}
    file = io.BytesIO()
    torch.save(private, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.passes.sizes() == set()
    assert loaded(torch.ones(3, 2)).shape == (3, 1)
