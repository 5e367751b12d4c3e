"""What all events share: views, JSON, and checks of their numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    ApproxEvent,
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
    curves,
)
from tests.privacy.cases import EVENTS


class TestEvents:
    @pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
    def test_dict_round_trips(self, event):
        assert PrivacyEvent.from_dict(event.to_dict()) == event

    def test_the_base_event_claims_nothing(self):
        event = PrivacyEvent()
        assert event.loss_pair() is None
        assert np.isinf(event.rdp()).all()
        assert (event.gdp_mu, event.zcdp_rho, event.pure_epsilon) == (None, None, None)

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", 1e-99, 1e99])
    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda bad: GaussianEvent(bad), "noise_multiplier"),
            (lambda bad: LaplaceEvent(bad), "noise_multiplier"),
            (lambda bad: ZCDPEvent(bad), "rho"),
            (lambda bad: PureEvent(bad), "epsilon"),
            (lambda bad: ExponentialEvent(bad), "epsilon"),
            (lambda bad: ApproxEvent(bad, 1e-5), "epsilon"),
            (lambda bad: PoissonGaussianEvent(bad, 0.1), "noise_multiplier"),
            (lambda bad: FixedSizeGaussianEvent(1.0, bad, 10), "sample_size"),
        ],
    )
    def test_bad_numbers(self, make, name, bad):
        with pytest.raises(InvalidArgumentError, match=name):
            make(bad)

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, 1.5])
    def test_bad_probabilities(self, bad):
        with pytest.raises(InvalidArgumentError, match="delta"):
            ApproxEvent(1.0, bad)
        with pytest.raises(InvalidArgumentError, match="sampling_rate"):
            PoissonGaussianEvent(1.0, bad)


orders = st.floats(1.001, 3000.0)


epsilons = st.floats(1e-4, 20.0)


class TestRenyiAtAnyOrder:
    @given(epsilon=epsilons, order=orders)
    def test_from_weak_to_strong_knowledge(self, epsilon, order):
        laplace = LaplaceEvent(1 / epsilon).rdp_at(order)
        pure = PureEvent(epsilon).rdp_at(order)
        assert 0 < laplace <= pure * (1 + 1e-12)
        assert pure <= min(epsilon, order * epsilon**2 / 2) * (1 + 1e-12)
        choice = ExponentialEvent(epsilon).rdp_at(order)
        assert choice == min(pure, order * epsilon**2 / 8)


class TestMuBound:
    @pytest.mark.parametrize(
        ("event", "mu"),
        [
            (GaussianEvent(4.0), 0.25),
            (PoissonGaussianEvent(5.0, 0.1), 0.2),
            (FixedSizeGaussianEvent(5.0, 10, 100), 0.2),
            (PureEvent(0.5), curves.pure_gdp_mu(0.5)),
            (LaplaceEvent(2.0), curves.pure_gdp_mu(0.5)),
            (ExponentialEvent(0.5), curves.pure_gdp_mu(0.5)),
            (ZCDPEvent(0.5), math.inf),
        ],
    )
    def test_values(self, event, mu):
        assert event.mu_bound == mu

    @given(epsilon=epsilons, at=st.floats(0.0, 1.0))
    def test_randomized_response_is_within(self, epsilon, at):
        mu = PureEvent(epsilon).mu_bound
        exact = curves.pure_delta(epsilon, at * epsilon)
        assert exact <= curves.gdp_delta(mu, at * epsilon) * (1 + 1e-9)
