"""A federation in real processes, and that none of them is left."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from botorch_dp import Certificate, Ledger
from botorch_dp.integrations.flower.app_folder import write_app
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.optimizers.core.checkpoint import read_checkpoint
from examples.flower_on_one_machine.keys import write_certificates, write_node_key
from examples.flower_on_one_machine.local_federation import loopback
from examples.flower_on_one_machine.loopback import demo_settings
from examples.flower_on_one_machine.processes import (
    Processes,
    free_ports,
    wait_for_port,
)
from tests.integrations.flower.test_server_app import simulate

# A process that starts another one in a session of its own.
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                 start_new_session=True)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def processes(tmp_path):
    environment = {**os.environ, "MARK": str(tmp_path)}
    with Processes(tmp_path, environment, mark="MARK") as processes:
        yield processes


def wait_until_ready(processes, name):
    while "ready" not in processes.log(name).read_text():
        pass


class TestProcesses:
    def test_children_end_too(self, processes):
        process = processes.start("parent", [sys.executable, "-c", PARENT])
        wait_until_ready(processes, "parent")
        assert len(processes.strays()) == 2
        processes.stop()
        assert process.returncode is not None
        assert processes.strays() == []

    def test_on_the_way_out_of_an_error(self, tmp_path):
        environment = {**os.environ, "MARK": str(tmp_path)}
        processes = Processes(tmp_path, environment, mark="MARK")

        def interrupted():
            with processes:
                processes.start("sleep", ["sleep", "60"])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert processes.strays() == []

    def test_kill_and_terminate(self, processes):
        first = processes.start("first", ["sleep", "60"])
        second = processes.start("second", ["sleep", "60"])
        processes.kill("first")
        assert first.returncode == -9
        processes.terminate("second")
        assert second.returncode == -15

    def test_a_command_that_fails_says_why(self, processes):
        script = "import sys; print('why'); sys.exit(3)"
        with pytest.raises(RuntimeError, match="why"):
            processes.run([sys.executable, "-c", script])

    def test_ports(self):
        ports = free_ports(3)
        assert len(set(ports)) == 3
        with pytest.raises(OSError, match="refused"):
            wait_for_port(ports[0], timeout=0.0)


def test_certificates(tmp_path):
    write_certificates(tmp_path)
    root, server = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["localhost"]
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0


def test_node_keys(tmp_path):
    path = tmp_path / "node.key"
    public = load_ssh_public_key(write_node_key(path).read_bytes())
    private = load_ssh_private_key(path.read_bytes(), None)
    assert private.public_key() == public
    assert path.stat().st_mode & 0o077 == 0


def test_the_app_carries_its_settings(tmp_path):
    settings = demo_settings(tmp_path, agents=3, rounds=5, timeout=20.0, seed=4)
    folder = write_app(tmp_path / "app", settings)
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert DeploymentSettings.from_run_config(app["config"]) == settings
    for side, path in app["components"].items():
        module, name = path.split(":")
        text = (folder / f"{module.replace('.', '/')}.py").read_text()
        assert (
            f"from botorch_dp.integrations.flower.{side[:-3]}_app import {name}" in text
        )


@pytest.mark.default_device
def test_a_federation_on_the_loopback(tmp_path):
    """Encrypted, with known supernodes; the broadcasts are those of the simulation."""
    home = Path.home() / ".flwr"
    touched = home.stat().st_mtime if home.exists() else None
    folder = tmp_path / "try"
    folder.mkdir(mode=0o755)
    settings = demo_settings(folder, agents=2, rounds=2, timeout=120.0, seed=5)
    before = os.umask(0o022)
    try:
        with loopback(folder, settings, tls=True) as whole:
            whole.submit()
            whole.wait(rounds=2, timeout=240.0)
            whole.finish(timeout=120.0)
            processes = whole._processes
    finally:
        os.umask(before)
    assert processes.strays() == []
    assert (home.stat().st_mtime if home.exists() else None) == touched
    written = [folder, *folder.rglob("*")]
    assert [path for path in written if path.stat().st_mode & 0o077] == []
    output = Path(settings.output)
    state = read_checkpoint(output / "state.pt", torch.device("cpu"))
    assert torch.allclose(state["broadcasts"], simulate(settings), rtol=0, atol=1e-9)
    text = (output / "certificate.json").read_text()
    assert Certificate.from_json(text).num_releases == 2
    assert len(Ledger(path=output / "ledger.sqlite")) == 2
    for agent in range(2):
        assert len(list(whole.agent_folder(agent).glob("agent-*.pt"))) == 1


def test_help_of_the_gateway():
    done = subprocess.run(
        [sys.executable, "-m", "botorch_dp.integrations.flower.gateway", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Fleet" in done.stdout
