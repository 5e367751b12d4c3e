"""Fixtures of the privacy tests."""

import pytest

from botorch_dp import Ledger


@pytest.fixture(params=["memory", "sqlite"])
def make_ledger(request, tmp_path):
    def make(cap=None):
        return Ledger(None if request.param == "memory" else tmp_path / "l.db", cap)

    return make
