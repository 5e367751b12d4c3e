"""The event of a selection: views, composition, records and misuse."""

import json
import math
from types import SimpleNamespace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PrivacyAccountant, PureDP
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.privacy import (
    ApproxEvent,
    AssumedEvent,
    AtLeast,
    Binomial,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    Poisson,
    PoissonGaussianEvent,
    PrivacyEvent,
    PureEvent,
    SelectionEvent,
    TruncatedNegativeBinomial,
    ZCDPEvent,
)
from botorch_dp.privacy.events import RDP_ORDERS
from botorch_dp.privacy.loss_composition import LossComposition
from botorch_dp.privacy.profiles import Profile
from botorch_dp.privacy.selection import TRADE_OFF, _published_rdp, base_profile
from botorch_dp.privacy.selection_bounds import selection_bound
from tests.privacy.cases import EVENTS, account, delta_of_losses
from tests.privacy.selection_cases import COUNTS, GEOMETRIC, gaussian_delta

GAUSSIAN = GaussianEvent(2.0)
TRAINING = ((PoissonGaussianEvent(1.1, 256 / 60_000), 14_062),)
FLOOR = AtLeast(TruncatedNegativeBinomial(15.0, 1.0), 2)


def negative_binomials(mean):
    shapes = (1.0, 0.5, 0.0)
    return [TruncatedNegativeBinomial(mean, shape) for shape in shapes]


class TestPublishedNumbers:
    """DP-SGD with rate 256 / 60,000, 14,062 steps and noise 1.1, at delta = 1e-5."""

    # The bound with one shift, for both directions alike, and the one used here.
    @pytest.mark.parametrize(
        ("mean", "one_shift", "used"),
        [
            (5.0, (3.73, 3.32, 3.27, 3.19), (3.51, 3.19, 3.15, 3.09)),
            (16.0, (6.35, 3.98, 3.84, 3.66), (5.63, 3.79, 3.67, 3.53)),
            (100.0, (25.4, 4.94, 4.63, 4.30), (17.24, 4.66, 4.40, 4.13)),
        ],
    )
    def test_trade_off(self, mean, one_shift, used):
        groups = frozenset(TRAINING)
        profile = base_profile(groups)
        worst = np.maximum(profile.deltas, profile.reverse)
        symmetric = Profile(profile.epsilons, worst, worst)
        counts = [Poisson(mean), *negative_binomials(mean)]
        for count, published, expected in zip(counts, one_shift, used, strict=True):
            t = np.append(np.geomspace(1e-9, 0.1, 5000), np.linspace(0.1, 1.0, 5000))
            other = symmetric.other_share(t, 1 - t)
            shift = np.max(count.log_slope(1 - t) - count.log_slope(other))
            grid = np.arange(0.0, 40.0, 1e-3)
            deltas = count.mean * symmetric.delta(grid - shift)
            epsilon = grid[np.argmax(deltas <= 1e-5)]
            assert epsilon == pytest.approx(published, rel=1e-2)
            event = SelectionEvent(TRAINING, count)
            assert event.epsilon_at(1e-5) == pytest.approx(expected, abs=0.02)
            assert event.epsilon_at(1e-5) < epsilon
            *_, (_, method) = event.bounds_at(1e-5)
            assert method == TRADE_OFF

    def test_floors(self):
        found = SelectionEvent(TRAINING, FLOOR).epsilon_at(1e-5)
        without = SelectionEvent(TRAINING, TruncatedNegativeBinomial(16.0, 1.0))
        assert without.epsilon_at(1e-5) < found < without.epsilon_at(1e-5) + 0.03

    @pytest.mark.parametrize("mean", [5.0, 16.0, 100.0])
    def test_renyi_of_dp_accounting(self, mean):
        step = dp_accounting.PoissonSampledDpEvent(
            256 / 60_000, dp_accounting.GaussianDpEvent(1.1)
        )
        run = dp_accounting.SelfComposedDpEvent(step, 14_062)
        shapes = [(math.inf, Poisson(mean))]
        shapes += [(count.shape, count) for count in negative_binomials(mean)]
        for shape, count in shapes:
            accountant = RdpAccountant(RDP_ORDERS)
            accountant.compose(dp_event.RepeatAndSelectDpEvent(run, mean, shape))
            theirs = accountant.get_epsilon(1e-5)
            event = SelectionEvent(TRAINING, count)
            assert (event.rdp() <= accountant.rdp * (1 + 1e-9)).all()
            ours, _ = compute_epsilon(RDP_ORDERS, event.rdp(), 1e-5)
            assert ours <= theirs * (1 + 1e-9)
            assert event.epsilon_at(1e-5) < theirs

    def test_poisson_with_delta_from_the_profile(self):
        # Theorem 6 of Papernot and Steinke by hand, at one order.
        event = SelectionEvent(TRAINING, Poisson(16.0))
        index, order = 7, RDP_ORDERS[7]
        base = 14_062 * TRAINING[0][0].rdp()[index]
        delta = account(*TRAINING).get_delta(math.log1p(1 / (order - 1)))
        expected = base + 16 * delta + math.log(16) / (order - 1)
        assert event.rdp()[index] <= expected * (1 + 1e-3)


