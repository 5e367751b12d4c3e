"""Bounds of DP-GIBO: against high precision and against simulated runs."""

import math
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.gibo import bounds
from botorch_dp.optimizers.gibo.bounds import GIBOSetting

RELEASE = {
    "num_records": 400,
    "num_dims": 3,
    "num_steps": 12,
    "mu": 0.7,
    "clip_norm": 1.5,
}
SMOOTH = {**RELEASE, "smoothness": 4.0, "initial_gap": 2.5}
CONVEX = {**SMOOTH, "strong_convexity": 0.8}
TRACES = [0.3 / (t + 1) for t in range(12)]


def noise_term(**setting):
    return bounds.noise_term(GIBOSetting(**setting))


def gradient_norm_bound(**setting):
    return bounds.gradient_norm_bound(GIBOSetting(**setting))


def suboptimality_bound(**setting):
    return bounds.suboptimality_bound(GIBOSetting(**setting))


def distance_bound(**setting):
    return bounds.distance_bound(GIBOSetting(**setting))


BOUNDS = [
    (gradient_norm_bound, SMOOTH),
    (suboptimality_bound, CONVEX),
    (distance_bound, CONVEX),
]


def oracle_noise(n, d, T, mu, B, delta):
    """Theorem 3.2's V with 40 digits, expanded: 2 M + M^2 / (2 B^2)."""
    with mpmath.workdps(40):
        n, d, T, mu, B = map(mpmath.mpf, (n, d, T, mu, B))
        if delta is None:
            return 2 * d * B**2 * T / (n * mu) ** 2
        radius = mpmath.sqrt(16 * d) + mpmath.sqrt(
            8 * mpmath.log(T / mpmath.mpf(delta))
        )
        M = 2 * B**2 * mpmath.sqrt(T) * radius / (n * mu)
        return 2 * M + M**2 / (2 * B**2)


