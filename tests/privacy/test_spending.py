"""Spending in the unit of a budget."""

import math

import pytest

from botorch_dp import GDP, RDP, ApproxDP, PureDP
from botorch_dp.privacy.spending import Spending, budget_limit


def test_within_up_to_rounding():
    spending = Spending(1.0, "epsilon", "basic composition")
    assert spending.within(1.0)
    assert spending.within(1.0 - 1e-10)
    assert not spending.within(1.0 - 1e-7)


def test_left():
    assert Spending(0.6, "mu", "").left(1.0) == pytest.approx(0.8)  # squares add up
    assert Spending(0.6, "epsilon", "").left(1.0) == pytest.approx(0.4)
    assert Spending(math.inf, "epsilon", "").left(1.0) == 0.0
    assert Spending(2.0, "mu", "").left(1.0) == 0.0


@pytest.mark.parametrize(
    "budget", [GDP(0.5), RDP(8.0, 0.5), ApproxDP(0.5, 1e-5), PureDP(0.5)]
)
def test_limit(budget):
    assert budget_limit(budget) == 0.5
