"""Guarantees against closed forms, high-precision oracles and published numbers."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_dp import GDP, RDP, ApproxDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedConversionError
from botorch_dp.privacy import Guarantee, curves
from tests.privacy.cases import closed_form_conversion

mus = st.floats(1e-4, 50.0)


epsilons = st.floats(1e-4, 50.0)


deltas = st.floats(-12.0, -0.05).map(lambda exponent: 10.0**exponent)


orders = st.floats(1.01, 500.0)


BAD_NUMBERS = [0.0, -1.0, math.nan, math.inf, -math.inf, "1", None, True]


def exact_delta(mu, epsilon):
    """The Gaussian curve with 60 digits."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


class TestGDP:
    @pytest.mark.parametrize(
        ("mu", "epsilon"),
        [
            (0.25, 0.926342),
            (0.5, 1.993091),
            (1.0, 4.377178),
            (2.0, 9.997256),
            (4.0, 24.38161),
        ],
    )
    def test_published_epsilons(self, mu, epsilon):
        assert GDP(mu).epsilon(1e-5) == pytest.approx(epsilon, abs=1e-6)

    @given(mu=mus, epsilon=st.floats(0.0, 100.0))
    def test_delta_against_60_digits(self, mu, epsilon):
        expected = exact_delta(mu, epsilon)
        if expected > 1e-300:
            # Two terms that differ by a factor 1 + O(mu) are subtracted.
            tolerance = 1e-9 + 1e-15 / mu
            assert GDP(mu).delta(epsilon) == pytest.approx(
                float(expected), rel=tolerance
            )

    @given(mu=mus, delta=deltas)
    def test_epsilon_inverts_delta(self, mu, delta):
        epsilon = GDP(mu).epsilon(delta)
        assert epsilon >= 0
        if epsilon > 0:
            assert float(exact_delta(mu, epsilon)) == pytest.approx(delta, rel=1e-8)
        else:
            assert float(exact_delta(mu, 0)) <= delta * (1 + 1e-9)

    @given(mu=mus, factor=st.floats(1.001, 2.0), delta=deltas)
    def test_epsilon_grows_with_mu(self, mu, factor, delta):
        assert GDP(mu).epsilon(delta) <= GDP(mu * factor).epsilon(delta)

    @pytest.mark.parametrize("mu", [1e5, 2e5, 1e9])
    def test_epsilon_of_no_privacy_at_all(self, mu):
        # mu^2 / 2 + mu z, with z the upper 1e-5 quantile 4.26489: larger, hence true.
        assert GDP(mu).epsilon(1e-5) == pytest.approx(
            mu**2 / 2 + 4.26489 * mu, rel=1e-7
        )
        assert GDP(1.0001 * mu).epsilon(1e-5) > GDP(mu).epsilon(1e-5)

    @given(mu=mus, delta=deltas, factor=st.floats(1.001, 10.0))
    def test_epsilon_falls_with_delta(self, mu, delta, factor):
        if delta * factor < 1:
            assert GDP(mu).epsilon(delta) >= GDP(mu).epsilon(delta * factor)

    @pytest.mark.parametrize("mu", [1e-4, 1e-2, 1.0, 50.0])
    @pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.5])
    def test_stable_at_the_corners(self, mu, delta):
        epsilon = GDP(mu).epsilon(delta)
        assert math.isfinite(epsilon)
        assert epsilon >= 0

    def test_far_tail_is_zero_not_nan(self):
        assert GDP(1e-4).delta(1e6) == 0.0

    @given(mu=st.floats(1e-3, 10.0), type_one=st.floats(0.01, 0.99))
    def test_tradeoff_is_the_dual_of_delta(self, mu, type_one):
        # The tradeoff is the upper envelope of 1 - delta - e^epsilon * type_one
        # (Dong et al., Proposition 2.5); its slope there gives the best epsilon.
        guarantee = GDP(mu)
        z = -curves.ndtri(type_one)
        epsilon = mu * z - mu**2 / 2
        if epsilon >= 0:
            envelope = 1 - guarantee.delta(epsilon) - math.exp(epsilon) * type_one
            assert guarantee.tradeoff(type_one) == pytest.approx(envelope, abs=1e-9)

    def test_tradeoff_ends(self):
        assert GDP(1.0).tradeoff(0.0) == 1.0
        assert GDP(1.0).tradeoff(1.0) == 0.0
        with pytest.raises(InvalidArgumentError, match=r"type_one.*1\.5"):
            GDP(1.0).tradeoff(1.5)

    def test_to_rdp_is_that_of_the_gaussian(self):
        assert GDP(0.5).to_rdp(8.0) == RDP(8.0, 1.0)

    @given(mu=st.floats(1e-3, 20.0), type_one=st.floats(1e-6, 1 - 1e-6))
    def test_to_pure_implies_the_tradeoff_curve(self, mu, type_one):
        epsilon = GDP(mu).to_pure().epsilon
        pure_tradeoff = max(
            0.0,
            1 - math.exp(epsilon) * type_one,
            math.exp(-epsilon) * (1 - type_one),
        )
        assert pure_tradeoff >= GDP(mu).tradeoff(type_one) - 1e-12


