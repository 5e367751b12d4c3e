"""Privacy loss distributions: rounded up, on grids of any size."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from botorch_dp import PrivacyAccountant
from botorch_dp.privacy import FixedSizeGaussianEvent, curves, loss_distributions


class TestFixedSizeSamples:
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

    def test_losses_beyond_the_grid_are_infinite(self, monkeypatch):
        monkeypatch.setattr(loss_distributions, "_MOST_LOSSES", 10)
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


class TestSampledGaussian:
    @pytest.mark.parametrize(
        ("noise", "rate", "interval", "steps"),
        [
            (1.1, 256 / 60_000, 2.0**-10, 1000),
            (0.84, 0.02, 2.0**-11, 500),
            (2.0, 0.2, 2.0**-11, 40),
            (0.5, 0.5, 2.0**-9, 10),
            (1.0, 0.999, 1e-3, 3),
        ],
    )
    def test_dp_accounting_agrees(self, noise, rate, interval, steps):
        theirs = privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=noise,
            sampling_prob=rate,
            value_discretization_interval=interval,
        ).self_compose(steps)
        ours = loss_distributions.gaussian_pld(noise, rate, interval)
        ours = ours.self_compose(steps)
        for one, other in (
            (ours._pmf_remove, theirs._pmf_remove),
            (ours._pmf_add, theirs._pmf_add),
        ):
            for delta in (1e-3, 1e-5):
                assert one.get_epsilon_for_delta(delta) == pytest.approx(
                    other.get_epsilon_for_delta(delta), rel=1e-6
                )


class TestCurves:
    @staticmethod
    def gaussian(mu):
        return lambda epsilons: curves.gdp_deltas(mu, epsilons)

    def test_dominates_a_gaussian(self):
        pld = loss_distributions.pld_of_curves([self.gaussian(0.5)], 6.0, 1e-3)
        for epsilon in (-1.0, 0.0, 0.3, 1.0, 2.0):
            exact = curves.gdp_delta(0.5, abs(epsilon))
            if epsilon < 0:
                exact = 1 - math.exp(epsilon) * (1 - exact)
            found = pld.get_delta_for_epsilon(epsilon)
            assert exact * (1 - 1e-12) <= found <= exact * 1.001
        both = pld.self_compose(4).get_epsilon_for_delta(1e-5)
        assert 1 <= both / curves.gdp_epsilon(1.0, 1e-5) < 1.002

    def test_curves_that_are_not_convex(self):
        # A loose bound has corners; the PLD is the largest profile below it.
        def steps(epsilons):
            return np.where(epsilons < 1, 0.9, curves.gdp_deltas(0.5, epsilons))

        pld = loss_distributions.pld_of_curves([steps], 6.0, 1e-3)
        for epsilon in (0.0, 0.5, 0.99, 1.0, 2.0):
            found = pld.get_delta_for_epsilon(epsilon)
            assert found >= curves.gdp_delta(0.5, epsilon)
            assert found <= steps(np.array([epsilon]))[0] * 1.001

    def test_directions(self):
        sampled = [
            lambda e: curves.sampled_gdp_deltas(1.0, 0.3, e),
            lambda e: curves.unsampled_gdp_deltas(1.0, 0.3, e),
        ]
        pld = loss_distributions.pld_of_curves(sampled, 8.0, 1e-3)
        exact = loss_distributions.gaussian_pld(1.0, 0.3, 1e-3)
        for one, other in (
            (pld._pmf_remove, exact._pmf_remove),
            (pld._pmf_add, exact._pmf_add),
        ):
            for epsilon in (-0.5, -0.1, 0.0, 0.2, 1.5):
                assert one.get_delta_for_epsilon(epsilon) == pytest.approx(
                    other.get_delta_for_epsilon(epsilon), rel=1e-3, abs=1e-9
                )
