"""The planner of DP-GIBO: its steps minimize the bounds, and it says what it chose."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from botorch_dp.exceptions import InvalidArgumentError, UnsupportedConversionError
from botorch_dp.optimizers.gibo.planning import plan
from botorch_dp.privacy import GDP, RDP, ApproxDP, PureDP
from tests.optimizers.gibo.test_bounds import oracle_noise

BASE = {"num_records": 2000, "num_dims": 5, "guarantee": GDP(1.0), "max_steps": 200}


class TestPlan:
    @pytest.mark.parametrize("failure_probability", [0.05, None])
    @pytest.mark.parametrize("strong_convexity", [None, 0.2])
    def test_steps_minimize_the_bound(self, strong_convexity, failure_probability):
        result = plan(
            **BASE,
            strong_convexity=strong_convexity,
            smoothness=2.0,
            initial_gap=3.0,
            gradient_bound=1.5,
            failure_probability=failure_probability,
        )
        values = []
        for T in range(1, 201):
            V = float(oracle_noise(2000, 5, T, 1.0, 1.5, failure_probability))
            if strong_convexity is None:
                values.append(2 * 3.0 * 2.0 / T + 2 * V)
            else:
                values.append(0.9**T * 3.0 + V / 0.2)
        assert result.num_steps == 1 + int(np.argmin(values))
        assert result.bound == pytest.approx(min(values))
        assert result.step_size == 0.5
        assert result.clip_norm == 1.5

    def test_noise(self):
        result = plan(**BASE)
        T = result.num_steps
        assert 1 < T < 200
        assert result.noise_std == pytest.approx(2 * math.sqrt(T) / 2000)
        assert result.noise_norm == pytest.approx(2 * math.sqrt(5 * T) / 2000)
        assert result.signal_to_noise == pytest.approx(1000 / math.sqrt(5 * T))
        assert result.bound > result.expected_bound

    def test_tolerance_adds_the_same_everywhere(self):
        exact, biased = plan(**BASE), plan(**BASE, rkhs_norm=2.0, tolerance=0.1)
        assert biased.num_steps == exact.num_steps
        assert biased.bound == pytest.approx(exact.bound + 0.4)

    @pytest.mark.parametrize("failure_probability", [0.05, None])
    @pytest.mark.parametrize("strong_convexity", [None, 0.3])
    def test_more_records_never_give_fewer_steps(
        self, strong_convexity, failure_probability
    ):
        steps = [
            plan(
                **{**BASE, "num_records": 2**k, "max_steps": 100},
                strong_convexity=strong_convexity,
                failure_probability=failure_probability,
            ).num_steps
            for k in range(2, 20)
        ]
        assert steps == sorted(steps)
        assert steps[0] < steps[-1]

    def test_guarantees_are_converted(self):
        for guarantee in (ApproxDP(2.0, 1e-6), RDP(8.0, 0.5)):
            result = plan(**{**BASE, "guarantee": guarantee})
            assert result.mu == guarantee.to_gdp().mu
            assert result == plan(**{**BASE, "guarantee": guarantee.to_gdp()})
        with pytest.raises(UnsupportedConversionError, match="Gaussian noise"):
            plan(**{**BASE, "guarantee": PureDP(1.0)})

    def test_alternatives_hold_both_minima(self):
        result = plan(**BASE)
        steps = [option.num_steps for option in result.alternatives]
        average = plan(**BASE, failure_probability=None)
        assert steps == sorted({1, 3, 10, 30, 100, result.num_steps, average.num_steps})
        assert average.num_steps > result.num_steps
        assert average.bound == average.expected_bound

    def test_only_one_step(self):
        result = plan(**{**BASE, "max_steps": 1})
        assert result.num_steps == len(result.alternatives) == 1
        assert "in 1 step of size" in str(result)

    def test_str_marks_the_choice(self):
        result = plan(**BASE)
        text = str(result)
        (marked,) = [line for line in text.splitlines() if line.startswith(">")]
        cells = marked[1:].split()
        assert int(cells[0]) == result.num_steps
        numbers = [float(cell) for cell in cells[1:]]
        assert numbers == pytest.approx(
            [
                result.noise_std,
                result.noise_norm,
                result.signal_to_noise,
                result.bound,
                result.expected_bound,
            ],
            rel=5e-3,
        )
        assert f"in {result.num_steps} steps" in text
        words = " ".join(text.split())
        assert "uses no data" in words
        assert (
            "mean squared gradient norm (Theorem 3.2), with probability 0.95" in words
        )
        assert "says nothing" in words
        assert max(map(len, text.splitlines())) <= 88

    def test_str_of_other_plans(self):
        hopeless = plan(**{**BASE, "num_records": 10}, strong_convexity=0.1)
        words = " ".join(str(hopeless).split())
        assert hopeless.bound >= hopeless.known_bound == 1.0
        assert "no number of steps is proven to do better" in words
        assert "Theorem 3.3), with" in words
        assert "strongly convex on average" in words
        average = plan(**BASE, failure_probability=None)
        assert "(Theorem 3.2), in expectation." in " ".join(str(average).split())

    def test_what_is_known_without_a_step(self):
        # ||grad||^2 <= min(B^2, 2 L F_0), and F <= B^2 / (2 tau).
        assert plan(**BASE, initial_gap=0.1).known_bound == pytest.approx(0.2)
        assert plan(**BASE, initial_gap=9.0).known_bound == 1.0
        convex = plan(**BASE, initial_gap=9.0, strong_convexity=0.5)
        assert convex.known_bound == 1.0

    def test_frozen(self):
        with pytest.raises(FrozenInstanceError):
            plan(**BASE).num_steps = 3


class TestErrors:
    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ({"num_records": 0}, "num_records must"),
            ({"num_dims": 0}, "num_dims must"),
            ({"guarantee": 1.0}, "guarantee must be a PureDP, ApproxDP, GDP or RDP"),
            ({"gradient_bound": 0.0}, "gradient_bound must"),
            ({"smoothness": -1.0}, "smoothness must"),
            ({"initial_gap": math.nan}, "initial_gap must"),
            ({"strong_convexity": 2.0}, "strong_convexity must be at most smoothness"),
            ({"rkhs_norm": math.inf}, "rkhs_norm must"),
            ({"tolerance": -0.1}, "tolerance must"),
            ({"tolerance": 0.1}, "rkhs_norm must be above 0"),
            ({"failure_probability": 2.0}, "failure_probability must"),
            ({"max_steps": 0}, "max_steps must"),
        ],
    )
    def test_arguments(self, extra, message):
        with pytest.raises(InvalidArgumentError, match=message):
            plan(**{**BASE, **extra})
