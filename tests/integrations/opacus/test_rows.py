"""Stored gradients of records: those of autograd, and nothing that can still change."""

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.linear import compute_linear_grad_sample
from opacus.layers import DPLSTM
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.integrations.opacus.rows import OuterRows
from tests.integrations.opacus.runs import (
    draw,
    full_batch,
    no_noise,
    parts,
    rows_of,
    seeded,
)

pytestmark = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore:Full backward hook"),
]


class Function(nn.Module):
    """A function of layers."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


def tied():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def tied_bias():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.bias = first.bias
    return nn.Sequential(first, nn.Tanh(), second)


class Scaled(nn.Linear):
    """A layer for which Opacus has no function of its own."""

    def forward(self, x):
        return 2.0 * super().forward(x)


def tied_to_another_kind():
    first, second = Scaled(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def pooled_by_a_hook():
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda module, inputs, output: output.mean(dim=1))
    return layer


def frozen(name):
    layer = nn.Linear(3, 2)
    getattr(layer, name).requires_grad_(False)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), layer)


VECTORS, TOKENS, IMAGES = (5, 3), (5, 4, 3), (5, 1, 4, 4)
MODULES = {
    "linear": (lambda: nn.Linear(3, 2), VECTORS),
    "no bias": (lambda: nn.Linear(3, 2, bias=False), VECTORS),
    "two layers": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        VECTORS,
    ),
    "used twice": (
        lambda: Function(lambda m, x: m.a(m.a(x).tanh()), a=nn.Linear(3, 3)),
        VECTORS,
    ),
    "used three times": (
        lambda: Function(lambda m, x: m.a(m.a(m.a(x)).tanh()), a=nn.Linear(3, 3)),
        VECTORS,
    ),
    "with and without tokens": (
        lambda: Function(
            lambda m, x: m.a(x) + m.a(torch.stack([x, x.sin()], 1)).sum(1),
            a=nn.Linear(3, 3),
        ),
        VECTORS,
    ),
    "tied weights": (tied, VECTORS),
    "tied biases": (tied_bias, VECTORS),
    "tied to a layer of another kind": (tied_to_another_kind, VECTORS),
    "frozen weight": (lambda: frozen("weight"), VECTORS),
    "frozen bias": (lambda: frozen("bias"), VECTORS),
    "tokens": (lambda: nn.Linear(3, 2), TOKENS),
    "normalized": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4)),
        VECTORS,
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)),
        IMAGES,
    ),
    "recurrent": (
        lambda: Function(
            lambda m, x: m.a(x)[0], a=DPLSTM(3, 2, batch_first=True)
        ),
        TOKENS,
    ),
}  # fmt: skip


def made(module, inputs, **kwargs):
    optimizer = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=1.0
    )
    return full_batch(**kwargs).make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(inputs), batch_size=len(inputs)),
        max_grad_norm=1.0,
        loss_reduction="sum",
    )


def loss_of(outputs):
    return outputs.flatten(1).cos().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_rows_are_gradients_of_records(name, dtype):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module = make().to(dtype)
    inputs = torch.randn(shape, generator=seeded(), dtype=dtype)
    trained = [p for p in module.parameters() if p.requires_grad]
    expected = [
        torch.autograd.grad(loss_of(module(record.unsqueeze(0))), trained)
        for record in inputs
    ]
    private, _, loader = made(module, inputs)
    loss_of(private(draw(loader))).backward()
    for parameter, *rows in zip(trained, *expected, strict=True):
        torch.testing.assert_close(rows_of(parameter), torch.stack(rows))


@pytest.mark.parametrize("name", MODULES)
def test_rows_of_a_layer_own_their_memory(name):
    make, shape = MODULES[name]
    inputs = torch.randn(shape, generator=seeded())
    private, _, loader = made(make(), inputs)
    loss_of(private(draw(loader))).backward()
    for parameter in private.parameters():
        rows = getattr(parameter, "grad_sample", None)
        if isinstance(rows, torch.Tensor):
            assert rows.is_contiguous()
            assert rows.shape == (len(inputs), *parameter.shape)
            assert rows.untyped_storage().nbytes() == rows.nbytes


def test_grad_samples_of_the_optimizer():
    module = nn.Linear(3, 2)
    inputs = torch.randn(VECTORS, generator=seeded())
    private, optimizer, loader = made(module, inputs)
    loss_of(private(draw(loader))).backward()
    weights, biases = optimizer.grad_samples
    torch.testing.assert_close(weights, rows_of(module.weight).float())
    assert biases.shape == (VECTORS[0], 2)


def test_outputs_pooled_by_a_hook():
    # The inputs still have tokens: no outer product, but what Opacus computes.
    rows = []
    for dtype in (torch.float32, torch.float64):  # factors are for the first one only
        torch.manual_seed(0)
        module = pooled_by_a_hook().to(dtype)
        inputs = torch.randn(TOKENS, generator=seeded(), dtype=dtype)
        private, optimizer, loader = made(module, inputs)
        loss_of(private(draw(loader))).backward()
        rows.append(rows_of(module.weight))
        optimizer.step()
    assert rows[0].shape == (TOKENS[0], 2, 3)
    assert rows[0].shape == rows[1].shape


def test_factors_of_a_linear_layer():
    inputs = torch.randn(5, 3, generator=seeded())
    private, _, loader = made(nn.Linear(3, 2), inputs)
    private(draw(loader)).sum().backward()
    rows = private._module.weight.grad_sample
    assert isinstance(rows, OuterRows)
    assert len(rows) == 5
    assert torch.equal(rows.outputs, torch.ones(5, 2, dtype=torch.float64))
    assert torch.equal(rows.inputs, inputs.double())


def test_an_empty_batch():
    private, optimizer, loader = made(nn.Linear(3, 2), torch.ones(4, 3))
    draw(loader)
    optimizer.signal_skip_step(True)
    private(torch.ones(0, 3)).sum().backward()
    assert rows_of(private._module.weight).shape == (0, 2, 3)
    optimizer.step()
    for parameter in private.parameters():
        total = optimizer._sums[parameter].value()
        assert torch.equal(total, torch.zeros_like(parameter).double().flatten())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_entries_that_are_not_finite_are_zero(value):
    inputs = torch.tensor([[value, 2.0], [3.0, 4.0]])
    private, optimizer, loader = made(nn.Linear(2, 1), inputs)
    batch = draw(loader)
    scales = torch.tensor([[1.0], [value]])
    (private(batch) * scales).sum().backward()
    assert rows_of(private._module.weight).tolist() == [[[0.0, 2.0]], [[0.0, 0.0]]]
    optimizer.clip_and_accumulate()
    total = torch.cat([optimizer._sums[p].value() for p in optimizer.params])
    expected = torch.tensor([0.0, 2.0, 1.0]).double() / 5**0.5
    torch.testing.assert_close(total, expected, rtol=2e-6, atol=0.0)


def test_products_past_single_precision_are_clipped():
    # Opacus's product is infinite; the factors are finite.
    inputs = torch.tensor([[3e30, 4e30]])
    private, optimizer, loader = made(nn.Linear(2, 1, bias=False), inputs)
    (private(draw(loader)) * 1e30).sum().backward()
    optimizer.clip_and_accumulate()
    total = optimizer._sums[private._module.weight].value()
    expected = torch.tensor([0.6, 0.8]).double()
    torch.testing.assert_close(total, expected, rtol=2e-6, atol=0.0)
    assert total.norm() <= 1.0


def test_factors_that_underflow():
    # In double precision the square of 1e-170 is zero, and the product is 1e30.
    inputs = torch.tensor([[1e200, 0.0]], dtype=torch.float64)
    module = nn.Linear(2, 1, bias=False).double()
    private, optimizer, loader = made(module, inputs)
    (private(draw(loader)) * 1e-170).sum().backward()
    optimizer.clip_and_accumulate()
    total = optimizer._sums[private._module.weight].value()
    assert 1 - 2e-6 <= total.norm() <= 1.0


@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 3)])
def test_what_changes_after_backward_does_not_count(monkeypatch, shape):
    no_noise(monkeypatch)
    inputs = torch.full(shape, 0.1)
    private, optimizer, loader = made(nn.Linear(3, 1), inputs)
    weight, bias = private._module.weight, private._module.bias
    nn.init.zeros_(weight)
    nn.init.zeros_(bias)
    batch = draw(loader)
    outputs = private(batch)
    upstream = torch.full_like(outputs, 0.5).as_subclass(torch.Tensor)
    outputs.backward(upstream)
    batch.fill_(7.0)
    upstream.fill_(7.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((1, 3), -4 * 0.05))
    torch.testing.assert_close(bias.detach(), torch.full((1,), -4 * 0.5))


def test_a_function_that_was_registered_instead(monkeypatch):
    def halved(layer, activations, backprops):
        found = compute_linear_grad_sample(layer, activations, backprops)
        return {parameter: rows / 2 for parameter, rows in found.items()}

    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, nn.Linear, halved)
    inputs = torch.randn(5, 3, generator=seeded())
    private, _, loader = made(nn.Linear(3, 1), inputs)
    private(draw(loader)).sum().backward()
    stored = private._module.weight.grad_sample
    torch.testing.assert_close(stored, inputs.unsqueeze(1) / 2)


def test_rows_that_alias_something_are_copied(monkeypatch):
    def shared(layer, activations, backprops):
        return {layer.weight: activations[0].unsqueeze(1), layer.bias: backprops}

    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, nn.Linear, shared)
    inputs = torch.ones(5, 3)
    private, _, loader = made(nn.Linear(3, 1), inputs)
    batch = draw(loader)
    outputs = private(batch)
    upstream = torch.ones(5, 1)
    outputs.backward(upstream)
    batch.fill_(7.0)
    upstream.fill_(7.0)
    assert torch.equal(private._module.bias.grad_sample, torch.ones(5, 1))
    assert torch.equal(private._module.weight.grad_sample, torch.ones(5, 1, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    inputs = torch.randn(5, 3, generator=seeded())
    private, optimizer, loader = made(nn.Linear(3, 2), inputs)
    with torch.autocast("cpu", dtype=dtype):
        outputs = private(draw(loader))
    outputs.float().sum().backward()
    expected = inputs.to(dtype).float().unsqueeze(1).expand(5, 2, 3)
    assert torch.equal(rows_of(private._module.weight), expected)
    optimizer.step()


def test_sums_agree_with_dense_ones():
    inputs = 5 * torch.randn(64, 7, generator=seeded())
    module, optimizer, loader = full_batch().make_private(**parts(inputs))
    batch = draw(loader)
    module(batch).mean().backward()
    optimizer.clip_and_accumulate()
    rows = batch.double()
    factors = ((1 - 1e-6) / rows.norm(dim=-1)).clamp(max=1.0)
    total = optimizer._sums[module._module.weight].value()
    torch.testing.assert_close(total, factors @ rows, rtol=1e-9, atol=1e-9)
