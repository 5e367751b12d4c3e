"""Losses of torch that are no mean over records."""

import io
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.losses import PrivateOutput
from tests.integrations.opacus.runs import (
    RENYI,
    draw,
    full_batch,
    joint_budget,
    no_noise,
    rows_of,
    seeded,
)

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore:Full backward hook"),
]

N, CLASSES, TIMES = 30, 3, 40
WEIGHT = torch.tensor([1.0, 1.0, 100.0], device="cpu")
LOG_SOFTMAX = nn.LogSoftmax(dim=1)


def labels():
    return torch.arange(N, device="cpu") % 2


def run(targets, module=None, times=None, loss_reduction="mean"):
    """A run of classifiers, of whole records or at each time."""
    shape = (N, 2) if times is None else (N, times, 2)
    # Alike, so that gradients that change together add up.
    inputs = 0.7 + 0.05 * torch.randn(*shape, generator=seeded(5), device="cpu")
    module = nn.Linear(2, CLASSES, bias=False) if module is None else module
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return full_batch().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=N),
        max_grad_norm=1.0,
        loss_reduction=loss_reduction,
    )


def moved(loss, targets, other, **kwargs):
    """How far the sum of clipped gradients is from that of neighbouring records."""
    sums = []
    for chosen in (targets, other):
        private, optimizer, loader = run(chosen, **kwargs)
        inputs, given = next(iter(loader))
        loss(private(inputs), given).backward()
        optimizer.clip_and_accumulate()
        sums.append(optimizer._sums[private._module.weight].value())
    return float((sums[0] - sums[1]).norm())


class LossInside(nn.Module):
    """A module that returns its loss."""

    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(2, CLASSES), loss

    def forward(self, x, y):
        return {"loss": self.loss(self.layer(x), y)}


MIXED = {
    "class weights": lambda x, y: functional.cross_entropy(x, y, WEIGHT),
    "a module": nn.CrossEntropyLoss(weight=WEIGHT),
    "likelihoods": lambda x, y: functional.nll_loss(
        x.log_softmax(-1), y, weight=WEIGHT
    ),
    "their module": lambda x, y: nn.NLLLoss(WEIGHT)(LOG_SOFTMAX(x), y),
    "the old way": lambda x, y: functional.cross_entropy(
        x, y, WEIGHT, size_average=True
    ),
    "smoothed": nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1),
    "after other functions": lambda x, y: functional.cross_entropy(
        (2 * x.view(-1, CLASSES)).clamp(-5, 5), y, WEIGHT
    ),
    "an ignored class": lambda x, y: functional.cross_entropy(x, y, ignore_index=0),
    "a module that ignores": nn.CrossEntropyLoss(ignore_index=1),
    "likelihoods that ignore": nn.NLLLoss(ignore_index=2),
    "squares": lambda x, y: functional.mse_loss(
        x, torch.zeros_like(x), weight=torch.ones_like(x)
    ),
    "huber": lambda x, y: functional.huber_loss(
        x, torch.zeros_like(x), weight=torch.ones_like(x)
    ),
}
if hasattr(functional, "linear_cross_entropy"):  # of torch 2.13
    MIXED["with a layer"] = lambda x, y: functional.linear_cross_entropy(
        x, torch.eye(CLASSES), y, weight=WEIGHT
    )


@pytest.mark.filterwarnings("ignore:size_average and reduce args")
class TestRefused:
    @pytest.mark.parametrize("name", MIXED)
    def test_means_over_something_else(self, name):
        private, optimizer, loader = run(labels())
        inputs, targets = next(iter(loader))
        outputs = private(inputs)
        with pytest.raises(InvalidArgumentError, match="with reduction='mean'"):
            MIXED[name](outputs, targets)
        assert optimizer.steps_left == 3

    @pytest.mark.parametrize("name", MIXED)
    def test_inside_of_a_module(self, name):
        private, _, loader = run(labels(), LossInside(MIXED[name]))
        with pytest.raises(InvalidArgumentError, match="with reduction='mean'"):
            private(*next(iter(loader)))

    def test_at_any_sample_rate(self):
        budget = joint_budget(RENYI, num_runs=1, sample_rate=0.5, steps_per_run=2)
        module = nn.Linear(2, CLASSES)
        private, _, loader = budget.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
            data_loader=DataLoader(
                TensorDataset(torch.rand(N, 2), labels()), batch_size=N // 2
            ),
            max_grad_norm=1.0,
        )
        inputs, targets = next(iter(loader))
        with pytest.raises(InvalidArgumentError, match="weight=None"):
            functional.cross_entropy(private(inputs), targets, WEIGHT)

    def test_the_error_says_what_to_do(self):
        private, _, loader = run(labels())
        inputs, targets = next(iter(loader))
        with pytest.raises(InvalidArgumentError, match="reduction='none', add up"):
            functional.cross_entropy(private(inputs), targets, ignore_index=7)


def per_record(x, y):
    """The remedy: losses of records, and their mean."""
    return functional.cross_entropy(x, y, WEIGHT, reduction="none").mean()


