"""What all distributions of the number of runs share: draws and JSON."""

import json

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    Count,
    Poisson,
    SeededNoise,
    SystemNoise,
    TruncatedNegativeBinomial,
)
from tests.devices import DEVICE
from tests.privacy.selection_cases import COUNTS


class TestDraws:
    def test_rare_values_have_their_probability(self):
        # One draw of 53 bits would never find what has a probability below 2^-53.
        class Scripted(SeededNoise):
            def __init__(self, numbers):
                self.numbers = iter(numbers)

            def uniform(self, shape, device):
                number = next(self.numbers)
                return torch.full(shape, number, dtype=torch.float64, device=DEVICE)

        count = TruncatedNegativeBinomial(2.0, 1.0)  # P(K > k) = 2^-k
        assert count.draw(Scripted([0.75])) == 1
        assert count.draw(Scripted([0.3])) == 2
        assert count.draw(Scripted([1e-9, 0.75])) == 22
        assert 62 <= count.draw(Scripted([1e-9, 1e-9, 1e-9, 0.3])) <= 66

    def test_system_entropy(self):
        drawn = {Poisson(8.0).draw(SystemNoise()) for _ in range(50)}
        assert len(drawn) > 3


class TestJson:
    @pytest.mark.parametrize("count", COUNTS, ids=repr)
    def test_round_trip(self, count):
        state = json.loads(json.dumps(count.to_dict()))
        again = Count.from_dict(state)
        assert again == count
        assert hash(again) == hash(count)

    @pytest.mark.parametrize("state", [{"type": "Zipf"}, {"type": "Poisson"}, {}])
    def test_other_states_are_refused(self, state):
        with pytest.raises(InvalidArgumentError, match="state must describe one of"):
            Count.from_dict(state)
        with pytest.raises(InvalidArgumentError, match="state must be a dict"):
            Count.from_dict([state])
