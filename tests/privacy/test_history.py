"""Histories: what adds up over them, and their total losses."""

import math

import pytest

from botorch_dp.privacy import (
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PrivacyEvent,
    PureEvent,
    ZCDPEvent,
    curves,
)
from botorch_dp.privacy.history import total_losses, total_mu
from tests.privacy.cases import EVENTS, account


class TestLosses:
    def test_all_gaussian_releases_are_one(self):
        groups = frozenset(
            {(GaussianEvent(2.0), 3), (PoissonGaussianEvent(1.0, 1.0), 1)}
        )
        exact = curves.gdp_epsilon(total_mu(groups), 1e-6)
        assert exact <= total_losses(groups).epsilon(1e-6) <= exact * 1.0001

    def test_all_zero_concentrated_releases_are_one(self):
        many = frozenset({(ZCDPEvent(0.01), 10), (ZCDPEvent(0.05), 2)})
        one = frozenset({(ZCDPEvent(0.2), 1)})
        found = total_losses(many).epsilon(1e-6)
        assert found == pytest.approx(total_losses(one).epsilon(1e-6), rel=1e-9)
        assert found == pytest.approx(curves.zcdp_epsilon(0.2, 1e-6), rel=1e-2)

    def test_a_bound_beside_zero_concentrated_releases(self):
        # Without it, one such release would leave only Renyi bounds for all others.
        steps = [(PoissonGaussianEvent(1.0, q / 1000), 1) for q in range(10, 20)]
        alone = account(*steps).get_epsilon(1e-5)
        beside = account(*steps, (ZCDPEvent(1e-6), 1))
        assert alone < beside.get_epsilon(1e-5) < alone + 0.02
        assert beside.spent(1e-5).method == "PLD"

    @pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
    def test_every_event_has_losses(self, event):
        epsilon = total_losses(frozenset({(event, 2)})).epsilon(1e-3)
        assert 0 < epsilon < 10

    def test_unknown_or_huge_losses(self):
        assert total_losses(frozenset({(PrivacyEvent(), 1)})) is None
        for event in (
            PureEvent(1e9),
            LaplaceEvent(1e-9),
            GaussianEvent(1e-6),
            ZCDPEvent(1e8),
            PoissonGaussianEvent(1e-6, 0.1),
        ):
            assert total_losses(frozenset({(event, 1)})) is None
            assert account((event, 2)).get_epsilon(1e-5) > 100

    def test_few_and_many_groups_agree(self):
        # A history of more groups has fewer losses for each.
        steps = [(PoissonGaussianEvent(1.0, q / 1000), 3) for q in range(10, 42)]
        few = account(*steps).get_epsilon(1e-6)
        many = account(*steps, (PoissonGaussianEvent(1e6, 1e-4), 1)).get_epsilon(1e-6)
        assert many == pytest.approx(few, rel=2e-4)

    def test_nothing(self):
        assert math.isclose(total_mu(frozenset()) or 0.0, 0.0)
