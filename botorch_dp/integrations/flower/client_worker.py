"""Answers an agent's messages, each in a copy of this process that has torch loaded.

Started by :mod:`botorch_dp.integrations.flower.supernode`, which writes a byte to this
process when a message is there, and whose end is the end of this process. A copy
answers one message and ends, as a process of Flower's own would: what a score function
leaves behind, or a crash of it, does not reach the next message.

This process runs nothing in parallel, because a copy has the calling thread only.
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

from botorch_dp.integrations.flower import client_app
from botorch_dp.integrations.flower.private_files import UMASK

_LOOK = 1.0  # seconds between looks when nothing wakes this process

assert client_app.app  # imported so that copies have it


def serve(
    address: str, certificates: bytes | None, *, wakes: int, run: Callable[..., object]
) -> None:
    """Answer messages until the other end of ``wakes`` is closed.

    Args:
        address: The host and port of the node's Runtime API.
        certificates: Those that vouch for it; None if it is not encrypted.
        wakes: A file descriptor that a byte arrives on when a message is there.
        run: What answers a message, in a copy of this process: ``run_clientapp``.
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
    """Wait for a byte, or for a second; return whether the node still runs."""
    ready, _, _ = select.select([wakes], [], [], _LOOK)
    return not ready or os.read(wakes, 4096) != b""


def _reap() -> None:
    """Let the system forget the copies that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def _next_task(client: RuntimeHttpClient) -> str:
    """Return the token of a message that waits, empty for none."""
    try:
        found = client.AcquireTask(
            AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        )
    except httpx.HTTPError:
        return ""  # the node is not there yet, or not any more
    return str(found.token) if found.HasField("task") else ""


def _answer(run: Callable[[], object]) -> None:
    """Answer a message and end this copy."""
    code = 1
    try:
        # A copy would draw the numbers that every other copy draws.
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
    """Serve the node whose address is given."""
    os.umask(UMASK)
    address, *path = sys.argv[1:]
    certificates = None
    if path:
        with open(path[0], "rb") as file:
            certificates = file.read()
    serve(address, certificates, wakes=sys.stdin.fileno(), run=run_clientapp)


if __name__ == "__main__":
    main()