class TestViews:
    @pytest.mark.parametrize("event", EVENTS, ids=repr)
    def test_one_run_is_the_run(self, event):
        once = SelectionEvent(((event, 3),), Binomial(1, 1.0))
        run = account((event, 3))
        for delta in (1e-3, 1e-6):
            found, expected = once.epsilon_at(delta), run.get_epsilon(delta)
            assert found == pytest.approx(expected, rel=0.02, abs=1e-3)
        assert once.gdp_mu is None

    @pytest.mark.parametrize("count", COUNTS, ids=repr)
    def test_views_bound_the_truth(self, count):
        event = SelectionEvent(GAUSSIAN, count)
        for epsilon in (0.3, 1.0, 2.5):
            truth = gaussian_delta(0.5, count, epsilon) * (1 - 1e-6)  # integration
            assert event.delta_at(epsilon) >= truth
            for way in event.loss_pair().ways:
                assert delta_of_losses(way, epsilon) >= truth
            assert account((event, 1)).get_delta(epsilon) >= truth

    def test_delta_inverts_epsilon(self):
        event = SelectionEvent(GAUSSIAN, GEOMETRIC)
        assert event.delta_at(event.epsilon_at(1e-6)) == pytest.approx(1e-6, rel=1e-3)

    def test_the_method_is_named(self):
        event = SelectionEvent(GAUSSIAN, GEOMETRIC)
        assert account((event, 1)).spent(1e-5).method == TRADE_OFF

    @pytest.mark.parametrize("order", [1.5, 2.0, 7.3, 64.0, 70.0, 1024.0])
    def test_renyi_at_any_order(self, order):
        event = SelectionEvent(GAUSSIAN, GEOMETRIC)
        found = event.rdp_at(order)
        upper = int(np.searchsorted(RDP_ORDERS, order))
        assert found <= event.rdp()[upper] * (1 + 1e-12)
        if order in RDP_ORDERS:
            assert found == pytest.approx(event.rdp()[upper])
        assert event.rdp_at(2000.0) == math.inf

    def test_renyi_with_adaptive_proposals(self):
        plain = SelectionEvent(GAUSSIAN, GEOMETRIC)
        free = SelectionEvent(GAUSSIAN, GEOMETRIC, (0.2, 3.0))
        # At a large order the loss alone counts: its bound has grown by log(C / c).
        assert free.rdp()[-1] > plain.rdp()[-1] + math.log(3.0 / 0.2)

    def test_pure_runs(self):
        event = SelectionEvent(PureEvent(0.5), TruncatedNegativeBinomial(10.0, 1.0))
        # Geometric with gamma = 0.1, at the odds of randomized response.
        high = 1 / (1 + math.exp(-0.5))
        exact = 0.5 + 2 * math.log((0.1 + 0.9 * high) / (0.1 + 0.9 * (1 - high)))
        assert exact <= event.pure_epsilon <= exact * 1.001 < 3 * 0.5
        assert event.zcdp_rho is not None
        assert event.approx == (event.pure_epsilon, 0.0)
        assert event.rdp_at(2000.0) <= event.pure_epsilon
        assert event.epsilon_at(1e-12) <= event.pure_epsilon
        both = ((LaplaceEvent(4.0), 1), (PureEvent(0.25), 1))
        same = SelectionEvent(both, TruncatedNegativeBinomial(10.0, 1.0))
        assert same.pure_epsilon == pytest.approx(event.pure_epsilon)
        assert SelectionEvent(GAUSSIAN, GEOMETRIC).pure_epsilon is None
        mixed = SelectionEvent(((GAUSSIAN, 1), (PureEvent(0.1), 1)), GEOMETRIC)
        assert mixed.pure_epsilon is None

    def test_runs_without_a_loss_distribution(self):
        event = SelectionEvent(ZCDPEvent(0.05), GEOMETRIC)
        best = SelectionEvent(GaussianEvent(math.sqrt(10.0)), GEOMETRIC)
        ratio = event.epsilon_at(1e-5) / best.epsilon_at(1e-5)
        assert 1.0 < ratio < 1.3

    @settings(deadline=None, max_examples=20)
    @given(
        noise=st.floats(0.5, 20.0),
        mean=st.floats(1.0, 50.0),
        shape=st.floats(-0.5, 3.0),
    )
    def test_monotone(self, noise, mean, shape):
        def epsilon(noise, mean, ratios=(1.0, 1.0)):
            count = TruncatedNegativeBinomial(mean, shape)
            return SelectionEvent(GaussianEvent(noise), count, ratios).epsilon_at(1e-5)

        found = epsilon(noise, mean)
        assert epsilon(1.2 * noise, mean) <= found
        assert found <= epsilon(noise, 1.2 * mean) + 1e-3
        assert found <= epsilon(noise, mean, (0.8, 1.25))
        assert found >= GDP(1 / noise).epsilon(1e-5) * (1 - 1e-3)