class TestApproxDP:
    @pytest.mark.parametrize(
        ("epsilon", "delta", "noise_std"),
        [
            (1.0, 0.2, 0.835999),
            (2.0, 0.2, 0.601641),
            (1.0, 1e-5, 3.730632),
            (5.0, 1e-5, 0.891868),
            (10.0, 1e-5, 0.499889),
        ],
    )
    def test_published_noise(self, epsilon, delta, noise_std):
        mu = ApproxDP(epsilon, delta).to_gdp().mu
        assert 1 / mu == pytest.approx(noise_std, abs=1e-6)

    @given(epsilon=epsilons, delta=deltas)
    def test_to_gdp_is_the_largest_within(self, epsilon, delta):
        mu = ApproxDP(epsilon, delta).to_gdp().mu
        assert float(exact_delta(mu, epsilon)) == pytest.approx(delta, rel=1e-8)

    @given(mu=st.floats(1e-3, 50.0), delta=deltas)
    def test_round_trip_through_gdp(self, mu, delta):
        approx = GDP(mu).to_approx(delta)
        if approx.epsilon > 1e-6:
            assert approx.to_gdp().mu == pytest.approx(mu, rel=1e-7)

    @given(epsilon=epsilons, delta=deltas)
    def test_to_pure_is_the_largest_within(self, epsilon, delta):
        pure = ApproxDP(epsilon, delta).to_pure()
        assert pure.epsilon >= epsilon
        assert pure.delta(epsilon) == pytest.approx(delta, rel=1e-6, abs=2e-14)

    def test_to_approx_only_weakens(self):
        guarantee = ApproxDP(1.0, 1e-5)
        assert guarantee.to_approx(1e-5) == guarantee
        assert guarantee.to_approx(1e-2).epsilon < 1.0
        with pytest.raises(UnsupportedConversionError, match="smaller delta=1e-06"):
            guarantee.to_approx(1e-6)

    def test_to_approx_against_randomized_response_that_may_fail(self):
        # The worst mechanism: with probability delta it tells all, otherwise it is
        # randomized response. Its outputs and their probabilities, by hand:
        epsilon, delta, wanted = 1.0, 0.01, 0.05
        p = 1 / (1 + math.exp(-epsilon))
        rest = 1 - delta
        outputs = [(delta, 0.0), (rest * p, rest * (1 - p)), (rest * (1 - p), rest * p)]
        weaker = ApproxDP(epsilon, delta).to_approx(wanted).epsilon
        achieved = sum(max(0.0, a - math.exp(weaker) * b) for a, b in outputs)
        assert achieved == pytest.approx(wanted, rel=1e-9)


