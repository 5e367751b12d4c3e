"""Losses that are computed for each record on its own."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.criterion import is_cross_entropy_of_rows
from tests.integrations.opacus.runs import full_batch, no_noise, rows_of, seeded

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore:Full backward hook"),
]

N, CLASSES, TIMES = 100, 3, 40
WEIGHT = torch.tensor([1.0, 1.0, 100.0], device="cpu")
IGNORED = -100


def labels():
    return torch.arange(N, device="cpu") % 2


def tokens(seen):
    """Targets at four times of each record, and at some times of the first."""
    targets = torch.full((N, TIMES), IGNORED, device="cpu")
    targets[1:, :4] = 0
    targets[0, :seen] = 1
    return targets


def run(targets, criterion, **kwargs):
    """A run of classifiers, of whole records or at each time."""
    generator = seeded(5)
    inputs = 0.7 + 0.05 * torch.randn(*targets.shape, 2, generator=generator)
    module = nn.Linear(2, CLASSES, bias=False)
    nn.init.zeros_(module.weight)
    return full_batch().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=N),
        max_grad_norm=1.0,
        **kwargs,
    )


def weighted_mean(x, y):
    """A mean of one's own with class weights: not over records."""
    weights = WEIGHT[y]
    losses = functional.cross_entropy(x, y, reduction="none")
    return (weights * losses).sum() / weights.sum()


def token_losses(x, y):
    return functional.cross_entropy(x.transpose(1, 2), y, reduction="none")


def token_mean(x, y):
    """A mean over the tokens that a mask selects: not over records."""
    return token_losses(x, y).sum() / (y != IGNORED).sum()


def mean_of_own_tokens(x, y):
    """A mean over the tokens of each record that a mask selects."""
    return token_losses(x, y).sum(1) / (y != IGNORED).sum(1).clamp(min=1)


def gradients(targets, loss, *, is_criterion):
    """The gradients of records and the sum of the clipped ones."""
    if is_criterion:
        module, optimizer, criterion, loader = run(targets, loss)
    else:
        module, optimizer, loader = run(targets, None)
        criterion = loss
    inputs, given = next(iter(loader))
    criterion(module(inputs), given).backward()
    weight = module._module.weight
    rows = rows_of(weight)
    optimizer.clip_and_accumulate()
    return rows, optimizer._sums[weight].value()


CASES = {
    "class weights": (
        weighted_mean,
        nn.CrossEntropyLoss(WEIGHT, reduction="none"),
        labels(),
        torch.where(torch.arange(N, device="cpu") == 0, 2, labels()),
        19.4,
    ),
    "tokens": (token_mean, token_losses, tokens(1), tokens(TIMES), 3.1),
    "own tokens": (token_mean, mean_of_own_tokens, tokens(1), tokens(TIMES), 3.1),
}


class TestOneRecord:
    @pytest.mark.parametrize("name", CASES)
    def test_moves_a_step_by_many_norms_with_other_means(self, name):
        mean, _, targets, other, factor = CASES[name]
        sums = [gradients(t, mean, is_criterion=False)[1] for t in (targets, other)]
        assert float((sums[0] - sums[1]).norm()) > factor

    @pytest.mark.parametrize("name", CASES)
    def test_changes_no_gradient_but_its_own(self, name):
        _, criterion, targets, other, _ = CASES[name]
        (rows, total), (other_rows, other_total) = (
            gradients(t, criterion, is_criterion=True) for t in (targets, other)
        )
        assert torch.equal(rows[1:], other_rows[1:])
        assert not torch.equal(rows[0], other_rows[0])
        assert 0 < float((total - other_total).norm()) <= 2.0
        for rows_of_run, sum_of_run in ((rows, total), (other_rows, other_total)):
            flat = rows_of_run[1:].flatten(1).double()
            factors = (1 / flat.norm(dim=1)).clamp(max=1.0)
            without = (factors[:, None] * flat).sum(0)  # the record contributes nothing
            assert float((sum_of_run - without).norm()) <= 1.0

    def test_even_if_the_criterion_divides_by_a_sum_over_its_batch(self):
        def criterion(x, y):
            weights = WEIGHT[y]
            losses = functional.cross_entropy(x, y, reduction="none")
            return weights * losses / weights.sum()

        _, _, targets, other, _ = CASES["class weights"]
        rows, other_rows = (
            gradients(t, criterion, is_criterion=True)[0] for t in (targets, other)
        )
        assert torch.equal(rows[1:], other_rows[1:])