class TestFormulas:
    @pytest.mark.parametrize("delta", [0.5, 0.05, 1e-9, None])
    @pytest.mark.parametrize(
        ("n", "d", "T", "mu", "B"),
        [(400, 3, 12, 0.7, 1.5), (1, 1, 1, 1.0, 1.0), (10**6, 50, 999, 0.01, 30.0)],
    )
    def test_noise_term(self, n, d, T, mu, B, delta):
        value = noise_term(
            num_records=n,
            num_dims=d,
            num_steps=T,
            mu=mu,
            clip_norm=B,
            failure_probability=delta,
        )
        assert value == pytest.approx(
            float(oracle_noise(n, d, T, mu, B, delta)), rel=1e-13
        )

    def test_noise_term_by_hand(self):
        # T/delta = e^2 and d = 4 give a radius 8 + 2 * 2 = 12; n mu = 24, so M = 1.
        value = noise_term(
            num_records=24,
            num_dims=4,
            num_steps=1,
            mu=1.0,
            clip_norm=1.0,
            failure_probability=math.exp(-2),
        )
        assert value == pytest.approx(1 * (2 + 1 / 2), rel=1e-14)

    @pytest.mark.parametrize("delta", [0.05, None])
    @pytest.mark.parametrize("step_size", [None, 0.25, 0.1])
    def test_bounds(self, step_size, delta):
        V = float(oracle_noise(400, 3, 12, 0.7, 1.5, delta))
        eta, tau, rkhs_norm = step_size or 1 / 4, 0.8, 3.0
        extra = {
            "step_size": step_size,
            "rkhs_norm": rkhs_norm,
            "traces": TRACES,
            "failure_probability": delta,
        }
        mean_trace = sum(TRACES) / 12
        expected = 2 * 2.5 / (12 * eta) + 9 * mean_trace + 2 * V
        assert gradient_norm_bound(**SMOOTH, **extra) == pytest.approx(expected)
        # Theorem 3.3's sum, with the powers written out.
        kept = 1 - eta * tau
        powers = np.array([kept**k for k in range(11, -1, -1)])
        gap = kept**12 * 2.5 + 9 * eta / 2 * powers @ np.array(TRACES) + V / tau
        assert suboptimality_bound(**CONVEX, **extra) == pytest.approx(gap)
        distance = distance_bound(**CONVEX, **extra)
        assert distance == pytest.approx((2 * gap / tau) ** 0.5)

    def test_corollary_3_6(self):
        extra = {"rkhs_norm": 3.0, "traces": 0.01}
        V = noise_term(**RELEASE)
        assert gradient_norm_bound(**SMOOTH, **extra) == pytest.approx(
            2 * 2.5 * 4 / 12 + 0.01 * 9 + 2 * V
        )
        assert suboptimality_bound(**CONVEX, **extra) == pytest.approx(
            0.8**12 * 2.5 + 9 * 0.01 / (2 * 0.8) + V / 0.8
        )

    def test_tolerance_is_the_limit_of_equal_traces(self):
        # The Corollary replaces a finite geometric sum by the infinite one.
        many = {**CONVEX, "num_steps": 300, "rkhs_norm": 3.0}
        few = {**CONVEX, "rkhs_norm": 3.0}
        one = suboptimality_bound(**many, traces=0.01)
        assert suboptimality_bound(**many, traces=[0.01] * 300) == pytest.approx(one)
        assert suboptimality_bound(**few, traces=[0.01] * 12) < suboptimality_bound(
            **few, traces=0.01
        )

    @pytest.mark.parametrize("delta", [0.05, None])
    def test_no_noise_is_gradient_descent(self, delta):
        exact = {"mu": 1e15, "failure_probability": delta}
        assert noise_term(**{**RELEASE, **exact}) < 1e-12
        # min ||grad||^2 <= 2 L F_0 / T, and linear convergence at 1 - tau / L.
        assert gradient_norm_bound(**{**SMOOTH, **exact}) == pytest.approx(20 / 12)
        expected = 2.5 * (1 - 0.8 / 4) ** 12
        assert suboptimality_bound(**{**CONVEX, **exact}) == pytest.approx(expected)

    def test_one_step_solves_an_isotropic_quadratic(self):
        easy = {**CONVEX, "strong_convexity": 4.0, "num_steps": 1, "mu": 1e15}
        assert suboptimality_bound(**easy) == pytest.approx(0, abs=1e-12)
        traced = suboptimality_bound(**easy, rkhs_norm=2.0, traces=[0.5])
        assert traced == pytest.approx(4 * 0.25 / 2 * 0.5)

    def test_step_size_of_one_over_smoothness_may_be_rounded(self):
        for smoothness in (3.0, 7.0, 49.0, 1e-3):
            step_size = math.nextafter(1 / smoothness, math.inf)
            case = {**CONVEX, "smoothness": smoothness, "strong_convexity": smoothness}
            # And no gap below zero comes of it, whose root would be an error.
            case |= {"num_steps": 1, "mu": 1e100}
            assert 0 <= distance_bound(**case, step_size=step_size) < 1e-40


RELEASES = st.fixed_dictionaries(
    {
        "num_records": st.integers(1, 10**7),
        "num_dims": st.integers(1, 1000),
        "num_steps": st.integers(1, 10**4),
        "mu": st.floats(1e-3, 100),
        "clip_norm": st.floats(1e-3, 1e3),
        "failure_probability": st.floats(1e-9, 0.99),
    }
)
GROWS = {"num_dims": 1, "num_steps": 1, "clip_norm": 1, "mu": -1, "num_records": -1}


class TestMonotone:
    @given(RELEASES, st.sampled_from(sorted(GROWS)), st.integers(2, 100))
    def test_noise(self, release, name, factor):
        more = {**release, name: release[name] * factor}
        assert (noise_term(**more) - noise_term(**release)) * GROWS[name] > 0
        mean = {**release, "failure_probability": None}
        grown = {**more, "failure_probability": None}
        assert (noise_term(**grown) - noise_term(**mean)) * GROWS[name] > 0
        # E||w||^2 = d is far below the square of the radius of Lemma A.3.
        assert noise_term(**mean) < noise_term(**release) / 16

    @given(RELEASES, st.floats(0.01, 0.99))
    def test_more_certain_is_larger(self, release, factor):
        surer = release["failure_probability"] * factor
        assert noise_term(**{**release, "failure_probability": surer}) > noise_term(
            **release
        )

    @given(
        st.sampled_from(BOUNDS),
        st.sampled_from(["initial_gap", "rkhs_norm", "traces", "step_size"]),
        st.floats(1.001, 100),
    )
    def test_bounds(self, case, name, factor):
        bound, setting = case
        start = {**setting, "rkhs_norm": 1.0, "traces": 0.1, "step_size": 1e-3}
        change = bound(**{**start, name: start[name] * factor}) - bound(**start)
        # A larger step, up to 1 / smoothness, only helps.
        assert change < 0 if name == "step_size" else change > 0


