"""Views of single events, against numerical integration and brute force."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, trapezoid
from scipy.special import logsumexp
from scipy.stats import norm

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
    events,
)
from botorch_dp.privacy.events import RDP_ORDERS

orders = st.floats(1.001, 3000.0)
epsilons = st.floats(1e-4, 20.0)


def renyi(upper, lower, order, points):
    """Renyi divergence of two densities by integration."""
    moment = sum(
        quad(
            lambda x: lower(x) * (upper(x) / lower(x)) ** order,
            low,
            high,
            epsabs=0,
            epsrel=1e-10,
            limit=500,
        )[0]
        for low, high in itertools.pairwise(points)
    )
    return math.log(moment) / (order - 1)


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

    @given(epsilon=epsilons, order=orders)
    def test_from_weak_to_strong_knowledge(self, epsilon, order):
        laplace = LaplaceEvent(1 / epsilon).rdp_at(order)
        pure = PureEvent(epsilon).rdp_at(order)
        assert 0 < laplace <= pure * (1 + 1e-12)
        assert pure <= min(epsilon, order * epsilon**2 / 2) * (1 + 1e-12)
        choice = ExponentialEvent(epsilon).rdp_at(order)
        assert choice == min(pure, order * epsilon**2 / 8)

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

    @pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.7, 0.3), (3.0, 0.9)])
    @pytest.mark.parametrize("order", [1.1, 1.9, 2.5, 6.3, 12.7])
    def test_poisson_by_integration(self, z, q, order):
        def mixture(x):
            return (1 - q) * norm.pdf(x, 0, z) + q * norm.pdf(x, 1, z)

        def alone(x):
            return norm.pdf(x, 0, z)

        reach = 8 * z + order
        points = np.linspace(-reach, reach, 9)
        exact = max(
            renyi(mixture, alone, order, points), renyi(alone, mixture, order, points)
        )
        found = PoissonGaussianEvent(z, q).rdp_at(order)
        assert exact <= found * (1 + 1e-9)
        assert found <= order / (2 * z**2)

    @pytest.mark.parametrize("event", [PoissonGaussianEvent(1.5, 0.1)])
    def test_between_grid_orders_and_beyond(self, event):
        grid = event.rdp()
        for index in (0, 10, 62, 68):
            assert event.rdp_at(RDP_ORDERS[index]) == pytest.approx(grid[index])
            middle = (RDP_ORDERS[index] + RDP_ORDERS[index + 1]) / 2
            assert grid[index] <= event.rdp_at(middle) <= grid[index + 1]
        assert event.rdp_at(1.5) == pytest.approx(min(grid[0], 1.5 * 0.5 / 1.5**2))
        assert event.rdp_at(2000.0) == 2000.0 / (2 * 1.5**2)

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


def sampled_sums(others, changed, size, std):
    """The density of a noisy sum of ``size`` of the records, by all their subsets.

    The records are ``others`` (a tuple of numbers) and ``changed``.
    """
    sums = [sum(subset) for subset in itertools.combinations((*others, changed), size)]

    def density(x):
        return np.mean([norm.pdf(x, total, std) for total in sums], axis=0)

    return density


class TestFixedSizeSamples:
    """The curve of samples of fixed size, against all subsets of few records.

    Records lie in [-1, 1], so that replacing one moves a sum by two at most.
    """

    @pytest.mark.parametrize(("size", "records"), [(1, 4), (2, 5), (3, 4), (4, 4)])
    @pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
    def test_no_data_set_exceeds_the_closed_form(self, size, records, noise):
        event = FixedSizeGaussianEvent(noise, size, records)
        accountant = PrivacyAccountant()
        accountant.compose(event)
        std = 2 * noise
        x = np.linspace(-size - 12 * std, size + 12 * std, 20_001)
        for epsilon in (0.0, 0.1, 0.5, 1.5, 4.0):
            worst = 0.0
            for others in itertools.combinations_with_replacement(
                (-1.0, 0.3, 1.0), records - 1
            ):
                p = sampled_sums(others, 1.0, size, std)(x)
                q = sampled_sums(others, -1.0, size, std)(x)
                for first, second in ((p, q), (q, p)):
                    excess = np.maximum(0.0, first - math.exp(epsilon) * second)
                    worst = max(worst, trapezoid(excess, x))
            claimed = accountant.get_delta(epsilon)
            assert worst <= claimed * (1 + 1e-5) + 1e-12
            # The worst data set, all ones but for one record, attains it.
            assert worst == pytest.approx(claimed, rel=1e-3, abs=1e-12)

    @pytest.mark.parametrize(("size", "records"), [(1, 3), (1, 10), (2, 4)])
    @pytest.mark.parametrize("noise", [0.5, 1.5])
    def test_no_pair_of_releases_exceeds_the_composition(self, size, records, noise):
        # Two releases of two columns: the neighbours of the second are any, also with
        # the changed record pointing the other way.
        accountant = PrivacyAccountant()
        accountant.compose(FixedSizeGaussianEvent(noise, size, records), 2)
        std = 2 * noise
        x = np.linspace(-size - 8 * std, size + 8 * std, 601)
        columns = [
            (others, sign)
            for others in ((1.0,) * (records - 1), (-1.0,) * (records - 1))
            for sign in (1.0, -1.0)
        ] + [(tuple((-1.0) ** k for k in range(records - 1)), 1.0)]
        pairs = [
            (
                sampled_sums(others, sign, size, std)(x),
                sampled_sums(others, -sign, size, std)(x),
            )
            for others, sign in columns
        ]
        for epsilon in (0.0, 0.2, 0.7, 1.5):
            claimed = accountant.get_delta(epsilon)
            worst = max(
                np.maximum(
                    0.0,
                    np.multiply.outer(p1, p2)
                    - math.exp(epsilon) * np.multiply.outer(q1, q2),
                ).sum()
                * (x[1] - x[0]) ** 2
                for (p1, q1), (p2, q2) in itertools.product(pairs, pairs)
            )
            assert worst <= claimed * (1 + 1e-4) + 1e-9
            assert worst >= claimed / 3 - 1e-6

    @pytest.mark.parametrize(
        ("rate", "interval"), [(0.01, 1e-3), (0.3, 1e-2), (0.9, 1e-4), (0.5, 0.5)]
    )
    @pytest.mark.parametrize("noise", [0.5, 2.0, 50.0])
    def test_the_grid_rounds_up_a_symmetric_pair(self, noise, rate, interval):
        event = FixedSizeGaussianEvent(noise, round(100 * rate), 100)
        pld = event.pld(interval)
        for epsilon in np.linspace(0.0, 5.0, 40):
            exact = event.delta_at(epsilon)
            assert pld.get_delta_for_epsilon(epsilon) >= exact * (1 - 1e-9)
            # Both directions: H(e^-epsilon) = 1 - e^-epsilon + e^-epsilon H(e^epsilon).
            mirrored = -math.expm1(-epsilon) + math.exp(-epsilon) * exact
            assert pld.get_delta_for_epsilon(-epsilon) >= mirrored * (1 - 1e-9)
        if interval < 1e-2:
            found = pld.get_delta_for_epsilon(0.01)
            assert found == pytest.approx(event.delta_at(0.01), rel=1e-3, abs=1e-9)

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

    @settings(deadline=None, max_examples=30)
    @given(
        noise=st.floats(0.3, 30.0),
        size=st.integers(1, 100),
        count=st.sampled_from([1, 2, 10, 100]),
    )
    def test_between_renyi_bound_and_none_at_all(self, noise, size, count):
        event = FixedSizeGaussianEvent(noise, size, 100)
        accountant, everyone = PrivacyAccountant(), PrivacyAccountant()
        accountant.compose(event, count)
        everyone.compose(GaussianEvent(noise), count)
        found = accountant.get_epsilon(1e-5)
        assert found <= everyone.get_epsilon(1e-5) * (1 + 1e-9)
        renyi, _ = compute_epsilon(RDP_ORDERS, count * event.rdp(), 1e-5)
        assert found <= renyi * (1 + 1e-9)

    @pytest.mark.parametrize(
        ("noise", "size", "count", "epsilon", "before"),
        [
            (1.0, 1, 1, 0.00911, 0.609),
            (1.0, 10, 1, 0.1995, 0.985),
            (2.0, 50, 1, 0.1804, 0.376),
            (1.0, 10, 100, 0.7680, 1.483),
            (2.0, 50, 100, 1.1983, 2.493),
        ],
    )
    def test_numbers(self, noise, size, count, epsilon, before):
        accountant = PrivacyAccountant()
        accountant.compose(FixedSizeGaussianEvent(noise, size, 1000), count)
        found = accountant.get_epsilon(1e-5)
        assert found == pytest.approx(epsilon, rel=1e-3)
        assert found < before / 1.9

    def test_all_records_are_no_sample(self):
        event = FixedSizeGaussianEvent(2.0, 10, 10)
        assert event.gdp_mu == 0.5
        assert event.epsilon_at(1e-5) == pytest.approx(curves.gdp_epsilon(0.5, 1e-5))

    def test_losses_beyond_the_grid_are_infinite(self, monkeypatch):
        monkeypatch.setattr(events, "_MOST_LOSSES", 10)
        event = FixedSizeGaussianEvent(1.0, 7, 100)
        pld = event.pld(0.01)
        for epsilon in (0.0, 0.05, 0.1, 1.0):
            exact = event.delta_at(epsilon)
            assert pld.get_delta_for_epsilon(epsilon) >= exact * (1 - 1e-12)
        assert pld.get_delta_for_epsilon(1.0) == event.delta_at(0.1)

    def test_losses_beyond_exponentials_count_as_unsampled(self):
        event = FixedSizeGaussianEvent(0.01, 1, 10)
        accountant = PrivacyAccountant()
        accountant.compose(event, 2)
        found = accountant.get_epsilon(1e-5)
        everyone = curves.gdp_epsilon(math.sqrt(2) / 0.01, 1e-5)
        assert found == pytest.approx(everyone, rel=1e-3)


class TestOnePoissonSample:
    @pytest.mark.parametrize("z", [0.4, 1.0, 5.0])
    @pytest.mark.parametrize("q", [0.01, 0.5, 1.0])
    def test_closed_form_by_integration(self, z, q):
        event = PoissonGaussianEvent(z, q)
        x = np.linspace(-12 * z, 12 * z + 1, 200_001)
        alone = norm.pdf(x, 0, z)
        mixture = (1 - q) * alone + q * norm.pdf(x, 1, z)
        for epsilon in (0.0, 0.01, 0.3, 1.0, 2.0):
            exact = max(
                trapezoid(np.maximum(0.0, p - math.exp(epsilon) * r), x)
                for p, r in ((alone, mixture), (mixture, alone))
            )
            assert event.delta_at(epsilon) == pytest.approx(exact, rel=1e-5, abs=1e-10)

    def test_is_what_one_release_costs(self):
        accountant = PrivacyAccountant()
        accountant.compose(PoissonGaussianEvent(1.0, 0.01))
        spent = accountant.spent(1e-5)
        assert spent.method == "closed form of one release"
        assert accountant.get_delta(spent.amount) == pytest.approx(1e-5)
        pld = PoissonGaussianEvent(1.0, 0.01).pld(1e-4)
        assert spent.amount <= pld.get_epsilon_for_delta(1e-5) * (1 + 1e-9)
        assert spent.amount == pytest.approx(pld.get_epsilon_for_delta(1e-5), rel=1e-3)


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

    def test_samples_cost_no_more_than_all_records(self):
        assert PoissonGaussianEvent(2.0, 0.1).zcdp_rho == 0.125
        assert FixedSizeGaussianEvent(2.0, 1, 10).zcdp_rho == 0.125


def test_nearly_all_records_cost_nearly_as_much_as_all():
    nearly_all = FixedSizeGaussianEvent(2.0, 99, 100).rdp()
    assert nearly_all[0] > 0.9 * GaussianEvent(2.0).rdp()[0]


class TestMuBound:
    @pytest.mark.parametrize(
        ("event", "mu"),
        [
            (GaussianEvent(4.0), 0.25),
            (PoissonGaussianEvent(5.0, 0.1), 0.2),
            (FixedSizeGaussianEvent(5.0, 10, 100), 0.2),
            (PureEvent(0.5), curves.pure_gdp_mu(0.5)),
            (LaplaceEvent(2.0), curves.pure_gdp_mu(0.5)),
            (ExponentialEvent(0.5), curves.pure_gdp_mu(0.5)),
            (ZCDPEvent(0.5), math.inf),
        ],
    )
    def test_values(self, event, mu):
        assert event.mu_bound == mu

    @given(epsilon=epsilons, at=st.floats(0.0, 1.0))
    def test_randomized_response_is_within(self, epsilon, at):
        mu = PureEvent(epsilon).mu_bound
        exact = curves.pure_delta(epsilon, at * epsilon)
        assert exact <= curves.gdp_delta(mu, at * epsilon) * (1 + 1e-9)

    @pytest.mark.parametrize("z", [0.5, 2.0, 10.0])
    @pytest.mark.parametrize("q", [0.01, 0.5, 0.99])
    def test_poisson_samples_are_within(self, z, q):
        # By integration, both ways: the divergence of every epsilon.
        mu = PoissonGaussianEvent(z, q).mu_bound
        x = np.linspace(-12 * z, 12 * z + 1, 200_001)
        alone = norm.pdf(x, 0, z)
        mixture = (1 - q) * alone + q * norm.pdf(x, 1, z)
        for epsilon in np.linspace(0.0, 4 / z, 15):
            for p, r in ((alone, mixture), (mixture, alone)):
                exact = trapezoid(np.maximum(0.0, p - math.exp(epsilon) * r), x)
                assert exact <= curves.gdp_delta(mu, epsilon) + 1e-9