def cannot_batch(x, y):
    """A loss whose control flow depends on values, which vmap does not support."""
    losses = functional.cross_entropy(x, y, reduction="none")
    return 2 * losses if bool((y == 1).all()) else losses


EQUAL = {
    "weights": (
        nn.CrossEntropyLoss(WEIGHT, reduction="none"),
        lambda x, y: functional.cross_entropy(x, y, WEIGHT, reduction="none"),
    ),
    "squares over entries": (
        lambda x, y: (x - y[:, None]) ** 2,
        lambda x, y: ((x - y[:, None]) ** 2).mean(1),
    ),
    "margins": (
        nn.MultiMarginLoss(reduction="none"),
        lambda x, y: functional.multi_margin_loss(x, y, reduction="none"),
    ),
    "values decide": (
        cannot_batch,
        lambda x, y: (1 + (y == 1)) * functional.cross_entropy(x, y, reduction="none"),
    ),
}


class TestValues:
    @pytest.mark.parametrize("name", EQUAL)
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_as_without_privacy(self, name, reduction, monkeypatch):
        no_noise(monkeypatch)
        criterion, losses = EQUAL[name]
        module, optimizer, private, loader = run(
            labels(), criterion, loss_reduction=reduction
        )
        weight = module._module.weight
        with torch.no_grad():
            weight.normal_(std=0.1, generator=seeded(1))
        optimizer.max_grad_norm = optimizer._planned["max_grad_norm"] = 1e6
        inputs, targets = next(iter(loader))
        plain = weight.detach().clone().requires_grad_()
        expected = getattr(losses(inputs @ plain.T, targets), reduction)()
        expected.backward()
        loss = private(module(inputs), targets)
        if reduction == "mean":
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(weight.grad, plain.grad, rtol=1e-4, atol=1e-5)

    def test_dictionaries_and_numbers(self):
        def criterion(outputs, targets, scale):
            return scale * functional.cross_entropy(
                outputs["logits"], targets, reduction="none"
            )

        module, _, private, loader = run(labels(), criterion)
        inputs, targets = next(iter(loader))
        outputs = module(inputs)
        one = private({"logits": outputs}, targets, scale=1.0)
        three = private({"logits": outputs}, targets, 3.0)
        assert three.item() == pytest.approx(3 * one.item())
        assert (one + 2 * one).item() == pytest.approx(three.item())
        assert (three / 3).item() == pytest.approx(one.item())
        assert (one * 3).detach().shape == ()

    @pytest.mark.filterwarnings("error")
    def test_a_hook_without_gradients_of_inputs_is_no_warning(self):
        module, _, private, loader = run(
            labels(), nn.CrossEntropyLoss(reduction="none")
        )
        inputs, targets = next(iter(loader))
        private(module(inputs), targets).backward()

    def test_an_empty_batch(self):
        module, _, private, _ = run(labels(), nn.CrossEntropyLoss(reduction="none"))
        inputs = torch.zeros(0, 2)
        loss = private(module(inputs), torch.zeros(0, dtype=torch.long))
        assert loss.item() == 0.0
        loss.backward()
        assert rows_of(module._module.weight).shape == (0, CLASSES, 2)

    def test_where_nothing_is_learned(self):
        module, _, private, loader = run(
            labels(), nn.CrossEntropyLoss(reduction="none")
        )
        inputs, targets = next(iter(loader))
        with torch.no_grad():
            loss = private(module(inputs)[:7], targets[:7])
        assert loss.item() > 0


def sums_of(x, y, criterion, loss, module=None):
    """The sum of clipped gradients if ``loss`` computes the loss of all records."""
    module = nn.Linear(x.shape[-1], CLASSES, bias=False) if module is None else module
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.1)
    module, optimizer, private, loader = full_batch().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        max_grad_norm=1.0,
    )
    loss(module, private, *next(iter(loader))).backward()
    optimizer.clip_and_accumulate()
    return torch.cat([optimizer._sums[p].value() for p in optimizer.params])


