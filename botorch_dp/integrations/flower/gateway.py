"""The agents' way in: ``python -m botorch_dp.integrations.flower.gateway``.

A Flower superlink serves three interfaces on one port: the Fleet API for agents, the
Control API, with which anyone can submit code that runs on all agents' machines, and
the Runtime API of the server. So it should listen on the loopback only. This gateway
forwards calls of the Fleet API and nothing else:

- Only agents whose keys the operator lists may call. The gateway checks this before it
  reads the body of a call.
- An agent may answer questions but not ask any. Flower itself would treat a message
  without ``reply_to`` as one from the server.
- The size, the duration and the number of simultaneous calls are limited.
"""

import argparse
import asyncio
import os
import ssl
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx
import uvicorn
from flwr.common.constant import (
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from botorch_dp.integrations.flower.idle_connections import PatientProtocol
from botorch_dp.integrations.flower.node_keys import (
    is_signed_by,
    read_keys,
    seconds_since,
)
from botorch_dp.integrations.flower.private_files import UMASK

# Without register-node and unregister-node: with these, anyone could join a superlink
# that was started without --enable-supernode-auth.
CALLS = frozenset(
    {
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    }
)
# Headers that each connection sets for itself.
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "host",
        "keep-alive",
        "transfer-encoding",
    }
)


@dataclass(frozen=True)
class GatewayLimits:
    """Limits of the gateway.

    Args:
        max_bytes: The largest body of a call. The superlink turns two bytes into an
            object of about a hundred before it checks the sender.
        max_object_bytes: The largest body of a call with an object, such as a vector.
        max_calls: The largest number of simultaneous calls.
        max_calls_of_one: The same for one agent; Flower makes two or three.
        seconds: The time in which the body of a call must arrive.
    """

    max_bytes: int = 64 * 2**10
    max_object_bytes: int = 2**20
    max_calls: int = 128
    max_calls_of_one: int = 8
    seconds: float = 20.0

    def bytes_of(self, call: str) -> int:
        """Return the largest body of a call."""
        return self.max_object_bytes if call == "push-object" else self.max_bytes


class _Refused(Exception):
    """A call that is refused, with its HTTP status and reason."""


class Gateway:
    """Checks calls of agents and forwards them to a superlink.

    Args:
        client: An HTTP client whose base URL is that of the superlink.
        keys: The public keys that may call, as :func:`read_keys` returns them.
        limits: The limits of the gateway.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        keys: Mapping[bytes, int],
        limits: GatewayLimits | None = None,
    ) -> None:
        self._client, self._keys = client, keys
        self._limits = GatewayLimits() if limits is None else limits
        self._calls: Counter[bytes] = Counter()

    async def forward(self, request: Request) -> Response:
        """Return the superlink's answer to a call, or why it was refused."""
        try:
            return await self._forward(request)
        except _Refused as refused:
            status, reason = refused.args
            # The rest of the body is not read.
            return PlainTextResponse(reason, status, headers={"connection": "close"})

    async def _forward(self, request: Request) -> Response:
        call = request.path_params["call"]
        if call not in CALLS:
            raise _Refused(404, "unknown call")
        headers = _forwarded(request.headers)
        with self._slot(self._caller(headers)):
            body = await self._read(request, self._limits.bytes_of(call))
            if call == "push-messages" and not is_answer(body):
                raise _Refused(400, "not an answer of this node")
            try:
                answer = await self._client.post(
                    f"/v1/fleet/{call}", content=body, headers=headers
                )
            except httpx.TransportError:
                raise _Refused(502, "the superlink is not available") from None
        return Response(
            answer.content, answer.status_code, headers=_forwarded(answer.headers)
        )

    def _caller(self, headers: Mapping[str, str]) -> bytes:
        """Return the key of the caller, or refuse it."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            timestamp = headers[TIMESTAMP_HEADER]
            age = seconds_since(timestamp)
        except (KeyError, ValueError):
            raise _Refused(401, "no signature") from None
        latest = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        if (
            key not in self._keys
            or not -SYSTEM_TIME_TOLERANCE < age < latest
            or not is_signed_by(key, timestamp, signature)
        ):
            raise _Refused(401, "not the signature of a listed agent")
        return key

    @contextmanager
    def _slot(self, caller: bytes) -> Iterator[None]:
        """Count a call while it is read and forwarded."""
        if (
            self._calls.total() >= self._limits.max_calls
            or self._calls[caller] >= self._limits.max_calls_of_one
        ):
            raise _Refused(503, "too many calls")  # Flower tries again
        self._calls[caller] += 1
        try:
            yield
        finally:
            self._calls[caller] -= 1
            if not self._calls[caller]:
                del self._calls[caller]

    async def _read(self, request: Request, max_bytes: int) -> bytes:
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > max_bytes:
            raise _Refused(413, "too large")
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for piece in request.stream():
                    body += piece
                    if len(body) > max_bytes:
                        raise _Refused(413, "too large")
        except TimeoutError:
            raise _Refused(408, "too slow") from None
        except ClientDisconnect:
            raise _Refused(400, "aborted") from None
        return bytes(body)


def is_answer(body: bytes) -> bool:
    """Return whether a push of messages contains one answer of the calling node.

    The superlink checks that the node signed the call. It does not check that the
    message comes from that node, nor that it is an answer.
    """
    request = PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except DecodeError:
        return False
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return False
    metadata = request.messages_list[0].metadata
    return (
        metadata.src_node_id == request.node.node_id
        and metadata.reply_to_message_id != ""
    )


def create_gateway(
    client: httpx.AsyncClient,
    *,
    keys: Mapping[bytes, int],
    limits: GatewayLimits | None = None,
) -> Starlette:
    """Return the :class:`Gateway` with these arguments as an ASGI application."""
    gateway = Gateway(client, keys, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    routes = [Route("/v1/fleet/{call}", gateway.forward, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value for key, value in headers.items() if key.lower() not in _OWN_HEADERS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the gateway until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m botorch_dp.integrations.flower.gateway",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument("--port", type=int, required=True, help="the port to listen on")
    for name, text in (
        ("--superlink", "the host:port of the superlink"),
        ("--keys", "a folder with agent-0.pub, agent-1.pub and so on"),
        ("--ssl-certfile", "the certificate of the gateway"),
        ("--ssl-keyfile", "the private key of the certificate"),
        ("--ssl-ca-certfile", "the root certificate of the superlink"),
    ):
        parser.add_argument(name, required=True, help=text)
    parser.add_argument(
        "--max-object-bytes",
        type=int,
        default=GatewayLimits.max_object_bytes,
        help="the largest object of an agent, default: %(default)s",
    )
    options = parser.parse_args(arguments)
    os.umask(UMASK)
    client = httpx.AsyncClient(
        base_url=f"https://{options.superlink}",
        verify=ssl.create_default_context(cafile=options.ssl_ca_certfile),
        headers={"accept-encoding": "identity"},
        timeout=60.0,
        trust_env=False,  # ignores proxy settings
    )
    uvicorn.run(
        create_gateway(
            client,
            keys=read_keys(options.keys),
            limits=GatewayLimits(max_object_bytes=options.max_object_bytes),
        ),
        host=options.host,
        port=options.port,
        http=PatientProtocol,
        ws="none",
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
