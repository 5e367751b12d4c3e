"""A door for agents: ``python -m botorch_dp.federated.gateway``.

A Flower superlink serves everything on one port: the Fleet API, which agents need, and
beside it the Control API, with which anyone can submit code that runs on all agents'
machines, and the Runtime API of the server. So it should listen on the loopback only.
This passes on the calls of the Fleet API, none else, and none of more than a few
megabytes. Any reverse proxy that does the same will do.
"""

import argparse
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

CALLS = frozenset(
    {
        "register-node",
        "activate-node",
        "deactivate-node",
        "unregister-node",
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
MAX_BYTES = 8 * 2**20  # Flower cuts arrays into pieces of five megabytes
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


def create_gateway(
    client: httpx.AsyncClient, *, max_bytes: int = MAX_BYTES
) -> Starlette:
    """Return the gateway as an ASGI application.

    Args:
        client: Sends to the superlink; its base URL is the superlink's.
        max_bytes: How large a call may be.
    """

    async def forward(request: Request) -> Response:
        call = request.path_params["call"]
        if call not in CALLS:
            return PlainTextResponse("unknown call", status_code=404)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > max_bytes:
                return PlainTextResponse("too large", status_code=413)
        try:
            answer = await client.post(
                f"/v1/fleet/{call}", content=body, headers=_passed_on(request.headers)
            )
        except httpx.TransportError:
            return PlainTextResponse("the superlink is not there", status_code=502)
        return Response(
            answer.content, answer.status_code, headers=_passed_on(answer.headers)
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    routes = [Route("/v1/fleet/{call}", forward, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value for key, value in headers.items() if key.lower() not in _OWN_HEADERS
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the gateway until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m botorch_dp.federated.gateway", description=__doc__
    )
    parser.add_argument("--host", default="127.0.0.1", help="to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, required=True, help="to listen on")
    parser.add_argument("--superlink", required=True, help="its host:port")
    parser.add_argument("--ssl-certfile", required=True, help="for agents")
    parser.add_argument("--ssl-keyfile", required=True, help="of the certificate")
    parser.add_argument(
        "--ssl-ca-certfile", required=True, help="which vouches for the superlink"
    )
    options = parser.parse_args(arguments)
    client = httpx.AsyncClient(
        base_url=f"https://{options.superlink}",
        verify=ssl.create_default_context(cafile=options.ssl_ca_certfile),
        headers={"accept-encoding": "identity"},
        timeout=60.0,
        trust_env=False,  # no proxy between the two
    )
    uvicorn.run(
        create_gateway(client),
        host=options.host,
        port=options.port,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