class TestPureDP:
    @given(epsilon=st.floats(1e-3, 30.0), other=st.floats(0.0, 40.0))
    def test_delta_is_that_of_randomized_response(self, epsilon, other):
        with mpmath.workdps(50):
            p = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))
            expected = max(0, p - mpmath.exp(other) * (1 - p))
        assert PureDP(epsilon).delta(other) == pytest.approx(
            float(expected), rel=1e-9, abs=1e-15
        )

    @given(epsilon=st.floats(1e-3, 1000.0), delta=deltas)
    def test_to_approx_inverts_delta(self, epsilon, delta):
        weaker = PureDP(epsilon).to_approx(delta)
        assert weaker.epsilon <= epsilon
        if weaker.epsilon > 1e-9:
            assert PureDP(epsilon).delta(weaker.epsilon) == pytest.approx(
                delta, rel=1e-5
            )

    def test_epsilon_zero_is_reported_as_something_larger(self):
        assert PureDP(1e-9).to_approx(0.1) == ApproxDP(1e-12, 0.1)

    @given(epsilon=st.floats(1e-6, 50.0), order=orders)
    def test_to_rdp_is_that_of_randomized_response(self, epsilon, order):
        with mpmath.workdps(50):
            p = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))
            a = mpmath.mpf(order)
            moments = p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)
            expected = mpmath.log(moments) / (a - 1)
        assert PureDP(epsilon).to_rdp(order).epsilon == pytest.approx(
            float(expected), rel=1e-7
        )

    def test_no_gaussian_noise_is_pure(self):
        with pytest.raises(UnsupportedConversionError, match=r"PureDP.*Laplace"):
            PureDP(1.0).to_gdp()
        assert PureDP(1.0).to_pure() == PureDP(1.0)


class TestRDP:
    def test_chi_square_by_hand(self):
        # Order 2: the constraint is (p - q)^2 <= c q (1 - q) with c = e^D - 1, and for
        # small c the largest p - e^eps q is about c/(4 (e^eps - 1)).
        guarantee = RDP(2.0, math.log1p(1e-3)).to_approx(1e-5)
        assert guarantee.epsilon == pytest.approx(math.log(26.0), abs=1e-3)

    @settings(deadline=None)
    @given(order=orders, divergence=st.floats(1e-4, 20.0), delta=deltas)
    def test_never_above_the_closed_form(self, order, divergence, delta):
        found = RDP(order, divergence).to_approx(delta).epsilon
        closed = closed_form_conversion(order, divergence, delta)
        assert found <= closed * (1 + 1e-12) + 1e-12

    @settings(deadline=None)
    @given(
        order=st.floats(1.1, 100.0),
        p=st.floats(1e-6, 1 - 1e-6),
        q=st.floats(1e-6, 1 - 1e-6),
        delta=deltas,
    )
    def test_holds_for_every_pair_of_coins(self, order, p, q, delta):
        # Two coins are a mechanism: its exact delta must be within what its exact
        # divergence is said to imply.
        with mpmath.workdps(40):
            p_, q_, a = mpmath.mpf(p), mpmath.mpf(q), mpmath.mpf(order)
            moment = p_**a * q_ ** (1 - a) + (1 - p_) ** a * (1 - q_) ** (1 - a)
            divergence = float(mpmath.log(moment) / (a - 1))
        if divergence < 1e-9:
            return
        epsilon = RDP(order, divergence).to_approx(delta).epsilon
        e = math.exp(min(epsilon, 700))
        achieved = max(0.0, p - e * q, (1 - p) - e * (1 - q))
        assert achieved <= delta * (1 + 1e-6) + 1e-15

    @settings(deadline=None)
    @given(order=st.floats(1.1, 100.0), mu=st.floats(0.01, 5.0), delta=deltas)
    def test_never_below_the_gaussian_it_describes(self, order, mu, delta):
        divergence = GDP(mu).to_rdp(order)
        exact = GDP(mu).epsilon(delta)
        assert divergence.to_approx(delta).epsilon >= exact * (1 - 1e-6)

    def test_to_gdp_and_pure(self):
        assert RDP(8.0, 1.0).to_gdp() == GDP(0.5)
        pure = RDP(8.0, 0.1).to_pure()
        assert pure.to_rdp(8.0).epsilon == pytest.approx(0.1)
        assert pure.epsilon > 0.15  # not the divergence itself, which is too little

    def test_to_approx_at_zero(self):
        assert RDP(2.0, 1e-4).to_approx(0.5).epsilon == 1e-12

    def test_near_order_one_nothing_is_lost_to_rounding(self):
        # The exact answer is 5.5e-7; a moment in double precision cannot tell.
        found = RDP(1.0000193, 1.33e-15).to_approx(1.19e-9)
        assert found.epsilon >= 5.5e-7


