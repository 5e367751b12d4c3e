"""Losses of regression records, against loops over replications and autograd."""

import math

import pytest
import torch

from botorch_dp.problems._stream_losses import (
    huber_gradients,
    huber_losses,
    logistic_gradients,
    logistic_losses,
    regression_records,
    signed_records,
)

CHUNK, R, M, P = 2, 5, 4, 3


@pytest.fixture
def data(double):
    generator = torch.Generator(device="cpu").manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, **double)

    return {
        "inputs": 2 * normal(CHUNK, R, P),
        "targets": normal(CHUNK, R),
        "normal": normal,
    }


def record_of(data, *, mallows=True, signs=False):
    targets = data["targets"].sign() if signs else data["targets"]
    records = regression_records(
        data["inputs"], targets, mallows=mallows, like=data["inputs"]
    )
    return tuple(part[1] for part in records)  # of the second step


def weight(x, mallows=True):
    return min(1.0, 2.0 / float(x @ x)) if mallows else 1.0


def huber(residual, c):
    size = abs(residual)
    return size**2 / 2 if size <= c else c * size - c**2 / 2


class TestRecords:
    @pytest.mark.parametrize("mallows", [True, False])
    def test_weights(self, data, mallows):
        rows, targets, weights, weighted = record_of(data, mallows=mallows)
        assert rows.shape == (R, 1, P)
        assert targets.shape == (R, 1, 1)
        for r in range(R):
            x = data["inputs"][1, r]
            assert rows[r, 0].tolist() == x.tolist()
            assert float(weights[r]) == pytest.approx(weight(x, mallows))
            assert weighted[r].tolist() == pytest.approx(
                (weight(x, mallows) * x).tolist()
            )

    def test_dtype(self, data):
        like = torch.zeros(1, dtype=torch.float32, device="cpu")
        records = regression_records(
            data["inputs"], data["targets"], mallows=True, like=like
        )
        assert {part.dtype for part in records} == {torch.float32}


class TestLosses:
    @pytest.mark.parametrize("relu", [False, True])
    @pytest.mark.parametrize("c", [0.5, 1.3])
    def test_huber(self, data, c, relu):
        X = data["normal"](R, M, P)
        losses = huber_losses(record_of(data), X, c, relu=relu)
        assert losses.shape == (R, M)
        for r in range(R):
            x, y = data["inputs"][1, r], float(data["targets"][1, r])
            for m in range(M):
                fitted = float(x @ X[r, m])
                fitted = max(fitted, 0.0) if relu else fitted
                expected = weight(x) * huber(y - fitted, c)
                assert float(losses[r, m]) == pytest.approx(expected)

    def test_logistic(self, data):
        X = data["normal"](R, M, P)
        record = signed_records(record_of(data, signs=True))
        losses = logistic_losses(record, X)
        for r in range(R):
            x, y = data["inputs"][1, r], float(data["targets"][1, r].sign())
            for m in range(M):
                expected = weight(x) * math.log1p(math.exp(-y * float(x @ X[r, m])))
                assert float(losses[r, m]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["huber", "relu", "logistic"])
def test_gradients(data, kind):
    """By autograd, of the losses at one point for each replication."""
    x = data["normal"](R, P).requires_grad_()
    record = record_of(data, signs=kind == "logistic")
    if kind == "logistic":
        record = signed_records(record)
        losses = logistic_losses(record, x.unsqueeze(1))
        gradients = logistic_gradients(record, x.detach())
    else:
        relu = kind == "relu"
        losses = huber_losses(record, x.unsqueeze(1), 0.7, relu=relu)
        gradients = huber_gradients(record, x.detach(), 0.7, relu=relu)
    (expected,) = torch.autograd.grad(losses.sum(), x)
    torch.testing.assert_close(gradients, expected)
    assert gradients.norm(dim=-1).max() <= math.sqrt(2) + 1e-12
