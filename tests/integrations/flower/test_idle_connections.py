"""Connections that ask nothing are closed, and there are only so many."""

import pytest
from starlette.applications import Starlette

from botorch_dp.integrations.flower.idle_connections import PatientProtocol

from .listening import Listening, answers

CALL = b"POST /unknown HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
def listening(monkeypatch):
    monkeypatch.setattr(PatientProtocol, "patience", 0.3)
    monkeypatch.setattr(PatientProtocol, "max_connections", 5)
    with Listening(Starlette()) as application:
        yield application


def test_half_sent_headers_end(listening):
    assert answers(listening.connect(CALL[:-2])) == b""
    assert answers(listening.connect()) == b""


def test_half_sent_headers_after_a_call_end(listening):
    received = answers(listening.connect(CALL + CALL[:-2]))
    assert received.count(b"HTTP/1.1") == 1


def test_long_headers_end(listening):
    connection = listening.connect()
    with connection, pytest.raises(OSError, match=r"reset|pipe"):
        connection.sendall(b"x" * 10**8)


def test_connections_at_the_same_time(listening, monkeypatch):
    monkeypatch.setattr(PatientProtocol, "patience", 600.0)
    first = [listening.connect() for _ in range(5)]
    assert answers(listening.connect()) == b""
    for connection in first:
        connection.close()