class TestRounding:
    def test_of_fourier_transforms(self):
        """The loss of n randomized responses is binomial."""
        epsilon, number = 0.02, 5000
        base = ((PureEvent(epsilon), number),)
        times = np.arange(number + 1)
        log_share = -np.log1p(math.exp(-epsilon))
        log_choose = gammaln(number + 1) - gammaln(times + 1)
        log_choose = log_choose - gammaln(number - times + 1)
        probs = np.exp(log_choose + number * log_share - (number - times) * epsilon)
        losses = (2 * times - number) * epsilon
        profile = base_profile(frozenset(base))
        for at in np.linspace(7.0, 15.0, 41):  # delta from 1e-5
            true = probs @ np.maximum(0.0, -np.expm1(np.minimum(at - losses, 0.0)))
            bound = float(profile.delta(np.array(at)))
            assert true <= bound <= 1.01 * true + 2**-50 * number

    def test_not_where_nothing_is_transformed(self):
        for base in ((GaussianEvent(1.0), 9), (PureEvent(1.0), 1)):
            assert base_profile(frozenset({base})).deltas[-1] < 1e-20

    def test_published_bounds_use_both_directions(self):
        count = Poisson(16.0)
        profile = base_profile(frozenset({(PoissonGaussianEvent(1.0, 0.1), 20)}))
        found = []
        for one in (profile, profile.reversed()):
            bound = selection_bound(one, count)
            event = SimpleNamespace(count=count, bound=bound)
            found.append(_published_rdp(event, np.ones_like(RDP_ORDERS)))
        assert not profile.is_symmetric
        np.testing.assert_array_equal(*found)


