"""What a module holds of its records after a step: nothing."""

import io

import pytest
import torch
from torch import nn

from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
)
from botorch_dp.integrations.opacus.private_module import PrivateModule
from tests.integrations.opacus.runs import (
    draw,
    epochs,
    full_batch,
    is_of_records,
    network,
    no_noise,
    parts,
    saved_beside_state,
    seeded,
    step,
)


def steps_as_planned(module, optimizer, loader):
    for _ in range(2):
        step(module, optimizer, draw(loader))


def a_step_too_many(module, optimizer, loader):
    steps_as_planned(module, optimizer, loader)
    with pytest.raises(BudgetExceededError, match="All 2 steps"):
        step(module, optimizer, draw(loader))


def a_batch_used_twice(module, optimizer, loader):
    batch = draw(loader)
    step(module, optimizer, batch)
    with pytest.raises(InvalidArgumentError, match="iterate the loader"):
        step(module, optimizer, batch)


def a_scaled_step(module, optimizer, loader):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(module(draw(loader)).mean()).backward()
    with pytest.raises(InvalidArgumentError, match="without a scaler"):
        scaler.step(optimizer)


def a_raw_step(module, optimizer, loader):
    module(draw(loader)).mean().backward()
    with pytest.raises(InvalidArgumentError, match="gradients without noise"):
        optimizer.original_optimizer.step()


def a_refused_step(module, optimizer, loader):
    batch = draw(loader)
    optimizer.noise_multiplier /= 2
    with pytest.raises(InvalidArgumentError, match="must stay"):
        step(module, optimizer, batch)


def a_refused_part(module, optimizer, loader):
    batch = draw(loader)
    optimizer.signal_skip_step(True)
    step(module, optimizer, batch)
    with pytest.raises(InvalidArgumentError, match="for each record of a batch"):
        step(module, optimizer, batch)


def two_passes(module, optimizer, loader):
    batch = draw(loader)
    module.allow_grad_accumulation()
    for _ in range(2):
        module(batch).mean().backward()
    with pytest.raises(InvalidArgumentError, match="exactly one Poisson batch"):
        optimizer.step()


def a_forward_pass_too_many(module, optimizer, loader):
    batch = draw(loader)
    module(batch)
    module(batch).mean().backward()
    with pytest.raises(InvalidArgumentError, match=r"torch\.no_grad"):
        optimizer.step()


def a_look_at_the_loss(module, optimizer, loader):
    batch = draw(loader)
    step(module, optimizer, batch)
    module(batch).mean()


def interrupted_noise(module, optimizer, loader):
    batch = draw(loader)

    def interrupt(value, std):
        raise KeyboardInterrupt

    optimizer._noise_source.add_gaussian = interrupt
    with pytest.raises(KeyboardInterrupt):
        step(module, optimizer, batch)
    assert optimizer.steps_left == 1


def cleared(module, optimizer, loader):
    batch = draw(loader)
    module(batch)
    module(batch).mean().backward()
    module(batch).mean().backward()
    optimizer.zero_grad()


