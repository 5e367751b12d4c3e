"""Events of samples, against numerical integration and brute force."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import norm

from botorch_dp import PrivacyAccountant
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    FixedSizeGaussianEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    curves,
)
from botorch_dp.privacy.events import RDP_ORDERS
from tests.privacy.cases import library_pld, renyi


class TestEvents:
    def test_more_sampled_than_there_are(self):
        with pytest.raises(InvalidArgumentError, match=r"sample_size.*10.*11"):
            FixedSizeGaussianEvent(1.0, 11, 10)
        with pytest.raises(InvalidArgumentError, match=r"sampling_rate.*1\.1"):
            PoissonGaussianEvent(1.0, 1.1)


class TestRenyiAtAnyOrder:
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
        pld = library_pld(PoissonGaussianEvent(1.0, 0.01), 1e-4)
        assert spent.amount <= pld.get_epsilon_for_delta(1e-5) * (1 + 1e-9)
        assert spent.amount == pytest.approx(pld.get_epsilon_for_delta(1e-5), rel=1e-3)


class TestZeroConcentrated:
    def test_samples_cost_no_more_than_all_records(self):
        assert PoissonGaussianEvent(2.0, 0.1).zcdp_rho == 0.125
        assert FixedSizeGaussianEvent(2.0, 1, 10).zcdp_rho == 0.125


def test_nearly_all_records_cost_nearly_as_much_as_all():
    nearly_all = FixedSizeGaussianEvent(2.0, 99, 100).rdp()
    assert nearly_all[0] > 0.9 * GaussianEvent(2.0).rdp()[0]


class TestMuBound:
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
