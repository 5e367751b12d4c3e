"""Total losses: never below the truth, hardly above it, for any number of releases."""

import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from scipy.special import ndtr
from scipy.stats import binom

from botorch_dp.privacy import (
    ApproxDP,
    LaplaceEvent,
    Ledger,
    PoissonGaussianEvent,
    PrivacyAccountant,
    PureEvent,
    ZCDPEvent,
    curves,
    loss_composition,
)
from botorch_dp.privacy.loss_composition import LossComposition
from botorch_dp.privacy.loss_pairs import (
    LossPair,
    approx_pair,
    connect_dots,
    gaussian_pair,
    laplace_pair,
    poisson_pair,
    symmetric_pair,
    zcdp_pair,
)
from tests.privacy.cases import library_pld
from tests.privacy.test_loss_pairs import high_precision

noises = st.floats(math.log(0.3), math.log(50.0)).map(math.exp)
rates = st.floats(-4.0, 0.0).map(lambda exponent: min(10.0**exponent, 0.999))
deltas = st.floats(-12.0, -3.0).map(lambda exponent: 10.0**exponent)


@pytest.fixture
def coarse(monkeypatch):
    """A grid so coarse that a wrong rounding cannot hide in a small interval."""
    monkeypatch.setattr(loss_composition, "_TOLERANCE", 0.1)
    monkeypatch.setattr(loss_composition, "_LEAST_POINTS", 4)


def random_pair(rng, size):
    """Two vectors of probabilities, and the pair of their exact losses."""
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))

    def deltas(p, q, epsilons):
        return np.maximum(0.0, p - np.exp(epsilons)[:, None] * q).sum(axis=1)

    losses = np.log(p / q)
    dots = []
    for sign, a, b in ((1, p, q), (-1, q, p)):
        own = np.sort(sign * losses)
        epsilons = np.append(0.0, own[own > 0])
        dots += [epsilons, deltas(a, b, epsilons)]
    return p, q, connect_dots(*dots)


def brute_force(pairs, epsilon):
    """Delta of all combinations of outcomes, in both directions."""
    p = functools.reduce(np.multiply.outer, [one for one, _ in pairs]).ravel()
    q = functools.reduce(np.multiply.outer, [other for _, other in pairs]).ravel()
    odds = math.exp(epsilon)
    return max(np.maximum(0.0, p - odds * q).sum(), np.maximum(0.0, q - odds * p).sum())


