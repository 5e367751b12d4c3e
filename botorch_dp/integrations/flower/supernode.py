"""An agent's node: ``python -m botorch_dp.integrations.flower.supernode``.

It is a ``flower-supernode`` with the same arguments and three differences:

- Flower starts a new Python for every message, which imports torch. Here a worker
  (:mod:`botorch_dp.integrations.flower.client_worker`) imports torch once and forks for
  every message.
- Flower polls for messages every three seconds. Here the node polls soon after the last
  message, and less and less often while none arrives.
- Only its owner can read what it writes.
"""

import contextlib
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from flwr.common.constant import ISOLATION_MODE_PROCESS

from botorch_dp.integrations.flower.private_files import UMASK
from botorch_dp.integrations.flower.waiting import Waiting

_WAITING_FOR_APP = 0.5  # how long Flower sleeps while the app works


class Patience:
    """Replaces the module ``time`` in Flower's loop, with another ``sleep``.

    If a future Flower does not call it any more, a node polls as often as Flower's own.

    Args:
        begin: A function to call when Flower starts to wait for the app's answer.
    """

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin, self._asked, self._waiting = begin, 0.0, Waiting(0.0)

    def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds`` or less.

        Args:
            seconds: How long Flower wants to sleep: 3 if it waits for a message, 0.5
                if it waits for the app.
        """
        if seconds != self._asked:
            self._asked, self._waiting = seconds, Waiting(seconds)
            if seconds == _WAITING_FOR_APP:
                self._begin()
        self._waiting.sleep()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the node until it is stopped."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    os.umask(UMASK)
    # The packages also have functions with the names of these modules.
    flower = importlib.import_module("flwr.supernode.cli.flower_supernode")
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    options = flower._parse_args_run_supernode().parse_args(arguments)
    sys.argv = ["flower-supernode", *arguments]
    if not any(argument.startswith("--isolation") for argument in arguments):
        sys.argv += ["--isolation", ISOLATION_MODE_PROCESS]
        worker = _start_worker(options.host, options.port, options.ssl_ca_certfile)
        loop.time = Patience(lambda: _wake(worker))  # type: ignore[attr-defined]
    flower.flower_supernode()


def _start_worker(
    host: str, port: int, certificates: str | None
) -> "subprocess.Popen[bytes]":
    host = f"[{host}]" if ":" in host else host
    command = [sys.executable, "-m", "botorch_dp.integrations.flower.client_worker"]
    command += [f"{host}:{port}", *([certificates] if certificates else [])]
    # The worker ends when this end of the pipe is closed, that is, with this process.
    return subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)


def _wake(worker: "subprocess.Popen[bytes]") -> None:
    """Tell the worker that a message has arrived."""
    assert worker.stdin is not None
    with contextlib.suppress(OSError):  # the worker has ended: the message expires
        worker.stdin.write(b"\n")


if __name__ == "__main__":
    main()
