"""No window opens, and no figure stays."""

import matplotlib as mpl
import pytest

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    mpl.pyplot.close("all")
