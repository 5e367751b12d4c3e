"""Views of single events, against numerical integration and brute force."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from botorch_dp import RDP, ExponentialMechanism, Ledger, PrivacyAccountant
from botorch_dp.exceptions import BudgetExceededError
from botorch_dp.privacy import (
    ApproxEvent,
    AssumedEvent,
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
    curves,
)
from botorch_dp.privacy.events import RDP_ORDERS

orders = st.floats(1.001, 3000.0)


epsilons = st.floats(1e-4, 20.0)


class TestRenyiAtAnyOrder:
    @pytest.mark.parametrize("order", [1.001, 1.5, 2.5, 7.0])
    @pytest.mark.parametrize("noise", [0.5, 2.0, 30.0])
    def test_laplace_by_integration(self, noise, order):
        def density(center):
            return lambda x: mpmath.exp(-abs(x - center) / noise) / (2 * noise)

        upper, lower = density(0), density(1)
        with mpmath.workdps(30):
            moment = mpmath.quad(
                lambda x: lower(x) * (upper(x) / lower(x)) ** order,
                [-mpmath.inf, 0, 1, mpmath.inf],
            )
            exact = float(mpmath.log(moment) / (order - 1))
        found = LaplaceEvent(noise).rdp_at(order)
        assert found == pytest.approx(exact, rel=1e-9)

    @given(epsilon=st.floats(-10.0, 10.0).map(lambda e: 10.0**e), order=orders)
    def test_closed_forms_with_60_digits(self, epsilon, order):
        with mpmath.workdps(60):
            e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
            high, low = e**0 / (1 + mpmath.exp(-e)), 1 / (1 + mpmath.exp(e))
            response = high**a * low ** (1 - a) + low**a * high ** (1 - a)
            laplace = (a * mpmath.exp((a - 1) * e) + (a - 1) * mpmath.exp(-a * e)) / (
                2 * a - 1
            )
            response, laplace = (
                float(mpmath.log(moment) / (a - 1)) for moment in (response, laplace)
            )
        assert PureEvent(epsilon).rdp_at(order) == pytest.approx(response, rel=1e-12)
        found = curves.laplace_rdp(epsilon, order)
        assert found == pytest.approx(laplace, rel=1e-12)

    @settings(max_examples=50, deadline=None)
    @given(
        epsilon=st.floats(0.01, 5.0),
        order=st.floats(1.01, 200.0),
        seed=st.integers(0, 10**6),
        candidates=st.integers(2, 5),
    )
    def test_no_exponential_mechanism_exceeds_its_bound(
        self, epsilon, order, seed, candidates
    ):
        # Scores of sensitivity one; the changes are at their extremes.
        rng = np.random.default_rng(seed)
        scores = rng.uniform(0.0, 8.0, candidates)
        change = rng.choice([-1.0, 1.0], candidates)
        p, q = (
            np.exp(epsilon * s / 2 - np.logaddexp.reduce(epsilon * s / 2))
            for s in (scores, scores + change)
        )
        exact = logsumexp(order * np.log(p) - (order - 1) * np.log(q)) / (order - 1)
        assert exact <= ExponentialEvent(epsilon).rdp_at(order) * (1 + 1e-9) + 1e-12

    @pytest.mark.parametrize(
        "event",
        [
            GaussianEvent(2.0),
            ZCDPEvent(0.05),
            LaplaceEvent(3.0),
            PureEvent(0.2),
            ExponentialEvent(0.3),
            PoissonGaussianEvent(1.5, 0.1),
            FixedSizeGaussianEvent(2.0, 10, 100),
        ],
        ids=lambda e: type(e).__name__,
    )
    def test_finite_and_growing_at_every_order(self, event):
        found = [event.rdp_at(order) for order in np.geomspace(1.01, 1e5, 60)]
        assert np.isfinite(found).all()
        assert (np.diff(found) >= -1e-12 * np.array(found[1:])).all()
        np.testing.assert_allclose(event.rdp(), list(map(event.rdp_at, RDP_ORDERS)))

    def test_what_is_not_renyi_private(self):
        for event in (PrivacyEvent(), ApproxEvent(1.0, 1e-5), AssumedEvent(1.0, 1e-5)):
            assert event.rdp_at(2.0) == math.inf
            assert event.mu_bound == math.inf

    def test_a_choice_at_a_high_order_costs_no_more_than_its_epsilon(self):
        accountant = PrivacyAccountant()
        accountant.compose(ExponentialEvent(1.0))
        found = accountant.spent_of(RDP(100.0, 1.0)).amount  # zCDP alone: 12.5
        assert found == pytest.approx(0.99684, abs=1e-5)

    @pytest.mark.parametrize("order", [2.0, 100.0, 5000.0])
    def test_a_mechanism_fits_into_the_cap_it_was_made_for(self, order):
        mechanism = ExponentialMechanism(RDP(order, 0.5), sensitivity=1.0)
        ledger = Ledger(cap=RDP(order, 0.5))
        ledger.charge(mechanism.event(), mechanism="exponential")
        assert len(ledger) == 1
        with pytest.raises(BudgetExceededError):
            ledger.charge(mechanism.event(), count=5, mechanism="exponential")


class TestZeroConcentrated:
    @given(epsilon=epsilons, order=orders)
    def test_pure_releases_by_their_renyi_divergences(self, epsilon, order):
        rho = PureEvent(epsilon).zcdp_rho
        assert PureEvent(epsilon).rdp_at(order) <= order * rho * (1 + 1e-12)
        assert rho <= epsilon**2 / 2
        # Attained where the order tends to one.
        near = PureEvent(epsilon).rdp_at(1 + 1e-9)
        assert near == pytest.approx(rho, rel=1e-6)
        assert LaplaceEvent(1 / epsilon).zcdp_rho == pytest.approx(rho)
        choice = ExponentialEvent(epsilon).zcdp_rho
        assert choice == pytest.approx(min(epsilon**2 / 8, rho))
