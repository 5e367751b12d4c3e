"""The setting of Algorithms 1 and 2."""

import math
import statistics
from dataclasses import FrozenInstanceError, replace

import pytest

from botorch_dp.acquisition.private_ucb import CONSTANTS
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
from tests.optimizers.release.kusner.bounds import POINT


class TestShift:
    def test_by_hand(self):
        numbers = {**POINT, "num_candidates": 10, "correlation": 0.75}
        setting = KusnerSetting(**{**numbers, "delta": 3 * 10 * math.exp(-4)})
        assert setting.shift() == pytest.approx(2.0)
        assert replace(setting, correlation=1.0).shift() == 0.0
        assert replace(setting, prior_variance=9.0).shift() == pytest.approx(6.0)
        setting = replace(setting, delta=2 * 10 * math.exp(-4))
        assert setting.shift(shares=2) == pytest.approx(2.0)

    def test_failure(self):
        # 2 candidates and delta = 6 exp(-2): x = 2 standard deviations.
        numbers = {**POINT, "num_candidates": 2, "delta": 6 / math.e**2}
        setting = KusnerSetting(**numbers)
        tail = 2 * (1 - statistics.NormalDist().cdf(2.0))
        assert setting.shift_failure() == pytest.approx(2 * tail)
        setting = replace(setting, delta=4 / math.e**2)
        assert setting.shift_failure(shares=2) == pytest.approx(2 * tail)

    def test_shares(self):
        with pytest.raises(InvalidArgumentError, match="shares must"):
            KusnerSetting(**POINT).shift(shares=0)


@pytest.mark.parametrize("constants", CONSTANTS)
def test_search_weight(constants):
    setting = KusnerSetting(**POINT, constants=constants)
    divisor = 2 if constants == "repaired" else 3
    for step in (1, 7):
        beta = 2 * math.log(300 * step**2 * math.pi**2 / (divisor * 0.1))
        assert setting.ucb_beta(step) == pytest.approx(beta)
    assert setting.is_repaired == (constants == "repaired")


def test_frozen():
    with pytest.raises(FrozenInstanceError):
        KusnerSetting(**POINT).delta = 0.2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_steps", 0),
        ("num_candidates", 2.5),
        ("delta", 1.0),
        ("correlation", 1.5),
        ("correlation", -0.1),
        ("prior_variance", 0.0),
        ("constants", "paper"),
    ],
)
def test_bad_arguments(name, value):
    with pytest.raises(InvalidArgumentError, match=f"{name} must .*{value}"):
        KusnerSetting(**{**POINT, name: value})
