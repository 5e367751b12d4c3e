"""Bounds of Algorithms 1 and 2: by hand, monotone, within delta."""

import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.acquisition.private_ucb import CONSTANTS, ucb_beta
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.release.kusner import sensitivity
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from botorch_dp.optimizers.release.kusner.sensitivity import (
    NoiseFreeValueSensitivity,
    PointSensitivity,
    ValueSensitivity,
)
from tests.devices import seeded
from tests.optimizers.problems import DOUBLE
from tests.optimizers.release.kusner.bounds import (
    LIPSCHITZ,
    NOISE_FREE,
    POINT,
    SETTINGS,
    VALUE,
    bound,
    noise_free_sensitivity,
    point_sensitivity,
    value_sensitivity,
)


class TestByHand:
    def test_release_beta(self):
        # 3 |Lambda| / delta = e^2.
        delta = 3 * 4 / math.exp(2) / 100
        setting = {**POINT, "num_steps": 6, "num_candidates": 4, "delta": delta}
        repaired = point_sensitivity(**setting).beta
        assert repaired == pytest.approx(2 * (2 + math.log(100)))
        for constants in ("icml2015", "workshop"):
            expected = 2 * math.log(4 * 49 * math.pi**2 / (3 * delta))
            value = point_sensitivity(**setting, constants=constants).beta
            assert value == pytest.approx(expected, rel=1e-14)

    def test_max_noise(self):
        numbers = {"noise_variance": 0.25, "num_steps": 5, "delta": 0.01}
        setting = {**VALUE, **numbers}
        expected = {
            "repaired": 0.5 * math.sqrt(8 * math.log(3000)),
            "icml2015": 0.5 * math.sqrt(8 * math.log(300)),
            "workshop": 0.5 * math.sqrt(4 * math.log(300)),
        }
        for constants in CONSTANTS:
            value = value_sensitivity(**setting, constants=constants).q
            assert value == pytest.approx(expected[constants], rel=1e-14)

    def test_regret_constant(self):
        unit = {**VALUE, "noise_variance": 1 / (math.e - 1)}
        assert pytest.approx(8.0) == value_sensitivity(**unit).C1
        scaled = {**VALUE, "noise_variance": 4 / (math.e - 1), "prior_variance": 4.0}
        assert pytest.approx(32.0) == value_sensitivity(**scaled).C1

    @pytest.mark.parametrize("constants", CONSTANTS)
    def test_algorithm_1(self, constants):
        point = point_sensitivity(**POINT, constants=constants)
        beta = 2 * math.log(9000)
        if constants != "repaired":
            beta = 2 * math.log(300 * 21**2 * math.pi**2 / 0.3)
        c = 2 * math.sqrt(0.1 * math.log(9000))
        assert point.beta == pytest.approx(beta)
        assert point.sensitivity == pytest.approx(2 * math.sqrt(beta) + c)
        value = value_sensitivity(**VALUE, constants=constants)
        divisor = 0.2 if constants == "repaired" else 0.3
        beta_T = 2 * math.log(300 * 400 * math.pi**2 / divisor)
        C1 = 8 / math.log(26)
        q = {
            "repaired": 0.2 * math.sqrt(8 * math.log(1200)),
            "icml2015": 0.2 * math.sqrt(8 * math.log(30)),
            "workshop": 0.2 * math.sqrt(4 * math.log(30)),
        }[constants]
        assert (value.beta, value.C1) == (pytest.approx(beta_T), pytest.approx(C1))
        assert value.gamma == 12.0
        assert value.regret == pytest.approx(math.sqrt(C1 * beta_T * 12 / 20))
        assert value.c == point.c == pytest.approx(c)
        assert value.q == pytest.approx(q)
        assert value.sensitivity == pytest.approx(value.regret + c + q)

    def test_algorithm_2(self):
        release = noise_free_sensitivity(**NOISE_FREE)
        c = 2 * math.sqrt(0.1 * math.log(6000))
        regret = 4 * math.exp(-0.2 * 20 / math.log(20) ** 0.75)
        assert release.c == pytest.approx(c)
        assert release.regret == pytest.approx(regret)
        assert release.sensitivity == pytest.approx(regret + c)
        printed = noise_free_sensitivity(**NOISE_FREE, constants="icml2015")
        assert printed.sensitivity == release.sensitivity
        workshop = noise_free_sensitivity(**NOISE_FREE, constants="workshop")
        assert workshop.regret == pytest.approx(
            4 * math.exp(-0.2 * 2 / math.log(2) ** 0.75)
        )

    def test_algorithm_2_is_not_monotone(self):
        # The exponents in ten dimensions: 5.0 after 2 steps, 1.65 after 50.
        case = {**NOISE_FREE, "num_dims": 10, "regret_scale": 1.0, "regret_rate": 1.0}
        for num_steps, exponent in ((2, 5.0), (50, 1.65)):
            release = noise_free_sensitivity(**{**case, "num_steps": num_steps})
            assert -math.log(release.regret) == pytest.approx(exponent, rel=2e-3)

    def test_releases_are_frozen(self):
        for release in (
            point_sensitivity(**POINT),
            value_sensitivity(**VALUE),
            noise_free_sensitivity(**NOISE_FREE),
            LipschitzValueSensitivity(**LIPSCHITZ, loss_bound=1.0),
        ):
            with pytest.raises(FrozenInstanceError):
                release.sensitivity = 0.0

    @given(
        st.floats(1e-3, 1e3),
        st.sampled_from([point_sensitivity, value_sensitivity]),
    )
    def test_units(self, scale, make):
        """In units of s every bound is s times as large."""
        setting = dict(POINT if make is point_sensitivity else VALUE)
        one = make(**setting).sensitivity
        setting["prior_variance"] = scale**2
        if make is value_sensitivity:
            setting["noise_variance"] *= scale**2
        assert make(**setting).sensitivity == pytest.approx(scale * one, rel=1e-9)