class TestComposition:
    def test_several_selections_are_a_loop(self):
        event = SelectionEvent(GAUSSIAN, GEOMETRIC)
        many = account((event, 3)).get_epsilon(1e-5)
        pair = event.loss_pair()
        loop = LossComposition([(pair, 1), (pair, 1), (pair, 1)]).epsilon(1e-5)
        assert many == pytest.approx(loop, rel=1e-9)
        assert event.epsilon_at(1e-5) < many < 3 * event.epsilon_at(1e-5)

    def test_composition_bounds_the_truth(self):
        # Two selections by one run each are a Gaussian release of both.
        once = SelectionEvent(GAUSSIAN, Binomial(1, 1.0))
        exact = GDP(math.sqrt(3) / 2).epsilon(1e-5)
        for history in ([(once, 3)], [(once, 2), (GAUSSIAN, 1)]):
            found = account(*history).get_epsilon(1e-5)
            assert exact <= found <= exact * 1.002

    @pytest.mark.parametrize("other", EVENTS, ids=repr)
    @pytest.mark.parametrize("count", [GEOMETRIC, FLOOR, Poisson(8.0)], ids=repr)
    def test_beside_every_event(self, other, count):
        event = SelectionEvent(GAUSSIAN, count)
        found = account((event, 1), (other, 1)).get_epsilon(1e-4)
        alone = event.epsilon_at(1e-4)
        assert alone < found
        assert found < alone + account((other, 1)).get_epsilon(1e-5) + 0.3
        assert account((event, 1), (other, 1)).get_delta(found) <= 1e-4 * 1.2

    def test_directions_are_composed_apart(self):
        event = SelectionEvent(((PoissonGaussianEvent(0.84, 0.02), 500),), GEOMETRIC)
        assert len(event.bound.ways) == 2
        for way, losses in zip(event.bound.ways, event.loss_pair().ways, strict=True):
            assert delta_of_losses(losses, 3.0) == pytest.approx(
                way.delta(3.0), rel=1e-2
            )
        first, second = (way.delta(3.0) for way in event.bound.ways)
        assert abs(math.log(first / second)) > 0.1

    def test_nested(self):
        inner = SelectionEvent(GAUSSIAN, TruncatedNegativeBinomial(3.0, 1.0))
        outer = SelectionEvent(inner, TruncatedNegativeBinomial(3.0, 1.0))
        assert inner.epsilon_at(1e-5) < outer.epsilon_at(1e-5) < 40
        once = SelectionEvent(inner, Binomial(1, 1.0))
        assert once.epsilon_at(1e-5) == pytest.approx(inner.epsilon_at(1e-5), rel=2e-3)


class TestRecords:
    EVENT = SelectionEvent(
        ((PoissonGaussianEvent(2.0, 0.1), 10), (GAUSSIAN, 1)), FLOOR, (0.5, 1.5)
    )

    def test_json(self):
        state = json.loads(json.dumps(self.EVENT.to_dict()))
        again = PrivacyEvent.from_dict(state)
        assert again == self.EVENT
        assert hash(again) == hash(self.EVENT)
        nested = SelectionEvent(self.EVENT, GEOMETRIC)
        assert (
            PrivacyEvent.from_dict(json.loads(json.dumps(nested.to_dict()))) == nested
        )

    def test_the_order_of_releases_does_not_matter(self):
        one = SelectionEvent(((GAUSSIAN, 2), (PureEvent(0.1), 1)), GEOMETRIC)
        other = SelectionEvent(
            [(PureEvent(0.1), 1), (GAUSSIAN, 1), (GAUSSIAN, 1)], GEOMETRIC
        )
        assert one == other

    def test_a_ledger_reopens_it(self, tmp_path):
        path = tmp_path / "ledger.db"
        event = SelectionEvent(GAUSSIAN, GEOMETRIC)
        ledger = Ledger(path)
        ledger.charge(event, mechanism="selection")
        again = Ledger(path)
        assert again.entries[0].event == event
        found = again.accountant().get_epsilon(1e-5)
        assert found == pytest.approx(event.epsilon_at(1e-5), rel=1e-6)

    def test_accountants_keep_it(self):
        accountant = account((self.EVENT, 2))
        again = PrivacyAccountant()
        again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
        assert again.groups() == accountant.groups()

    def test_adjacencies(self):
        assert self.EVENT.adjacencies == ("zero_out", "add_or_remove_one")
        fixed = FixedSizeGaussianEvent(2.0, 10, 100)
        assert SelectionEvent(fixed, GEOMETRIC).adjacencies == ("replace_one",)
        accountant = PrivacyAccountant()
        with pytest.raises(InvalidArgumentError, match="adjacency must be one of"):
            accountant.charge(self.EVENT, adjacency="replace_one")
        accountant.charge(self.EVENT, adjacency="zero_out")