RIGHT = {
    "no weights": functional.cross_entropy,
    "a module": nn.CrossEntropyLoss(),
    "losses by themselves": per_record,
    "likelihoods": lambda x, y: functional.nll_loss(x.log_softmax(-1), y),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "probabilities": lambda x, y: functional.cross_entropy(
        x, functional.one_hot(y, CLASSES).to(x), WEIGHT
    ),
    "positive weights": lambda x, y: functional.binary_cross_entropy_with_logits(
        x[:, 0], (y == 0).to(x), pos_weight=torch.tensor(3.0)
    ),
    "margins": lambda x, y: functional.multi_margin_loss(x, y, weight=WEIGHT),
    "squares": lambda x, y: functional.mse_loss(x[:, 0], y.to(x)),
}


class TestMeansOverRecords:
    @pytest.mark.parametrize("name", RIGHT)
    def test_one_record_counts_no_more_than_twice_the_norm(self, name):
        other = labels()
        other[4] = 2
        distance = moved(RIGHT[name], labels(), other)
        assert 0.0 < distance <= 2.0

    @pytest.mark.parametrize("name", RIGHT)
    def test_as_without_privacy(self, name):
        private, _, loader = run(labels())
        inputs, targets = next(iter(loader))
        with torch.no_grad():
            private._module.weight.normal_(generator=seeded(1))
        plain = private._module.weight.detach().clone().requires_grad_()
        private_loss = RIGHT[name](private(inputs), targets)
        loss = RIGHT[name](inputs @ plain.T, targets)
        torch.testing.assert_close(private_loss.as_subclass(torch.Tensor), loss)
        private_loss.backward()
        loss.backward()
        torch.testing.assert_close(
            rows_of(private._module.weight).sum(0) / N, plain.grad
        )

    def test_weights_that_torch_drops(self):
        # torch 2.13 forgets the weights of l1_loss for tensors of other classes.
        def loss(x, y):
            weight = (1.0 + 99.0 * (y == 2)).unsqueeze(-1).expand_as(x)
            return functional.l1_loss(x + 1.0, torch.zeros_like(x), weight=weight)

        other = labels()
        other[4] = 2
        assert moved(loss, labels(), other) <= 2.0

    def test_sums_may_have_weights(self):
        loss = nn.CrossEntropyLoss(WEIGHT, ignore_index=1, reduction="sum")
        other = labels()
        other[4] = 2
        assert moved(loss, labels(), other, loss_reduction="sum") <= 2.0


class TestTargetsThatAreLeftOut:
    """Labels of -100: torch leaves them out by default, and divides by the rest."""

    def targets(self, seen, others=1):
        """As many targets for the first record, and for each of the others."""
        targets = torch.full((N, TIMES), -100, device="cpu")
        targets[1:, :others] = 0
        targets[0, :seen] = 1
        return targets

    @staticmethod
    def loss(x, y):
        return functional.cross_entropy(x.flatten(0, 1), y.flatten())

    def test_one_record_counts_no_more_than_twice_the_norm(self):
        one, all_of_them = self.targets(1), self.targets(TIMES)
        assert moved(self.loss, one, all_of_them, times=TIMES) <= 2.0

    def test_they_count_as_zeros(self):
        private, _, loader = run(self.targets(1), times=TIMES)
        inputs, targets = next(iter(loader))
        found = self.loss(private(inputs), targets)
        assert found.item() == pytest.approx(math.log(CLASSES) / TIMES)

    def test_no_target_at_all(self):
        private, optimizer, loader = run(torch.full((N,), -100, device="cpu"))
        inputs, targets = next(iter(loader))
        functional.cross_entropy(private(inputs), targets).backward()
        optimizer.step()
        assert optimizer.steps_left == 2

    @pytest.mark.parametrize("old", [{"size_average": True}, {"reduce": True}])
    @pytest.mark.filterwarnings("ignore:size_average and reduce args")
    def test_the_old_way(self, old):
        private, _, loader = run(self.targets(1), times=TIMES)
        inputs, targets = next(iter(loader))
        found = functional.cross_entropy(
            private(inputs).flatten(0, 1), targets.flatten(), **old
        )
        assert found.item() == pytest.approx(math.log(CLASSES) / TIMES)


class TestOutputs:
    def test_are_plain_where_nothing_is_learned(self):
        private, _, loader = run(labels())
        inputs = draw(loader)
        assert type(private(inputs)) is PrivateOutput
        with torch.no_grad():
            assert type(private(inputs)) is torch.Tensor
        file = io.BytesIO()
        torch.save(private, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert type(loaded(inputs)) is torch.Tensor
        assert type(private.to_standard_module()(inputs)) is torch.Tensor

    def test_of_a_module_are_plain_as_inputs(self, monkeypatch):
        no_noise(monkeypatch)
        seen = []
        module = nn.Linear(2, 2, bias=False)
        module.register_forward_pre_hook(lambda _, args: seen.append(type(args[0])))
        private, optimizer, loader = run(labels(), module)
        private(private(draw(loader))).mean().backward()
        optimizer.step()
        assert set(seen) == {torch.Tensor}
        assert type(module.weight.grad) is torch.Tensor
