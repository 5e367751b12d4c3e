"""The superlink's database: private while it is there, and gone at the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from botorch_dp.integrations.flower.superlink import remove_database
from examples.flower_on_one_machine.processes import free_ports, wait_for_port


@pytest.mark.parametrize("keep", [False, True])
def test_its_database(tmp_path, keep):
    (port,) = free_ports(1)
    database = tmp_path / "flower.db"
    command = [
        sys.executable,
        "-m",
        "botorch_dp.integrations.flower.superlink",
        "--insecure",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--database", str(database)] + ["--keep-database"] * keep
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as superlink:
        try:
            wait_for_port(port)
            files = list(tmp_path.glob("flower.db*"))
            assert database in files
            assert [path for path in files if path.stat().st_mode & 0o077] == []
        finally:
            superlink.send_signal(signal.SIGTERM)
            superlink.wait(timeout=60.0)
    assert database.exists() == keep
    assert bool(list(tmp_path.glob("flower.db*"))) == keep


def test_nothing_else_is_removed(tmp_path):
    for name in ("a.db", "a.db-wal", "a.db-shm", "a.db-journal", "a.db2", "b.db"):
        (tmp_path / name).touch()
    remove_database(tmp_path / "a.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db2", "b.db"]
    remove_database(tmp_path / "a.db")
