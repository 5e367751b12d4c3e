"""The accountant against closed forms, loops and other accountants' wrong answers."""

import functools
import itertools
import math
import time

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import GaussianAccountant
from scipy.integrate import trapezoid
from scipy.special import gammaln

from botorch_dp import GDP, ApproxDP, PrivacyAccountant, PureDP
from botorch_dp.privacy import (
    ApproxEvent,
    AssumedEvent,
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PermuteAndFlipEvent,
    PoissonGaussianEvent,
    PureEvent,
    ZCDPEvent,
    composition,
    curves,
)
from botorch_dp.privacy.events import RDP_ORDERS
from botorch_dp.privacy.history import total_losses
from tests.privacy.cases import EVENTS, account, library_pld


def optimal_pure_composition(epsilon, count, delta):
    """Kairouz, Oh and Viswanath, Theorem 3.3, by bisection on their sum."""
    k = np.arange(count + 1)
    log_binomial = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
    log_p = log_binomial + k * epsilon - count * np.log1p(np.exp(epsilon))
    loss = (2 * k - count) * epsilon

    def achieved(total):
        return np.sum(np.exp(log_p) * np.maximum(0.0, -np.expm1(total - loss)))

    low, high = 0.0, count * epsilon
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if achieved(middle) <= delta else (middle, high)
    return high


class TestExactGaussian:
    @given(zs=st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20))
    def test_mu_squared_adds_up(self, zs):
        accountant = account(*((GaussianEvent(z), 1) for z in zs))
        mu = math.sqrt(sum(z**-2 for z in zs))
        assert accountant.to_gdp().mu == pytest.approx(mu)
        assert accountant.get_epsilon(1e-5) == pytest.approx(GDP(mu).epsilon(1e-5))
        assert accountant.get_delta(1.0) == pytest.approx(GDP(mu).delta(1.0))
        assert accountant.spent(1e-5).method == "exact Gaussian composition"

    def test_dp_accounting_agrees(self):
        oracle = PLDAccountant()
        oracle.compose(dp_accounting.GaussianDpEvent(3.0), 5)
        found = account((GaussianEvent(3.0), 5)).get_epsilon(1e-5)
        assert found == pytest.approx(oracle.get_epsilon(1e-5), abs=1e-6)

    def test_a_thousand_different_ones_take_milliseconds(self):
        # Not a timed test: PLD of 1,000 different events would take 14 s, so that a
        # wide margin tells the closed form from anything else.
        zs = np.linspace(5.0, 50.0, 1000)
        accountant = account(*((GaussianEvent(z), 1) for z in zs))
        start = time.perf_counter()
        found = accountant.get_epsilon(1e-5)
        assert time.perf_counter() - start < 1.0
        assert found == pytest.approx(GDP(math.sqrt((zs**-2.0).sum())).epsilon(1e-5))

    def test_sampling_rate_one_is_no_sampling(self):
        found = account((PoissonGaussianEvent(2.0, 1.0), 4), (GaussianEvent(1.0), 1))
        assert found.to_gdp().mu == pytest.approx(math.sqrt(2.0))

    def test_nothing_released(self):
        accountant = PrivacyAccountant()
        assert accountant.get_epsilon(1e-5) == 0.0
        assert accountant.get_delta(0.0) == 0.0
        assert accountant.to_gdp() is None
        assert len(accountant) == 0


class TestPublishedNumbers:
    @pytest.mark.parametrize(
        ("rate", "noise", "steps", "epsilon"),
        [
            (0.01, 1.0, 100, 0.7180),
            (0.01, 1.0, 1000, 1.8282),
            (0.25, 1.0, 100, 18.463),
            (0.25, 1.0, 1000, 82.549),
        ],
    )
    def test_poisson(self, rate, noise, steps, epsilon):
        accountant = account((PoissonGaussianEvent(noise, rate), steps))
        assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-4)

    @pytest.mark.parametrize(
        ("rate", "noise", "exact"),
        [(0.15, 1, 3.96), (0.25, 1, 7.05), (0.5, 1, 15.71), (0.25, 1.2, 5.15)],
    )
    def test_federated_paper_exact(self, rate, noise, exact):
        accountant = account((PoissonGaussianEvent(noise, rate), 40))
        found = accountant.get_epsilon(200**-1.1)
        assert found == pytest.approx(exact, abs=5e-3)

    def test_a_thousand_identical_ones_take_a_moment(self):
        start = time.perf_counter()
        account((PoissonGaussianEvent(1.1, 0.2), 1000)).get_epsilon(1e-5)
        assert time.perf_counter() - start < 10.0  # a loop would take ten minutes


