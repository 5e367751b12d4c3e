"""The gateway: agents' calls pass, nothing else does."""

import asyncio

import httpx
import pytest
from flwr.superlink.routers.fleet.router import router

from botorch_dp.federated.gateway import CALLS, create_gateway


@pytest.fixture
def seen():
    return []


@pytest.fixture
def agent(seen):
    """A client of the gateway, before a superlink that notes what it gets."""

    def superlink(request):
        seen.append(request)
        if request.url.path.endswith("get-fab"):
            raise httpx.ConnectError("gone")
        return httpx.Response(
            401, content=b"reply\x00", headers={"x-flower": "1", "keep-alive": "no"}
        )

    transport = httpx.MockTransport(superlink)
    client = httpx.AsyncClient(transport=transport, base_url="https://superlink:1")
    return Agent(create_gateway(client, max_bytes=1000))


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

    def post(self, path, **kwargs):
        return self.call("POST", path, **kwargs)


def test_the_calls_are_those_of_flower():
    assert {route.path for route in router.routes} == {
        f"/v1/fleet/{call}" for call in CALLS
    }


def test_a_call_passes_unchanged(agent, seen):
    reply = agent.post(
        "/v1/fleet/push-object", content=b"body\x00", headers={"x-signature": "s"}
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


def test_a_large_call_does_not_pass(agent, seen):
    assert agent.post("/v1/fleet/push-object", content=b"0" * 1001).status_code == 413
    assert not seen
    assert agent.post("/v1/fleet/push-object", content=b"0" * 1000).status_code == 401


def test_without_a_superlink(agent):
    assert agent.post("/v1/fleet/get-fab", content=b"").status_code == 502