@dataclass
class Runs:
    """What many runs of noisy gradient descent came to, one number a run."""

    gradient_norms: np.ndarray  # mean squared, over the steps
    gaps: np.ndarray
    distances: np.ndarray
    setting: dict


def simulate(
    *,
    curvature,
    num_records,
    num_steps,
    mu,
    clip_norm,
    step_size,
    bias=0.0,
    noise_factor=1.0,
    num_runs=400,
    seed=0,
):
    """Run Algorithm 1 on the losses (theta - x_i)^T A (theta - x_i) / 2, A diagonal.

    The gradient of each record is off by ``bias`` in the worst direction, towards 0.
    """
    rng = np.random.default_rng(seed)
    A = np.asarray(curvature, dtype=float)
    d = len(A)
    records = rng.uniform(-0.1, 0.1, size=(num_records, d))
    best = records.mean(axis=0)
    start = best + 0.5 * clip_norm / (A.max() * math.sqrt(d))
    noise_std = noise_factor * 2 * clip_norm * math.sqrt(num_steps) / num_records / mu
    theta = np.tile(start, (num_runs, 1))

    def gap(theta):
        return ((theta - best) ** 2 * A).sum(-1) / 2

    squares = np.zeros(num_runs)
    for _ in range(num_steps):
        gradient = A * (theta - best)
        squares += (gradient**2).sum(-1)
        rows = A * (theta[:, None] - records)  # num_runs x n x d
        norms = np.linalg.norm(rows, axis=-1)
        if noise_factor == 1.0:
            assert norms.max() <= clip_norm  # Assumption 2.9, wherever the runs went
        length = np.linalg.norm(gradient, axis=-1, keepdims=True)
        rows = rows - (bias * gradient / np.maximum(length, bias + 1e-300))[:, None]
        norms = np.linalg.norm(rows, axis=-1, keepdims=True)
        clipped = (rows * np.minimum(1, clip_norm / np.maximum(norms, 1e-300))).mean(1)
        noise = noise_std * rng.standard_normal(theta.shape)
        theta = theta - step_size * (clipped + noise)
    return Runs(
        gradient_norms=squares / num_steps,
        gaps=gap(theta),
        distances=np.linalg.norm(theta - best, axis=-1),
        setting={
            "num_records": num_records,
            "num_dims": d,
            "num_steps": num_steps,
            "mu": mu,
            "clip_norm": clip_norm,
            "smoothness": A.max(),
            "initial_gap": float(gap(start)),
            "step_size": step_size,
        },
    )


def bounds_of(setting, tau, **extra):
    """The three bounds, in the order of the fields of Runs."""
    return (
        gradient_norm_bound(**setting, **extra),
        suboptimality_bound(**setting, **extra, strong_convexity=tau),
        distance_bound(**setting, **extra, strong_convexity=tau),
    )


def outcomes(runs):
    return runs.gradient_norms, runs.gaps, runs.distances


ISOTROPIC = {
    "curvature": [2.0] * 4,
    "num_records": 50,
    "num_steps": 6,
    "mu": 2.0,
    "clip_norm": 1.0,
    "step_size": 0.5,
}


