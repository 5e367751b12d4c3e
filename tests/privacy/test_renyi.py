"""Renyi divergences of samples, against integrals and dp-accounting."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest

from botorch_dp.privacy import renyi
from botorch_dp.privacy.renyi import RDP_ORDERS


def integral(mu, rate, order):
    """The divergence of a Poisson sample from the release without the record."""
    with mpmath.workdps(40):
        mu, rate = mpmath.mpf(mu), mpmath.mpf(rate)

        def integrand(x):
            ratio = 1 - rate + rate * mpmath.exp(mu * x - mu**2 / 2)
            return mpmath.npdf(x) * ratio**order

        ends = [-15, -5, 0, mu, order * mu / 2, order * mu, order * mu + 5]
        moment = mpmath.quad(integrand, sorted({*ends, order * mu + 15}))
        return float(mpmath.log(moment) / (order - 1))


class TestPoisson:
    @pytest.mark.parametrize("order", [2, 3, 17, 64])
    @pytest.mark.parametrize("mu", [0.02, 0.5, 2.0])
    @pytest.mark.parametrize("rate", [1e-4, 0.05, 0.9])
    def test_integral(self, mu, rate, order):
        found = renyi.poisson_rdp(mu, rate)[list(RDP_ORDERS).index(order)]
        assert found == pytest.approx(integral(mu, rate, order), rel=1e-9)

    @pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.01), (1.1, 0.2), (20.0, 0.5)])
    def test_dp_accounting_agrees(self, noise, rate):
        event = dp_accounting.PoissonSampledDpEvent(
            rate, dp_accounting.GaussianDpEvent(noise)
        )
        theirs = renyi.library_rdp(event, "add_or_remove_one")
        np.testing.assert_allclose(
            renyi.poisson_rdp(1 / noise, rate), theirs, rtol=1e-6, atol=1e-14
        )

    def test_rises_with_the_order_and_is_below_all_records(self):
        for mu, rate in itertools.product([1e-4, 0.3, 5.0, 1e3], [1e-6, 0.5]):
            found = renyi.poisson_rdp(mu, rate)
            assert np.isfinite(found).all()
            assert (np.diff(found) >= 0).all()
            assert (found <= RDP_ORDERS * mu**2 / 2 * (1 + 1e-12)).all()


class TestBetweenOrders:
    def test_a_bound_between_orders(self):
        divergences = renyi.poisson_rdp(1.0, 0.1)
        for order in (1.1, 1.9, 2.5, 10.7, 70.0):
            found = renyi.interpolated_rdp(divergences, order)
            exact = integral(1.0, 0.1, order)
            assert exact * (1 - 1e-9) <= found <= exact * 2.5

    def test_known_orders_are_met(self):
        divergences = renyi.poisson_rdp(1.0, 0.1)
        for index in (0, 5, 69):
            found = renyi.interpolated_rdp(divergences, RDP_ORDERS[index])
            assert found == pytest.approx(divergences[index])

    def test_beyond_all_orders_there_is_none(self):
        assert renyi.interpolated_rdp(np.ones(70), 1025.0) == math.inf

    def test_unknown_orders_do_not_matter_elsewhere(self):
        divergences = np.append(np.ones(5), np.full(65, np.inf))
        assert renyi.interpolated_rdp(divergences, 6.0) == 1.0
        assert renyi.interpolated_rdp(divergences, 6.5) == math.inf