class TestPitfalls:
    """What other accountants get wrong, shown to be wrong there and right here."""

    def test_central_limit_gdp_is_never_reported(self):
        with pytest.warns(UserWarning, match="experimental"):
            opacus = GaussianAccountant()
        opacus.history = [(1.0, 0.01, 100)]
        assert opacus.get_epsilon(1e-5) == pytest.approx(0.4575, abs=1e-4)
        ours = account((PoissonGaussianEvent(1.0, 0.01), 100))
        assert ours.get_epsilon(1e-5) == pytest.approx(0.7180, abs=1e-4)
        assert ours.to_gdp() is None

    def test_randomized_response_keeps_its_multiplicity(self):
        # (1 - p/2) / (p/2) = e^0.1
        p = 2 / (1 + math.exp(0.1))
        library = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        library.compose(dp_accounting.RandomizedResponseDpEvent(p, 2), 100)
        assert library.get_epsilon(1e-5) == pytest.approx(0.100, abs=1e-3)
        ours = account((PureEvent(0.1), 100)).get_epsilon(1e-5)
        assert ours == pytest.approx(4.31, abs=5e-3)

    def test_adjacency_is_not_applied_twice(self):
        gaussian = dp_accounting.GaussianDpEvent(1.0)
        doubled = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        doubled.compose(gaussian)
        assert doubled.get_epsilon(1e-5) == pytest.approx(9.997256, abs=1e-5)
        # Mixed with an event that forces PLD and RDP, the Gaussian stays one.
        tiny = account((GaussianEvent(1.0), 1), (LaplaceEvent(1e4), 1))
        assert tiny.get_epsilon(1e-5) == pytest.approx(4.377178, rel=2e-3)

    def test_exponential_mechanism_takes_the_smaller_of_two(self):
        many = account((ExponentialEvent(0.1), 100))
        assert many.spent(1e-5).method == "zCDP composition"
        assert many.get_epsilon(1e-5) < 4.31 / 1.9
        one = account((ExponentialEvent(1.0), 1))
        assert one.get_epsilon(1e-5) == pytest.approx(
            PureDP(1.0).to_approx(1e-5).epsilon
        )

    @pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 5.0])
    def test_divergences_of_the_exponential_mechanism(self, epsilon):
        # The mechanism itself: all scores are equal, or a record has raised a share of
        # them by the sensitivity and lowered the others. With half of them the bound
        # epsilon^2 / 8 is attained as epsilon and the order go down.
        event, attained = ExponentialEvent(epsilon), 0.0
        for share, order in itertools.product(
            (0.1, 0.5, 0.9), (1 + 1e-6, 2.0, 3.0, 16.0, 64.0)
        ):
            p = np.array([share, 1 - share])
            q = p * np.exp([epsilon / 2, -epsilon / 2])
            q /= q.sum()
            for a, b in ((p, q), (q, p)):
                divergence = np.log(np.sum(a * (a / b) ** (order - 1))) / (order - 1)
                assert divergence <= order * event.zcdp_rho * (1 + 1e-4)
                if order in RDP_ORDERS:
                    bound = event.rdp()[list(RDP_ORDERS).index(order)]
                    assert divergence <= bound * (1 + 1e-9)
                attained = max(attained, divergence / (order * event.zcdp_rho))
        if epsilon <= 0.1:
            assert attained > 0.99

    def test_coordinates_of_laplace_noise_never_cost_more_than_one(self):
        # LaplaceEvent treats a vector as one coordinate that takes all of the L1
        # sensitivity. Splitting it between two coordinates must be dominated.
        make = privacy_loss_distribution.from_laplace_mechanism
        for share, epsilon in itertools.product((0.5, 0.2), (0.3, 1.0, 4.0)):
            whole = make(1 / epsilon)
            split = make(1 / (share * epsilon)).compose(
                make(1 / ((1 - share) * epsilon))
            )
            for at in np.linspace(0.0, epsilon, 30):
                assert split.get_delta_for_epsilon(at) <= (
                    whole.get_delta_for_epsilon(at) + 1e-9
                )