class TestExact:
    @settings(deadline=None, max_examples=60)
    @given(zs=st.lists(noises, min_size=1, max_size=6), delta=deltas, data=st.data())
    def test_gaussian_releases(self, zs, delta, data):
        counts = [data.draw(st.integers(1, 200)) for _ in zs]
        total = LossComposition(
            (gaussian_pair(1 / z), n) for z, n in zip(zs, counts, strict=True)
        )
        mu = math.sqrt(sum(n / z**2 for z, n in zip(zs, counts, strict=True)))
        exact = curves.gdp_epsilon(mu, delta)
        assert exact <= total.epsilon(delta) <= exact * 1.001 + 1e-9
        assert delta * (1 - 1e-12) <= total.delta(exact) <= delta * 1.02

    @pytest.mark.parametrize("delta", [1e-3, 1e-10, 1e-15, 1e-25])
    def test_five_hundred_different_ones(self, delta):
        mus = np.geomspace(0.01, 0.1, 500)
        total = LossComposition((gaussian_pair(mu), 1) for mu in mus)
        exact = curves.gdp_epsilon(math.sqrt((mus**2).sum()), delta)
        assert exact <= total.epsilon(delta) <= exact * 1.001

    @pytest.mark.parametrize("number", [1, 10_000, 10**6, 10**8])
    def test_very_many_equal_ones(self, number):
        total = LossComposition([(gaussian_pair(1 / math.sqrt(number)), number)])
        exact = curves.gdp_epsilon(1.0, 1e-6)
        assert exact <= total.epsilon(1e-6) <= exact * 1.005

    @pytest.mark.parametrize("mu", [1e-6, 1e-3, 20.0, 1000.0])
    def test_small_and_large_losses(self, mu):
        total = LossComposition([(gaussian_pair(mu), 3)])
        exact = curves.gdp_epsilon(mu * math.sqrt(3), 1e-7)
        assert exact <= total.epsilon(1e-7) <= exact * 1.01 + 1e-12

    @settings(deadline=None, max_examples=20)
    @given(seed=st.integers(0, 10**6))
    def test_brute_force(self, seed):
        rng = np.random.default_rng(seed)
        found = [random_pair(rng, int(rng.integers(2, 6))) for _ in range(4)]
        total = LossComposition((pair, 1) for _, _, pair in found)
        for epsilon in rng.uniform(0.0, 3.0, 5):
            exact = brute_force([(p, q) for p, q, _ in found], epsilon)
            assert exact <= total.delta(epsilon) * (1 + 1e-12) + 1e-15
            assert total.delta(epsilon) <= exact * 1.02 + 1e-9
        delta = brute_force([(p, q) for p, q, _ in found], 0.8)
        assume(delta > 1e-9)
        assert 0.8 <= total.epsilon(delta) * (1 + 1e-12) <= 0.8 * 1.01

    @pytest.mark.parametrize("delta", [1e-5, 1e-12, 1e-18, 1e-28])
    @pytest.mark.parametrize(("epsilon", "number"), [(0.02, 5000), (0.3, 40)])
    def test_randomized_response_in_high_precision(self, epsilon, number, delta):
        found = LossComposition([(approx_pair(epsilon, 0.0), number)]).epsilon(delta)

        def exact(at):
            with mpmath.workdps(50):
                share = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
                return sum(
                    mpmath.binomial(number, k)
                    * share**k
                    * (1 - share) ** (number - k)
                    * (1 - mpmath.exp(at - (2 * k - number) * mpmath.mpf(epsilon)))
                    for k in range(number + 1)
                    if (2 * k - number) * epsilon > at
                )

        assert exact(found) <= delta
        assert exact(found * (1 - 1e-4)) > delta


class TestSampled:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ((1.0, 0.01), (0.7, 0.05)),
            ((0.4, 0.3), (0.4, 0.001)),
            ((5.0, 0.9), (20.0, 0.5)),
        ],
    )
    def test_two_releases_in_high_precision(self, one, other):
        total = LossComposition((poisson_pair(1 / z, q), 1) for z, q in (one, other))
        (z, q), (z_other, q_other) = one, other
        for epsilon in (0.02, 0.2, 1.0):

            def integrand(x, direction, epsilon=epsilon):
                """The first release is x; the second has a curve."""
                with_record = mpmath.log(
                    1 - q + q * mpmath.exp(x / z - 0.5 / mpmath.mpf(z) ** 2)
                )
                density = mpmath.npdf(x)
                loss = with_record
                if direction == 0:
                    density = (1 - q) * density + q * mpmath.npdf(x - 1 / mpmath.mpf(z))
                else:
                    loss = -with_record
                rest = epsilon - loss
                return density * high_precision(
                    1 / z_other, q_other, direction, rest, 60
                )

            ends = [-9, -3, -1, 0, 1, 2, 3, 4, 6, 9, 9 + 1 / z]
            exact = max(
                mpmath.quad(functools.partial(integrand, direction=way), ends)
                for way in (0, 1)
            )
            found = total.delta(epsilon)
            assert found >= exact * (1 - mpmath.mpf(10) ** -6)
            assert found <= exact * mpmath.mpf("1.01")

    @settings(deadline=None, max_examples=8)
    @given(
        steps=st.lists(
            st.tuples(noises, rates, st.integers(1, 300)), min_size=1, max_size=3
        ),
        delta=deltas,
    )
    def test_between_bounds_of_dp_accounting(self, steps, delta):
        found = LossComposition((poisson_pair(1 / z, q), n) for z, q, n in steps)
        found = found.epsilon(delta)
        assume(1e-3 < found < 50)
        bounds = []
        for pessimistic in (False, True):
            plds = []
            for z, q, n in steps:
                pld = privacy_loss_distribution.from_gaussian_mechanism(
                    z,
                    sampling_prob=q,
                    value_discretization_interval=found / 2000,
                    pessimistic_estimate=pessimistic,
                )
                plds.append(pld.self_compose(n))
            total = functools.reduce(lambda one, other: one.compose(other), plds)
            bounds.append(total.get_epsilon_for_delta(delta))
        assert bounds[0] * (1 - 1e-9) <= found
        # Below 1e-8 the rounding errors of their transforms are as large as delta.
        if delta > 1e-8:
            assert found <= bounds[1] * 1.01

    def test_prv_accountant_of_opacus_agrees(self):
        steps = [
            (z, q, n)
            for n, (z, q) in enumerate(itertools.product((0.8, 2.0), (0.01, 0.05)), 10)
        ]
        opacus = PRVAccountant()
        opacus.history = steps
        prv = opacus._get_dprv(eps_error=0.01, delta_error=1e-9)
        low, _, high = prv.compute_epsilon(1e-5, delta_error=1e-9, eps_error=0.01)
        found = LossComposition((poisson_pair(1 / z, q), n) for z, q, n in steps)
        assert low <= found.epsilon(1e-5) <= high

    def test_both_directions_count(self):
        pair = poisson_pair(2.0, 0.5)
        turned = LossPair(pair.ways[::-1])
        one, other = (LossComposition([(way, 4)]) for way in (pair, turned))
        for epsilon in (0.01, 0.5, 3.0):
            assert one.delta(epsilon) == other.delta(epsilon)
        ways = [LossPair((way,)) for way in pair.ways]
        single = [LossComposition([(way, 4)]).epsilon(1e-3) for way in ways]
        assert one.epsilon(1e-3) == max(single) > min(single) * 1.1