class TestSimulation:
    @pytest.mark.parametrize("bias", [0.0, 0.05])
    @pytest.mark.parametrize("step_size", [0.5, 0.2])
    @pytest.mark.parametrize("num_steps", [1, 5, 25])
    def test_bounds_hold(self, bias, step_size, num_steps):
        """400 runs; a bound that failed in more than 5 % of them would fail here."""
        runs = simulate(
            curvature=[2.0, 1.0, 0.5],
            num_records=100,
            num_steps=num_steps,
            mu=2.0,
            clip_norm=1.5,
            step_size=step_size,
            bias=bias,
        )
        # A bias of rkhs_norm * sqrt(trace), as a tolerance and as a sequence.
        for traces in (bias**2, [bias**2] * num_steps):
            extra = {"rkhs_norm": 1.0, "traces": traces}
            bounds = bounds_of(runs.setting, 0.5, **extra, failure_probability=0.05)
            for values, bound in zip(outcomes(runs), bounds, strict=True):
                assert (values > bound).mean() <= 0.05
            # Not a sharp test of the expectations: that is the isotropic one below.
            means = bounds_of(runs.setting, 0.5, **extra, failure_probability=None)
            for values, bound in zip(outcomes(runs), means, strict=True):
                error = 3 * values.std() / math.sqrt(len(values))
                assert values.mean() <= bound + error

    def test_expectations_are_exact_for_an_isotropic_quadratic(self):
        """4000 runs: standard errors of 1 %, and 4 of them allowed.

        At step size 1/L every step forgets the past, so 3.3 and 3.4 are equalities.
        A constant wrong by 10 % in either direction fails, as does the Corollary as
        printed, without its factor 2.
        """
        runs = simulate(**ISOTROPIC, num_runs=4000)
        _, gap, distance = bounds_of(runs.setting, 2.0, failure_probability=None)
        error = runs.gaps.std() / math.sqrt(4000)
        assert error < 0.0125 * gap
        assert abs(runs.gaps.mean() - gap) < 4 * error
        squares = runs.distances**2
        assert squares.mean() == pytest.approx(distance**2, rel=0.05)
        assert squares.mean() > 1.9 * distance**2 / 2  # as printed: violated

    def test_noise_too_large_violates_the_expectations(self):
        """Noise 10 % too large is 21 % in the square: 15 standard errors."""
        runs = simulate(**ISOTROPIC, num_runs=4000, noise_factor=1.1)
        _, gap, distance = bounds_of(runs.setting, 2.0, failure_probability=None)
        assert runs.gaps.mean() > gap + 10 * runs.gaps.std() / math.sqrt(4000)
        assert (runs.distances**2).mean() > 1.15 * distance**2

    def test_noise_too_large_violates_the_mean_gradient_norm(self):
        # 2 F_0 L / T is exact too, and the noise reaches T - 1 of T gradients.
        long = {**ISOTROPIC, "num_steps": 60, "num_records": 500}
        runs = simulate(**long, num_runs=100)
        broken = simulate(**long, num_runs=100, noise_factor=1.1)
        bound = bounds_of(runs.setting, 2.0, failure_probability=None)[0]
        assert 0.95 * bound < runs.gradient_norms.mean() < bound
        assert broken.gradient_norms.mean() > bound

    def test_a_smaller_v_is_violated(self):
        """One step in 100 dimensions, where the noise dwarfs the gradient.

        V is then sigma^2 R^2 / 2 with R of Lemma A.3, 19 times what the noise does:
        V / 30 fails in nearly every run of 400, V in none.
        """
        runs = simulate(
            curvature=[1.0] * 100,
            num_records=20,
            num_steps=1,
            mu=0.05,
            clip_norm=1.0,
            step_size=1.0,
        )
        setting = {**runs.setting, "failure_probability": 0.5}
        release = {name: setting[name] for name in RELEASE}
        V = noise_term(**release, failure_probability=0.5)
        assert suboptimality_bound(**setting, strong_convexity=1.0) == pytest.approx(V)
        assert (runs.gaps > V).mean() == 0
        assert (runs.gaps > V / 30).mean() > 0.95

    def test_bias_of_the_worst_kind_reaches_its_bound(self):
        # Without noise the descent stalls where the gradient is as long as the bias.
        runs = simulate(
            curvature=[2.0, 0.5],
            num_records=100,
            num_steps=200,
            mu=1e9,
            clip_norm=1.5,
            step_size=0.5,
            bias=0.05,
            num_runs=1,
        )
        setting = {**runs.setting, "rkhs_norm": 0.5}
        _, gap, distance = bounds_of(setting, 0.5, traces=0.1**2)
        assert 0.95 * gap < runs.gaps[0] <= gap
        assert 0.95 * distance < runs.distances[0] <= distance
        assert runs.gradient_norms[0] > gradient_norm_bound(**setting, traces=0.05**2)
        assert runs.gradient_norms[0] <= gradient_norm_bound(**setting, traces=0.1**2)

    def test_much_more_noise_violates_the_theorems(self):
        # The theorems are loose: it takes a lot, and then every bound fails.
        runs = simulate(**ISOTROPIC, noise_factor=60.0)
        bounds = bounds_of(runs.setting, 2.0, failure_probability=0.05)
        for values, bound in zip(outcomes(runs), bounds, strict=True):
            assert (values > bound).mean() > 0.9

    def test_as_printed_theorem_3_2_is_wrong_for_small_steps(self):
        # Without noise, a small step hardly moves: 2 F_0 L / T would be passed.
        runs = simulate(**{**ISOTROPIC, "step_size": 0.01, "mu": 1e9}, num_runs=1)
        setting = runs.setting
        as_printed = 2 * setting["initial_gap"] * setting["smoothness"] / 6
        assert runs.gradient_norms[0] > 4 * as_printed
        assert runs.gradient_norms[0] <= gradient_norm_bound(**setting)

    def test_as_printed_corollary_3_4_is_wrong(self):
        runs = simulate(**{**ISOTROPIC, "step_size": 0.01, "mu": 1e9}, num_runs=1)
        bound = distance_bound(**runs.setting, strong_convexity=2.0)
        assert bound / math.sqrt(2) < runs.distances[0] <= bound

    @pytest.mark.parametrize("jitter", [1e-10, 1e-4, 1e-1])
    def test_traces_bound_the_bias_with_jitter(self, jitter):
        # Lemma A.2 for losses sum_j a_j k(., c_j) and an RBF kernel of length scale 1.
        rng = np.random.default_rng(7)

        def kernel(x, y):
            return np.exp(-((x[:, None] - y) ** 2).sum(-1) / 2)

        for _ in range(50):
            points, centres = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
            a = rng.normal(size=4)
            rkhs_norm = math.sqrt(a @ kernel(centres, centres) @ a)
            at = np.zeros((1, 2))
            slopes = (points * kernel(at, points).T).T  # d x |D|, at 0
            weights = np.linalg.solve(
                kernel(points, points) + jitter * np.eye(5), slopes.T
            ).T
            trace = 2 - np.trace(weights @ slopes.T)
            estimate = weights @ kernel(points, centres) @ a
            truth = (centres * kernel(at, centres).T).T @ a
            error = np.linalg.norm(estimate - truth)
            assert error <= rkhs_norm * math.sqrt(max(trace, 0)) + 1e-6


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("num_records", 0, "num_records must be a whole number"),
            ("num_dims", 1.5, "num_dims must be a whole number"),
            ("num_steps", -1, "num_steps must be a whole number"),
            ("mu", 0.0, "mu must be a finite number above 0"),
            ("mu", math.inf, "mu must be a finite number above 0"),
            ("clip_norm", -1.0, "clip_norm must be a finite number above 0"),
            ("failure_probability", 0.0, "failure_probability must lie strictly"),
            ("failure_probability", 1.0, "failure_probability must lie strictly"),
        ],
    )
    def test_release(self, name, value, message):
        for bound, setting in [*BOUNDS, (noise_term, RELEASE)]:
            with pytest.raises(InvalidArgumentError, match=message):
                bound(**{**setting, name: value})

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ({"smoothness": 0.0}, "smoothness must be a finite number above 0"),
            ({"initial_gap": -1.0}, "initial_gap must be a finite number, 0 or above"),
            ({"step_size": 0.26}, r"step_size must be at most 1 / smoothness = 0\.25"),
            ({"step_size": 0.0}, "step_size must be a finite number above 0"),
            ({"rkhs_norm": -1.0}, "rkhs_norm must be a finite number, 0 or above"),
            ({"traces": -1.0}, "traces must be a finite number, 0 or above"),
            ({"traces": [-1.0] * 12}, "traces must be a finite number, 0 or above"),
            ({"traces": [1.0] * 11}, "or 12, one for each step, got 11"),
            ({"traces": ["a"] * 12}, "traces must be a number, got 'a'"),
            ({"traces": np.ones(12)}, r"got ndarray; convert a tensor with \.tolist"),
            ({"traces": None}, "a sequence of numbers, got NoneType"),
            ({"traces": 0.1}, "rkhs_norm must be above 0 if traces are"),
            ({"traces": TRACES}, "rkhs_norm must be above 0 if traces are"),
        ],
    )
    def test_problem(self, extra, message):
        for bound, setting in BOUNDS:
            with pytest.raises(InvalidArgumentError, match=message):
                bound(**{**setting, **extra})

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (4.1, "strong_convexity must be at most smoothness = 4"),
            (0.0, "strong_convexity must be a finite number above 0"),
        ],
    )
    def test_strong_convexity(self, value, message):
        for bound in (suboptimality_bound, distance_bound):
            with pytest.raises(InvalidArgumentError, match=message):
                bound(**{**CONVEX, "strong_convexity": value})