class TestExtremes:
    """Beyond what anyone needs: an error, or something true."""

    @pytest.mark.parametrize("mu", [1e-17, 1e-11])
    def test_tiny_mu(self, mu):
        assert GDP(mu).epsilon(1e-5) == 0.0
        assert mu / math.sqrt(2 * math.pi) <= GDP(mu).delta(0.0) < 1e-10

    def test_tiny_epsilon_and_delta(self):
        mu = ApproxDP(1e-16, 1e-18).to_gdp().mu
        assert float(exact_delta(mu, 1e-16)) <= 1e-18

    def test_too_large_for_a_float(self):
        with pytest.raises(InvalidArgumentError, match="too large"):
            PureDP(10**400)


class TestValues:
    @pytest.mark.parametrize("bad", BAD_NUMBERS)
    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda bad: PureDP(bad), "epsilon"),
            (lambda bad: ApproxDP(bad, 1e-5), "epsilon"),
            (lambda bad: ApproxDP(1.0, bad), "delta"),
            (lambda bad: GDP(bad), "mu"),
            (lambda bad: RDP(bad, 1.0), "order"),
            (lambda bad: RDP(2.0, bad), "epsilon"),
            (lambda bad: GDP(1.0).epsilon(bad), "delta"),
            (lambda bad: PureDP(1.0).to_approx(bad), "delta"),
            (lambda bad: RDP(2.0, 1.0).to_approx(bad), "delta"),
            (lambda bad: PureDP(1.0).to_rdp(bad), "order"),
        ],
    )
    def test_bad_numbers_are_named(self, make, name, bad):
        with pytest.raises(InvalidArgumentError) as error:
            make(bad)
        assert str(error.value).startswith(name)
        assert repr(bad) in str(error.value)

    @pytest.mark.parametrize("delta", [1.0, 1.5])
    def test_delta_of_one_or_more(self, delta):
        with pytest.raises(InvalidArgumentError, match=f"delta.*{delta}"):
            ApproxDP(1.0, delta)

    @pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf])
    def test_bad_epsilon_of_a_curve(self, epsilon):
        with pytest.raises(InvalidArgumentError, match="epsilon"):
            GDP(1.0).delta(epsilon)

    def test_order_of_one(self):
        with pytest.raises(InvalidArgumentError, match=r"order.*above 1.*1\.0"):
            RDP(1.0, 1.0)

    def test_frozen(self):
        with pytest.raises(AttributeError):
            GDP(1.0).mu = 2.0

    @pytest.mark.parametrize(
        ("guarantee", "text"),
        [
            (PureDP(1), "PureDP(epsilon=1)"),
            (ApproxDP(0.5, 1e-6), "ApproxDP(epsilon=0.5, delta=1e-06)"),
            (GDP(0.25), "GDP(mu=0.25)"),
            (RDP(8, 0.5), "RDP(order=8, epsilon=0.5)"),
        ],
    )
    def test_repr_is_the_call_and_dict_round_trips(self, guarantee, text):
        assert repr(guarantee) == text
        assert Guarantee.from_dict(guarantee.to_dict()) == guarantee

    @pytest.mark.parametrize(
        "state", [{}, {"type": "Nothing"}, {"type": "GDP", "epsilon": 1.0}]
    )
    def test_from_dict_rejects_other_things(self, state):
        with pytest.raises(InvalidArgumentError, match="state"):
            Guarantee.from_dict(state)
