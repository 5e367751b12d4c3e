"""Answers an agent's messages, each in a fork of this process that has torch loaded.

:mod:`botorch_dp.integrations.flower.supernode` starts this process, writes a byte to it
when a message arrives, and takes it down when it ends. A fork answers one message and
ends, as Flower's own process would, so a crash of a score function does not affect the
next message.

This process has one thread, because a fork copies the calling thread only.
"""

import os
import select
import sys
import traceback
from collections.abc import Callable

import httpx
import numpy as np
import torch
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import run_clientapp

from botorch_dp.integrations.flower import (
    client_app,
    secure_client_app,
    vote_client_app,
)
from botorch_dp.integrations.flower.private_files import UMASK

_POLL = 1.0  # seconds between polls if no byte arrives

# Imported so that forks have them.
assert client_app.app
assert secure_client_app.app
assert vote_client_app.app


def serve(
    address: str, certificates: bytes | None, *, wakes: int, run: Callable[..., object]
) -> None:
    """Answer messages until the other end of ``wakes`` is closed.

    Args:
        address: The host and port of the node's Runtime API.
        certificates: Its root certificates; None if it is not encrypted.
        wakes: A file descriptor that receives a byte for each message.
        run: The function that answers a message in a fork: ``run_clientapp``.
    """
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=certificates is None,
        root_certificates=certificates,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    while _awake(wakes):
        _reap()
        while token := _next_task(client):
            if os.fork() == 0:
                _answer(lambda: run(address, token, certificates is None, certificates))


def _awake(wakes: int) -> bool:
    """Wait for a byte or a second, and return whether the node still runs."""
    ready, _, _ = select.select([wakes], [], [], _POLL)
    return not ready or os.read(wakes, 4096) != b""


def _reap() -> None:
    """Collect the forks that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def _next_task(client: RuntimeHttpClient) -> str:
    """Return the token of a waiting message, empty for none."""
    try:
        found = client.AcquireTask(
            AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        )
    except httpx.HTTPError:
        return ""  # the node has not started yet, or has ended
    return str(found.token) if found.HasField("task") else ""


def _answer(run: Callable[[], object]) -> None:
    """Answer a message and end this fork."""
    code = 1
    try:
        # All forks would otherwise draw the same numbers.
        np.random.seed()
        torch.seed()
        run()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve the node whose address is the first argument."""
    os.umask(UMASK)
    address, *path = sys.argv[1:]
    certificates = None
    if path:
        with open(path[0], "rb") as file:
            certificates = file.read()
    serve(address, certificates, wakes=sys.stdin.fileno(), run=run_clientapp)


if __name__ == "__main__":
    main()
