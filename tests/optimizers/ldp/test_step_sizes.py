"""Step sizes against their formulas."""

import math

import pytest

from botorch_dp import StepSchedule
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import longest_message


class TestStepSchedule:
    def test_formula(self):
        assert StepSchedule(0.2, power=0.505)(100) == pytest.approx(0.2 * 100**-0.505)
        assert StepSchedule(0.2, power=0.5, offset=21)(100) == pytest.approx(0.2 / 11)
        assert StepSchedule(0.005, power=0.0)(10**6) == 0.005

    def test_for_noise(self):
        schedule = StepSchedule.for_noise(
            radius=3.0, clip_norm=2.0, noise_std=1.5, dim=4
        )
        G = math.sqrt(2.0**2 + 4 * 1.5**2)
        assert schedule(1) == pytest.approx(3.0 / (2 * G * math.sqrt(101)))
        # What the noise alone adds up to: R^2 / 4 log(1 + T / 100), nearly.
        walk = sum(schedule(t) ** 2 * G**2 for t in range(1, 20_001))
        assert walk == pytest.approx(9.0 / 4 * math.log(1 + 200), rel=0.01)
        facts = {"clip_norm": 2.0, "noise_std": 1.5, "dim": 4}
        assert schedule.longest_message == longest_message(**facts)
        assert StepSchedule(0.2).longest_message is None

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"initial": 0.0}, "initial must be a finite number above 0"),
            ({"initial": 1.0, "power": -1.0}, "power must be a finite number, 0"),
            ({"initial": 1.0, "offset": -1}, "offset must be a whole number"),
            ({"initial": 1.0, "longest_message": 0.0}, "longest_message must be a fin"),
        ],
    )
    def test_refuses(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            StepSchedule(**kwargs)
