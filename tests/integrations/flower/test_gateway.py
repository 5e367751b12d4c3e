"""The gateway: answers of listed agents pass, nothing else does."""

import asyncio
import datetime
import logging
import subprocess
import sys
import threading
import time
from base64 import b64encode

import httpx
import pytest
from flwr.proto.error_pb2 import Error
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from flwr.superlink.routers.fleet.router import router

from botorch_dp.integrations.flower.gateway import (
    CALLS,
    GatewayLimits,
    create_gateway,
    is_answer,
)
from botorch_dp.integrations.flower.idle_connections import PatientProtocol

from .listening import Listening, answers

LIMITS = GatewayLimits(max_bytes=200, max_object_bytes=1000, seconds=0.5)
KEY, OTHER = generate_key_pairs()[0], generate_key_pairs()[0]


def public(key):
    return public_key_to_bytes(key.public_key())


def signed(key=KEY, *, claimed=None, age=0.0, message=None):
    """Return the headers of a call, as Flower's supernodes write them."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    timestamp = then.isoformat()
    signature = sign_message(key, (message or timestamp).encode())
    return {
        "flwr-public-key": b64encode(public(claimed or key)).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": b64encode(signature).decode(),
    }


def superlink_into(seen, *, hold=None):
    """A superlink that notes what it gets, and waits if asked to."""

    async def superlink(request):
        seen.append(request)
        if hold is not None:
            await asyncio.to_thread(hold.wait, 10.0)
        if request.url.path.endswith("get-fab"):
            raise httpx.ConnectError("gone")
        return httpx.Response(
            401, content=b"reply\x00", headers={"x-flower": "1", "keep-alive": "no"}
        )

    return httpx.AsyncClient(
        transport=httpx.MockTransport(superlink), base_url="https://superlink:1"
    )


@pytest.fixture
def seen():
    return []


@pytest.fixture
def agent(seen):
    """A client of the gateway, before a superlink that notes what it gets."""
    keys = {public(KEY): 0}
    return Agent(create_gateway(superlink_into(seen), keys=keys, limits=LIMITS))


class Agent:
    """Calls the gateway in this process."""

    def __init__(self, gateway):
        self._gateway = gateway

    def call(self, method, path, **kwargs):
        async def send():
            transport = httpx.ASGITransport(self._gateway)
            async with httpx.AsyncClient(
                transport=transport, base_url="https://gateway"
            ) as client:
                return await client.request(method, path, **kwargs)

        return asyncio.run(send())

    def post(self, path, *, headers=None, **kwargs):
        headers = signed() if headers is None else headers
        return self.call("POST", path, headers=headers, **kwargs)


def test_the_calls_are_those_of_flower():
    """Except those with which a node joins by itself."""
    assert {route.path for route in router.routes} == {
        f"/v1/fleet/{call}" for call in {*CALLS, "register-node", "unregister-node"}
    }


def test_a_call_passes_unchanged(agent, seen):
    reply = agent.post(
        "/v1/fleet/push-object",
        content=b"body\x00",
        headers={**signed(), "x-signature": "s"},
    )
    assert (reply.status_code, reply.content) == (401, b"reply\x00")
    assert reply.headers["x-flower"] == "1"
    assert "keep-alive" not in reply.headers
    (request,) = seen
    assert str(request.url) == "https://superlink:1/v1/fleet/push-object"
    assert request.content == b"body\x00"
    assert request.headers["x-signature"] == "s"
    assert request.headers["host"] == "superlink:1"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/pull-messages",
        "/v1/fleet/..%2Fcontrol%2Fstart-run",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet//control/start-run",
        "/v1/fleet/new-call",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/",
        "/docs",
        "/",
    ],
)
def test_nothing_else_passes(agent, seen, path):
    assert agent.post(path, content=b"").status_code == 404
    assert not seen


def test_only_posts_pass(agent, seen):
    assert agent.call("GET", "/v1/fleet/pull-messages").status_code == 405
    assert not seen


@pytest.mark.parametrize(
    ("call", "size"), [("push-object", 1000), ("get-run", 200), ("pull-messages", 200)]
)
def test_a_large_call_does_not_pass(agent, seen, call, size):
    """Flower makes an object of each two bytes, before it looks at the sender."""
    path = f"/v1/fleet/{call}"
    assert agent.post(path, content=b"0" * (size + 1)).status_code == 413
    assert agent.post(path, content=pieces(size + 1)).status_code == 413
    assert not seen
    assert agent.post(path, content=b"0" * size).status_code == 401
    assert agent.post(path, content=pieces(size)).status_code == 401
    assert len(seen) == 2


async def pieces(size):
    """A body whose length is not told beforehand."""
    for _ in range(size):
        yield b"0"


def test_without_a_superlink(agent):
    assert agent.post("/v1/fleet/get-fab", content=b"").status_code == 502


BAD_SIGNATURES = {
    "none": lambda: {},
    "another key": lambda: signed(OTHER),
    "another's key": lambda: signed(OTHER, claimed=KEY),
    "another time": lambda: signed(message="2026-01-01T00:00:00+00:00"),
    "old": lambda: signed(age=310.0),
    "of the future": lambda: signed(age=-60.0),
    "no time": lambda: {**signed(), "flwr-timestamp": "yesterday"},
    "no time zone": lambda: {**signed(), "flwr-timestamp": "2026-01-01T00:00:00"},
    "no base 64": lambda: {**signed(), "flwr-signature": "*"},
    "no key": lambda: {**signed(), "flwr-public-key": b64encode(b"key").decode()},
}


@pytest.mark.parametrize("kind", BAD_SIGNATURES)
def test_only_listed_agents_call(agent, seen, kind):
    headers = BAD_SIGNATURES[kind]()
    reply = agent.post("/v1/fleet/push-object", content=b"", headers=headers)
    assert reply.status_code == 401
    assert not seen
    agent.post("/v1/fleet/push-object", content=b"", headers=signed(age=100.0))
    assert len(seen) == 1


def test_strangers_bodies_are_not_read(agent):
    """Not a byte of them."""

    async def body():
        raise AssertionError("read")
        yield b""

    reply = agent.post("/v1/fleet/push-object", content=body(), headers={})
    assert reply.status_code == 401


def push(*, node=7, source=7, reply_to="m", messages=1, trees=1, **kwargs):
    metadata = Metadata(src_node_id=source, dst_node_id=1, reply_to_message_id=reply_to)
    return PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[Message(metadata=metadata, **kwargs)] * messages,
        message_object_trees=[ObjectTree(object_id="o")] * trees,
    ).SerializeToString()


FORGED = {
    "a question": push(source=1, reply_to=""),
    "a question of its own": push(reply_to=""),
    "the server's answer": push(source=1),
    "another's answer": push(source=8),
    "no source": push(source=0),
    "no node": push(node=0),
    "two": push(messages=2),
    "two trees": push(trees=2),
    "none": push(messages=0),
    "no tree": push(trees=0),
    "empty": b"",
    "noise": b"\xff\xff",
    # The second message would be read by nobody here, and by the superlink.
    "two in one body": push() + push(source=1, reply_to=""),
}


@pytest.mark.parametrize("kind", FORGED)
def test_an_agent_cannot_ask(agent, seen, kind):
    """With one agent's key another one was asked for round 1,000,000."""
    assert not is_answer(FORGED[kind])
    reply = agent.post("/v1/fleet/push-messages", content=FORGED[kind])
    assert reply.status_code == 400
    assert not seen


