"""Privacy curves, against closed forms and their own inverses."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from botorch_dp.privacy import curves
from tests.privacy.cases import closed_form_conversion


class TestSamples:
    @given(
        noise=st.floats(-2.0, 4.0).map(lambda e: 10.0**e),
        rate=st.floats(-6.0, 0.0).map(lambda e: 10.0**e),
        delta=st.floats(-12.0, -1.0).map(lambda e: 10.0**e),
    )
    def test_curve_and_inverse_with_60_digits(self, noise, rate, delta):
        mu = 1 / noise
        epsilon = curves.sampled_gdp_epsilon(mu, rate, delta)
        unsampled = curves.gdp_epsilon(mu, delta)
        assert 0 <= epsilon <= unsampled * (1 + 1e-12)
        with mpmath.workdps(60):
            at = mpmath.log(1 + mpmath.expm1(mpmath.mpf(epsilon)) / mpmath.mpf(rate))
            z = mpmath.mpf(mu)
            exact = rate * (
                mpmath.ncdf(z / 2 - at / z)
                - mpmath.exp(at) * mpmath.ncdf(-z / 2 - at / z)
            )
        found = curves.sampled_gdp_delta(mu, rate, epsilon)
        assert found == pytest.approx(float(exact), rel=1e-7)
        if epsilon > 1e-6:
            assert found == pytest.approx(delta, rel=1e-6)
        else:
            assert found <= delta * (1 + 1e-6)

    @given(mu=st.floats(-4.0, 4.0).map(lambda e: 10.0**e), epsilon=st.floats(0, 1e4))
    def test_many_epsilons_at_once(self, mu, epsilon):
        found = curves.gdp_deltas(mu, np.array([epsilon, 0.0]))
        expected = [curves.gdp_delta(mu, epsilon), curves.gdp_delta(mu, 0.0)]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


epsilons = st.floats(1e-4, 50.0)


deltas = st.floats(-12.0, -0.05).map(lambda exponent: 10.0**exponent)


class TestGDP:
    @given(epsilon=st.floats(1e-8, 600.0))
    def test_pure_gdp_mu_inverts_to_pure(self, epsilon):
        mu = curves.pure_gdp_mu(epsilon)
        assert curves.gdp_pure_epsilon(mu) == pytest.approx(epsilon, rel=1e-7)


class TestZCDP:
    @settings(deadline=None)
    @given(rho=st.floats(1e-6, 50.0), delta=st.floats(1e-12, 0.1))
    def test_is_the_best_of_all_orders(self, rho, delta):
        found = curves.zcdp_epsilon(rho, delta)
        grid = (1 + 10.0 ** (k / 20 - 3) for k in range(180))
        best = min(closed_form_conversion(a, rho * a, delta) for a in grid)
        assert found <= best * (1 + 1e-9)
        assert found >= best * 0.98 - 1e-3

    @settings(deadline=None)
    @given(rho=st.floats(1e-12, 1e4), delta=st.floats(1e-300, 0.9))
    @example(rho=0.013671875, delta=0.09375)  # epsilon is below rho
    def test_delta_inverts_epsilon(self, rho, delta):
        epsilon = curves.zcdp_epsilon(rho, delta)
        if epsilon > 0:
            assert curves.zcdp_delta(rho, epsilon) == pytest.approx(delta, rel=1e-9)

    @settings(deadline=None)
    @given(rho=st.floats(1e-6, 50.0), epsilon=st.floats(0.0, 50.0))
    @example(rho=50.0, epsilon=0.0)
    def test_delta_is_the_best_of_all_orders(self, rho, epsilon):
        found = math.log(curves.zcdp_delta(rho, epsilon) or 5e-324)
        x = np.logspace(-25, 8, 2000)  # order - 1
        grid = x * (rho * (1 + x) - epsilon - np.log1p(1 / x)) - np.log1p(x)
        best = max(min(0.0, grid.min()), math.log(5e-324))
        assert found <= best + 1e-12
        assert found >= best * 1.001 - 1e-3

    @pytest.mark.parametrize("rho", [1e-30, 1e-12, 1.0, 1e5, 1e8])
    def test_extremes(self, rho):
        deltas = [curves.zcdp_delta(rho, e) for e in (0.0, 1e-12, 1e-3, 1.0, 1e3, 1e9)]
        assert deltas == sorted(deltas, reverse=True)
        assert all(0.0 <= delta <= 1.0 for delta in deltas)
        epsilons = [
            curves.zcdp_epsilon(rho, d) for d in (5e-324, 1e-12, 0.5, 1 - 1e-15)
        ]
        assert epsilons == sorted(epsilons, reverse=True)

    @settings(deadline=None)
    @given(epsilon=st.floats(1e-2, 50.0), delta=st.floats(1e-12, 0.1))
    def test_rho_inverts_epsilon_and_stays_below(self, epsilon, delta):
        rho = curves.zcdp_rho(epsilon, delta)
        found = curves.zcdp_epsilon(rho, delta)
        assert found <= epsilon
        assert found == pytest.approx(epsilon, rel=1e-6)
