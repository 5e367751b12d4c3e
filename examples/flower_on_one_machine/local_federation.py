"""A superlink and supernodes on one machine, each in its own process.

They listen on 127.0.0.1 only, and write to one folder only, which only its owner can
read. Flower's telemetry and its update check are off. The superlink keeps its database
in memory.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from botorch_dp.integrations.flower.app_folder import write_app
from botorch_dp.integrations.flower.node_keys import key_file
from botorch_dp.integrations.flower.private_files import UMASK, private_folder
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.integrations.flower.vote_settings import VoteSettings
from examples.flower_on_one_machine.keys import write_certificates, write_node_key
from examples.flower_on_one_machine.processes import (
    Processes,
    free_ports,
    wait_for_port,
)

_REPOSITORY = Path(__file__).resolve().parents[2]
_CONNECTION = "loopback"
# These match whole lines, which the server wrote itself: text of agents is always
# inside a longer line.
_LINE = r"^[0-9-]+ [0-9:,]+ "
_SECONDS = re.compile(rf"{_LINE}round took ([0-9.]+) seconds$", re.MULTILINE)
_OVER = re.compile(rf"{_LINE}all rounds are over$", re.MULTILINE)
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
}


class Loopback:
    """A superlink and its supernodes.

    Args:
        folder: The folder for all files.
        settings: The settings of the federation.
        processes: Starts and ends the processes.
        tls: Whether to encrypt connections and admit only known supernodes.
    """

    def __init__(
        self,
        folder: Path,
        settings: DeploymentSettings | VoteSettings,
        processes: Processes,
        *,
        tls: bool = False,
    ) -> None:
        self.folder, self.settings, self.tls = folder, settings, tls
        self.num_agents = settings.num_agents
        self._processes = processes
        self._port, self._door, *self._node_ports = free_ports(2 + self.num_agents)
        self._registered: set[int] = set()
        private_folder(folder)
        for agent in range(self.num_agents):
            private_folder(self.agent_folder(agent))
        if tls:
            self._write_keys()
        self._run = ""

    @property
    def address(self) -> str:
        """The address of the superlink."""
        return f"127.0.0.1:{self._port}"

    @property
    def door(self) -> str:
        """The address for agents: with TLS, that of the gateway."""
        return f"127.0.0.1:{self._door if self.tls else self._port}"

    def agent_folder(self, agent: int) -> Path:
        """Return the folder of an agent's state, which is private to the agent."""
        return self.folder / f"agent-{agent}"

    @property
    def keys(self) -> Path:
        """The folder of the agents' public keys."""
        return self.folder / "keys"

    def _node_key(self, agent: int) -> Path:
        return self.agent_folder(agent) / "node.key"

    def _write_keys(self) -> None:
        """Make a key for each agent, and copy the public one for the operator."""
        private_folder(self.keys)
        for agent in range(self.num_agents):
            if not self._node_key(agent).exists():
                public = write_node_key(self._node_key(agent))
                shutil.copy(public, key_file(self.keys, agent))
        self.settings = replace(self.settings, keys=str(self.keys))

    def start_superlink(self) -> None:
        """Start the superlink, and wait until it listens."""
        if self.tls:
            write_certificates(self.folder)
            trust = [
                "--ssl-ca-certfile",
                str(self.folder / "ca.crt"),
                "--ssl-certfile",
                str(self.folder / "server.crt"),
                "--ssl-keyfile",
                str(self.folder / "server.key"),
                "--enable-supernode-auth",
            ]
            connection = f'root-certificates = "{self.folder / "ca.crt"}"'
        else:
            trust, connection = ["--insecure"], "insecure = true"
        self._processes.start(
            "superlink",
            [
                _tool("flower-superlink"),
                "--host",
                "127.0.0.1",
                "--port",
                str(self._port),
                "--disable-runtime-dependency-installation",
                *trust,
            ],
        )
        home = private_folder(self.folder / "flower")
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n'
            f'[superlink.{_CONNECTION}]\naddress = "{self.address}"\n{connection}\n'
        )
        wait_for_port(self._port)
        if self.tls:
            self._start_gateway()

    def _start_gateway(self) -> None:
        self._processes.start(
            "gateway",
            [
                sys.executable,
                "-m",
                "botorch_dp.integrations.flower.gateway",
                "--port",
                str(self._door),
                "--superlink",
                self.address,
                "--keys",
                str(self.keys),
                "--ssl-certfile",
                str(self.folder / "server.crt"),
                "--ssl-keyfile",
                str(self.folder / "server.key"),
                "--ssl-ca-certfile",
                str(self.folder / "ca.crt"),
            ],
        )
        wait_for_port(self._door)

    def start_agent(self, agent: int) -> None:
        """Start an agent's supernode, registered with the superlink if needed."""
        trust = ["--insecure"]
        if self.tls:
            key = self._node_key(agent)
            if agent not in self._registered:
                public = key_file(self.keys, agent)
                self._flwr("supernode", "register", str(public), _CONNECTION)
                self._registered.add(agent)
            trust = [
                "--root-certificates",
                str(self.folder / "ca.crt"),
                "--auth-supernode-private-key",
                str(key),
            ]
        self._processes.start(
            f"agent-{agent}",
            [
                sys.executable,
                "-m",
                "botorch_dp.integrations.flower.supernode",
                "--superlink",
                self.door,
                "--host",
                "127.0.0.1",
                "--port",
                str(self._node_ports[agent]),
                "--node-config",
                f'agent={agent} state="{self.agent_folder(agent)}"',
                *trust,
            ],
        )

    def kill_agent(self, agent: int) -> None:
        """Kill an agent's supernode without warning."""
        self._processes.kill(f"agent-{agent}")

    def submit(self) -> None:
        """Submit the app."""
        app = write_app(self.folder / "app", self.settings)
        printed = self._flwr("run", str(app), _CONNECTION, "--format", "json")
        self._run = str(json.loads(printed[printed.index("{") :])["run-id"])

    def private_seconds(self) -> list[float]:
        """Return how many seconds each round took."""
        return private_seconds(self._private_log())

    def _private_log(self) -> str:
        log = Path(self.settings.output) / "private" / "server.log"
        return log.read_text() if log.exists() else ""

    def wait(self, *, rounds: int, timeout: float) -> None:
        """Wait until that many rounds are over, or raise."""
        deadline = time.monotonic() + timeout
        looked = time.monotonic()
        while len(self.private_seconds()) < rounds:
            if time.monotonic() - looked > 20.0:  # flwr takes seconds to start
                looked = time.monotonic()
                self._raise_if_failed(self.status())
            if time.monotonic() > deadline:
                raise TimeoutError(f"No {rounds} rounds in {timeout} seconds.")
            time.sleep(0.2)

    def finish(self, *, timeout: float) -> dict[str, Any]:
        """Wait for the end of the run, and return its status."""
        deadline = time.monotonic() + timeout
        # Asking Flower takes seconds of processor time that agents need.
        while not is_over(self._private_log()) and time.monotonic() < deadline:
            time.sleep(0.2)
        while True:
            status = self.status()
            self._raise_if_failed(status)
            if status["status"] == "finished:completed":
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"The run has not ended in {timeout} seconds.")
            time.sleep(1.0)

    def status(self) -> dict[str, Any]:
        """Return Flower's status of the run."""
        printed = self._flwr(
            "list", _CONNECTION, "--run-id", self._run, "--format", "json"
        )
        runs = json.loads(printed[printed.index("{") :])["runs"]
        found: dict[str, Any] = runs[0]
        return found

    def _raise_if_failed(self, status: dict[str, Any]) -> None:
        text = str(status["status"])
        if text.startswith("finished") and text != "finished:completed":
            raise RuntimeError(
                f"The run ended as {text}: {status['status-details']}; see "
                f"{self._processes.log('superlink')}."
            )

    def _flwr(self, *arguments: str) -> str:
        return self._processes.run([_tool("flwr"), *arguments])


