"""Utility bounds: by hand, and where they are sharp."""

import math

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from botorch_dp.optimizers.release.kusner.utility import (
    lipschitz_utility_bound,
    noise_free_utility_bound,
    point_utility_bound,
    value_utility_bound,
)
from tests.devices import seeded
from tests.optimizers.problems import DOUBLE
from tests.optimizers.release.kusner.bounds import (
    LIPSCHITZ,
    NOISE_FREE,
    POINT,
    VALUE,
    noise_free_sensitivity,
    point_sensitivity,
    value_sensitivity,
)


def frequency(events):
    return events.double().mean().item()


class TestSharp:
    @pytest.mark.parametrize("count", [100, 10_000])
    @pytest.mark.parametrize("probability", [0.05, 0.01])
    def test_theorem_2_is_sharp(self, count, probability):
        """One good candidate, all others worse by just more than the bound.

        Exactly: they are drawn with probability at most 0.05 (0.01), but with more if
        they are worse by 1 % less.
        """
        release = point_sensitivity(**{**POINT, "num_candidates": count})
        bound = point_utility_bound(
            release, epsilon=2.0, failure_probability=probability
        )

        def probability_of_worse(gap):
            weight = (count - 1) * math.exp(-2.0 * gap / (2 * release.sensitivity))
            return weight / (1 + weight)

        assert probability_of_worse(bound) <= probability
        assert probability_of_worse(0.98 * bound) > probability

    def test_printed_theorem_4_forgets_the_maximum(self):
        """One candidate, sigma = 10, T = 1000 and hardly any Laplace noise.

        The best observation is 32 above the function, the printed bound 22: it fails
        in nearly every one of 500 runs, where 75 % are allowed. The corrected one, 45,
        fails in 3 %.
        """
        generator = seeded(5)
        f = torch.randn(500, 1, generator=generator, **DOUBLE)
        noises = 10 * torch.randn(500, 1000, generator=generator, **DOUBLE)
        error = ((f + noises).amax(dim=-1, keepdim=True) - f).abs()
        setting = {
            "num_steps": 1000,
            "num_candidates": 1,
            "delta": 0.7,
            "correlation": 1.0,
            "noise_variance": 100.0,
            "gamma": 0.5 * math.log(1 + 1000 / 100),
        }
        release = value_sensitivity(**setting, constants="icml2015")
        laplace = math.log(20) * release.sensitivity / 1000
        printed = 10 * math.sqrt(8 * math.log(1 / 0.7)) + release.regret + laplace
        assert printed == pytest.approx(22.5, abs=0.5)
        assert frequency(error > printed) > 0.99
        for constants in ("repaired", "icml2015"):
            release = value_sensitivity(**setting, constants=constants)
            bound = value_utility_bound(release, epsilon=1000.0)
            assert frequency(error > bound) < 0.1


class TestUtility:
    def test_by_hand(self):
        point = point_sensitivity(**POINT)
        a = math.log(20)
        bound = 2 * point.sensitivity / 0.5 * (math.log(300) + a)
        assert point_utility_bound(point, epsilon=0.5) == pytest.approx(bound)
        assert point_utility_bound(
            point, epsilon=0.5, reference="optimum"
        ) == pytest.approx(bound + 2 * math.sqrt(point.beta))
        value = value_sensitivity(**VALUE)
        noise = 0.2 * math.sqrt(2 * math.log(400))
        assert value_utility_bound(value, epsilon=0.5) == pytest.approx(
            noise + value.regret + a * value.sensitivity / 0.5
        )
        free = noise_free_sensitivity(**NOISE_FREE)
        assert noise_free_utility_bound(free, epsilon=0.5) == pytest.approx(
            free.regret + a * (free.regret + free.c) / 0.5
        )
        score = LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=5.0)
        assert lipschitz_utility_bound(score, epsilon=0.5) == pytest.approx(
            a * 3.6 / 0.5
        )

    @pytest.mark.parametrize(
        ("name", "value"),
        [("epsilon", 0.0), ("epsilon", math.inf), ("failure_probability", 0.0)],
    )
    def test_bad_arguments(self, name, value):
        for bound, release in (
            (point_utility_bound, point_sensitivity(**POINT)),
            (value_utility_bound, value_sensitivity(**VALUE)),
            (noise_free_utility_bound, noise_free_sensitivity(**NOISE_FREE)),
            (
                lipschitz_utility_bound,
                LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=1.0),
            ),
        ):
            with pytest.raises(InvalidArgumentError, match=f"{name} must"):
                bound(release, **{"epsilon": 1.0, name: value})

    def test_bad_reference(self):
        with pytest.raises(InvalidArgumentError, match="reference must be one of"):
            point_utility_bound(point_sensitivity(**POINT), epsilon=1.0, reference="f")