class TestMonotone:
    @given(
        st.fixed_dictionaries(SETTINGS),
        st.sampled_from(["num_candidates", "delta", "correlation"]),
        st.sampled_from(CONSTANTS),
    )
    def test_point_and_value(self, setting, name, constants):
        less = dict(setting)
        less[name] = {
            "num_candidates": setting["num_candidates"] * 3,
            "delta": setting["delta"] / 3,
            "correlation": setting["correlation"] / 3 - 1e-9,
        }[name]
        less[name] = max(less[name], 0.0)
        extra = {"noise_variance": 0.1, "gamma": 3.0}
        for make, more in ((point_sensitivity, {}), (value_sensitivity, extra)):
            old = make(**setting, **more, constants=constants).sensitivity
            new = make(**less, **more, constants=constants).sensitivity
            assert new > old or (name == "correlation" and new >= old)

    @given(st.fixed_dictionaries(SETTINGS))
    def test_constants(self, setting):
        # The point: fewer events, less noise. The value: more noises, more noise.
        points = [point_sensitivity(**setting, constants=c) for c in CONSTANTS]
        assert points[0].sensitivity < points[1].sensitivity
        assert points[1].sensitivity == points[2].sensitivity
        extra = {"noise_variance": 0.1, "gamma": 3.0}
        values = [value_sensitivity(**setting, **extra, constants=c) for c in CONSTANTS]
        sensitivities = [value.sensitivity for value in values]
        assert sensitivities == sorted(sensitivities, reverse=True)

    @pytest.mark.parametrize(("T", "count"), [(50, 1000), (200, 100_000)])
    def test_saving_of_one_time_instead_of_all(self, T, count):
        """The repaired point release lowers Delta by 11 to 24 %."""
        setting = {"num_steps": T, "num_candidates": count, "delta": 0.1}
        new, old = (
            point_sensitivity(**setting, correlation=0.99, constants=c).sensitivity
            for c in ("repaired", "icml2015")
        )
        assert 0.11 < 1 - new / old < 0.24


class TestUnionBound:
    @given(st.fixed_dictionaries(SETTINGS))
    def test_repaired_constants_spend_at_most_delta(self, setting):
        extra = {"noise_variance": 0.1, "gamma": 3.0}
        dims = {"num_dims": 2, "regret_scale": 1.0, "regret_rate": 0.1}
        for release in (
            point_sensitivity(**setting),
            value_sensitivity(**setting, **extra),
            noise_free_sensitivity(**setting, **dims),
        ):
            spent = release.failure_probabilities
            assert math.fsum(spent.values()) <= release.setting.delta
            assert all(probability > 0 for probability in spent.values())

    @given(st.fixed_dictionaries(SETTINGS))
    def test_four_quarters(self, setting):
        """P(|Z| > x) <= 3/4 exp(-x^2 / 2), so each share of delta/3 costs delta/4."""
        release = value_sensitivity(**setting, noise_variance=0.1, gamma=3.0)
        spent, delta = release.failure_probabilities, setting["delta"]
        assert spent["regret"] <= 2 * delta / 4
        assert spent["shift"] <= delta / 4
        assert spent["noise"] <= delta / 4

    def test_tail_bound(self):
        for x in (1.07, 1.2, 2.0, 5.0):
            assert math.erfc(x / math.sqrt(2)) <= 0.75 * math.exp(-x * x / 2)
        # The least x in use: two shares, one candidate, delta = 1.
        assert math.sqrt(2 * math.log(2)) > 1.07

    @pytest.mark.parametrize("constants", ["icml2015", "workshop"])
    def test_printed_noise_overspends(self, constants):
        release = value_sensitivity(**VALUE, constants=constants)
        spent = release.failure_probabilities
        assert spent["noise"] > 2 * release.setting.delta
        assert spent["regret"] + spent["shift"] <= release.setting.delta

    def test_printed_shares_by_the_papers_own_tail(self):
        # exp(-x^2 / 2) as the papers have it: 4 delta / 3 for Theorem 1 at all times.
        delta, count, steps = 0.3, 50, 10**5
        setting = {"num_candidates": count, "delta": delta, "constants": "icml2015"}
        one = math.fsum(
            count * math.exp(-ucb_beta(step=t, **setting) / 2)
            for t in range(1, steps + 1)
        )
        assert 2 * one + delta / 3 == pytest.approx(4 * delta / 3, rel=1e-4)


