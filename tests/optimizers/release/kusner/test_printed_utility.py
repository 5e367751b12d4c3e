"""The utility theorems as printed: by hand, and beside the ones that hold."""

import math

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from botorch_dp.optimizers.release.kusner.printed_utility import (
    printed_lipschitz_bound,
    printed_noise_free_bound,
    printed_point_bound,
    printed_value_bound,
)
from botorch_dp.optimizers.release.kusner.utility import (
    point_utility_bound,
    value_utility_bound,
)
from tests.optimizers.release.kusner.bounds import (
    LIPSCHITZ,
    NOISE_FREE,
    POINT,
    VALUE,
    noise_free_sensitivity,
    point_sensitivity,
    value_sensitivity,
)

A, DELTA, N, T = math.log(20), 0.1, 300, 20
VERSIONS = ("icml2015", "workshop")
C = 2 * math.sqrt(0.1 * math.log(3 * N / DELTA))


def beta(step):
    return 2 * math.log(N * step**2 * math.pi**2 / (3 * DELTA))


def test_theorem_2():
    """Written out from the papers, with nothing from the library."""
    exponential = 2 * (2 * math.sqrt(beta(T + 1)) + C) / 0.5 * (math.log(N) + A)
    icml, workshop = (
        printed_point_bound(
            point_sensitivity(**POINT, constants=version),
            epsilon=0.5,
            noise_variance=0.04,
        )
        for version in VERSIONS
    )
    assert icml.bound == pytest.approx(exponential)
    q = 0.2 * math.sqrt(4 * math.log(3 / DELTA))
    expected = exponential + 2 * math.sqrt(beta(T)) + q
    assert workshop.bound == pytest.approx(expected)
    assert icml.probability == workshop.probability == pytest.approx(1 - 0.15)


def test_theorem_4():
    C1 = 8 / math.log(1 + 1 / 0.04)
    regret = math.sqrt(C1 * beta(T) * 12.0 / T)
    for version, factor, noise in (
        ("icml2015", 8, 0.2 * math.sqrt(8 * math.log(10))),
        ("workshop", 4, math.sqrt(2 * math.log(2 * T / DELTA))),
    ):
        value = value_sensitivity(**VALUE, constants=version)
        q = 0.2 * math.sqrt(factor * math.log(3 / DELTA))
        printed = printed_value_bound(value, epsilon=0.5)
        expected = noise + regret + A * (regret + C + q) / 0.5
        assert printed.bound == pytest.approx(expected)
        assert printed.probability == pytest.approx(0.85)


def test_theorem_6():
    c = 2 * math.sqrt(0.1 * math.log(2 * N / DELTA))
    for version, steps in (("icml2015", T), ("workshop", 2)):
        value = noise_free_sensitivity(**NOISE_FREE, constants=version)
        regret = 4.0 * math.exp(-0.2 * steps / math.log(steps) ** (3 / 4))
        printed = printed_noise_free_bound(value, epsilon=0.5)
        assert printed.bound == pytest.approx(regret + A * (regret + c) / 0.5)


def test_theorem_8():
    value = LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=5.0, constants="icml2015")
    printed = printed_lipschitz_bound(value, epsilon=0.5)
    expected = min(5.0, 2.0 / 0.5) / 50 + (4.0 - 0.5) * 2.0 / (4.0 * 0.5)
    assert printed.bound == pytest.approx(A * expected / 0.5)
    assert printed.probability == pytest.approx(0.95)


def test_beside_the_ones_that_hold():
    """Theorem 2 is repaired downwards; Theorem 4 upwards where noise is large."""
    printed = printed_point_bound(
        point_sensitivity(**POINT, constants="icml2015"), epsilon=1.0
    )
    assert point_utility_bound(point_sensitivity(**POINT), epsilon=1.0) < printed.bound
    case = {**VALUE, "noise_variance": 100.0, "num_steps": 1000, "delta": 0.7}
    printed = printed_value_bound(
        value_sensitivity(**case, constants="icml2015"), epsilon=1e6
    )
    assert value_utility_bound(value_sensitivity(**case), epsilon=1e6) > printed.bound


def test_a_probability_is_not_negative():
    value = value_sensitivity(**{**VALUE, "delta": 0.99}, constants="icml2015")
    assert printed_value_bound(value, epsilon=1.0).probability == 0.0


@pytest.mark.parametrize(
    ("printed", "release"),
    [
        (printed_point_bound, point_sensitivity(**POINT)),
        (printed_value_bound, value_sensitivity(**VALUE)),
        (printed_noise_free_bound, noise_free_sensitivity(**NOISE_FREE)),
        (
            printed_lipschitz_bound,
            LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=1.0),
        ),
    ],
)
def test_misuse(printed, release):
    with pytest.raises(InvalidArgumentError, match="got 'repaired'"):
        printed(release, epsilon=1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0.0), ("failure_probability", 1.0), ("noise_variance", -1.0)],
)
def test_bad_numbers(name, value):
    point = point_sensitivity(**POINT, constants="workshop")
    with pytest.raises(InvalidArgumentError, match=f"{name} must"):
        printed_point_bound(point, **{"epsilon": 1.0, name: value})