class TestProperties:
    PARTS = (
        (poisson_pair(1.0, 0.02), 30),
        (poisson_pair(0.3, 0.4), 7),
        (gaussian_pair(0.2), 1),
        (laplace_pair(0.3), 4),
        (approx_pair(0.1, 0.0), 9),
        (zcdp_pair(0.003), 1),
    )

    def test_a_loop_of_single_ones(self):
        whole = LossComposition(self.PARTS)
        single = LossComposition(
            (pair, 1) for pair, count in self.PARTS for _ in range(count)
        )
        for delta in (1e-3, 1e-9):
            assert single.epsilon(delta) == pytest.approx(
                whole.epsilon(delta), rel=1e-9
            )
        assert single.delta(1.0) == pytest.approx(whole.delta(1.0), rel=1e-9)

    def test_order_does_not_matter(self):
        one, other = LossComposition(self.PARTS), LossComposition(self.PARTS[::-1])
        assert one.epsilon(1e-7) == pytest.approx(other.epsilon(1e-7), rel=1e-11)

    def test_more_cost_more(self):
        totals = [LossComposition(self.PARTS[:n]) for n in range(1, 7)]
        found = [total.epsilon(1e-5) for total in totals]
        assert found == sorted(found)
        assert found[0] < found[-1]

    def test_monotone(self):
        total = LossComposition(self.PARTS)
        found = [total.epsilon(delta) for delta in np.geomspace(1e-15, 0.1, 40)]
        assert all(a > b for a, b in itertools.pairwise(found))
        found = [total.delta(epsilon) for epsilon in np.linspace(0.0, 8.0, 40)]
        assert all(a > b for a, b in itertools.pairwise(found))

    @settings(deadline=None, max_examples=30)
    @given(exponent=st.floats(-20.0, -1.0))
    def test_epsilon_and_delta_agree(self, exponent):
        total, delta = LossComposition(self.PARTS), 10.0**exponent
        assert total.delta(total.epsilon(delta)) == pytest.approx(delta, rel=2e-3)

    def test_whole_curves(self):
        total = LossComposition(self.PARTS)
        epsilons = np.array([0.0, 0.3, 1.0, 2.5, 5.0, 9.0])
        ways = total.deltas(epsilons)
        assert len(ways) == 2
        single = [total.delta(epsilon) for epsilon in epsilons]
        np.testing.assert_allclose(np.max(ways, axis=0), single, rtol=5e-3)

    def test_releases_that_reveal_everything(self):
        total = LossComposition([(approx_pair(0.1, 1e-3), 5)])
        infinite = 1 - (1 - 1e-3) ** 5
        assert total.infinite == pytest.approx(infinite)
        assert total.epsilon(infinite * 0.99) == math.inf
        assert total.delta(10.0) == pytest.approx(infinite)
        assert total.epsilon(infinite * 1.01) <= 0.5 * (1 + 1e-8)

    def test_nothing_beyond_the_largest_loss(self):
        total = LossComposition([(approx_pair(50.0, 0.0), 3)])
        assert total.epsilon(1e-30) == pytest.approx(150.0)
        assert total.epsilon(1e-30) <= total.largest
        assert total.delta(total.largest) == 0.0


