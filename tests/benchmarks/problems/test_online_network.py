"""The network baseline, against torch's own layers and optimizer."""

import pytest
import torch
from torch import nn

from benchmarks.problems import OnlineNeuralNetwork, SineStream
from botorch_dp.exceptions import InvalidArgumentError

CPU = torch.device("cpu")


def data(double, r=3, m=4, d=2, seed=0):
    generator = torch.Generator(device="cpu").manual_seed(seed)
    inputs = torch.randn(r, m, d, generator=generator, **double)
    return inputs, inputs.prod(dim=-1)


@pytest.mark.default_device
@pytest.mark.parametrize("m", [1, 5])
def test_against_torch(double, m):
    """Each network, trained alone by torch.optim.Adam, is the same."""
    network = OnlineNeuralNetwork(
        2, hidden_sizes=(7, 3), learning_rate=0.02, num_replications=3, **double
    )
    machines = []
    for r in range(3):
        layers = [nn.Linear(a, b, **double) for a, b in ((2, 7), (7, 3), (3, 1))]
        for layer, weight in zip(layers, network._weights, strict=True):
            layer.weight.data = weight[r].detach().T.clone()
            layer.bias.data.zero_()
        machines.append(
            nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        )
    optimizers = [
        torch.optim.Adam(machine.parameters(), lr=0.02) for machine in machines
    ]
    for step in range(30):
        inputs, targets = data(double, m=m, seed=step)
        predicted = network.predict(inputs)
        for r, (machine, optimizer) in enumerate(
            zip(machines, optimizers, strict=True)
        ):
            output = machine(inputs[r]).squeeze(-1)
            assert torch.allclose(predicted[r], output, rtol=1e-8, atol=1e-10)
            optimizer.zero_grad()
            (output - targets[r]).square().mean().backward()
            optimizer.step()
        network.update(inputs, targets)
    assert network.num_updates == 30


def test_networks_do_not_see_each_other(double):
    together, other = (
        OnlineNeuralNetwork(2, num_replications=3, **double) for _ in range(2)
    )
    inputs, targets = data(double)
    changed = targets.clone()
    changed[0] += 5
    for _ in range(3):
        together.update(inputs, targets)
        other.update(inputs, changed)
    a, b = together.predict(inputs), other.predict(inputs)
    assert torch.equal(a[1:], b[1:])
    assert not torch.allclose(a[0], b[0])


def test_learns_the_sine(double):
    stream = SineStream(num_replications=5, **double)
    network = OnlineNeuralNetwork(1, num_replications=5, **double)
    errors = []
    for step in range(1, 401):
        inputs, truth = stream.test_pair(step)
        predicted = network.predict(inputs.unsqueeze(1)).squeeze(1)
        errors.append((predicted - truth).square().mean())
        network.update(*stream.pairs(step))
    assert torch.stack(errors[:20]).mean() > 0.2
    assert torch.stack(errors[-50:]).mean() < 0.1


def test_inside_no_grad(double):
    network = OnlineNeuralNetwork(2, num_replications=3, **double)
    inputs, targets = data(double)
    before = network.predict(inputs)
    with torch.no_grad():
        network.update(inputs, targets)
    assert not torch.equal(network.predict(inputs), before)
    assert not network.predict(inputs).requires_grad


def test_seeds_and_dtype(tkwargs):
    inputs = torch.ones(2, 1, 3, **tkwargs)
    first, same = (
        OnlineNeuralNetwork(3, seed=1, num_replications=2, **tkwargs).predict(inputs)
        for _ in range(2)
    )
    other = OnlineNeuralNetwork(3, seed=2, num_replications=2, **tkwargs)
    assert first.dtype == tkwargs["dtype"]
    assert torch.equal(first, same)
    assert not torch.isclose(first, other.predict(inputs)).any()
    assert first[0] != first[1]


def test_initial_weights(double):
    network = OnlineNeuralNetwork(50, hidden_sizes=(40,), num_replications=20, **double)
    for weight, variance in zip(network._weights, (2 / 50, 2 / 40), strict=True):
        assert float(weight.detach().var()) == pytest.approx(variance, rel=0.15)
    assert not any(offset.any() for offset in network._offsets)


def test_without_hidden_layers(double):
    network = OnlineNeuralNetwork(2, hidden_sizes=(), num_replications=3, **double)
    inputs, _ = data(double)
    expected = torch.einsum("rmd,rd->rm", inputs, network._weights[0].squeeze(-1))
    assert torch.allclose(network.predict(inputs), expected.detach())


def test_default_device():
    network = OnlineNeuralNetwork(2)
    assert network._weights[0].device == torch.get_default_device()


def test_rejects(double):
    network = OnlineNeuralNetwork(2, num_replications=3, **double)
    inputs, targets = data(double)
    for bad in (inputs[:2], inputs[..., :1], inputs[0], None):
        with pytest.raises(InvalidArgumentError, match=r"inputs must be .* 3 x m x 2"):
            network.predict(bad)
        with pytest.raises(InvalidArgumentError, match=r"inputs must be .* 3 x m x 2"):
            network.update(bad, targets)
    for bad in (targets[:2], targets.unsqueeze(-1), None):
        with pytest.raises(InvalidArgumentError, match=r"targets must be .* \(3, 4\)"):
            network.update(inputs, bad)
    for name, value in {
        "num_inputs": 0,
        "hidden_sizes": (3, 0),
        "learning_rate": 0.0,
        "num_replications": 0,
        "seed": -1,
    }.items():
        with pytest.raises(InvalidArgumentError, match=name):
            OnlineNeuralNetwork(**{"num_inputs": 2, "device": CPU, name: value})
