"""Averages in constant memory against averages of everything."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.ldp.averaging import AVERAGES, IterateAverage
from tests.devices import DEVICE, seeded
from tests.optimizers.problems import DOUBLE, same_state


def iterates(count, **tkwargs):
    generator = seeded(4)
    return torch.randn(count, 3, 2, generator=generator, **tkwargs)


def averaged(kind, X, **kwargs):
    average = IterateAverage(kind, torch.zeros_like(X[0]), **kwargs)
    for x in X:
        average.update(x)
    return average


class TestIterateAverage:
    def test_running_and_last(self, double):
        X = iterates(37, **double)
        assert torch.allclose(averaged("running", X).value, X.mean(dim=0))
        assert torch.equal(averaged("last", X).value, X[-1])

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 31, 32, 33, 100])
    def test_suffix_begins_at_the_last_but_one_power_of_two(self, count, double):
        X = iterates(count, **double)
        # Iterates are numbered from 1: blocks are 1, 2-3, 4-7, 8-15, ...
        start = max(1, 2 ** (count.bit_length() - 2)) if count > 1 else 1
        value = averaged("suffix", X).value
        assert torch.allclose(value, X[start - 1 :].mean(dim=0))
        if count > 30:
            assert 0.5 <= (count - start + 1) / count <= 0.8

    def test_exponential(self, double):
        X = iterates(50, **double)
        weights = 0.5 ** (torch.arange(49, -1, -1, **double) / 10.0)
        expected = torch.einsum("t,tab->ab", weights, X) / weights.sum()
        value = averaged("exponential", X, half_life=10.0).value
        assert torch.allclose(value, expected)

    def test_a_long_stream_in_single_precision(self):
        X = torch.full((1, 1), 0.1, dtype=torch.float32, device=DEVICE)
        average = IterateAverage("running", X)
        average._since += 1e7 * 0.1  # as after ten million steps
        average._since_weight = 1e7
        average._count = 10**7
        average.update(X)
        assert float(average.value) == pytest.approx(0.1, abs=1e-8)

    @pytest.mark.parametrize("kind", AVERAGES)
    def test_goes_on_from_a_state(self, kind, tkwargs):
        X = iterates(21, **tkwargs)
        kwargs = {"half_life": 3.0} if kind == "exponential" else {}
        whole, half = averaged(kind, X, **kwargs), averaged(kind, X[:10], **kwargs)
        resumed = IterateAverage(kind, torch.zeros_like(X[0]), **kwargs)
        resumed.load_state_dict(half.state_dict())
        for x in X[10:]:
            resumed.update(x)
        assert torch.equal(resumed.value, whole.value)
        assert resumed.value.dtype == tkwargs["dtype"]

    def test_before_the_first_iterate(self, double):
        x = torch.ones(2, **double)
        assert torch.equal(IterateAverage("suffix", x).value, x)

    def test_refuses(self, double):
        x = torch.ones(2, **double)
        with pytest.raises(InvalidArgumentError, match="average must be one of"):
            IterateAverage("median", x)
        with pytest.raises(InvalidArgumentError, match="half_life must be given"):
            IterateAverage("exponential", x)
        with pytest.raises(InvalidArgumentError, match="half_life must be given"):
            IterateAverage("suffix", x, half_life=3.0)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"count": float("inf")}, "count must be a whole number"),
            ({"count": -1}, "count must be a whole number"),
            ({"weights": [0.0, 0.0]}, "weights 0.0 and 0.0 of 5 iterates"),
            ({"weights": [1e308, 1e308]}, "weights .* of 5 iterates"),
            ({"weights": [-1.0, 2.0]}, "weights must be a finite number"),
            ({"weights": [1.0]}, "not a state of IterateAverage: ValueError"),
            ({"since": torch.full((3, 2), torch.nan, **DOUBLE)}, "since must be fin"),
            ({"last": torch.zeros(2, **DOUBLE)}, "last must be"),
            ({"before": None}, "before must be"),
        ],
    )
    def test_refuses_broken_states(self, change, match):
        average = averaged("suffix", iterates(5, **DOUBLE))
        before = average.state_dict()
        with pytest.raises(OptimizerStateError, match=match):
            average.load_state_dict({**before, **change})
        assert same_state(average.state_dict(), before)
