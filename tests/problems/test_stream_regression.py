"""Logistic and rectified regression, against loops, and their laws."""

import math

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import LinearStream, LogisticStream, ReLUStream

CPU = torch.device("cpu")


def draws(stream, num_steps):
    """Covariates and responses of all replications in one pile, n x p and n."""
    records = [stream._record(step) for step in range(1, num_steps + 1)]
    rows = torch.cat([record[0][:, 0] for record in records])
    targets = torch.cat([record[1][:, 0, 0] for record in records])
    return rows, targets


def test_covariates_are_standard_normal(double):
    rows, _ = draws(LinearStream(3, num_replications=20, **double), 500)
    assert torch.allclose(rows.mean(dim=0), torch.zeros(3, **double), atol=0.05)
    assert torch.allclose(rows.T.cov(), torch.eye(3, **double), atol=0.07)


def test_logistic_losses_against_a_loop(tkwargs):
    stream = LogisticStream(2, num_replications=6, **tkwargs)
    theta = torch.tensor([[0.3, -0.8], [2.0, 1.0], [30.0, -50.0]], **tkwargs)
    losses = stream.losses(4, theta).tolist()
    # Rows are stored times the label, whose sign the law below cannot see.
    signed, labels, _, _ = stream._record(4)
    assert labels.abs().eq(1).all()
    for i, (a, b) in enumerate(signed.squeeze(1).tolist()):
        weight = min(1.0, 2.0 / (a * a + b * b))
        for j, (s, t) in enumerate(theta.tolist()):
            expected = weight * math.log1p(math.exp(-(a * s + b * t)))
            assert losses[i][j] == pytest.approx(expected, rel=1e-4)


def test_logistic_labels(double):
    """Labels follow the logistic law: a weighted mean of residuals is zero."""
    theta = [1.0, -2.0]
    stream = LogisticStream(2, theta=theta, num_replications=40, **double)
    assert stream.optimal_x.tolist() == theta
    signed, labels = draws(stream, 500)
    rows = signed * labels.unsqueeze(-1)
    chances = (rows @ stream.optimal_x).sigmoid()
    residuals = (labels > 0).double() - chances
    n = len(labels)
    for weights in (rows[:, 0], rows[:, 1], rows.prod(dim=-1), chances**2):
        error = float((weights * residuals).mean())
        assert abs(error) < 4 * float((weights * residuals).std()) / n**0.5
    # Labels of the wrong sign would fail.
    assert float((rows[:, 0] * labels).mean()) > 0.1


def test_logistic_is_stable(tkwargs):
    stream = LogisticStream(2, num_replications=50, **tkwargs)
    x = torch.full((50, 2), 1e4, **tkwargs)
    assert stream.losses(1, x.unsqueeze(1)).isfinite().all()
    assert stream.gradients(1, x).isfinite().all()


def test_relu_losses_against_a_loop(tkwargs):
    stream = ReLUStream(2, c=0.5, theta=[1.0, -3.0], num_replications=6, **tkwargs)
    assert stream.gradient_bound == 0.5 * math.sqrt(2)
    theta = torch.tensor([[0.3, -0.8], [-2.0, 1.0]], **tkwargs)
    losses = stream.losses(4, theta).tolist()
    for i, (a, b) in enumerate(stream._record(4)[0].squeeze(1).tolist()):
        weight = min(1.0, 2.0 / (a * a + b * b))
        for j, (s, t) in enumerate(theta.tolist()):
            r = abs(max(a - 3 * b, 0.0) - max(a * s + b * t, 0.0))
            expected = weight * (r * r / 2 if r <= 0.5 else 0.5 * r - 0.125)
            assert losses[i][j] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_relu_moves_from_its_start_only(double):
    stream = ReLUStream(4, num_replications=10, **double)
    assert stream.initial_x.tolist() == [0.1, 0.0, 0.0, 0.0]
    zero = torch.zeros(10, 4, **double)
    moved = torch.zeros(10, 4, **double)
    for step in range(1, 20):
        assert not stream.gradients(step, zero).any()
        moved += stream.gradients(step, stream.initial_x.expand(10, 4))
    assert (moved.norm(dim=-1) > 0).all()


def test_descent_finds_the_optimum(double):
    """Averaged gradient descent, the method the streams are made for."""
    for kind in (LinearStream, LogisticStream, ReLUStream):
        stream = kind(2, num_replications=20, theta=[1.0, -0.5], **double)
        x = stream.initial_x.expand(20, 2).clone()
        mean = torch.zeros(20, 2, **double)
        for step in range(1, 3001):
            x -= 2.0 * step**-0.6 * stream.gradients(step, x)
            mean += (x - mean) / step
        error = (mean - stream.optimal_x).square().mean()
        assert error < 0.02


def test_weights_are_optional(double):
    for kind in (LinearStream, LogisticStream, ReLUStream):
        weighted = kind(3, num_replications=30, **double)
        plain = kind(3, num_replications=30, mallows=False, **double)
        assert plain.gradient_bound is None
        X = torch.full((1, 3), 0.3, **double)
        rows = weighted._record(1)[0].squeeze(1)
        weights = (2 / rows.square().sum(dim=-1)).clamp(max=1.0)
        assert 0 < weights.min() < 1
        losses = plain.losses(1, X)
        assert torch.allclose(weighted.losses(1, X), weights.unsqueeze(-1) * losses)
        x = X.expand(30, 3)
        assert torch.allclose(
            weighted.gradients(1, x), weights.unsqueeze(-1) * plain.gradients(1, x)
        )


@pytest.mark.parametrize("kind", [LinearStream, LogisticStream, ReLUStream])
def test_rejects(kind):
    for theta in ([1.0], [[1.0, 1.0]], [1.0, float("nan")]):
        with pytest.raises(InvalidArgumentError, match="theta must be dim = 2 finite"):
            kind(2, theta=theta, device=CPU)
    with pytest.raises(InvalidArgumentError, match="dim must be"):
        kind(0, device=CPU)
    if kind is not LogisticStream:
        with pytest.raises(InvalidArgumentError, match="c must be"):
            kind(2, c=0.0, device=CPU)


def test_relu_rejects_zero():
    with pytest.raises(InvalidArgumentError, match="theta must not be zero"):
        ReLUStream(2, theta=[0.0, 0.0], device=CPU)