class TestComposition:
    @pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
    def test_multiplicity_equals_a_loop(self, event):
        loop = PrivacyAccountant()
        for _ in range(7):
            loop.compose(event)
        counted = account((event, 7))
        assert counted.get_epsilon(1e-5) == loop.get_epsilon(1e-5)
        assert counted.get_epsilon(1e-5) > account((event, 6)).get_epsilon(1e-5)
        assert len(counted) == 7

    @settings(deadline=None, max_examples=20)
    @given(epsilon=st.floats(0.01, 1.0), count=st.integers(1, 40))
    def test_pure_events_reach_the_optimal_composition(self, epsilon, count):
        found = account((PureEvent(epsilon), count)).get_epsilon(1e-5)
        optimal = optimal_pure_composition(epsilon, count, 1e-5)
        assert found >= optimal - 1e-9
        assert found == pytest.approx(optimal, rel=1e-3, abs=1e-4)

    @pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
    def test_delta_and_epsilon_agree(self, event):
        accountant = account((event, 5))
        epsilon = accountant.get_epsilon(1e-3)
        assert accountant.get_delta(epsilon) <= 1e-3 * 1.02

    @pytest.mark.parametrize("count", [1, 7])
    def test_known_epsilon_and_delta_add_up(self, count):
        event = ApproxEvent(0.1, 1e-7)
        found = account((event, count))
        pure = account((PureEvent(0.1), count)).get_epsilon(1e-5 - count * 1e-7)
        assert found.get_epsilon(1e-5) == pytest.approx(pure, rel=1e-2)
        assert account((event, 1)).within(ApproxDP(0.1, 1.0001e-7))
        with_gaussian = account((event, 1), (GaussianEvent(10.0), 1))
        assert with_gaussian.get_epsilon(1e-5) < 0.1 + GDP(0.1).epsilon(0.9e-5)
        assert account((event, 1000)).get_epsilon(1e-5) == math.inf

    def test_delta_of_large_losses_is_quick(self):
        # A grid chosen for the epsilon asked about would have 10^9 points.
        found = account((LaplaceEvent(0.01), 100)).get_delta(0.1)
        assert found == pytest.approx(1.0)
        found = account((PoissonGaussianEvent(1.0, 0.25), 1000)).get_delta(0.0)
        assert found == pytest.approx(1.0, abs=1e-3)

    def test_any_mixture_has_a_bound_no_larger_than_adding_up(self):
        mixed = account(*((event, 2) for event in EVENTS if event.pure_epsilon))
        pure = sum(2 * event.pure_epsilon for event in EVENTS if event.pure_epsilon)
        assert 0 < mixed.get_epsilon(1e-5) < pure

    @pytest.mark.parametrize("noise_multiplier", [1.0, 5.0, 20.0])
    def test_a_sample_of_all_records_costs_what_all_records_do(self, noise_multiplier):
        everyone = account((GaussianEvent(noise_multiplier), 1))
        sampled = account((FixedSizeGaussianEvent(noise_multiplier, 100, 100), 1))
        for delta in (1e-2, 1e-5):
            assert sampled.get_epsilon(delta) >= everyone.get_epsilon(delta) * 0.9999

    def test_many_groups_cost_what_their_mean_does(self):
        # There was a cliff: above 64 different releases only Renyi bounds were left.
        rates = np.linspace(0.0145, 0.0155, 70)
        found = account(*((PoissonGaussianEvent(1.0, q), 1) for q in rates))
        same = account((PoissonGaussianEvent(1.0, 0.015), 70))
        assert found.spent(1e-5).method == "PLD"
        assert found.get_epsilon(1e-5) == pytest.approx(
            same.get_epsilon(1e-5), rel=1e-3
        )
        assert found.get_delta(0.5) == pytest.approx(same.get_delta(0.5), rel=1e-2)

    def test_only_zcdp_known(self):
        accountant = account((ZCDPEvent(0.5), 1))
        exact = GDP(1.0).epsilon(1e-5)  # the Gaussian of the same rho
        assert exact < accountant.get_epsilon(1e-5) < 1.1 * exact
        assert accountant.get_delta(exact) >= 1e-5