LOOPS = [
    steps_as_planned,
    a_step_too_many,
    a_batch_used_twice,
    a_scaled_step,
    a_raw_step,
    a_refused_step,
    a_refused_part,
    two_passes,
    a_forward_pass_too_many,
    a_look_at_the_loss,
    interrupted_noise,
    cleared,
]


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestNothingIsKept:
    @pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
    @pytest.mark.parametrize("trained", [slice(None), slice(2, None)])
    def test_on_the_module(self, loop, trained):
        inputs = torch.rand(4, 3, generator=seeded())
        made = network(inputs, trained)
        module, optimizer, loader = full_batch(steps_per_run=2).make_private(**made)
        loop(module, optimizer, loader)
        # One after the other: to_standard_module clears what is there.
        for get in (lambda: module, lambda: made["module"], module.to_standard_module):
            saved = get()
            assert saved_beside_state(saved) == []
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            for parameter in loaded.parameters():
                assert not any(map(is_of_records, vars(parameter).values()))
            for layer in loaded.modules():
                assert not getattr(layer, "activations", None)
                assert not hasattr(layer, "max_batch_len")
                if isinstance(layer, PrivateModule):
                    assert layer.passes.sizes() == set()

    def test_the_spy_sees_what_opacus_leaves(self):
        module, _, loader = full_batch().make_private(**network(torch.rand(4, 3)))
        module(next(iter(loader))[0]).mean().backward()
        assert len(saved_beside_state(module)) >= 4

    def test_nor_for_the_next_step(self, monkeypatch):
        no_noise(monkeypatch)
        inputs = torch.full((4, 1), 0.5)
        module, optimizer, loader = full_batch().make_private(**parts(inputs))
        a_forward_pass_too_many(module, optimizer, loader)
        step(module, optimizer, draw(loader))
        assert module._module.weight.item() == pytest.approx(-0.5)

    def test_what_is_called_activations_and_is_not_of_opacus(self):
        made = network(torch.rand(4, 3))
        made["module"][0].activations = functions = [torch.tanh]
        full_batch().make_private(**made)
        assert made["module"][0].activations is functions

    def test_parts_keep_their_sum_alone(self):
        made = network(torch.rand(4, 3))
        module, optimizer, loader = full_batch().make_private(**made)
        draw(loader)
        optimizer.signal_skip_step(True)
        step(module, optimizer, torch.rand(2, 3))
        optimizer.zero_grad()
        for parameter in module.parameters():
            assert parameter.grad_sample is None
            assert parameter.grad is None
            assert optimizer._sums[parameter].value().dtype == torch.float64
        assert saved_beside_state(module) == []
        optimizer.discard()
        assert optimizer._sums == {}

    def test_raw_gradients_outside_the_optimizer(self):
        made = network(torch.rand(4, 3), slice(2, None))
        module, optimizer, loader = full_batch().make_private(**made)
        step(module, optimizer, next(iter(loader))[0])
        given = [parameter.grad is None for parameter in module.parameters()]
        assert given == [True, True, False, False]


class Counting(nn.Module):
    """A layer with a buffer that training changes, in one way or another."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("kept", torch.zeros(2))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, x):
        mean = x.detach().mean(dim=0)
        if self.how == "replaced":
            self.kept = 0.9 * self.kept + 0.1 * mean
        elif self.how == "in place":
            self.kept.lerp_(mean, 0.1)
        elif self.how == "by data":
            self.kept.data.copy_(mean)
        elif self.how == "data replaced":
            self.kept.data = mean.double()
        elif self.how == "new":
            self.register_buffer("made", mean)
        elif self.how == "parameter replaced":
            self.frozen = nn.Parameter(mean, requires_grad=False)
        elif self.how == "parameter in place":
            self.frozen.copy_(mean)
        elif self.how == "parameter by data":
            self.frozen.data.copy_(mean)
        return (x - self.kept).to(x)


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestBuffers:
    def parts(self, layer):
        module = nn.Sequential(layer, nn.Linear(2, 1))
        trained = torch.optim.SGD(module[1].parameters(), lr=1.0)
        return {**parts(torch.rand(4, 2)), "module": module, "optimizer": trained}

    @pytest.mark.parametrize(
        ("how", "name"),
        [
            ("replaced", "0.kept"),
            ("in place", "0.kept"),
            ("by data", "0.kept"),
            ("data replaced", "0.kept"),
            ("new", "0.made"),
            ("parameter replaced", "0.frozen"),
            ("parameter in place", "0.frozen"),
            ("parameter by data", "0.frozen"),
        ],
    )
    def test_changed(self, how, name):
        made = self.parts(Counting(how))
        module, optimizer, loader = full_batch().make_private(**made)
        before = made["module"][1].weight.detach().clone()
        with pytest.raises(InvalidArgumentError, match=f"must not change '{name}'"):
            step(module, optimizer, next(iter(loader))[0])
        assert torch.equal(made["module"][1].weight, before)
        assert optimizer.steps_left == 3
        assert all(p.grad_sample is None for p in module.parameters())

    def test_not_changed(self):
        layer = nn.Sequential(Counting("not"), nn.Dropout(0.5))
        layer.register_buffer("mask", torch.tensor([True, False]))
        layer.register_buffer("unknown", torch.full((2,), float("nan")))
        layer.register_buffer("sparse", torch.eye(2).to_sparse())
        made = self.parts(layer)
        module, optimizer, loader = full_batch().make_private(**made)
        for (batch,) in epochs(loader, 2):
            step(module, optimizer, batch)
        assert optimizer.steps_left == 1
