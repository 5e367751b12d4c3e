"""Filters hold an adversary that chooses the next release after seeing the last one."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import BudgetExceededError
from botorch_dp.privacy import (
    ApproxEvent,
    AssumedEvent,
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PrivacyAccountant,
    PureEvent,
    ZCDPEvent,
    curves,
)
from botorch_dp.privacy.filters import (
    RenyiMixtureFilter,
    _logsumexp,
    make_filter,
)

CAP = ApproxDP(1.0, 1e-5)
MU = 0.1  # of the first release


def pure_profile(epsilon, count):
    """Hockey-stick divergence of ``count`` randomized responses, at any exponent."""
    wins = np.arange(count + 1)
    upper = math.exp(epsilon) / (1 + math.exp(epsilon))
    p, q = binom.pmf(wins, count, upper), binom.pmf(wins, count, 1 - upper)
    return lambda at: np.clip(p - np.exp(np.asarray(at))[:, None] * q, 0, None).sum(-1)


def sampled_profile(z, rate, count):
    """The same of Poisson-sampled Gaussian releases, record present against absent."""
    x = np.linspace(-10 * z, 10 * z + 2, 1001)
    q = norm.pdf(x, scale=z) * (x[1] - x[0])
    p = (1 - rate) * q + rate * norm.pdf(x, loc=1, scale=z) * (x[1] - x[0])
    for _ in range(count - 1):
        p, q = np.outer(p, p).ravel(), np.outer(q, q).ravel()
    loss = np.log(p / q)
    order = np.argsort(loss)[::-1]
    above_p, above_q = (np.append(0.0, np.cumsum(v[order])) for v in (p, q))

    def profile(at):
        count_above = np.searchsorted(-loss[order], -np.asarray(at))
        return above_p[count_above] - np.exp(at) * above_q[count_above]

    return profile


# How an adversary may go on: what it charges for a strength s, and what that does.
OPTIONS = {
    "one pure release": (
        lambda s: [(PureEvent(s), 1)],
        lambda s: pure_profile(s, 1),
    ),
    "ten pure releases": (
        lambda s: [(PureEvent(s), 10)],
        lambda s: pure_profile(s, 10),
    ),
    "two sampled releases": (
        lambda s: [(PoissonGaussianEvent(1 / s, 0.05), 2)],
        lambda s: sampled_profile(1 / s, 0.05, 2),
    ),
}


def gaussian_losses():
    """The privacy losses of the first release, and their probabilities."""
    loss = np.linspace(-8, 8, 801) * MU + MU**2 / 2
    return loss, norm.pdf(loss, loc=MU**2 / 2, scale=MU) * (loss[1] - loss[0])


def true_delta(admits, losses=gaussian_losses):
    """Return what the adversary's best choice after every answer really costs.

    Args:
        admits: Whether the cap lets the adversary charge a list of releases after the
            first one.
        losses: The privacy losses of the first release, and their probabilities.
    """
    loss, probability = losses()
    best = np.clip(-np.expm1(CAP.epsilon - loss), 0, None)  # it may stop as well
    for charge, profile in OPTIONS.values():
        if not admits(charge(1e-3)):
            continue
        strength = brentq(
            lambda s, charge=charge: 0.5 - admits(charge(s)), 1e-3, 5.0, xtol=1e-6
        )
        best = np.maximum(best, profile(0.99999 * strength)(CAP.epsilon - loss))
    return float((best * probability).sum())


def filter_admits(name, first):
    ledger = Ledger(cap=CAP, filter=name)
    ledger.charge(first, adjacency="zero_out")

    def admits(releases):
        try:
            ledger.reserve(releases, adjacency="zero_out")
        except BudgetExceededError:
            return False
        return True

    return admits


class TestAdversary:
    def test_the_smallest_of_several_bounds_is_no_filter(self):
        # What a ledger did before it had filters: every option fits by itself.
        def admits(releases):
            accountant = PrivacyAccountant()
            accountant.compose(GaussianEvent(1 / MU))
            for event, count in releases:
                accountant.compose(event, count)
            return accountant.within(CAP)

        assert true_delta(admits) > 2 * CAP.delta

    @pytest.mark.parametrize("name", ["gdp", "renyi"])
    def test_is_held(self, name):
        spent = true_delta(filter_admits(name, GaussianEvent(1 / MU)))
        assert spent <= CAP.delta
        assert spent > CAP.delta / 1e6  # and it did get something

    def test_is_held_by_basic_composition(self):
        def losses():  # of a randomized response
            truth = 1 / (1 + math.exp(-0.1))
            return np.array([0.1, -0.1]), np.array([truth, 1 - truth])

        spent = true_delta(filter_admits("basic", PureEvent(0.1)), losses)
        assert spent <= CAP.delta

    def test_is_held_by_a_gaussian_cap(self):
        ledger = Ledger(cap=GDP(CAP.to_gdp().mu))
        ledger.charge(GaussianEvent(1 / MU), adjacency="zero_out")

        def admits(releases):
            return all(ledger.allows(event, count) for event, count in releases)

        assert true_delta(admits) <= CAP.delta

    def test_many_rounds_of_gaussian_noise_that_follow_the_losses(self):
        # A binary tree: after every answer the adversary chooses between a large and a
        # small release, greedily spending where its loss is already high.
        mu_cap = CAP.to_gdp().mu
        generator = np.random.default_rng(3)
        loss, spent = np.zeros(400_000), np.zeros(400_000)
        for _ in range(12):
            share = np.where(loss > 0.2 * mu_cap, 0.5, 0.1)
            mu2 = share * np.maximum(mu_cap**2 - spent, 0)
            mu = np.sqrt(mu2)
            loss += mu2 / 2 + mu * generator.standard_normal(loss.shape)
            spent += mu2
        for epsilon in (0.2, 0.4, 0.6):
            values = np.clip(-np.expm1(epsilon - loss), 0, None)
            error = values.std() / math.sqrt(len(values))
            assert values.mean() <= curves.gdp_delta(mu_cap, epsilon) + 4 * error


EXACT_EVENTS = st.one_of(
    st.floats(2.0, 100.0).map(GaussianEvent),
    st.floats(0.01, 0.5).map(PureEvent),
    st.floats(5.0, 100.0).map(LaplaceEvent),
    st.floats(1.0, 5.0).map(lambda z: PoissonGaussianEvent(z, 0.05)),
)
EXACT_HISTORIES = st.lists(
    st.tuples(EXACT_EVENTS, st.integers(1, 20)), min_size=1, max_size=3
)
EVENTS = st.one_of(
    EXACT_EVENTS,
    st.floats(0.01, 0.5).map(ExponentialEvent),
    st.floats(1e-4, 0.1).map(ZCDPEvent),
    st.floats(0.01, 0.5).map(lambda e: ApproxEvent(e, 1e-9)),
    st.floats(0.01, 0.5).map(lambda e: AssumedEvent(e, 1e-9)),
)
HISTORIES = st.lists(st.tuples(EVENTS, st.integers(1, 20)), min_size=1, max_size=4)


class TestAmounts:
    @given(EXACT_HISTORIES)
    @settings(max_examples=10, deadline=None)
    def test_a_filter_never_counts_less_than_exact_accounting(self, history):
        accountant = PrivacyAccountant()
        for event, count in history:
            accountant.compose(event, count)
        # Privacy loss distributions round the loss of every release up to a grid of
        # about 1e-4 of the total, so what they report may exceed the truth by as much.
        rounding = 1e-4 * sum(count for _, count in history)
        exact = accountant.get_epsilon(CAP.delta) * (1 - rounding)  # slow: once for all
        for name in ("gdp", "renyi", "basic"):
            counter = make_filter(CAP, name)
            assert counter.spent(counter.total(history)).amount >= exact

    @given(HISTORIES, EVENTS, st.sampled_from(["gdp", "renyi", "basic"]))
    @settings(max_examples=60, deadline=None)
    def test_more_is_never_less(self, history, event, name):
        counter = make_filter(CAP, name)
        before = counter.spent(counter.total(history)).amount
        after = counter.spent(counter.total([*history, (event, 1)])).amount
        assert after >= before - 1e-12

    def test_one_order_is_the_usual_conversion(self):
        counter = RenyiMixtureFilter(CAP)
        orders = np.arange(2.0, 65.0)
        total = counter.total([(GaussianEvent(4.0), 1)])
        delta = 0.95 * CAP.delta
        for index in (0, 10, 40):
            alone = total.copy()
            alone[:-3] = np.inf
            alone[index] = total[index]
            weight = math.exp(counter._log_weights[index])
            order = orders[index]
            expected = (
                total[index]
                + math.log1p(-1 / order)
                - math.log(weight * delta * order) / (order - 1)
            )
            assert counter.spent(alone).amount == pytest.approx(expected)

    @given(st.floats(0.05, 20.0), st.floats(1e-12, 1e-2))
    @settings(max_examples=30, deadline=None)
    def test_the_condition_holds_for_every_loss(self, epsilon, delta):
        cap = ApproxDP(epsilon, delta)
        counter = RenyiMixtureFilter(cap)
        total = counter.total([(GaussianEvent(3.0 / epsilon), 2)])
        amount = counter.spent(total).amount
        orders = np.concatenate(
            [np.arange(2.0, 65.0), [80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0]]
        )
        assert np.exp(counter._log_weights).sum() == pytest.approx(1.0)
        losses = amount + np.geomspace(1e-6, 100.0, 400)
        exponents = counter._log_weights + (orders - 1) * (losses[:, None] - total[:-3])
        mixture = np.logaddexp.reduce(exponents, axis=-1)
        needed = np.log(-np.expm1(amount - losses)) - math.log(0.95 * delta)
        assert (needed <= mixture + 1e-7).all()
        # And for some loss it just holds: nothing is given away.
        assert amount == 0 or (needed - mixture).max() > -1e-2

    def test_pure_releases_add_up_without_loss(self):
        counter = RenyiMixtureFilter(CAP)
        assert counter.spent(counter.total([(PureEvent(0.5), 2)])).amount <= 1.0

    def test_assumed_epsilons_are_added(self):
        counter = RenyiMixtureFilter(CAP)
        known = [(GaussianEvent(10.0), 1)]
        before = counter.spent(counter.total(known)).amount
        assumed = [*known, (AssumedEvent(0.1, 1e-8), 2)]
        after = counter.spent(counter.total(assumed)).amount
        assert after == pytest.approx(before + 0.2)

    def test_deltas_come_from_their_own_share(self):
        counter = RenyiMixtureFilter(CAP)
        fits = counter.spent(counter.total([(ApproxEvent(0.1, 4e-7), 1)])).amount
        assert fits <= 0.1
        assert math.isinf(
            counter.spent(counter.total([(ApproxEvent(0.1, 6e-7), 1)])).amount
        )

    @pytest.mark.parametrize(
        ("cap", "event", "amount"),
        [
            (GDP(1.0), GaussianEvent(4.0), 0.25),
            (GDP(1.0), PoissonGaussianEvent(5.0, 0.1), 0.2),
            (GDP(1.0), ZCDPEvent(0.1), math.inf),
            (RDP(8.0, 1.0), GaussianEvent(4.0), 0.25),
            (PureDP(1.0), PureEvent(0.3), 0.3),
            (PureDP(1.0), GaussianEvent(4.0), math.inf),
            (PureDP(1.0), ApproxEvent(0.3, 1e-9), math.inf),
        ],
    )
    def test_other_caps_have_one_filter_each(self, cap, event, amount):
        counter = make_filter(cap, "")
        spent = counter.spent(counter.total([(event, 1)]))
        assert spent.amount == pytest.approx(amount)
        assert counter.spent(counter.total([])).amount == 0.0

    @pytest.mark.parametrize("name", ["gdp", "renyi", "basic"])
    def test_nothing_costs_nothing(self, name):
        counter = make_filter(CAP, name)
        assert counter.spent(counter.total([])).amount == 0.0


def exact_gaussian_delta(mu, epsilon):
    """Delta of mu-GDP at ``epsilon``, with 60 digits."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