@pytest.mark.parametrize("body", [push(), push(error=Error(code=1, reason="no"))])
def test_an_agent_answers(agent, seen, body):
    assert agent.post("/v1/fleet/push-messages", content=body).status_code == 401
    assert seen[0].content == body


def head(call="push-object", length=100, headers=None):
    lines = [f"POST /v1/fleet/{call} HTTP/1.1", "host: x", f"content-length: {length}"]
    headers = signed() if headers is None else headers
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.fixture
def hold():
    """The superlink answers when this is set."""
    return threading.Event()


@pytest.fixture
def listening(seen, hold, monkeypatch):
    monkeypatch.setattr(PatientProtocol, "patience", 0.3)
    monkeypatch.setattr(PatientProtocol, "max_connections", 5)
    keys = {public(KEY): 0, public(OTHER): 1}
    limits = GatewayLimits(max_calls=3, max_calls_of_one=2, seconds=0.5)
    client = superlink_into(seen, hold=hold)
    with Listening(create_gateway(client, keys=keys, limits=limits)) as gateway:
        yield gateway
        hold.set()


def wait_for(seen, count):
    deadline = time.monotonic() + 5.0
    while len(seen) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(seen) == count


class TestOnAPort:
    def test_half_sent_bodies_end(self, listening, seen):
        began = time.monotonic()
        received = answers(listening.connect(head() + b"0"))
        assert received.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began > 0.4
        assert not seen

    def test_a_stranger_is_refused_at_once(self, listening, seen):
        """Not for being large, and not for being slow."""
        received = answers(listening.connect(head(length=10**9, headers={}) + b"0"))
        assert received.startswith(b"HTTP/1.1 401")
        assert not seen

    def test_calls_at_the_same_time(self, listening, seen, hold):
        """Two of one agent and three of all; the next ones are told to come back."""
        first = [listening.connect(head(length=0)) for _ in range(2)]
        wait_for(seen, 2)
        received = answers(listening.connect(head(length=0)))
        assert received.startswith(b"HTTP/1.1 503")
        other = signed(OTHER)
        first.append(listening.connect(head(length=0, headers=other)))
        wait_for(seen, 3)
        received = answers(listening.connect(head(length=0, headers=other)))
        assert received.startswith(b"HTTP/1.1 503")
        hold.set()
        for connection in first:
            assert connection.recv(4096).startswith(b"HTTP/1.1 401")
            connection.close()
        with listening.connect(head(length=0)) as again:
            assert again.recv(4096).startswith(b"HTTP/1.1 401")
        assert len(seen) == 4

    def test_an_aborted_body_leaves_no_traceback(self, listening, seen, caplog, capfd):
        caplog.set_level(logging.DEBUG)
        for _ in range(3):
            listening.connect(head() + b"0").close()
        with listening.connect(head(length=0)) as connection:
            wait_for(seen, 1)
        connection.close()
        time.sleep(0.2)
        shown = capfd.readouterr()
        assert "Traceback" not in shown.out + shown.err + caplog.text
        assert "Exception" not in caplog.text

    def test_slots_are_given_back(self, listening, seen, hold):
        hold.set()
        for _ in range(4):
            listening.connect(head() + b"0").close()
            assert answers(listening.connect(head() + b"0")).startswith(b"HTTP/1.1 408")
        with listening.connect(head(length=0)) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_help_of_the_gateway():
    done = subprocess.run(
        [sys.executable, "-m", "botorch_dp.integrations.flower.gateway", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Fleet" in done.stdout
