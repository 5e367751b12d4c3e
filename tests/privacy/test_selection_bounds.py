"""Bounds of selections against brute force, integration and simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import beta, binom, norm

from botorch_dp.privacy import (
    AtLeast,
    AtMost,
    Binomial,
    Poisson,
    TruncatedNegativeBinomial,
    curves,
)
from botorch_dp.privacy.loss_composition import LossComposition
from botorch_dp.privacy.loss_pairs import approx_pair
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.renyi import RDP_ORDERS
from botorch_dp.privacy.selection_bounds import largest_log_ratio, selection_bound
from tests.privacy.selection_cases import (
    COUNTS,
    GEOMETRIC,
    adaptive_selected,
    exact_profile,
    gaussian_delta,
    hockey_stick,
    selected,
)

EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0)


def random_pair(rng, size, spread=1.0):
    p = rng.dirichlet(np.ones(size))
    q = p * np.exp(spread * rng.standard_normal(size))
    return p, q / q.sum()


def gaussian_profile(mu):
    return Profile.of_gaussian(mu)


def one_shift_delta(way, epsilon):
    """The simpler bound E[K] delta(epsilon - L) with one shift for all."""
    own, other = way.log_slopes
    return way.weights.sum() * way.profile.delta(epsilon - np.max(own - other))


class TestBruteForce:
    @pytest.mark.parametrize("count", COUNTS, ids=repr)
    def test_is_above_every_order_of_scores(self, count):
        rng = np.random.default_rng(0)
        for p, q in (random_pair(rng, 5), random_pair(rng, 5, spread=0.2)):
            bound = selection_bound(exact_profile(p, q), count)
            for order in itertools.permutations(range(5)):
                one, other = p[list(order)], q[list(order)]
                for pieces in (1, 20):
                    a, b = selected(one, count, pieces), selected(other, count, pieces)
                    for epsilon in EPSILONS:
                        ways = bound.ways if len(bound.ways) == 2 else bound.ways * 2
                        truth = hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon)
                        for way, delta in zip(ways, truth, strict=True):
                            assert way.delta(epsilon) >= delta - 1e-12

    @settings(deadline=None, max_examples=60)
    @given(
        seed=st.integers(0, 10**6),
        size=st.integers(2, 30),
        spread=st.floats(0.01, 3.0),
        count=st.sampled_from(COUNTS),
    )
    def test_is_above_random_ones(self, seed, size, spread, count):
        rng = np.random.default_rng(seed)
        p, q = random_pair(rng, size, spread)
        bound = selection_bound(exact_profile(p, q), count)
        # The worst orders are close to that of the ratios.
        order = np.argsort(
            np.log(p / q) + rng.exponential() * rng.standard_normal(size)
        )
        for way in (order, order[::-1]):
            a, b = selected(p[way], count, 8), selected(q[way], count, 8)
            for epsilon in EPSILONS:
                delta = max(hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon))
                assert bound.delta(epsilon) >= delta - 1e-12

    @pytest.mark.parametrize(
        ("count", "least"),
        [
            (Poisson(8.0), 0.9),
            (GEOMETRIC, 0.9),
            (TruncatedNegativeBinomial(8.0, 0.0), 0.9),
            (AtLeast(TruncatedNegativeBinomial(7.0, 1.0), 2), 0.8),
        ],
        ids=repr,
    )
    def test_an_adversary_comes_close(self, count, least):
        # Scores rise with q/p, which makes t' the largest; but outcomes of large p/q
        # are inserted where they are worth most.
        x = np.linspace(-6.0, 6.0, 6001)
        p, q = (np.exp(-((x - shift) ** 2) / 2) for shift in (0.0, 0.5))
        p, q = p / p.sum(), q / q.sum()
        bound = selection_bound(exact_profile(p, q), count)
        epsilon = bound.epsilon(1e-4)
        loss = np.log(p / q)
        down = np.argsort(loss)  # from the best score to the worst
        t, other_t = np.cumsum(p[down]), np.cumsum(q[down])
        own, other = (
            np.exp(count.log_slope(np.clip(1 - tail, 0, 1))) for tail in (t, other_t)
        )
        position = np.arange(len(x), dtype=float)
        rare = loss[down] > epsilon - 3.0
        gain = own[:, None] - np.exp(epsilon - loss[down][rare]) * other[:, None]
        position[rare] = gain.argmax(axis=0) + 0.5
        up = down[np.argsort(position, kind="stable")[::-1]]
        truth = hockey_stick(selected(p[up], count), selected(q[up], count), epsilon)
        assert least * 1e-4 < truth <= 1e-4

    def test_one_run_is_the_run(self):
        rng = np.random.default_rng(1)
        p, q = random_pair(rng, 6)
        bound = selection_bound(exact_profile(p, q), Binomial(1, 1.0))
        for epsilon in EPSILONS:
            assert bound.ways[0].delta(epsilon) == pytest.approx(
                hockey_stick(p, q, epsilon), rel=1e-9, abs=1e-15
            )


class TestGaussianScores:
    """A run returns its score with Gaussian noise and nothing else."""

    # How loose the bound may be, as a ratio of epsilons; the measured ones are in
    # docs/theory/selection.md.
    @pytest.mark.parametrize("mu", [0.2, 1.0])
    @pytest.mark.parametrize("count", COUNTS, ids=repr)
    def test_holds_and_is_not_absurd(self, mu, count):
        bound = selection_bound(gaussian_profile(mu), count)
        for delta in (1e-3, 1e-6):
            epsilon = bound.epsilon(delta)
            assert gaussian_delta(mu, count, epsilon) <= delta * (1 + 1e-6)
            smaller = epsilon / 2.5 - 0.05
            if smaller > 0:
                assert gaussian_delta(mu, count, smaller) > delta

    @pytest.mark.parametrize("mean", [2.0, 30.0])
    @pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0])
    def test_over_means_and_shapes(self, mean, shape):
        count = TruncatedNegativeBinomial(mean, shape)
        bound = selection_bound(gaussian_profile(0.5), count)
        for epsilon in (0.5, 1.0, 2.0):
            assert bound.delta(epsilon) >= gaussian_delta(0.5, count, epsilon)

    def test_is_below_bounds_with_one_shift(self):
        for count in COUNTS:
            way = selection_bound(gaussian_profile(0.5), count).ways[0]
            for epsilon in (0.5, 1.5, 3.0):
                assert way.delta(epsilon) <= one_shift_delta(way, epsilon) + 1e-12

    def test_floors_have_no_bound_with_one_shift(self):
        way = selection_bound(gaussian_profile(0.5), AtLeast(Poisson(4.0), 2)).ways[0]
        assert one_shift_delta(way, 5.0) > 1
        assert way.delta(5.0) < 1e-6


class TestAudit:
    """Simulated releases tell a valid claim from one that forgets the shifts."""

    def lowest_delta(self, epsilon, num_samples=40_000):
        """A lower bound on delta with 99.9 % confidence, from simulated scores."""
        rng = np.random.default_rng(0)
        # The best of Poisson(30) scores on each data set; -infinity if there is none.
        numbers = rng.poisson(30.0, size=(2, num_samples))
        with np.errstate(divide="ignore"):
            log_cdf = np.log(rng.uniform(size=numbers.shape)) / numbers
        best = norm.ppf(np.exp(log_cdf)) + np.array([[0.0], [1.0]])
        hits = (best < 1.3).sum(axis=1)  # chosen beforehand
        low = beta.ppf(0.0005, hits[0], num_samples - hits[0] + 1)
        high = beta.ppf(0.9995, hits[1] + 1, num_samples - hits[1])
        return low - math.exp(epsilon) * high

    def test_rejects_a_claim_without_shifts(self):
        # The true delta is 0.054, the claim 0.0014: 40,000 samples leave no doubt.
        way = selection_bound(gaussian_profile(1.0), Poisson(30.0)).ways[0]
        claimed = float(way.weights.sum() * way.profile.delta(np.array([4.0]))[0])
        assert claimed < 0.002
        lowest = self.lowest_delta(4.0)
        assert lowest > 10 * claimed
        assert lowest <= way.delta(4.0)


class TestAdaptiveProposals:
    """Proposals within [c, C] of a fixed distribution, chosen by an adversary."""

    NUMBERS = (Binomial(3, 0.5), Binomial(2, 1.0))

    @staticmethod
    def pair(rng):
        """Two candidates of equal probability with two outcomes each."""
        p, q = (
            np.concatenate([rng.dirichlet([1, 1]), rng.dirichlet([1, 1])]) / 2
            for _ in range(2)
        )
        return 0.7 * p + 0.3 * q, 0.3 * p + 0.7 * q

    @pytest.mark.parametrize("count", NUMBERS, ids=repr)
    @pytest.mark.parametrize("seed", range(4))
    def test_is_above_every_rule(self, count, seed):
        rng = np.random.default_rng(seed)
        p, q = self.pair(rng)
        order = rng.permutation(4)  # of the scores
        candidate = np.array([0, 0, 1, 1])[order]
        bound = selection_bound(exact_profile(p, q), count, (0.5, 1.5))
        numbers = count.probabilities(count.most)
        for _ in range(40):
            sign = {}

            def rule(history, sign=sign):
                if history not in sign:
                    sign[history] = rng.choice([-0.5, 0.5])
                return np.where(candidate == 0, 1 + sign[history], 1 - sign[history])

            a, b = (adaptive_selected(x[order], rule, numbers) for x in (p, q))
            assert a.sum() == pytest.approx(1 - numbers[0])
            for epsilon in (0.0, 0.5, 1.0):
                delta = max(hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon))
                assert delta <= bound.delta(epsilon) + 1e-12

    @pytest.mark.parametrize("count", NUMBERS, ids=repr)
    def test_densities_stay_between_their_bounds(self, count):
        rng = np.random.default_rng(5)
        p = np.array([0.3, 0.3, 0.2, 0.2])  # the candidates alternate
        numbers = count.probabilities(count.most)
        preferred = np.array([1.5, 0.5, 1.5, 0.5])
        lowest, largest = np.full(4, np.inf), np.zeros(4)
        for _ in range(60):
            rules = {}

            def rule(history, rules=rules):
                default = preferred if rng.uniform() < 0.5 else 2 - preferred
                return rules.setdefault(history, default)

            found = adaptive_selected(p, rule, numbers)
            lowest, largest = np.minimum(lowest, found), np.maximum(largest, found)
        ends = np.append(0.0, np.cumsum(p))
        for i in range(4):
            f = np.linspace(ends[i], ends[i + 1], 1001)
            up = np.minimum(1.5 * f, 1 - 0.5 * (1 - f))
            down = np.maximum(0.5 * f, 1 - 1.5 * (1 - f))
            high = 1.5 * trapezoid(np.exp(count.log_slope(up)), f)
            low = 0.5 * trapezoid(np.exp(count.log_slope(down)), f)
            assert low * (1 - 1e-6) <= lowest[i] <= largest[i] <= high * (1 + 1e-6)

    @pytest.mark.parametrize("count", [Poisson(3.0), Binomial(3, 0.9)], ids=repr)
    def test_largest_ratio_by_brute_force(self, count):
        low, high, epsilon = 0.6, 1.7, 0.4
        f = np.linspace(1e-6, 1.0, 200_001)
        other = np.maximum(math.exp(-epsilon) * f, 1 - math.exp(epsilon) * (1 - f))
        up = np.minimum(high * f, 1 - low * (1 - f))
        down = np.maximum(low * other, 1 - high * (1 - other))
        losses = count.log_slope(up) - count.log_slope(down) + math.log(high / low)
        found = largest_log_ratio(epsilon, count, (low, high))
        assert losses.max() <= found <= losses.max() + 2e-3

    def test_proposals_can_learn_the_data(self):
        # Each run releases a bit of the data by randomized response. Scores are
        # independent of everything, so that the best run is a random one. Proposals
        # prefer one of two candidates by the majority of the bits so far: the released
        # candidate tells more than a selection that does not adapt would.
        epsilon, size, most = 0.5, 0.9, 3000
        count = TruncatedNegativeBinomial(100.0, 1.0)
        truth = 1 / (1 + math.exp(-epsilon))
        before = np.arange(most)
        lead = binom.sf(before / 2, before, truth) - binom.cdf(
            np.ceil(before / 2) - 1, before, truth
        )
        preferred = (1 + size * lead) / 2  # the chance of one candidate in each run
        means = np.cumsum(preferred) / (before + 1)
        numbers = count.probabilities(most)[1:]
        chosen = numbers @ means / numbers.sum()
        loss = math.log(chosen / (1 - chosen)) + epsilon
        assert loss > epsilon + largest_log_ratio(epsilon, count)
        assert loss < epsilon + largest_log_ratio(epsilon, count, (1 - size, 1 + size))
        plain = selection_bound(Profile.of_pure(epsilon), count)
        fair = selection_bound(Profile.of_pure(epsilon), count, (1 - size, 1 + size))
        p = np.outer([chosen, 1 - chosen], [truth, 1 - truth]).ravel()
        q = np.outer([1 - chosen, chosen], [1 - truth, truth]).ravel()
        assert plain.delta(1.6) < hockey_stick(p, q, 1.6) < fair.delta(1.6)

    def test_without_freedom_nothing_is_added(self):
        profile = gaussian_profile(0.5)
        same = selection_bound(profile, GEOMETRIC, (1.0, 1.0)).epsilon(1e-5)
        little = selection_bound(profile, GEOMETRIC, (0.999, 1.001)).epsilon(1e-5)
        more = selection_bound(profile, GEOMETRIC, (0.5, 2.0)).epsilon(1e-5)
        assert same < little < same + 0.02
        assert little < more


class TestPureRuns:
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
    def test_poisson_closed_form(self, epsilon):
        # T(t) = e^epsilon t up to t = 1 / (1 + e^epsilon), where it is mirrored.
        found = largest_log_ratio(epsilon, Poisson(7.0))
        assert found == pytest.approx(7 * math.tanh(epsilon / 2), rel=5e-3)
        assert found >= 7 * math.tanh(epsilon / 2)

    @pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0])
    def test_negative_binomial_closed_form(self, shape):
        count = TruncatedNegativeBinomial(9.0, shape)
        gamma, odds = count.gamma, math.exp(0.7)
        tails = gamma + (1 - gamma) * np.array([odds, 1.0]) / (1 + odds)
        exact = (shape + 1) * math.log(tails[0] / tails[1])
        found = largest_log_ratio(0.7, count)
        assert exact <= found <= exact + 2e-3
        assert found <= (shape + 1) * 0.7

    @pytest.mark.parametrize("count", COUNTS, ids=repr)
    @pytest.mark.parametrize("ratios", [(1.0, 1.0), (0.8, 1.3)])
    def test_bounds_every_order_of_randomized_response(self, count, ratios):
        odds = math.exp(0.7)
        p, q = np.array([odds, 1, 1]), np.array([1, 1, odds])
        p, q = p / p.sum(), q / q.sum()
        total = 0.7 + largest_log_ratio(0.7, count, ratios)
        for order in itertools.permutations(range(3)):
            a, b = (selected(x[list(order)], count, 50) for x in (p, q))
            assert np.abs(np.log(a / b)).max() <= total + 1e-9


class TestRenyi:
    @pytest.mark.parametrize("count", COUNTS, ids=repr)
    def test_is_above_the_truth(self, count):
        rng = np.random.default_rng(3)
        p, q = random_pair(rng, 6, 0.3)
        orders = RDP_ORDERS[:20]
        base = np.max(
            [
                [np.log((a**o * b ** (1 - o)).sum()) / (o - 1) for o in orders]
                for a, b in ((p, q), (q, p))
            ],
            axis=0,
        )
        bound = selection_bound(exact_profile(p, q), count).rdp(orders, base)
        silent = count.probabilities(0)[0]
        for order in (np.argsort(p / q), np.argsort(q / p)):
            a, b = (selected(x[order], count, 20) for x in (p, q))
            for one, other in ((a, b), (b, a)):
                moments = [silent + (one**o * other ** (1 - o)).sum() for o in orders]
                assert (np.log(moments) / (orders - 1) <= bound + 1e-9).all()

    def test_is_finite_without_a_floor(self):
        profile, base = gaussian_profile(0.3), RDP_ORDERS * 0.3**2 / 2
        assert np.isfinite(
            selection_bound(profile, GEOMETRIC).rdp(RDP_ORDERS, base)
        ).all()


class TestNumerics:
    def test_epsilon_inverts_delta(self):
        bound = selection_bound(gaussian_profile(0.5), GEOMETRIC)
        for delta in (0.9, 1e-3, 1e-9):
            epsilon = bound.epsilon(delta)
            assert bound.delta(epsilon) <= delta
            if epsilon > 0:
                assert bound.delta(epsilon - 1e-6) > delta
        assert bound.epsilon(1e-40) == math.inf

    def test_many_deltas_at_once(self):
        way = selection_bound(gaussian_profile(0.5), GEOMETRIC).ways[0]
        epsilons = np.linspace(0.0, 5.0, 3000)
        found = way.deltas(epsilons)
        assert found[::500] == pytest.approx([way.delta(e) for e in epsilons[::500]])

    def test_what_may_never_be_returned_counts_in_full(self):
        # Losses are infinite with probability 0.01. The worst of two runs may then be
        # impossible on the other data set: g(T(t)) = 0 up to 1 - t = 0.01.
        profile = Profile.of_losses(LossComposition([(approx_pair(0.5, 0.01), 1)]))
        way = selection_bound(profile, Binomial(2, 1.0)).ways[0]
        assert way.weights.sum() == pytest.approx(2.0)
        assert way.weights[way.shifts == math.inf].sum() == pytest.approx(
            0.02, rel=0.02
        )
        assert 1 - 0.99**2 <= way.delta(50.0) <= 0.041

    def test_slopes_that_underflow(self):
        # z^39 is zero in double precision: no pure or Renyi bound, but a delta.
        count = AtMost(AtLeast(Poisson(4.0), 40), 50)
        assert largest_log_ratio(0.1, count) == math.inf
        bound = selection_bound(gaussian_profile(0.1), count)
        assert (bound.rdp(RDP_ORDERS, RDP_ORDERS * 0.005) == math.inf).all()
        assert gaussian_delta(0.1, count, 2.0) <= bound.delta(2.0) < 1

    def test_weights_sum_to_the_mean(self):
        for count in COUNTS:
            way = selection_bound(gaussian_profile(0.5), count).ways[0]
            assert way.weights.sum() == pytest.approx(count.mean)

    def test_gaussian_limit(self):
        # Hardly any run is repeated: the bound tends to that of one run.
        bound = selection_bound(
            gaussian_profile(0.5), TruncatedNegativeBinomial(1.001, 1)
        )
        one = curves.gdp_epsilon(0.5, 1e-5)
        assert one < bound.epsilon(1e-5) < one + 0.01
