"""A whole federation on one machine: ``python -m botorch_dp.federated.loopback``.

Starts a Flower superlink and a supernode for every agent, all on 127.0.0.1, submits the
app, waits, shows what came out and ends everything it started. Nothing is written
outside a temporary folder, or the one given by ``--output``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from botorch_dp.federated.agent_store import FileStore, agent_file
from botorch_dp.federated.app_folder import write_app
from botorch_dp.federated.client_app import best_of
from botorch_dp.federated.keys import write_certificates, write_node_key
from botorch_dp.federated.processes import Processes, free_ports, wait_for_port
from botorch_dp.federated.settings import DeploymentSettings
from botorch_dp.optimizers.checkpoint import read_checkpoint
from botorch_dp.optimizers.federation import Federation

_CONNECTION = "loopback"
_SECONDS = re.compile(r"round took ([0-9.]+) seconds")
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Of Flower's own second a message.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}


class Loopback:
    """A superlink, and supernodes that talk to it.

    Args:
        folder: For everything that is written.
        settings: How to run the federation.
        processes: Starts and ends what is needed.
        tls: Whether to encrypt, and let only known supernodes in.
    """

    def __init__(
        self,
        folder: Path,
        settings: DeploymentSettings,
        processes: Processes,
        *,
        tls: bool = False,
    ) -> None:
        self.folder, self.settings, self.tls = folder, settings, tls
        self.num_agents = settings.federation.num_agents
        self._processes = processes
        self._port, *self._node_ports = free_ports(1 + self.num_agents)
        for agent in range(self.num_agents):
            self.agent_folder(agent).mkdir(mode=0o700, exist_ok=True)
        self._run = ""

    @property
    def address(self) -> str:
        """Where the superlink listens."""
        return f"127.0.0.1:{self._port}"

    def agent_folder(self, agent: int) -> Path:
        """Return where an agent keeps its state: private to it."""
        return self.folder / f"agent-{agent}"

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
        home = self.folder / "flower"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n'
            f'[superlink.{_CONNECTION}]\naddress = "{self.address}"\n{connection}\n'
        )
        wait_for_port(self._port)

    def start_agent(self, agent: int) -> None:
        """Start an agent's supernode, known to the superlink if that asks for it."""
        trust = ["--insecure"]
        if self.tls:
            key = self.agent_folder(agent) / "node.key"
            if not key.exists():
                public = write_node_key(key)
                self._flwr("supernode", "register", str(public), _CONNECTION)
            trust = [
                "--root-certificates",
                str(self.folder / "ca.crt"),
                "--auth-supernode-private-key",
                str(key),
            ]
        self._processes.start(
            f"agent-{agent}",
            [
                _tool("flower-supernode"),
                "--superlink",
                self.address,
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
        """Kill an agent's supernode, as a power cut would."""
        self._processes.kill(f"agent-{agent}")

    def submit(self) -> None:
        """Submit the app."""
        app = write_app(self.folder / "app", self.settings)
        printed = self._flwr("run", str(app), _CONNECTION, "--format", "json")
        self._run = str(json.loads(printed[printed.index("{") :])["run-id"])

    def private_seconds(self) -> list[float]:
        """Return how long rounds took so far."""
        log = Path(self.settings.output) / "private" / "server.log"
        if not log.exists():
            return []
        return [float(found) for found in _SECONDS.findall(log.read_text())]

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
        """Wait for the end of the run, and return what Flower says of it."""
        deadline = time.monotonic() + timeout
        while True:
            status = self.status()
            self._raise_if_failed(status)
            if status["status"] == "finished:completed":
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"The run has not ended in {timeout} seconds.")
            time.sleep(1.0)

    def status(self) -> dict[str, Any]:
        """Return what Flower says of the run."""
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
    folder: Path, settings: DeploymentSettings, *, tls: bool = False
) -> Iterator[Loopback]:
    """Start superlink and agents; end all of it on the way out.

    Args:
        folder: For everything that is written; it exists.
        settings: How to run the federation.
        tls: Whether to encrypt, and let only known supernodes in.
    """
    environment = {
        **os.environ,
        **_QUIET,
        "FLWR_HOME": str(folder / "flower"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with Processes(folder, environment, mark="FLWR_HOME") as processes:
        whole = Loopback(folder, settings, processes, tls=tls)
        whole.start_superlink()
        for agent in range(whole.num_agents):
            whole.start_agent(agent)
        yield whole


def demo_settings(
    folder: Path, *, agents: int, rounds: int, timeout: float, seed: int | None = None
) -> DeploymentSettings:
    """Return the settings of the demonstration."""
    federation = Federation(
        num_agents=agents,
        lower=(0.0, 0.0),
        upper=(1.0, 1.0),
        lengthscale=(0.25, 0.25),
        num_features=100,
        num_regions=2,
        num_initial=5,
    )
    return DeploymentSettings(
        federation,
        num_rounds=rounds,
        clip_norm=5.0,
        noise_multiplier=1.0,
        sampling_rate=0.5,
        output=str(folder / "server"),
        scores="botorch_dp.federated.demo:score",
        timeout=timeout,
        seed=seed,
    )


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@dataclass
class _Options:
    agents: int
    rounds: int
    tls: bool
    kill: bool
    timeout: float
    output: Path | None


def _parse(arguments: Sequence[str] | None) -> _Options:
    parser = argparse.ArgumentParser(
        prog="python -m botorch_dp.federated.loopback", description=__doc__
    )
    parser.add_argument("--agents", type=int, default=4, help="how many (4)")
    parser.add_argument("--rounds", type=int, default=10, help="how many (10)")
    parser.add_argument(
        "--tls", action="store_true", help="encrypt, and know every supernode"
    )
    parser.add_argument(
        "--kill", action="store_true", help="kill the last agent after three rounds"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds a round waits (30)"
    )
    parser.add_argument("--output", type=Path, help="a folder to keep; temporary else")
    return _Options(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demonstration."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="botorch-dp-") as temporary:
        folder = Path(temporary)
        if options.output is not None:
            folder = options.output.resolve()
            folder.mkdir(parents=True, exist_ok=True)
        settings = demo_settings(
            folder,
            agents=options.agents,
            rounds=options.rounds,
            timeout=options.timeout,
        )
        print(f"starting a superlink and {options.agents} supernodes on 127.0.0.1")
        with loopback(folder, settings, tls=options.tls) as whole:
            whole.submit()
            _watch(whole, options)
            status = whole.finish(timeout=60.0 + 2 * options.timeout)
        _report(whole, status)


def _watch(whole: Loopback, options: _Options) -> None:
    patience = 120.0 + 2 * options.timeout  # the first round waits for all agents
    for number in range(1, options.rounds + 1):
        whole.wait(rounds=number, timeout=patience)
        seconds = whole.private_seconds()[number - 1]
        print(f"round {number}: {seconds:.1f} seconds")
        if options.kill and number == 3:
            print(f"killing agent {options.agents - 1}")
            whole.kill_agent(options.agents - 1)


def _report(whole: Loopback, status: dict[str, Any]) -> None:
    output = Path(whole.settings.output)
    state = read_checkpoint(output / "state.pt", torch.device("cpu"))
    experiment = str(state["server"]["name"]).rpartition(" ")[2]
    print("\nbest points, which only the agents themselves know:")
    for agent in range(whole.num_agents):
        file = agent_file(whole.agent_folder(agent), agent, experiment)
        memory = FileStore(file).load()
        if memory is None:
            print(f"  agent {agent}: nothing evaluated")
            continue
        x, score = best_of(whole.settings.federation, memory)
        where = ", ".join(f"{value:.3f}" for value in x.tolist())
        print(f"  agent {agent}: {score:.4f} at ({where})")
    print(f"\n{(output / 'certificate.txt').read_text()}")
    seconds = sorted(whole.private_seconds())
    traffic = status["network-traffic"]["total-bytes"]
    rounds = len(seconds) + 1  # and a last message
    print(f"seconds a round: {seconds[len(seconds) // 2]:.1f} (median)")
    print(f"bytes a round, as Flower counts them: {traffic // rounds}")


if __name__ == "__main__":
    main()
