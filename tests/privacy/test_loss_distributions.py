"""Privacy loss distributions: rounded up, on grids of any size."""

import math

import numpy as np
import pytest

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
