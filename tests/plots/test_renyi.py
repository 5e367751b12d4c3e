"""What is drawn of a Renyi curve."""

import matplotlib as mpl
import numpy as np
import pytest

from botorch_dp import Ledger, PrivacyAccountant
from botorch_dp.plots import plot_renyi_curve
from botorch_dp.privacy import GaussianEvent


@pytest.mark.parametrize("kind", ["accountant", "ledger"])
def test_gaussian_releases_are_a_line(kind):
    history = PrivacyAccountant() if kind == "accountant" else Ledger()
    for _ in range(2):
        history.charge(GaussianEvent(2.0))
    ax = plot_renyi_curve(history)
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_ydata(), line.get_xdata() / 4)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert ax.get_ylabel() == "Renyi epsilon"


def test_given_orders_and_axes():
    accountant = PrivacyAccountant()
    accountant.compose(GaussianEvent(1.0))
    _, ax = mpl.pyplot.subplots()
    assert plot_renyi_curve(accountant, orders=[2.0, 8.0], ax=ax) is ax
    assert ax.get_lines()[0].get_ydata().tolist() == [1.0, 4.0]