class TestLargeBudgets:
    """Where nothing but adding up is left."""

    def test_a_choice_and_a_gaussian_value_add_up(self):
        for epsilon in (1.0, 100.0, 1000.0):
            value = ApproxDP(epsilon / 2, 1e-5).to_gdp()
            total = account(
                (PureEvent(epsilon / 2), 1), (GaussianEvent(1 / value.mu), 1)
            )
            assert total.within(ApproxDP(epsilon, 1e-5))
            assert total.get_epsilon(1e-5) <= epsilon * (1 + 1e-9)

    def test_gaussians_count_once_and_deltas_are_used_up(self):
        total = account(
            (ApproxEvent(200.0, 4e-6), 2),
            (GaussianEvent(0.1), 3),
            (PureEvent(300.0), 1),
        )
        expected = 700.0 + GDP(math.sqrt(300.0)).epsilon(2e-6)
        assert total.spent(1e-5).amount <= expected * (1 + 1e-12)

    def test_beyond_the_reach_of_exponentials(self):
        assert account((PureEvent(5000.0), 1)).get_epsilon(1e-5) == pytest.approx(5000)


def reported_before(events, delta):
    """The bounds of the first accountant, which new ones must never exceed.

    Basic composition, zCDP and Renyi privacy of what has them without a delta, PLD only
    without assumed events, and in a PLD fixed-size samples count as all records.
    """
    bounds = [math.inf]
    others = [(event, count) for event, count in events if event.gdp_mu is None]
    squares = [n * event.gdp_mu**2 for event, n in events if event.gdp_mu is not None]
    if all(event.approx for event, _ in others):
        epsilon = sum(count * event.approx[0] for event, count in others)
        left = delta - sum(count * event.approx[1] for event, count in others)
        if left > 0 and squares:
            epsilon += curves.gdp_epsilon(math.sqrt(sum(squares)), left)
        if left > 0:
            bounds.append(epsilon)
    rdp = sum(count * event.rdp() for event, count in events)
    bounds.append(float(compute_epsilon(RDP_ORDERS, rdp, delta)[0]))
    plds = []
    for event, count in others:
        pld = library_pld(event, 2.0**-12)
        plds.append(pld if pld is None else pld.self_compose(count))
    if squares:
        plds.append(library_pld(GaussianEvent(1 / math.sqrt(sum(squares))), 2.0**-12))
    if all(pld is not None for pld in plds):
        total = functools.reduce(lambda one, other: one.compose(other), plds)
        bounds.append(float(total.get_epsilon_for_delta(delta)))
    return min(bounds)


probabilities = st.floats(-9.0, -4.0).map(lambda exponent: 10.0**exponent)


small_epsilons = st.floats(0.01, 0.5)


failing = st.one_of(
    st.builds(ApproxEvent, small_epsilons, probabilities),
    st.builds(AssumedEvent, small_epsilons, probabilities),
)


reliable = st.one_of(
    st.builds(GaussianEvent, st.floats(3.0, 50.0)),
    st.builds(ZCDPEvent, st.floats(1e-4, 0.05)),
    st.builds(LaplaceEvent, st.floats(2.0, 50.0)),
    st.builds(PureEvent, small_epsilons),
    st.builds(ExponentialEvent, small_epsilons),
    st.builds(PoissonGaussianEvent, st.floats(1.0, 10.0), st.floats(0.01, 1.0)),
    st.builds(
        FixedSizeGaussianEvent, st.floats(1.0, 10.0), st.integers(1, 50), st.just(50)
    ),
)


def histories(events):
    return st.lists(
        st.tuples(events, st.integers(1, 20)),
        min_size=1,
        max_size=4,
        unique_by=lambda item: item[0],
    )