class TestCaps:
    def test_exact_accounting_of_one_selection(self, make_ledger):
        event = SelectionEvent(GAUSSIAN, FLOOR)
        epsilon = event.epsilon_at(1e-5)
        ledger = make_ledger(ApproxDP(epsilon * 1.001, 1e-5))
        ledger.reserve([(event, 1)])
        ledger.charge(event)
        with pytest.raises(BudgetExceededError):
            ledger.charge(event)

    @pytest.mark.parametrize(
        "cap", [ApproxDP(20.0, 1e-5), RDP(4.0, 10.0), PureDP(5.0), GDP(8.0)], ids=repr
    )
    def test_pure_selections_fit_every_cap(self, cap):
        ledger = Ledger(cap=cap)
        ledger.charge(SelectionEvent(PureEvent(0.2), GEOMETRIC))

    def test_gaussian_selections_fit_renyi_caps(self):
        event = SelectionEvent(GaussianEvent(10.0), GEOMETRIC)
        Ledger(cap=RDP(8.0, 5.0)).charge(event)
        Ledger(cap=ApproxDP(5.0, 1e-5)).charge(event)
        for cap in (GDP(5.0), PureDP(5.0)):
            with pytest.raises(BudgetExceededError):
                Ledger(cap=cap).charge(event)


class TestMisuse:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: SelectionEvent((), GEOMETRIC), "base must contain at least one"),
            (
                lambda: SelectionEvent("run", GEOMETRIC),
                "base must be pairs of an event",
            ),
            (lambda: SelectionEvent(3, GEOMETRIC), "base must be pairs of an event"),
            (
                lambda: SelectionEvent((GAUSSIAN,), GEOMETRIC),
                "got the element Gaussian",
            ),
            (
                lambda: SelectionEvent(((1, 2),), GEOMETRIC),
                "base must be a PrivacyEvent",
            ),
            (
                lambda: SelectionEvent(((GAUSSIAN, 0),), GEOMETRIC),
                "base must be a whole",
            ),
            (lambda: SelectionEvent(GAUSSIAN, 16), "count must be a Count"),
            (
                lambda: SelectionEvent(AssumedEvent(0.1, 1e-6), GEOMETRIC),
                "must be independent: no bound is known",
            ),
            (
                lambda: SelectionEvent(GAUSSIAN, GEOMETRIC, (1.2, 2.0)),
                "proposal_ratios must be numbers c <= 1 <= C",
            ),
            (
                lambda: SelectionEvent(GAUSSIAN, GEOMETRIC, (0.0, 2.0)),
                "proposal_ratios must be a finite number above 0",
            ),
            (
                lambda: SelectionEvent(GAUSSIAN, GEOMETRIC, 0.5),
                "proposal_ratios must be two numbers",
            ),
        ],
    )
    def test_names_the_argument(self, make, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make()

    def test_known_deltas_are_allowed(self):
        event = SelectionEvent(ApproxEvent(0.5, 1e-7), GEOMETRIC)
        assert event.epsilon_at(1e-5) < 2.0
        assert event.delta_at(100.0) == pytest.approx(8e-7, rel=1e-3)

    def test_known_deltas_are_composed(self):
        event = SelectionEvent(ApproxEvent(0.5, 1e-7), GEOMETRIC)
        assert account((event, 2)).get_delta(100.0) == pytest.approx(16e-7, rel=1e-2)
