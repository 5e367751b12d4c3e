"""Lemma A.4 and Theorem B.2: by adversarial runs, brute force and Theorem 3.3."""

import dataclasses
import math

import numpy as np
import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.gibo import bounds
from botorch_dp.optimizers.gibo.bounds import GIBOSetting
from botorch_dp.optimizers.gibo.convergence import (
    cell_radius,
    invariant_radius,
    printed_radius,
    required_run,
)

NUMBERS = {
    "num_records": 400,
    "num_dims": 3,
    "num_steps": 60,
    "mu": 0.7,
    "clip_norm": 1.5,
    "smoothness": 4.0,
    "strong_convexity": 0.8,
    "rkhs_norm": 2.0,
    "traces": 0.3,
}


def setting(**changes):
    return GIBOSetting(**{**NUMBERS, **changes})


def noise_of(s):
    log = math.log(s.num_steps / s.failure_probability)
    return s.noise_std * (4 * math.sqrt(s.num_dims) + 2 * math.sqrt(2 * log))


class TestInvariantRadius:
    def test_by_hand(self):
        # T / xi = e^2 and d = 4: the longest noise is 2 / 24 * (8 + 4) = 1.
        s = setting(
            num_records=24,
            num_dims=4,
            num_steps=1,
            mu=1.0,
            clip_norm=1.0,
            failure_probability=math.exp(-2),
        )
        expected = (2 * math.sqrt(0.3) + 1) / 0.8
        assert invariant_radius(s) == pytest.approx(expected, rel=1e-13)
        assert invariant_radius(setting(traces=[0.1] * 59 + [0.3])) == pytest.approx(
            invariant_radius(setting())
        )

    @pytest.mark.parametrize("step_size", [0.25, 0.05])
    def test_adversarial_errors_stay_inside_and_touch_it(self, step_size):
        """Errors of the allowed size that point outwards, curvatures 0.8 to 4."""
        s = setting(step_size=step_size)
        error, radius = 2 * math.sqrt(0.3) + noise_of(s), invariant_radius(s)
        rng = np.random.default_rng(0)
        curvature = np.array([0.8, 2.0, 4.0])
        x = rng.normal(size=(200, 3))
        x *= radius / np.linalg.norm(x, axis=-1, keepdims=True)
        x[0] = [radius, 0.0, 0.0]
        for _ in range(60):
            x = x - step_size * curvature * x
            x += step_size * error * x / np.linalg.norm(x, axis=-1, keepdims=True)
            assert np.linalg.norm(x, axis=-1).max() <= radius * (1 + 1e-12)
        assert np.linalg.norm(x[0]) == pytest.approx(radius)

    def test_a_clipped_bias_is_at_most_twice_the_norm(self):
        s = setting(traces=1e6)
        assert invariant_radius(s) == pytest.approx((3.0 + noise_of(s)) / 0.8)

    @pytest.mark.parametrize("traces", [0.0, 0.3, 1e6])
    @pytest.mark.parametrize("mu", [0.01, 1.0, 100.0])
    def test_the_printed_radius_is_larger_for_steps_below_1(self, traces, mu):
        s = setting(traces=min(traces, (2 * 1.5 / 2.0) ** 2), mu=mu)
        assert printed_radius(s) >= invariant_radius(s)

    def test_the_printed_radius_by_hand(self):
        s = setting(step_size=0.1)
        V, noise = bounds.noise_term(s), noise_of(s)
        expected = math.sqrt(4 * 0.3 + 20 * V) / 0.8 + 0.1 * (1.5 + noise)
        assert printed_radius(s) == pytest.approx(expected)

    def test_a_decrease_of_the_loss_may_lead_away(self):
        """The step in the proof of Lemma A.4 that does not hold."""

        def loss(x):
            return x[0] ** 2 / 2 + 50 * x[1] ** 2

        before, after = np.array([0.0, 1.0]), np.array([5.0, 0.0])
        assert loss(after) < loss(before)
        assert np.linalg.norm(after) > np.linalg.norm(before)

    def test_misuse(self):
        for radius in (invariant_radius, printed_radius):
            with pytest.raises(InvalidArgumentError, match="strong_convexity"):
                radius(setting(strong_convexity=None))
            with pytest.raises(InvalidArgumentError, match="failure_probability"):
                radius(setting(failure_probability=None))


