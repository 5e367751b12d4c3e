"""Privacy profiles and trade-off curves against closed forms and brute force."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from scipy.stats import norm

from botorch_dp.privacy import PoissonGaussianEvent, curves
from botorch_dp.privacy.loss_composition import LossComposition
from botorch_dp.privacy.loss_pairs import approx_pair, gaussian_pair, poisson_pair
from botorch_dp.privacy.profiles import Profile
from tests.privacy.cases import library_pld
from tests.privacy.selection_cases import exact_profile, hockey_stick

EPSILONS = np.array([-6.0, -2.0, -0.5, 0.0, 0.01, 0.5, 1.0, 3.0, 8.0])


def profile_of(pair, count=1):
    return Profile.of_losses(LossComposition([(pair, count)]))


def pair(seed, size=6):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))


class TestDelta:
    def test_gaussian(self):
        profile = profile_of(gaussian_pair(0.5))
        exact = np.array([curves.gdp_delta(0.5, e) for e in np.abs(EPSILONS)])
        exact = np.where(EPSILONS >= 0, exact, 1 - np.exp(EPSILONS) * (1 - exact))
        found = profile.delta(EPSILONS)
        assert (found >= exact).all()
        assert found == pytest.approx(exact, rel=1e-3, abs=1e-13)
        assert profile.delta(np.array([math.inf, -math.inf]))[1] == 1.0

    def test_both_directions_of_a_sample(self):
        pld = library_pld(PoissonGaussianEvent(0.7, 0.1), 1e-3).self_compose(5)
        profile = profile_of(poisson_pair(1 / 0.7, 0.1, 0.004), 5)
        assert not profile.is_symmetric
        at = np.array([0.1, 1.0, 2.5])
        for one, pmf in (
            (profile, pld._pmf_remove),
            (profile.reversed(), pld._pmf_add),
        ):
            assert one.delta(at) == pytest.approx(
                pmf.get_delta_for_epsilon(at), rel=1e-4
            )
        worst = np.maximum(profile.delta(at), profile.reversed().delta(at))
        assert worst == pytest.approx(pld.get_delta_for_epsilon(at), rel=1e-4)

    @pytest.mark.parametrize("seed", range(5))
    def test_negative_epsilons_by_brute_force(self, seed):
        p, q = pair(seed)
        profile = exact_profile(p, q)
        for epsilon in EPSILONS:
            exact = hockey_stick(p, q, epsilon)
            assert profile.delta(np.array([epsilon]))[0] == pytest.approx(
                exact, abs=1e-12
            )

    def test_two_point_losses(self):
        profile = profile_of(approx_pair(1.0, 1e-3))
        assert profile.delta(np.array([1.0, 5.0])) == pytest.approx([1e-3, 1e-3])
        middle = profile.delta(np.array([0.5]))[0]
        assert middle == pytest.approx(1e-3 + (1 - 1e-3) * curves.pure_delta(1.0, 0.5))

    def test_of_a_curve(self):
        profile = Profile.of_curve(lambda e: curves.gdp_delta(0.5, e), 5.0)
        found = profile.delta(np.array([0.33, 1.0]))
        exact = [curves.gdp_delta(0.5, e) for e in (0.33, 1.0)]
        assert (found >= exact).all()
        assert found == pytest.approx(exact, rel=1e-3)

    def test_large_and_far_losses(self):
        # All losses of this distribution are far above zero.
        pld = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(50.0, 0.0),
            value_discretization_interval=1.0,
        ).self_compose(3)
        profile = profile_of(approx_pair(50.0, 0.0), 3)
        at = np.array([0.0, 60.0, 140.0, 200.0])
        exact = np.array([pld.get_delta_for_epsilon(e) for e in at])
        # Bounds on rounding errors are added.
        assert (profile.delta(at) >= exact - 1e-12).all()
        assert profile.delta(at) == pytest.approx(exact, abs=1e-8)


class TestTradeOff:
    @pytest.mark.parametrize("seed", range(5))
    def test_every_event_by_brute_force(self, seed):
        p, q = pair(seed)
        for profile, one, other in (
            (exact_profile(p, q), p, q),
            (exact_profile(p, q).reversed(), q, p),
        ):
            events = np.array(list(itertools.product([0, 1], repeat=6)))
            f, other_f = 1 - events @ one, 1 - events @ other
            least = profile.other_share(1 - f, f)
            assert (other_f >= least - 1e-12).all()
            # Neyman and Pearson's events reach the curve.
            order = np.argsort(one / other)
            best = np.append(0.0, np.cumsum(one[order]))
            reached = np.append(0.0, np.cumsum(other[order]))
            found = profile.other_share(best, 1 - best)
            assert found == pytest.approx(1 - reached, abs=1e-9)

    def test_gaussian(self):
        profile = profile_of(gaussian_pair(1.0))
        f = np.array([1e-8, 1e-4, 0.1, 0.5, 0.9, 1 - 1e-6])
        exact = norm.cdf(norm.ppf(f) - 1.0)
        found = profile.other_share(1 - f, f)
        assert (found <= exact * (1 + 1e-9)).all()
        assert found == pytest.approx(exact, rel=2e-3)

    def test_pure(self):
        profile = Profile.of_pure(0.8)
        f = np.array([0.0, 1e-200, 1e-20, 0.3, 0.9, 1.0])
        exact = np.maximum(math.exp(-0.8) * f, 1 - math.exp(0.8) * (1 - f))
        assert profile.other_share(1 - f, f) == pytest.approx(exact, rel=1e-12)
