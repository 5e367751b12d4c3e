"""A pure release beside Gaussian ones: the product pair, in high precision."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_dp.privacy import curves
from botorch_dp.privacy.choice_curves import choice_delta, choice_epsilon, choice_mu


def integrated(pure, mu, epsilon):
    """The hockey-stick divergence of the product pair, by integration."""
    with mpmath.workdps(30):
        odds = mpmath.e**pure
        alpha = mpmath.e**epsilon
        total = mpmath.mpf(0)
        for p, q in ((odds, 1), (1, odds)):

            def excess(x, p=p, q=q):
                gap = p * mpmath.npdf(x, mu) - alpha * q * mpmath.npdf(x)
                return max(mpmath.mpf(0), gap) / (1 + odds)

            # The density ratio grows with x: the set is a half-line.
            start = (mpmath.log(alpha * q / p) + mpmath.mpf(mu) ** 2 / 2) / mu
            points = [start, max(start, mu), max(start, mu) + 3, max(start, mu) + 40]
            if start < -15:
                points = [-15, 0, 5, 40]
            total += mpmath.quad(excess, points)
        return float(total)


CASES = [
    (0.3, 0.2, 1.0),
    (0.5, 0.5, 0.5),
    (1.0, 0.3, 0.2),  # below the pure epsilon: the curve at a negative argument
    (2.0, 1.5, 0.0),
    (0.01, 3.0, 4.0),
    (4.0, 0.5, 5.5),
]


class TestDelta:
    @pytest.mark.parametrize(("pure", "mu", "epsilon"), CASES)
    def test_product_pair(self, pure, mu, epsilon):
        exact = integrated(pure, mu, epsilon)
        assert choice_delta(pure, mu, epsilon) == pytest.approx(exact, rel=1e-9)

    @pytest.mark.parametrize(("pure", "mu", "epsilon"), CASES)
    def test_without_one_of_the_two(self, pure, mu, epsilon):
        pure_only = curves.pure_delta(pure, epsilon)
        assert choice_delta(pure, 0.0, epsilon) == pytest.approx(pure_only, rel=1e-12)
        gaussian_only = curves.gdp_delta(mu, epsilon)
        assert choice_delta(1e-10, mu, epsilon) == pytest.approx(
            gaussian_only, rel=1e-7
        )

    @pytest.mark.parametrize(("pure", "mu", "epsilon"), CASES)
    def test_below_basic_composition(self, pure, mu, epsilon):
        if epsilon >= pure:
            basic = curves.gdp_delta(mu, epsilon - pure)
            assert choice_delta(pure, mu, epsilon) < basic

    def test_far_out(self):
        assert choice_delta(1e10, 1e-10, 1.0) == pytest.approx(1.0)
        assert choice_delta(0.1, 0.01, 100.0) == 0.0
        assert choice_delta(0.1, 1e6, 1.0) == pytest.approx(1.0)


amounts = st.floats(-4.0, 1.0).map(lambda exponent: 10.0**exponent)
deltas = st.floats(-12.0, -1.0).map(lambda exponent: 10.0**exponent)


class TestInverses:
    @settings(deadline=None)
    @given(pure=amounts, mu=amounts, delta=deltas)
    def test_epsilon(self, pure, mu, delta):
        epsilon = choice_epsilon(pure, mu, delta)
        assert choice_delta(pure, mu, epsilon) <= delta * (1 + 1e-9)
        assert epsilon <= pure + curves.gdp_epsilon(mu, delta)
        if epsilon > 0:
            assert choice_delta(pure, mu, epsilon * (1 - 1e-6)) > delta

    @settings(deadline=None)
    @given(pure=amounts, epsilon=amounts, delta=deltas)
    def test_mu(self, pure, epsilon, delta):
        mu = choice_mu(pure, epsilon, delta)
        if mu == 0:
            assert choice_delta(pure, 1e-9, epsilon) > delta * (1 - 1e-6)
            return
        assert choice_delta(pure, mu, epsilon) <= delta
        assert choice_delta(pure, mu * (1 + 1e-6) + 1e-13, epsilon) > delta
        assert mu <= curves.gdp_mu(epsilon, delta)

    def test_nothing_is_left(self):
        largest = curves.pure_epsilon_within(1.0, 1e-5)
        assert choice_mu(largest * (1 + 1e-9), 1.0, 1e-5) == 0.0
        assert choice_mu(largest * (1 - 1e-9), 1.0, 1e-5) > 0.0

    @pytest.mark.parametrize("pure", [1e-10, 1.0, 1e10])
    @pytest.mark.parametrize("mu", [0.0, 1e-10, 1.0, 1e10])
    @pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.5])
    def test_extremes(self, pure, mu, delta):
        epsilon = choice_epsilon(pure, mu, delta)
        assert math.isfinite(epsilon)
        assert epsilon >= 0
