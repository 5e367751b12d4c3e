"""Alarms: how often false ones come, and how soon true ones."""

import math

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers import DriftDetector
from tests.optimizers.problems import DOUBLE, same_state, seeded

FACTS = {"dim": 3, "clip_norm": 1.0, "noise_std": 1.0}


def messages(count, batch, *, mean=0.0, generator):
    """Clipped gradients of mean zero with the largest spread, shifted, plus noise."""
    directions = torch.randn(count, batch, 3, generator=generator, **DOUBLE)
    gradients = directions / directions.norm(dim=-1, keepdim=True)
    gradients[..., 0] += mean
    noise = torch.randn(count, batch, 3, generator=generator, **DOUBLE)
    return gradients + noise


def make(batch, **kwargs):
    return DriftDetector(
        **{**FACTS, **kwargs}, batch_shape=(batch,), device=DOUBLE["device"]
    )


class TestFalseAlarms:
    def test_rate(self):
        """At most 160 false alarms in 200 x 400 users, one in 500."""
        detector = make(200, window=50, false_alarm_time=500.0)
        count = 0
        for message in messages(400, 200, generator=seeded(1)):
            count += int(detector.update(message).sum())
        assert count <= 160

    def test_evidence_has_mean_at_most_the_number_of_starts(self):
        """After n messages, the sum of at most n / spacing + 1 supermartingales."""
        detector = make(4000, window=20, false_alarm_time=1e12)
        for n, message in enumerate(messages(8, 4000, generator=seeded(2)), start=1):
            detector.update(message)
            starts = math.ceil(n / 2)
            # The standard error of the mean is below 0.05 with these parameters.
            assert detector.evidence.exp().mean() <= starts + 0.2

    def test_one_start_by_hand(self):
        detector = make(1, window=100)
        total = torch.zeros(1, 3, **DOUBLE)
        for message in messages(10, 1, generator=seeded(3)):
            detector.update(message)
            total += message
        rho, v, n = 1 / 100, 2.0, 10
        value = -1.5 * math.log1p(rho * n) + rho * float(total.square().sum()) / (
            2 * v * (1 + rho * n)
        )
        assert float(detector.evidence) == pytest.approx(value)

    def test_the_mixture_by_integration(self):
        """Lambda is the average of exp(l S - n v l^2 / 2) over l ~ N(0, rho / v)."""
        rho, v, n, s = 1 / 100, 2.0, 40, 7.0
        grid = torch.linspace(-3.0, 3.0, 200_001, **DOUBLE)
        density = (-(grid**2) * v / (2 * rho)).exp() / math.sqrt(2 * math.pi * rho / v)
        mixed = torch.trapezoid(density * (grid * s - n * v * grid**2 / 2).exp(), grid)
        closed = (1 + rho * n) ** -0.5 * math.exp(rho * s**2 / (2 * v * (1 + rho * n)))
        assert float(mixed) == pytest.approx(closed, rel=1e-6)


class TestTrueAlarms:
    def test_a_mean_of_the_stated_size_is_noticed(self):
        """At twice the length, almost all of 50 streams, within the window."""
        detector = make(50, window=200)
        mean = 2.0 * detector.smallest_gradient(200)
        seen = torch.zeros(50, dtype=torch.bool, device=DOUBLE["device"])
        for message in messages(300, 50, generator=seeded(4)):
            assert not detector.update(message).any()
        for message in messages(220, 50, mean=mean, generator=seeded(5)):
            seen |= detector.update(message)
        assert seen.double().mean() >= 0.9

    def test_it_goes_on_after_an_alarm(self):
        detector = make(1, window=50, false_alarm_time=1e3)
        drifted = torch.tensor([[1.0, 0.0, 0.0]], **DOUBLE)
        alarms = [bool(detector.update(drifted)) for _ in range(400)]
        first = alarms.index(True)
        assert 2 <= sum(alarms) <= 1 + 400 // first

    def test_it_does_not_see_what_keeps_the_mean(self):
        """A change from short to long gradients of mean zero is no drift."""
        detector = make(20, window=100)
        for message in messages(200, 20, generator=seeded(6)):
            assert not detector.update(0.2 * message).any()
        for message in messages(200, 20, generator=seeded(7)):
            assert not detector.update(message).any()


class TestState:
    def test_resumes(self):
        first, second = make(2, window=30), make(2, window=30)
        stream = messages(100, 2, mean=0.3, generator=seeded(8))
        for message in stream[:60]:
            first.update(message)
        second.load_state_dict(first.state_dict())
        assert second.num_messages == 60
        for message in stream[60:]:
            assert torch.equal(first.update(message), second.update(message))
        assert same_state(first.state_dict(), second.state_dict())

    def test_refuses_states(self):
        detector = make(2, window=30)
        with pytest.raises(OptimizerStateError, match="window"):
            detector.load_state_dict(make(2, window=40).state_dict())
        for name, bad in (
            ("sums", torch.zeros(3, **DOUBLE)),
            ("counts", -torch.ones(2, 20, **DOUBLE)),
            ("num_messages", -1),
        ):
            with pytest.raises(OptimizerStateError):
                detector.load_state_dict({**detector.state_dict(), name: bad})


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"dim": 0}, "dim must be"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"noise_std": -1.0}, "noise_std must be"),
        ({"window": 5}, "window must be"),
        ({"false_alarm_time": 0.0}, "false_alarm_time must be"),
    ],
)
def test_refuses(kwargs, match):
    with pytest.raises(InvalidArgumentError, match=match):
        DriftDetector(**{**FACTS, **kwargs})


def test_refuses_messages():
    detector = make(1)
    for bad in (torch.zeros(3, **DOUBLE), torch.full((1, 3), math.nan, **DOUBLE)):
        with pytest.raises(InvalidArgumentError, match="message must"):
            detector.update(bad)
