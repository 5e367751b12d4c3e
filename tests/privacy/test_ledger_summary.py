"""The text of a ledger: what was spent, on what, and what is left."""

import pytest
import torch

from botorch_dp import (
    GDP,
    ApproxDP,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    PureDP,
)
from botorch_dp.privacy import GaussianEvent


class TestCharging:
    def test_reports_count_releases_one_by_one(self, make_ledger):
        ledger = make_ledger()
        ledger.charge(GaussianEvent(4.0), count=16)
        assert ledger.accountant().to_gdp() == GDP(1.0)
        assert ledger.spent(1e-5) == pytest.approx(GDP(1.0).epsilon(1e-5))


class TestSummary:
    def test_says_what_was_spent_on_what_and_what_is_left(self, double):
        ledger = Ledger(cap=GDP(1.0))
        gaussian = GaussianMechanism(GDP(0.6), sensitivity=1.0)
        laplace = LaplaceMechanism(PureDP(0.1), sensitivity=1.0)
        gaussian.release(torch.zeros(2, **double), ledger=ledger)
        laplace.release(torch.zeros(2, **double), ledger=ledger)
        laplace.release(torch.zeros(2, **double), ledger=ledger)
        text = str(ledger)
        assert "3 charge(s)" in text
        assert "cap    GDP(mu=1)" in text
        left = (1 - ledger.accountant().spent_of(GDP(1.0)).amount ** 2) ** 0.5
        assert f"left   mu={left:.6g} of 1 ({left:.1%})" in text
        assert "1 x gaussian" in text
        assert "2 x laplace" in text
        assert "at delta=1e-05" in text
        assert ledger.entries[0].time in text
        assert ledger.entries[2].time in text

    def test_without_cap_and_at_another_delta(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(1.0))
        text = ledger.summary(delta=1e-3)
        assert f"epsilon={GDP(1.0).epsilon(1e-3):.6g} at delta=0.001" in text
        assert "cap" not in text

    def test_delta_of_the_cap_is_the_default(self):
        ledger = Ledger(cap=ApproxDP(9.0, 1e-7))
        ledger.charge(GaussianEvent(1.0))
        assert ledger.spent() == pytest.approx(GDP(1.0).epsilon(1e-7))