@contextmanager
def loopback(
    folder: Path, settings: DeploymentSettings | VoteSettings, *, tls: bool = False
) -> Iterator[Loopback]:
    """Start superlink and agents, and end them on exit.

    Args:
        folder: The folder for all files, which exists.
        settings: The settings of the federation.
        tls: Whether to encrypt connections and admit only known supernodes.
    """
    environment = {
        **os.environ,
        **_QUIET,
        "FLWR_HOME": str(folder / "flower"),
        "PATH": _joined(Path(sys.executable).parent, os.environ["PATH"]),
        # Agents import their score function from this repository.
        "PYTHONPATH": _joined(_REPOSITORY, os.environ.get("PYTHONPATH", "")),
    }
    with (
        _private_umask(),
        Processes(folder, environment, mark="FLWR_HOME") as processes,
    ):
        whole = Loopback(folder, settings, processes, tls=tls)
        whole.start_superlink()
        for agent in range(whole.num_agents):
            whole.start_agent(agent)
        yield whole


def private_seconds(private_log: str) -> list[float]:
    """Return the seconds of each round from the lines that the server wrote itself."""
    return [float(found) for found in _SECONDS.findall(private_log)]


def is_over(private_log: str) -> bool:
    """Return whether the server wrote that all rounds are over."""
    return _OVER.search(private_log) is not None


@contextmanager
def _private_umask() -> Iterator[None]:
    """Let only the owner read what this process writes inside the context."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def _joined(first: Path, others: str) -> str:
    return f"{first}{os.pathsep}{others}" if others else str(first)


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)
