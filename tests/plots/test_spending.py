"""What is drawn of a ledger."""

import matplotlib as mpl
import numpy as np
import pytest

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.plots import plot_ledger
from botorch_dp.privacy import GaussianEvent


@pytest.fixture
def spent_by_count():
    return [0.0] + [GDP(0.5 * np.sqrt(n)).epsilon(1e-5) for n in range(1, 5)]


def test_spending_and_cap(spent_by_count):
    ledger = Ledger(cap=ApproxDP(5.0, 1e-5))
    for _ in range(4):
        ledger.charge(GaussianEvent(2.0))
    ax = plot_ledger(ledger)
    spent, cap = ax.get_lines()
    assert spent.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert spent.get_ydata().tolist() == pytest.approx(spent_by_count)
    assert set(cap.get_ydata()) == {5.0}
    assert ax.get_ylabel() == "epsilon at delta=1e-05"


def test_in_the_unit_of_the_cap():
    ledger = Ledger(cap=GDP(1.0))
    for _ in range(4):
        ledger.charge(GaussianEvent(2.0))
    ax = plot_ledger(ledger)
    assert ax.get_lines()[0].get_ydata()[-1] == pytest.approx(1.0)
    assert ax.get_ylabel() == "mu"


def test_without_cap_on_given_axes_and_at_another_delta(spent_by_count):
    _, ax = mpl.pyplot.subplots()
    ledger = Ledger()
    for _ in range(4):
        ledger.charge(GaussianEvent(2.0))
    assert plot_ledger(ledger, ax=ax) is ax
    assert ax.get_lines()[0].get_ydata().tolist() == pytest.approx(spent_by_count)
    other = plot_ledger(ledger, delta=1e-3)
    assert other.get_ylabel() == "epsilon at delta=0.001"
    assert other.get_lines()[0].get_ydata()[-1] == pytest.approx(GDP(1.0).epsilon(1e-3))


def test_long_ledgers_are_thinned_but_end_at_the_end():
    ledger = Ledger()
    for _ in range(1000):
        ledger.charge(GaussianEvent(100.0))
    line = plot_ledger(ledger).get_lines()[0]
    assert len(line.get_xdata()) <= 101
    assert line.get_xdata()[-1] == 1000
