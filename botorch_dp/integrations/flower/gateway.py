"""A door for agents: ``python -m botorch_dp.integrations.flower.gateway``.

A Flower superlink serves everything on one port: the Fleet API, which agents need, and
beside it the Control API, with which anyone can submit code that runs on all agents'
machines, and the Runtime API of the server. So it should listen on the loopback only.
This gateway passes on calls of the Fleet API and nothing else:

- Only agents whose keys the operator lists may call. The gateway checks this before it
  reads the body of a call.
- An agent may answer questions. It may not ask any, which Flower itself would allow: it
  takes a message without ``reply_to`` from an agent for one of the server's.
- Bodies are small, arrive in time, and few of them are read at once.
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

# Not register-node and unregister-node: with these, anyone could join a superlink that
# was started without --enable-supernode-auth.
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
# Each side makes its own of these.
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
    """How much the gateway takes on.

    Args:
        max_bytes: The largest body of a call. The superlink turns two bytes into an
            object of about a hundred before it looks at the sender.
        max_object_bytes: The largest body of a call that carries an object, such as a
            vector: room for 130,000 numbers.
        max_calls: The number of calls that are read or passed on at the same time.
        max_calls_of_one: The same for one agent; Flower makes two or three.
        seconds: How long the body of a call may take to arrive.
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
    """A call that does not pass, with its HTTP status and reason."""


class Gateway:
    """Checks calls of agents and passes them on to a superlink.

    Args:
        client: Sends to the superlink; its base URL is the superlink's.
        keys: The public keys that may call, with their agents; None lets every caller
            through to the superlink, which knows the registered keys.
        limits: How much the gateway takes on.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        keys: Mapping[bytes, int] | None = None,
        limits: GatewayLimits | None = None,
    ) -> None:
        self._client, self._keys = client, keys
        self._limits = GatewayLimits() if limits is None else limits
        self._calls: Counter[str | bytes] = Counter()

    async def forward(self, request: Request) -> Response:
        """Return the superlink's answer to a call, or why it did not pass."""
        try:
            return await self._forward(request)
        except _Refused as refused:
            status, reason = refused.args
            # Nothing more of this body is read.
            return PlainTextResponse(reason, status, headers={"connection": "close"})

    async def _forward(self, request: Request) -> Response:
        call = request.path_params["call"]
        if call not in CALLS:
            raise _Refused(404, "unknown call")
        headers = _passed_on(request.headers)
        with self._slot(self._caller(headers, request)):
            body = await self._read(request, self._limits.bytes_of(call))
            if call == "push-messages" and not is_answer(body):
                raise _Refused(400, "not an answer of this node")
            try:
                answer = await self._client.post(
                    f"/v1/fleet/{call}", content=body, headers=headers
                )
            except httpx.TransportError:
                raise _Refused(502, "the superlink is not there") from None
        return Response(
            answer.content, answer.status_code, headers=_passed_on(answer.headers)
        )

    def _caller(self, headers: Mapping[str, str], request: Request) -> str | bytes:
        """Return who calls: its key, or its address if no keys are listed."""
        if self._keys is None:
            return request.client.host if request.client else ""
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
    def _slot(self, caller: str | bytes) -> Iterator[None]:
        """Count a call while it is read and passed on."""
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
    """Return whether a push of messages is one answer of the node that pushes it.

    The superlink checks that the call is signed by that node. It does not check that
    the message is of that node, nor that it answers one.
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
    keys: Mapping[bytes, int] | None = None,
    limits: GatewayLimits | None = None,
) -> Starlette:
    """Return the gateway as an ASGI application.

    Args:
        client: Sends to the superlink; its base URL is the superlink's.
        keys: The public keys that may call, as :func:`read_keys` returns them; None
            lets every caller through to the superlink.
        limits: How much the gateway takes on.
    """
    gateway = Gateway(client, keys, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    routes = [Route("/v1/fleet/{call}", gateway.forward, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
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
    parser.add_argument("--host", default="127.0.0.1", help="to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, required=True, help="to listen on")
    parser.add_argument("--superlink", required=True, help="its host:port")
    parser.add_argument("--keys", required=True, help="a folder with agent-0.pub, ...")
    parser.add_argument("--ssl-certfile", required=True, help="for agents")
    parser.add_argument("--ssl-keyfile", required=True, help="of the certificate")
    parser.add_argument(
        "--ssl-ca-certfile", required=True, help="which vouches for the superlink"
    )
    parser.add_argument(
        "--max-object-bytes",
        type=int,
        default=GatewayLimits.max_object_bytes,
        help=f"the largest object of an agent ({GatewayLimits.max_object_bytes})",
    )
    options = parser.parse_args(arguments)
    os.umask(0o077)
    client = httpx.AsyncClient(
        base_url=f"https://{options.superlink}",
        verify=ssl.create_default_context(cafile=options.ssl_ca_certfile),
        headers={"accept-encoding": "identity"},
        timeout=60.0,
        trust_env=False,  # no proxy between the two
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