class TestExtremes:
    """Overflows and tiny losses: never below the truth, and no exception."""

    def test_grids_that_cannot_cover_the_losses(self):
        # The truth is close to n epsilon tanh(epsilon / 2), far above the cap.
        for epsilon, number in ((0.1, 10**9), (2.0, 25_000_000)):
            total = number * epsilon * math.tanh(epsilon / 2)
            losses = LossComposition([(approx_pair(epsilon, 0.0), number)])
            assert losses.epsilon(1e-5) >= total
            accountant = PrivacyAccountant()
            accountant.charge(PureEvent(epsilon), count=number)
            assert accountant.get_epsilon(1e-5) >= total
            assert not Ledger(cap=ApproxDP(0.01, 1e-5)).allows(
                PureEvent(epsilon), number
            )

    @pytest.mark.parametrize(
        ("pair", "number"), [(approx_pair(5.0, 0.0), 10**6), (laplace_pair(5.0), 10**6)]
    )
    def test_deltas_of_huge_losses_are_one(self, pair, number):
        losses = LossComposition([(pair, number)])
        assert losses.delta(0.0) == losses.delta(1.0) == 1.0

    def test_nothing_but_infinite_losses(self):
        losses = LossComposition([(zcdp_pair(800.0), 1), (approx_pair(0.1, 0.0), 2)])
        assert losses.epsilon(1e-5) == math.inf
        assert losses.delta(1.0) == 1.0
        assert (losses.deltas(np.array([0.0, 5.0]))[0] == 1.0).all()
        accountant = PrivacyAccountant()
        accountant.charge(ZCDPEvent(800.0))
        accountant.charge(PureEvent(0.1), count=2)
        # That of Gaussian noise with this rho is a lower bound.
        truth = curves.gdp_epsilon(40.0, 1e-5)
        assert truth < accountant.get_epsilon(1e-5) < 1.1 * truth

    @pytest.mark.parametrize(
        ("epsilon", "number"), [(2.557e-9, 40), (1.914e-8, 4), (2.49e-6, 11), (1e-3, 7)]
    )
    def test_tiny_losses_in_high_precision(self, epsilon, number):
        losses = LossComposition([(approx_pair(epsilon, 0.0), number)])
        for at in (0.0, 0.3 * epsilon, 1.7 * epsilon):
            with mpmath.workdps(60):
                p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
                truth = mpmath.fsum(
                    mpmath.binomial(number, k)
                    * p**k
                    * (1 - p) ** (number - k)
                    * (1 - mpmath.exp(at - (2 * k - number) * mpmath.mpf(epsilon)))
                    for k in range(number + 1)
                    if (2 * k - number) * epsilon > at
                )
                assert truth <= losses.delta(at) < truth * (1 + 1e-5)

    def test_tiny_costs(self):
        accountant = PrivacyAccountant()
        accountant.charge(LaplaceEvent(1e9), count=3)
        assert 7e-10 < accountant.get_delta(0.0) < 8e-10