NOISE = GaussianEvent(5.0)


class TestAChoiceBesideNoise:
    """One pure release and Gaussian ones have a closed curve; see docs/theory."""

    @staticmethod
    def exact(pure, mu, epsilon):
        """The hockey-stick divergence of the product pair on a fine grid."""
        odds, x = math.exp(pure), np.linspace(-12.0, 12.0 + mu, 2_000_001)
        one, other = np.exp(-((x - mu) ** 2) / 2), np.exp(-(x**2) / 2)
        gaps = (
            p * one - math.exp(epsilon) * q * other for p, q in ((odds, 1), (1, odds))
        )
        total = sum(trapezoid(np.maximum(0.0, gap), x) for gap in gaps)
        return total / (1 + odds) / math.sqrt(2 * math.pi)

    @pytest.mark.parametrize("kind", [PureEvent, PermuteAndFlipEvent])
    @pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.5])
    def test_is_exact(self, kind, epsilon):
        history = account((kind(0.4), 1), (GaussianEvent(8.0), 5))
        delta = self.exact(0.4, math.sqrt(5) / 8, epsilon)
        assert history.get_delta(epsilon) == pytest.approx(delta, rel=1e-6)
        assert history.get_epsilon(delta) == pytest.approx(epsilon, rel=1e-6)
        method = history.spent(delta).method
        assert method == "exact composition of a choice and noise"

    def test_no_other_bound_is_smaller(self):
        groups = frozenset({(PureEvent(0.4), 1), (NOISE, 1)})
        found = composition.spent_at(groups, 1e-5).amount
        pld = total_losses(groups).epsilon(1e-5)
        assert found <= pld <= found * 1.001
        for bound in composition._cheap_bounds(groups, 1e-5):
            assert found <= bound.amount

    @pytest.mark.parametrize(
        "event", [PermuteAndFlipEvent(0.02), ExponentialEvent(0.02), LaplaceEvent(50.0)]
    )
    def test_many_choices_cost_less_than_their_sum(self, event):
        many = account((event, 20), (GaussianEvent(20.0), 1))
        one = account((PureEvent(0.4), 1), (GaussianEvent(20.0), 1))
        assert many.get_epsilon(1e-5) < 0.99 * one.get_epsilon(1e-5)
        assert many.get_delta(0.5) < 0.99 * one.get_delta(0.5)

    def test_two_choices_are_one_of_both_epsilons(self):
        many = frozenset({(PureEvent(0.1), 1), (PureEvent(0.15), 2), (NOISE, 1)})
        one = frozenset({(PureEvent(0.4), 1), (NOISE, 1)})
        bound = next(composition._cheap_bounds(many, 1e-5)).amount
        assert bound == pytest.approx(composition.spent_at(one, 1e-5).amount)


