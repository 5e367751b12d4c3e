"""An agent's node: ``python -m botorch_dp.integrations.flower.supernode``.

It takes the arguments of ``flower-supernode`` and is one, with three differences:

- Flower starts a new Python for every message, which imports torch. Here a worker
  (:mod:`botorch_dp.integrations.flower.client_worker`) imports torch once and makes a
  copy of itself for every message.
- Flower looks for messages every three seconds. Here the node looks soon after the last
  message, and less and less often while none comes.
- Everything that it writes can be read by its owner only.
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

_FOR_AN_ANSWER = 0.5  # how long Flower sleeps while the app works


class Patience:
    """The module ``time`` for Flower's loop, with another ``sleep``.

    If Flower changes its loop so that this is not called any more, then a node looks
    for messages as often as Flower's own.

    Args:
        begin: Called when Flower begins to wait for the app to answer a message.
    """

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin, self._asked, self._waiting = begin, 0.0, Waiting(0.0)

    def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds`` or less.

        Args:
            seconds: How long Flower wants to sleep, which tells what it waits for: 3
                for a message, 0.5 for the app.
        """
        if seconds != self._asked:
            self._asked, self._waiting = seconds, Waiting(seconds)
            if seconds == _FOR_AN_ANSWER:
                self._begin()
        self._waiting.sleep()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the node until it is stopped."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    os.umask(UMASK)
    # The package has functions of the same names as these modules.
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
    # It ends when this end of the pipe is closed, that is, with this process.
    return subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)


def _wake(worker: "subprocess.Popen[bytes]") -> None:
    """Tell the worker that a message is there."""
    assert worker.stdin is not None
    with contextlib.suppress(OSError):  # it has ended: the message expires
        worker.stdin.write(b"\n")


if __name__ == "__main__":
    main()