def squares(x, y):
    return ((x - y.reshape(-1, 1)) ** 2).mean(1)


def in_place(module, criterion, x, y):
    outputs = module(x)
    with torch.no_grad():
        outputs -= outputs.mean(0)
    return criterion(outputs, y)


class Box:
    """Something whose tensors are not found."""

    def __init__(self, tensor):
        self.tensor = tensor


OUTPUTS_OF_ANOTHER = []


class TimeFirst(nn.Module):
    """One row for each record in every layer, but outputs with time first."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, CLASSES)

    def forward(self, x):
        return self.layer(x).transpose(0, 1), x.mean()


MIXED = {
    "centered": (squares, lambda m, c, x, y: c(m(x) - m(x).mean(0), y)),
    "contrastive": (squares, lambda m, c, x, y: c(m(x) @ m(x).T, y)),
    "reordered": (squares, lambda m, c, x, y: c(m(x).flip(0), y)),
    "in place": (squares, in_place),
    "a target": (
        lambda x, y: ((x - y) ** 2).mean(1),
        lambda m, c, x, y: c(m(x), m(x).detach().mean(0).expand(len(x), -1)),
    ),
    "rows": (squares, lambda m, c, x, y: c(m(x)[torch.arange(len(x)) * 0, :], y)),
    "few rows": (squares, lambda m, c, x, y: c(m(x)[0:, :], y)),
    "first dimension": (squares, lambda m, c, x, y: c(m(x).squeeze(0), y)),
    "any dimension": (squares, lambda m, c, x, y: c(m(x).squeeze(), y)),
    "known otherwise": (
        lambda y: (OUTPUTS_OF_ANOTHER[-1].mean() - y) ** 2,
        lambda m, c, x, y: (OUTPUTS_OF_ANOTHER.append(m(x)), c(y))[1],
    ),
    "a layer": (squares, lambda m, c, x, y: c(m._module(x), y)),
}


class TestOutputs:
    x = 3.0 + torch.arange(N * 2.0, device="cpu").reshape(N, 2) / N
    y = torch.zeros(N, device="cpu")

    @pytest.mark.parametrize("name", MIXED)
    def test_computed_from_several_records(self, name):
        criterion, loss = MIXED[name]
        with pytest.raises(InvalidArgumentError, match="first dimension"):
            sums_of(self.x, self.y, criterion, loss)

    @pytest.mark.parametrize(
        "change",
        [
            lambda x: x,
            lambda x: x.squeeze(2),
            lambda x: torch.squeeze(x, dim=-1),
            lambda x: x[:, 0],
            lambda x: x[:, :2].double(),
            lambda x: x.float(),
        ],
    )
    def test_computed_row_by_row(self, change):
        sums = [
            sums_of(
                self.x,
                self.y + 1.0,
                criterion,
                lambda m, c, x, y, f=f: c(f(m(x)), y),
                nn.Sequential(nn.Linear(2, CLASSES), nn.Unflatten(1, (CLASSES, 1))),
            )
            for criterion, f in (
                (lambda x, y: squares(x.flatten(1), y), change),
                (lambda x, y: squares(change(x).flatten(1), y), lambda x: x),
            )
        ]
        torch.testing.assert_close(*sums)
        assert float(sums[0].norm()) > 0

    def test_in_something_unknown(self):
        def criterion(box, y):
            return (box.tensor - y) ** 2

        for leaf in (Box, lambda tensor: tensor.detach().numpy()):
            with pytest.raises(InvalidArgumentError, match="divided into records"):
                sums_of(
                    self.x,
                    self.y,
                    criterion,
                    lambda m, c, x, y, leaf=leaf: c(leaf(m(x)), y),
                )

    def test_with_time_first(self):
        # As many times as records, so that sizes alone do not tell.
        x = self.x[:9, None, :].expand(9, 9, 2).contiguous()

        def loss(module, criterion, inputs, targets):
            return criterion(module(inputs)[0], targets)

        with pytest.raises(InvalidArgumentError, match="as the module returned them"):
            sums_of(x, self.y[:9], lambda x, y: squares(x[0], y), loss, TimeFirst())


class Remembers(nn.Module):
    """A loss that depends on the records before it."""

    def __init__(self, is_remembering):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, device="cpu"))
        self.is_remembering = is_remembering

    def forward(self, x, y):
        if self.is_remembering:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return (x.mean(1) - self.mean - y) ** 2


class TestLossModules:
    def test_that_remember_records(self):
        x, y = TestOutputs.x, TestOutputs.y

        def loss(module, criterion, inputs, targets):
            return criterion(module(inputs), targets)

        assert float(sums_of(x, y, Remembers(False), loss).norm()) > 0
        with pytest.raises(InvalidArgumentError, match="'mean' when it is called"):
            sums_of(x, y, Remembers(True), loss)

    def test_with_parameters(self):
        criterion = Remembers(False)
        criterion.scale = nn.Parameter(torch.ones(1))
        with pytest.raises(InvalidArgumentError, match="require gradients"):
            run(labels(), criterion)
        run(labels(), criterion.requires_grad_(False))


class TestRefused:
    @pytest.mark.parametrize(
        ("criterion", "message"),
        [
            (nn.CrossEntropyLoss(), "reduction='mean'"),
            (nn.CrossEntropyLoss(reduction="sum"), "reduction='sum'"),
            ("cross_entropy", "got str"),
        ],
    )
    def test_before_anything_is_charged(self, criterion, message):
        budget = full_batch()
        module = nn.Linear(2, CLASSES)
        with pytest.raises(InvalidArgumentError, match=message):
            budget.make_private(
                module=module,
                optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
                criterion=criterion,
                data_loader=DataLoader(
                    TensorDataset(torch.rand(5, 2), torch.zeros(5)), batch_size=5
                ),
                max_grad_norm=1.0,
            )
        assert budget.runs_left == 2

    @pytest.mark.parametrize(
        "criterion",
        [
            functional.cross_entropy,
            weighted_mean,
            lambda x, y: token_losses(x[:, None], y[:, None]).flatten().repeat(2),
            lambda x, y: 1.0,
        ],
    )
    def test_means_over_a_batch(self, criterion):
        module, _, private, loader = run(labels(), criterion)
        inputs, targets = next(iter(loader))
        with pytest.raises(InvalidArgumentError, match="first dimension is the batch"):
            private(module(inputs), targets)

    def test_tokens_in_the_first_dimension(self):
        module, _, private, loader = run(
            tokens(3), nn.CrossEntropyLoss(reduction="none")
        )
        inputs, targets = next(iter(loader))
        outputs = module(inputs)
        for given in (
            (outputs.flatten(0, 1), targets.flatten()),
            (outputs.transpose(0, 1), targets),
            (outputs.transpose(0, 1), targets.T),
            (outputs.mean(), targets),
            (outputs, targets, WEIGHT),
            (),
        ):
            with pytest.raises(
                InvalidArgumentError, match="Keep tokens or pixels"
            ) as error:
                private(*given)
            assert not any(letter.isdigit() for letter in str(error.value))

    def test_other_losses_have_no_gradients(self):
        module, optimizer, private, loader = run(
            labels(), nn.CrossEntropyLoss(reduction="none")
        )
        inputs, targets = next(iter(loader))
        before = module._module.weight.detach().clone()
        with pytest.raises(InvalidArgumentError, match="what the criterion"):
            functional.cross_entropy(module(inputs), targets).backward()
        with pytest.raises(InvalidArgumentError):
            optimizer.step()
        assert torch.equal(module._module.weight, before)
        inputs, targets = next(iter(loader))
        private(module(inputs), targets).backward()
        optimizer.step()
        assert optimizer.steps_left == 2

    def test_tensors_as_factors(self):
        module, _, private, loader = run(
            labels(), nn.CrossEntropyLoss(reduction="none")
        )
        inputs, targets = next(iter(loader))
        loss = private(module(inputs), targets)
        for change in (
            lambda: loss * targets.sum(),
            lambda: targets.sum() * loss,
            lambda: loss / targets.sum(),
            lambda: loss + 1.0,
        ):
            with pytest.raises(TypeError):
                change()


class OneByOne(nn.CrossEntropyLoss):
    """The same loss in a class of its own, so that it is called for each record."""


CROSS_ENTROPIES = {
    "plain": {},
    "class weights": {"weight": WEIGHT},
    "smoothed": {"label_smoothing": 0.2},
    "smoothed with weights": {"weight": WEIGHT, "label_smoothing": 0.2},
    "an ignored class": {"ignore_index": 1, "weight": WEIGHT},
}


class TestCrossEntropyOfAllRecords:
    def losses(self, kind, outputs, targets, **options):
        _, _, criterion, _ = run(labels(), kind(reduction="none", **options))
        outputs = outputs.clone().requires_grad_()
        with torch.no_grad():  # outputs of no module
            terms = criterion(outputs, targets)._terms
        assert is_cross_entropy_of_rows(criterion._criterion, [outputs, targets]) == (
            kind is nn.CrossEntropyLoss
        )
        return terms

    @pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
    @pytest.mark.parametrize("name", CROSS_ENTROPIES)
    def test_as_for_each_record(self, name, shape):
        outputs = torch.randn(7, CLASSES, *shape, generator=seeded())
        targets = torch.randint(CLASSES, (7, *shape), generator=seeded())
        found = [
            self.losses(kind, outputs, targets, **CROSS_ENTROPIES[name])
            for kind in (nn.CrossEntropyLoss, OneByOne)
        ]
        assert found[0].shape == (7,)
        torch.testing.assert_close(*found)

    @pytest.mark.parametrize("name", CROSS_ENTROPIES)
    def test_gradients(self, name):
        rows, sums = zip(
            *(
                gradients(
                    labels(),
                    kind(reduction="none", **CROSS_ENTROPIES[name]),
                    is_criterion=True,
                )
                for kind in (nn.CrossEntropyLoss, OneByOne)
            ),
            strict=True,
        )
        torch.testing.assert_close(*rows)
        torch.testing.assert_close(*sums)

    @pytest.mark.parametrize("name", CROSS_ENTROPIES)
    def test_no_term_depends_on_another_record(self, name):
        outputs = torch.randn(7, CLASSES, generator=seeded())
        targets = torch.randint(CLASSES, (7,), generator=seeded())
        options = CROSS_ENTROPIES[name]
        before = self.losses(nn.CrossEntropyLoss, outputs, targets, **options)
        outputs[0], targets[0] = float("nan"), (targets[0] + 1) % CLASSES
        after = self.losses(nn.CrossEntropyLoss, outputs, targets, **options)
        assert torch.equal(before[1:], after[1:])

    def test_others_are_called_for_each_record(self):
        outputs, targets = torch.zeros(2, CLASSES), torch.zeros(2, dtype=torch.long)
        loss = nn.CrossEntropyLoss(reduction="none")
        assert is_cross_entropy_of_rows(loss, [outputs, targets])
        for bad in (
            [outputs],
            [outputs, targets, 2.0],
            [outputs, 1],
            [outputs, outputs],  # probabilities
            [outputs, targets.int()],
            [outputs[0], targets[0]],
            [outputs, targets.unsqueeze(-1)],
        ):
            assert not is_cross_entropy_of_rows(loss, bad)
        assert not is_cross_entropy_of_rows(
            OneByOne(reduction="none"), [outputs, targets]
        )
        assert not is_cross_entropy_of_rows(functional.cross_entropy, [outputs] * 2)
        hooked, other = (nn.CrossEntropyLoss(reduction="none") for _ in range(2))
        hooked.register_forward_hook(lambda *_: None)
        other.forward = lambda x, y: x.mean(dim=1)
        assert not is_cross_entropy_of_rows(hooked, [outputs, targets])
        assert not is_cross_entropy_of_rows(other, [outputs, targets])
        loss.reduction = "mean"
        assert not is_cross_entropy_of_rows(loss, [outputs, targets])

    def test_a_subclass_keeps_its_own_loss(self):
        class Halved(nn.CrossEntropyLoss):
            def forward(self, x, y):
                return super().forward(x, y) / 2

        _, _, halved, _ = run(labels(), Halved(reduction="none"))
        _, _, whole, _ = run(labels(), nn.CrossEntropyLoss(reduction="none"))
        outputs, targets = torch.zeros(N, CLASSES), labels()
        expected = whole(outputs, targets).item() / 2
        assert halved(outputs, targets).item() == pytest.approx(expected)
