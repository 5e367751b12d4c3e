"""Processes that end together with the one that started them."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from botorch_dp.integrations.flower.private_files import UMASK

_PATIENCE = 10.0  # seconds that a process may take to end


class Processes:
    """Starts processes, each with its own log, and ends them all.

    Every process leads a group. Processes that its children start in other groups are
    found by a mark in their environment, on systems with ``/proc``. Only their owner
    can read what they write.

    Args:
        folder: The folder of the logs.
        environment: The environment variables of all processes.
        mark: The name of a variable among them whose value no other process has.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, mark: str
    ) -> None:
        self.folder = folder
        self._environment = dict(environment)
        self._mark = f"{mark}={environment[mark]}".encode()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self.folder / f"{name}.log"

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process."""
        path = self.log(name)
        path.touch(mode=0o600)
        with path.open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                umask=UMASK,
            )
        return self._running[name]

    def run(self, command: Sequence[str], *, timeout: float = 120.0) -> str:
        """Return the output of a command, or raise an error that contains it."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=timeout,
            umask=UMASK,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout

    def kill(self, name: str) -> None:
        """Kill a process and its group without warning."""
        process = self._running.pop(name)
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()

    def terminate(self, name: str) -> None:
        """Ask a process to end, and wait until it has ended."""
        process = self._running.pop(name)
        self._end([process])

    def stop(self) -> None:
        """End everything that was started."""
        processes = list(self._running.values())
        self._running.clear()
        self._end(processes)
        deadline = time.monotonic() + _PATIENCE
        while (strays := self.strays()) and time.monotonic() < deadline:
            for number in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.05)

    def strays(self) -> list[int]:
        """Return the ids of the processes that have the mark."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            # The process may belong to another user or have ended.
            with contextlib.suppress(OSError):
                if self._mark in entry.read_bytes().split(b"\0"):
                    found.append(int(entry.parent.name))
        return [number for number in found if number != os.getpid()]

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def wait_for_port(port: int, *, timeout: float = 60.0) -> None:
    """Wait until something listens on a port of the loopback."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