class TestAlgorithm2:
    def test_bound_is_attained(self):
        """Functions within c, found to within the regret; the worst case by hand."""
        release = noise_free_sensitivity(**NOISE_FREE)
        generator = seeded(1)
        f = torch.randn(500, 20, generator=generator, **DOUBLE)
        signs = 2 * torch.rand(500, 20, generator=generator, **DOUBLE) - 1
        neighbour = f + release.c * signs
        found = [
            g.amax(dim=-1)
            - release.regret * torch.rand(500, generator=generator, **DOUBLE)
            for g in (f, neighbour)
        ]
        assert ((found[0] - found[1]).abs() <= release.sensitivity).all()
        worst = f.amax() - ((f - release.c).amax() - release.regret)
        assert worst.item() == pytest.approx(release.sensitivity)


class TestErrors:
    @pytest.mark.parametrize(
        ("make", "setting"),
        [
            (point_sensitivity, POINT),
            (value_sensitivity, VALUE),
            (noise_free_sensitivity, NOISE_FREE),
        ],
    )
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_steps", 0),
            ("num_candidates", 0),
            ("delta", 1.0),
            ("correlation", 1.5),
            ("prior_variance", 0.0),
            ("constants", "paper"),
        ],
    )
    def test_releases(self, make, setting, name, value):
        with pytest.raises(InvalidArgumentError, match=f"{name} must .*{value}"):
            make(**{**setting, name: value})

    @pytest.mark.parametrize(
        ("make", "setting", "name", "value"),
        [
            (value_sensitivity, VALUE, "noise_variance", 0.0),
            (value_sensitivity, VALUE, "gamma", -1.0),
            (value_sensitivity, VALUE, "gamma", math.nan),
            (noise_free_sensitivity, NOISE_FREE, "num_steps", 1),
            (noise_free_sensitivity, NOISE_FREE, "num_dims", 0),
            (noise_free_sensitivity, NOISE_FREE, "regret_scale", -1.0),
            (noise_free_sensitivity, NOISE_FREE, "regret_rate", 0.0),
        ],
    )
    def test_own_arguments(self, make, setting, name, value):
        with pytest.raises(InvalidArgumentError, match=f"{name} must"):
            make(**{**setting, name: value})

    def test_what_went_in_can_be_read(self):
        release = value_sensitivity(**VALUE)
        fields = release.to_dict()
        assert {name: fields[name] for name in VALUE} == VALUE


class TestEarlierNames:
    @pytest.mark.parametrize(
        ("name", "kind", "numbers"),
        [
            ("kusner_point_release", PointSensitivity, POINT),
            ("kusner_value_release", ValueSensitivity, VALUE),
            ("noise_free_value_release", NoiseFreeValueSensitivity, NOISE_FREE),
            (
                "lipschitz_value_release",
                LipschitzValueSensitivity,
                {**LIPSCHITZ, "loss_bound": 1.0},
            ),
        ],
    )
    def test_functions(self, name, kind, numbers):
        with pytest.warns(DeprecationWarning, match=f"{name}.*use {kind.__name__}"):
            make = getattr(sensitivity, name)
        new = bound(kind, **numbers) if "delta" in numbers else kind(**numbers)
        assert make(**numbers) == new

    @pytest.mark.parametrize("name", ["Point", "Value", "NoiseFreeValue"])
    def test_classes(self, name):
        with pytest.warns(DeprecationWarning, match=f"use {name}Sensitivity"):
            old = getattr(sensitivity, f"{name}Release")
        assert old is getattr(sensitivity, f"{name}Sensitivity")

    def test_no_such_name(self):
        with pytest.raises(AttributeError, match="no attribute 'release'"):
            _ = sensitivity.release
