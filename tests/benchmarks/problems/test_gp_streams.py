"""Gaussian processes on a stream, against GPyTorch's formulas written out."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from benchmarks.problems import FriedmanStream, SineStream
from botorch_dp.exceptions import InvalidArgumentError

CPU = torch.device("cpu")
KINDS = [SineStream, FriedmanStream]


def kernel(stream, a, b, theta):
    """One kernel matrix, from its definition."""
    scales = theta[: a.shape[-1]].exp()
    scale = theta[-1].exp() if isinstance(stream, SineStream) else 1.0
    distances = torch.cdist(
        a / scales, b / scales, compute_mode="donot_use_mm_for_euclid_dist"
    )
    return scale**2 * torch.exp(-distances.square() / 2)


def thetas(stream, *shape, seed=0):
    generator = torch.Generator(device="cpu").manual_seed(seed)
    draws = torch.randn(*shape, stream.dim, generator=generator, device=CPU)
    return (draws / 2).to(stream.initial_x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise_variance", [1e-2, 1e-4])
def test_losses(kind, noise_variance, double):
    stream = kind(
        series_length=7, noise_variance=noise_variance, num_replications=3, **double
    )
    X = thetas(stream, 3, 4)
    losses = stream.losses(2, X)
    inputs, values = stream.pairs(2)
    assert inputs.shape == (3, 7, stream.num_inputs)
    assert values.shape == (3, 7)
    noise = noise_variance * torch.eye(7, **double)
    for r in range(3):
        for m in range(4):
            gram = kernel(stream, inputs[r], inputs[r], X[r, m]) + noise
            law = MultivariateNormal(torch.zeros(7, **double), gram)
            expected = -float(law.log_prob(values[r])) / 7
            assert float(losses[r, m]) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_predict(kind, double):
    stream = kind(series_length=7, num_replications=3, **double)
    x = thetas(stream, 3)
    predicted, truth = stream.predict(5, x)
    assert predicted.shape == truth.shape == (3,)
    inputs, values = stream.pairs(5)
    test_inputs, test_values = stream.test_pair(5)
    assert torch.equal(truth, test_values)
    assert torch.equal(truth, stream.function(test_inputs))
    noise = 1e-2 * torch.eye(7, **double)
    for r in range(3):
        gram = kernel(stream, inputs[r], inputs[r], x[r]) + noise
        cross = kernel(stream, test_inputs[r : r + 1], inputs[r], x[r])
        expected = cross @ gram.inverse() @ values[r]
        assert float(predicted[r]) == pytest.approx(float(expected), rel=1e-7)
    with pytest.raises(InvalidArgumentError, match="x must be"):
        stream.predict(5, x[:2])


def test_functions(double):
    x = torch.tensor([[0.1], [-0.7]], **double)
    expected = [math.sin(0.2 * math.pi), math.sin(-1.4 * math.pi)]
    assert SineStream(**double).function(x).tolist() == pytest.approx(expected)
    x = torch.tensor([0.3, -0.9, 0.2, 0.7, -0.4], **double)
    expected = math.sin(math.pi * 0.3 * -0.9) + 0.3**2 + 0.7 - 0.4
    assert float(FriedmanStream(**double).function(x)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_law_of_the_data(kind, double):
    stream = kind(num_replications=200, **double)
    inputs, values = stream.pairs(1)
    assert inputs.abs().max() < 1
    n = inputs[..., 0].numel()
    for column in inputs.unbind(-1):
        # Uniform: the empirical distribution function is near (Kolmogorov, 1e-4).
        ordered = (column.flatten().sort().values + 1) / 2
        grid = torch.arange(1, n + 1, **double) / n
        assert (ordered - grid).abs().max() < 2.23 / n**0.5
    noise = values - stream.function(inputs)
    assert abs(float(noise.mean())) < 4 * 0.1 / n**0.5
    assert float(noise.std()) == pytest.approx(0.1, rel=4 / (2 * n) ** 0.5)
    quiet = kind(num_replications=200, data_noise_std=0.0, **double)
    assert torch.equal(quiet.pairs(1)[1], quiet.function(inputs))


def test_one_pair_says_nothing_of_length_scales(double):
    """Why a user holds a series."""
    for stream in (
        SineStream(series_length=1, num_replications=5, **double),
        FriedmanStream(series_length=1, num_replications=5, **double),
    ):
        gradients = stream.gradients(1, thetas(stream, 5))
        assert not gradients[:, : stream.num_inputs].any()
    assert SineStream(series_length=1, **double).gradients(
        1, torch.zeros(1, 2, **double)
    )[0, 1]


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (SineStream, [-1.37, -0.16]),
        (FriedmanStream, [-0.09, -0.08, -0.05, 0.28, 0.27]),
    ],
)
def test_where_the_docstring_says(kind, good, double):
    """Losses and errors of the docstrings, and a gradient near zero."""
    stream = kind(num_replications=4000, seed=3, **double)
    stream.chunk_size = 1
    at = torch.tensor(good, **double).expand(4000, -1)
    zero = torch.zeros_like(at)
    gradients = stream.gradients(1, at)
    # About the rounding of the printed numbers, times curvature, and sampling errors.
    assert gradients.mean(dim=0).abs().max() < 0.02
    expected = {
        SineStream: (12.9, 0.40, 0.04, 0.014),
        FriedmanStream: (1.36, 0.49, 1.332, 0.41),
    }[kind]
    found = []
    for x in (zero, at):
        losses = stream.losses(1, x.unsqueeze(1))
        predicted, truth = stream.predict(1, x)
        found += [float(losses.mean()), float((predicted - truth).square().mean())]
    assert found == pytest.approx(expected, rel=0.1, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_failed_factors_are_nan(kind, double):
    """No error: it would depend on a user's inputs."""
    stream = kind(noise_variance=1e-300, num_replications=3, **double)
    x = torch.full((3, stream.dim), 20.0, **double)
    x[1, : stream.num_inputs] = -20.0  # nearly the identity, which has a factor
    for values in (
        stream.losses(1, x.unsqueeze(1)),
        stream.gradients(1, x),
        stream.predict(1, x)[0].unsqueeze(-1),
    ):
        assert values[[0, 2]].isnan().all()
        assert values[1].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_dtype(kind, tkwargs):
    stream = kind(num_replications=2, **tkwargs)
    x = torch.zeros(2, stream.dim, **tkwargs)
    for value in (*stream.pairs(1), *stream.test_pair(1), *stream.predict(1, x)):
        assert value.dtype == tkwargs["dtype"]
        assert value.device == CPU


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "bad", [{"series_length": 0}, {"noise_variance": 0.0}, {"data_noise_std": -1.0}]
)
def test_rejects(kind, bad):
    with pytest.raises(InvalidArgumentError, match=next(iter(bad))):
        kind(device=CPU, **bad)