def rbf_trace(theta, X, scale):
    """The trace of the gradient's posterior covariance, from the formulas."""
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1) / (2 * scale**2))
    shift = X - theta
    cross = np.exp(-(shift**2).sum(-1) / (2 * scale**2))[:, None] * shift / scale**2
    K += 1e-11 * np.eye(len(X))
    return X.shape[-1] / scale**2 - np.trace(cross.T @ np.linalg.solve(K, cross))


@pytest.mark.parametrize("scale", [0.5, 1.0])
@pytest.mark.parametrize("trace", [0.05, 0.5])
def test_a_design_serves_its_cell(scale, trace):
    """A triangle with half of the trace at its centre, tried all over its cell."""
    angles = 2 * np.pi * np.arange(3) / 3
    triangle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    sizes = np.geomspace(0.02, 2, 200) * scale
    fits = [h for h in sizes if rbf_trace(np.zeros(2), h * triangle, scale) < trace / 2]
    design = max(fits) * triangle  # the one with the least to spare
    radius = cell_radius(trace, num_dims=2, length_scale=scale)
    rng = np.random.default_rng(0)
    for direction in rng.normal(size=(200, 2)):
        theta = radius * direction / np.linalg.norm(direction)
        assert rbf_trace(theta, design, scale) < trace


def test_cells_scale_with_the_variance():
    one = cell_radius(0.1, num_dims=3, length_scale=1.0)
    four = cell_radius(0.4, num_dims=3, length_scale=1.0, prior_variance=4.0)
    assert one == pytest.approx(four)


class TestRequiredRun:
    @pytest.mark.parametrize("gap", [0.5, 0.05])
    @pytest.mark.parametrize("step_size", [None, 0.1])
    def test_theorem_3_3_reaches_the_gap(self, gap, step_size):
        """In one dimension all traces can be written out: W first, then trace."""
        s = setting(num_dims=1, step_size=step_size, initial_gap=2.0, rkhs_norm=0.5)
        run = required_run(s, gap=gap, length_scale=1.5)
        traces = [1 / 1.5**2] * run.num_cover_steps
        traces += [run.trace] * (run.num_steps - run.num_cover_steps)
        reached = dataclasses.replace(
            s, num_steps=run.num_steps, num_records=run.num_records, traces=traces
        )
        assert bounds.suboptimality_bound(reached) <= gap
        assert bounds.noise_term(reached) <= gap * s.tau / 3 * (1 + 1e-9)
        assert invariant_radius(reached) <= run.radius * (1 + 1e-9)
        fewer = dataclasses.replace(reached, num_records=run.num_records - 2)
        assert bounds.noise_term(fewer) > gap * s.tau / 3

    def test_the_cover(self):
        run = required_run(setting(), gap=0.5, length_scale=1.0)
        per_side = math.ceil(2 * run.radius * math.sqrt(3) / run.cell_radius)
        assert run.num_cells == per_side**3
        assert run.num_cover_steps == 4 * run.num_cells
        batches = required_run(setting(), gap=0.5, length_scale=1.0, batch_size=4)
        assert batches.num_cover_steps == run.num_cells

    def test_the_printed_order_leaves_out_the_gap(self):
        """T is printed with log(1 / gap), but cells shrink like sqrt(gap)."""
        runs = [required_run(setting(), gap=g, length_scale=1.0) for g in (1e-2, 1e-4)]
        cells = [run.num_cells for run in runs]
        assert cells[1] / cells[0] == pytest.approx(100 ** (3 / 2), rel=0.05)

    def test_exact_steps_to_the_minimum(self):
        s = setting(strong_convexity=4.0)  # eta tau = 1: one exact step suffices
        run = required_run(s, gap=0.5, length_scale=1.0)
        assert run.num_steps == run.num_cover_steps + 1

    @pytest.mark.parametrize(
        ("changes", "kwargs", "match"),
        [
            ({}, {"gap": 0.0}, "gap"),
            ({}, {"length_scale": 0.0}, "length_scale"),
            ({}, {"prior_variance": -1.0}, "prior_variance"),
            ({}, {"batch_size": 0}, "batch_size"),
            ({"rkhs_norm": 0.0, "traces": 0.0}, {}, "rkhs_norm"),
            ({"failure_probability": None}, {}, "failure_probability"),
            ({"num_dims": 500}, {}, "num_dims = 500 is too large"),
        ],
    )
    def test_misuse(self, changes, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            required_run(
                setting(**changes), **{"gap": 0.5, "length_scale": 1.0, **kwargs}
            )
