"""A missing extra says what to install."""

import sys

import pytest

from botorch_dp import Ledger
from botorch_dp._extras import import_extra
from botorch_dp.exceptions import MissingExtraError
from botorch_dp.plots import plot_ledger
from botorch_dp.privacy import SecureNoise


def test_returns_the_module():
    assert import_extra("json", extra="none", purpose="this") is sys.modules["json"]


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("opendp.prelude", SecureNoise, "secure"),
        ("matplotlib.pyplot", lambda: plot_ledger(Ledger()), "plots"),
    ],
)
def test_missing(monkeypatch, module, call, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"botorch-dp\[{extra}\]"):
        call()
