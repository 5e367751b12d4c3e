"""Linear regression on a stream, against a loop, and its drift against the paper."""

import pytest
import torch
from botorch.exceptions import UnsupportedError

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems import LinearStream

CPU = torch.device("cpu")
FIRST, SECOND, THIRD = [1, 2, 1, 0, 0], [0, -1, -2, -1, 0], [0, 0, 1, 2, 1]


def huber(r, c):
    return r * r / 2 if abs(r) <= c else c * abs(r) - c * c / 2


@pytest.mark.parametrize("c", [0.3, 1.0])
def test_losses_against_a_loop(tkwargs, c):
    stream = LinearStream(2, c=c, num_replications=5, **tkwargs)
    X = torch.tensor([[0.0, 1.0], [-2.0, 4.0], [1.0, 1.0]], **tkwargs)
    losses = stream.losses(3, X).tolist()
    rows, targets, _, _ = stream._record(3)
    pairs = zip(rows.squeeze(1).tolist(), targets.flatten().tolist(), strict=True)
    for i, (x, y) in enumerate(pairs):
        weight = min(1.0, 2.0 / (x[0] ** 2 + x[1] ** 2))
        for j, theta in enumerate(X.tolist()):
            residual = y - x[0] * theta[0] - x[1] * theta[1]
            expected = weight * huber(residual, c)
            assert losses[i][j] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_noise_is_standard_normal(double):
    theta = [0.5, -1.0, 2.0]
    stream = LinearStream(3, theta=theta, num_replications=40, **double)
    records = [stream._record(step) for step in range(1, 501)]
    rows = torch.cat([record[0][:, 0] for record in records])
    noise = torch.cat([record[1][:, 0, 0] for record in records])
    noise = noise - rows @ torch.tensor(theta, **double)
    n = len(noise)
    assert abs(float(noise.mean())) < 4 / n**0.5
    assert abs(float(noise.var()) - 1) < 4 * (2 / n) ** 0.5
    assert (noise.unsqueeze(0) @ rows / n).abs().max() < 5 / n**0.5


@pytest.mark.parametrize("num_steps", [3, 20, 21, 22, 20000])
def test_abrupt_path(double, num_steps):
    stream = LinearStream(5, drift="abrupt", num_steps=num_steps, **double)
    for t in {1, 2, 3, *range(num_steps // 3 - 1, num_steps // 3 + 3), num_steps - 1}:
        for step in {t, 2 * t} & set(range(1, num_steps + 1)):
            # As printed, in whole numbers: t <= T/3, T/3 < t <= 2T/3, 2T/3 < t.
            if 3 * step <= num_steps:
                expected = FIRST
            elif 3 * step <= 2 * num_steps:
                expected = SECOND
            else:
                expected = THIRD
            assert stream.optimal_x_at(step).tolist() == expected
    assert stream.optimal_x_at(num_steps).tolist() == THIRD


def test_smooth_path(tkwargs):
    stream = LinearStream(5, drift="smooth", num_steps=1001, **tkwargs)
    assert stream.optimal_x_at(1).tolist() == FIRST
    assert stream.optimal_x_at(1001).tolist() == THIRD
    middle = stream.optimal_x_at(501)
    assert middle.dtype == tkwargs["dtype"]
    assert middle.tolist() == [0.5, 1.0, 1.0, 1.0, 0.5]
    quarter = torch.tensor([0.75, 1.5, 1.0, 0.5, 0.25], **tkwargs)
    assert torch.allclose(stream.optimal_x_at(251), quarter)


@pytest.mark.parametrize("drift", ["abrupt", "smooth"])
def test_responses_follow_the_path(double, drift):
    """Least squares at one step, over many replications, finds that step's theta."""
    n = 4000
    stream = LinearStream(
        5, drift=drift, num_steps=1200, num_replications=n, seed=1, **double
    )
    stationary = LinearStream(5, num_replications=n, seed=1, **double)
    stream.chunk_size = stationary.chunk_size = 7  # less to draw
    for step in (1, 400, 401, 800, 801, 1200):
        rows, targets, _, _ = stream._record(step)
        found = torch.linalg.lstsq(rows.squeeze(1), targets.squeeze(1)).solution
        true = stream.optimal_x_at(step)
        assert torch.allclose(found.squeeze(-1), true, atol=5 / n**0.5)
        # The same draws as without drift: only the parameters differ.
        others, noisy, _, _ = stationary._record(step)
        assert torch.equal(others, rows)
        assert torch.allclose(
            (noisy - targets).flatten(), others.squeeze(1) @ (1 - true)
        )


def test_rejects_drift():
    with pytest.raises(InvalidArgumentError, match=r"drift must be one of 'abrupt'"):
        LinearStream(5, drift="sudden", num_steps=10, device=CPU)
    with pytest.raises(InvalidArgumentError, match="pass dim=5 and no theta"):
        LinearStream(4, drift="smooth", num_steps=10, device=CPU)
    with pytest.raises(InvalidArgumentError, match="pass dim=5 and no theta"):
        LinearStream(5, theta=[1.0] * 5, drift="smooth", num_steps=10, device=CPU)
    for num_steps in (None, 2):
        with pytest.raises(InvalidArgumentError, match="needs num_steps, at least 3"):
            LinearStream(5, drift="abrupt", num_steps=num_steps, device=CPU)
    stream = LinearStream(5, drift="abrupt", num_steps=10, device=CPU)
    with pytest.raises(UnsupportedError, match="drift=None"):
        stream.asymptotics()