class TestRounding:
    """Each kind of rounding, made so large that it would show if it went down."""

    @pytest.mark.parametrize("count", [1, 20])
    def test_of_losses_to_the_grid(self, coarse, count):
        for mu in (0.1, 1.0):
            total = LossComposition([(gaussian_pair(mu), count)])
            for delta in (1e-2, 1e-5, 1e-9):
                exact = curves.gdp_epsilon(mu * math.sqrt(count), delta)
                assert exact < total.epsilon(delta) < 2 * exact

    def test_of_arbitrary_losses_to_the_grid(self, coarse):
        rng = np.random.default_rng(0)
        for _ in range(20):
            found = [random_pair(rng, 4) for _ in range(4)]
            total = LossComposition((pair, 1) for _, _, pair in found)
            for epsilon in (0.0, 0.5, 1.5):
                exact = brute_force([(p, q) for p, q, _ in found], epsilon)
                assert exact <= total.delta(epsilon) * (1 + 1e-12) + 1e-15

    def test_the_grid_keeps_both_totals(self, coarse):
        # Below all losses, delta is one total minus e^epsilon times the other.
        rng = np.random.default_rng(1)
        for _ in range(20):
            p, q, pair = random_pair(rng, 5)
            for way, (a, b) in zip(pair.ways, ((p, q), (q, p)), strict=True):
                one = loss_composition._OneWay([(way, 1)])
                tail = one._tail(0.5, one._cumulants(0.5), -6.0)
                for epsilon in (-5.5, -1.0, 0.0):
                    exact = np.maximum(0.0, a - math.exp(epsilon) * b).sum()
                    found = tail.deltas(np.array([epsilon]))[0]
                    assert found >= exact - 1e-8

    def test_of_releases_to_few_losses(self):
        for mu in (0.1, 1.0):
            total = LossComposition([(gaussian_pair(mu, 0.7), 20)])
            for delta in (1e-2, 1e-5, 1e-9):
                exact = curves.gdp_epsilon(mu * math.sqrt(20), delta)
                assert exact < total.epsilon(delta) < 1.2 * exact

    @pytest.mark.parametrize("outside", [0.9, 0.99])
    def test_of_losses_beyond_the_grid(self, monkeypatch, outside):
        # The grid is too short for the tilted distribution.
        monkeypatch.setattr(loss_composition, "_OUTSIDE", outside)
        monkeypatch.setattr(loss_composition, "_SHIFTS", np.array([0.05]))
        total = LossComposition([(gaussian_pair(0.5), 4)])
        for epsilon in (0.0, 0.5, 2.0, 4.0):
            assert total.delta(epsilon) >= curves.gdp_delta(1.0, epsilon)
            way = total._ways[0]
            tail = way._tail(epsilon + 0.1, way._cumulants(epsilon + 0.1), epsilon)
            end = (tail.first + len(tail.probs)) * tail.interval
            assert ndtr(0.5 - end) > 1e-11  # the probability of losses beyond it
            assert tail.infinite >= ndtr(0.5 - end)
        for delta in (1e-2, 1e-5, 1e-9):
            assert total.epsilon(delta) >= curves.gdp_epsilon(1.0, delta)

    def test_of_rare_losses(self, monkeypatch):
        monkeypatch.setattr(loss_composition, "_CUT", 0.5)
        total = LossComposition([(gaussian_pair(0.5), 4)])
        for epsilon in (0.5, 2.0, 4.0):
            assert total.delta(epsilon) >= curves.gdp_delta(1.0, epsilon)

    @pytest.mark.parametrize("t", [0.001, 1.0, 8.0])
    @pytest.mark.parametrize("number", [10, 1000, 20_000])
    def test_of_transforms(self, monkeypatch, number, t):
        # Tilted losses of randomized response are binomial.
        monkeypatch.setattr(loss_composition, "_POSITION_ERROR", 0.0)
        epsilon = 5.0 / number
        dots = np.array([0.0, epsilon]), np.array([math.tanh(epsilon / 2), 0.0])
        way = LossComposition([(symmetric_pair(*dots), number)])._ways[0]
        tail = way._tail(t, way._cumulants(t), 2.0)
        times = np.arange(number + 1)
        share = 1 / (1 + math.exp(-(1 + 2 * t) * epsilon))
        steps = round(epsilon / tail.interval)
        assert steps * tail.interval == pytest.approx(epsilon)
        places = ((2 * times - number) * steps - tail.first) % len(tail.probs)
        exact = np.zeros(len(tail.probs))
        np.add.at(exact, places, binom.pmf(times, number, share))
        errors = np.linalg.norm(tail.probs - exact)
        assert 0 < errors < tail.error + 1e-13  # the error of the reference

    def test_of_a_library(self):
        # The loss distributions of dp-accounting, as a check of the test itself.
        pld = library_pld(PoissonGaussianEvent(1.0, 0.1), 1e-3).self_compose(50)
        found = LossComposition([(poisson_pair(1.0, 0.1), 50)]).epsilon(1e-5)
        assert found == pytest.approx(pld.get_epsilon_for_delta(1e-5), rel=1e-3)