class TestReleasesThatCanFail:
    """Releases with a delta of their own, or with an assumed bound."""

    @pytest.mark.parametrize(
        "event",
        [
            ZCDPEvent(0.05),
            PoissonGaussianEvent(1.0, 0.01),
            FixedSizeGaussianEvent(2.0, 10, 100),
            GaussianEvent(5.0),
            LaplaceEvent(10.0),
            ExponentialEvent(0.1),
        ],
        ids=lambda e: type(e).__name__,
    )
    @pytest.mark.parametrize("count", [1, 20])
    def test_the_rest_is_composed_at_the_delta_that_is_left(self, event, count):
        rest = account((event, count))
        assumed = account((event, count), (AssumedEvent(0.3, 1e-6), 1))
        expected = 0.3 + rest.get_epsilon(1e-5 - 1e-6)
        assert assumed.get_epsilon(1e-5) <= expected * (1 + 1e-9)
        assert assumed.get_epsilon(1e-5) > rest.get_epsilon(1e-5)
        assert assumed.get_delta(expected) <= 1e-5 * (1 + 1e-3)
        # A known (epsilon, delta) composes like a pure release, so it costs less.
        known = account((event, count), (ApproxEvent(0.3, 1e-6), 1))
        pure = account((event, count), (PureEvent(0.3), 1))
        left = (1e-5 - 1e-6) / (1 - 1e-6)
        assert known.get_epsilon(1e-5) == pytest.approx(pure.get_epsilon(left))
        assert known.get_epsilon(1e-5) <= expected * (1 + 1e-9)
        found = known.get_delta(0.5)
        assert found == pytest.approx(1e-6 + (1 - 1e-6) * pure.get_delta(0.5))

    def test_many_small_releases_and_one_assumed(self):
        found = account((LaplaceEvent(100.0), 1000), (AssumedEvent(0.1, 1e-6), 1))
        assert found.get_epsilon(1e-5) == pytest.approx(1.3038, abs=1e-3)  # was 10.1
        assert found.spent(1e-5).method.endswith("assumed epsilons added")

    @pytest.mark.parametrize("kind", [AssumedEvent, ApproxEvent])
    @pytest.mark.parametrize("count", [1, 3, 7, 10, 1000])
    def test_all_of_the_delta_may_be_used_up(self, kind, count):
        event = kind(1 / count, 1e-5 / count)
        assert account((event, count)).within(ApproxDP(1.0, 1e-5))
        pure = account((event, count), (PureEvent(1.0), 1))
        assert pure.within(ApproxDP(2.0, 1e-5))
        # What needs a delta of its own has none left, and more failures do not fit.
        gaussian = account((event, count), (GaussianEvent(1000.0), 1))
        failure = account((event, count)).get_delta(100.0)
        assert gaussian.within(ApproxDP(100.0, failure * (1 + 1e-9)))
        assert not gaussian.within(ApproxDP(100.0, failure))
        assert not gaussian.within(ApproxDP(100.0, failure * (1 - 1e-9)))
        assert not account((event, count + 1)).within(ApproxDP(100.0, 1e-5))

    def test_coins_are_independent_and_assumptions_are_not(self):
        known = account((ApproxEvent(1e-6, 0.1), 10))
        assert known.get_delta(10.0) == pytest.approx(1 - 0.9**10)
        assumed = account((AssumedEvent(1e-6, 0.1), 9))
        assert assumed.get_delta(10.0) == pytest.approx(0.9)
        assert account((AssumedEvent(1e-6, 0.1), 11)).get_delta(10.0) == 1.0
        both = account((ApproxEvent(1e-6, 0.1), 1), (AssumedEvent(1e-6, 0.2), 1))
        assert both.get_delta(10.0) == pytest.approx(1 - 0.9 * 0.8)

    @pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (2.0, 0.1)])
    def test_two_known_releases_by_brute_force(self, epsilon, delta):
        # The worst (epsilon, delta)-DP mechanism has four outputs.
        odds = math.exp(epsilon)
        high, low = odds / (1 + odds), 1 / (1 + odds)
        one = np.array([delta, (1 - delta) * high, (1 - delta) * low, 0.0])
        p, q = np.outer(one, one), np.outer(one[::-1], one[::-1])
        noise = LaplaceEvent(1.0)
        x = np.linspace(-40.0, 41.0, 400_001)
        laplace = np.exp(-np.abs(x)) / 2, np.exp(-np.abs(x - 1)) / 2
        accountant = account((ApproxEvent(epsilon, delta), 2), (noise, 1))
        for at in (0.0, 0.3, 1.0, 3.0):
            exact = sum(
                trapezoid(
                    np.maximum(0.0, a * laplace[0] - math.exp(at) * b * laplace[1]), x
                )
                for a, b in zip(p.flat, q.flat, strict=True)
            )
            found = accountant.get_delta(at)
            assert exact - 1e-6 <= found <= exact * 1.01 + 1e-6

    def test_assumptions_that_fail_together(self):
        # Both releases reveal everything at once, with probability delta; else each is
        # randomized response. Beside them stands a Gaussian release.
        delta, epsilon, mu = 1e-3, 0.4, 0.5
        accountant = account(
            (AssumedEvent(epsilon, delta), 2), (GaussianEvent(1 / mu), 1)
        )
        odds = math.exp(epsilon)
        high, low = odds / (1 + odds), 1 / (1 + odds)
        pairs = [(high**2, low**2), (2 * high * low, 2 * high * low), (low**2, high**2)]
        for at in (0.8, 1.2, 2.0):
            exact = delta + (1 - delta) * sum(
                p * curves.gdp_delta(mu, at + math.log(q / p))
                for p, q in pairs
                if at + math.log(q / p) >= 0
            )
            assert exact <= accountant.get_delta(at)

    @settings(deadline=None, max_examples=40)
    @given(history=histories(st.one_of(failing, reliable)))
    def test_never_above_what_was_reported_before(self, history):
        before = reported_before(history, 1e-5)
        found = account(*history).get_epsilon(1e-5)
        # A privacy loss distribution rounds the loss of every release up to its grid,
        # of which there are 10,000 points below the total.
        rounding = max(1e-3, 1e-4 * sum(count for _, count in history))
        assert found <= before * (1 + rounding) + 2.0**-12

    @settings(deadline=None, max_examples=40)
    @given(history=histories(st.one_of(failing, reliable)))
    def test_finite_wherever_finite(self, history):
        failure = sum(n * event.approx[1] for event, n in history if event.approx)
        found = account(*history).get_epsilon(1e-3 + failure)
        assert math.isfinite(found)
        delta = account(*history).get_delta(found)
        assert delta <= (1e-3 + failure) * 1.02

    @settings(deadline=None, max_examples=20)
    @given(epsilon=st.floats(0.01, 1.0), delta=probabilities, count=st.integers(1, 40))
    def test_known_releases_reach_the_optimal_composition(self, epsilon, delta, count):
        # Kairouz, Oh and Viswanath, Theorem 3.3: exact.
        total = 1e-3
        failure = -math.expm1(count * math.log1p(-delta))
        left = (total - failure) / (1 - failure)
        found = account((ApproxEvent(epsilon, delta), count)).get_epsilon(total)
        if left <= 0:
            assert found == math.inf
        else:
            optimal = optimal_pure_composition(epsilon, count, left)
            assert found >= optimal - 1e-9
            assert found == pytest.approx(optimal, rel=1e-3, abs=1e-4)

    def test_assumed_events_add_up(self):
        # They may fail together: nothing better than the union bound holds.
        accountant = PrivacyAccountant()
        accountant.compose(AssumedEvent(0.1, 0.02), 10)
        assert accountant.get_epsilon(0.19) == math.inf
        assert accountant.get_epsilon(0.2 + 1e-9) == pytest.approx(1.0, rel=1e-6)

    def test_gaussians_are_one_summand(self):
        accountant = account((AssumedEvent(0.5, 9e-6), 1), (GaussianEvent(3.0), 1))
        expected = 0.5 + GDP(1 / 3).epsilon(1e-6)
        assert accountant.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-6)
        assert accountant.get_delta(expected) == pytest.approx(1e-5, rel=1e-4)
        assert accountant.get_delta(0.4) == 1.0  # below the assumed epsilon: nothing

    def test_delta_inverts_basic_composition(self):
        accountant = account((AssumedEvent(0.5, 1e-6), 2), (PureEvent(0.25), 4))
        epsilon = accountant.get_epsilon(1e-5)
        assert accountant.get_delta(epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_rounding_of_fourier_transforms():
    """The loss of n randomized responses is binomial, even where delta is tiny."""
    epsilon, number = 0.02, 5000
    groups = frozenset({(PureEvent(epsilon), number)})
    k = np.arange(number + 1)
    log_choose = gammaln(number + 1) - gammaln(k + 1) - gammaln(number - k + 1)
    log_share = -np.log1p(math.exp(-epsilon))
    probs = np.exp(log_choose + number * log_share - (number - k) * epsilon)
    losses = (2 * k - number) * epsilon

    def true_delta(at):
        return probs @ -np.expm1(np.minimum(at - losses, 0.0))

    for at in np.linspace(7.0, 13.0, 25).tolist():
        assert true_delta(at) <= composition.delta_at(groups, at)
    for delta in (1e-8, 1e-10, 1e-11, 1e-12, 1e-13):
        assert true_delta(composition.spent_at(groups, delta).amount) <= delta