class TestWithin:
    """Whether a total fits is decided without epsilon where that is clear."""

    @pytest.mark.parametrize(
        ("epsilon", "delta"),
        [
            (1e-3, 1e-9),
            (0.1, 1e-5),
            (1.0, 1e-5),
            (8.0, 1e-12),
            (50.0, 1e-5),
            (1.0, 0.9),
        ],
    )
    def test_gaussian_totals_near_the_cap(self, epsilon, delta):
        counter = make_filter(ApproxDP(epsilon, delta), "gdp")
        mu = curves.gdp_mu(epsilon, delta)
        for change in (-0.5, -1e-3, -1e-5, -2e-6, -5e-7, -1e-7, 1e-7, 1e-6, 1e-3, 9.0):
            total = np.array([(mu * (1 + change)) ** 2])
            fits = counter.within(total, epsilon)
            assert fits == counter.spent(total).within(epsilon)
            if abs(change) > 1e-6:  # otherwise a question of rounding
                exact = exact_gaussian_delta(mu * (1 + change), epsilon)
                assert fits == (exact <= delta)

    def test_nothing_and_what_is_unknown(self):
        counter = make_filter(CAP, "gdp")
        assert counter.within(np.zeros(1), CAP.epsilon)
        assert not counter.within(counter.total([(ZCDPEvent(1e-9), 1)]), CAP.epsilon)
        assert not counter.within(
            counter.total([(GaussianEvent(1e-9), 1)]), CAP.epsilon
        )

    @pytest.mark.parametrize("name", ["gdp", "renyi", "basic"])
    def test_releases_one_by_one_or_together(self, name):
        counter = make_filter(CAP, name)
        plan = [(PureEvent(0.01), 3), (LaplaceEvent(50.0), 2), (PureEvent(0.02), 1)]
        costs = [counter.cost(event) for event, count in plan for _ in range(count)]
        assert counter.total(plan) == pytest.approx(sum(costs), rel=1e-12)

    def test_costs_that_are_kept_cannot_be_changed(self):
        cost = make_filter(CAP, "renyi").cost(LaplaceEvent(3.0))
        with pytest.raises(ValueError, match="read-only"):
            cost += 1.0
        assert make_filter(ApproxDP(2.0, 1e-6), "renyi").cost(LaplaceEvent(3.0)) is cost


def test_sums_of_exponentials():
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 30.0, 1e4):
        terms = scale * rng.normal(size=50)
        assert _logsumexp(terms) == pytest.approx(logsumexp(terms), rel=1e-14)
