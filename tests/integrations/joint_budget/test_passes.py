"""What a module does with its records when it is called."""

import io

import pytest
import torch
from opacus.layers import DPLSTM
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import SystemNoise

from .runs import RENYI, draw, full_batch, joint_budget, no_noise, parts, seeded, step

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
