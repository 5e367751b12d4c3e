"""Files for their owner only, and one server at a time."""

import json
import os
import subprocess
import sys

import pytest

from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.flower.private_files import (
    FolderLock,
    private_folder,
    write_private,
)
from botorch_dp.integrations.flower.server_app import Deployment


@pytest.fixture
def generous():
    """A umask with which others may read what is written."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


def test_folders(tmp_path, generous):
    assert mode(private_folder(tmp_path / "a" / "b")) == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    assert mode(private_folder(tmp_path / "open")) == 0o700


def test_files(tmp_path, generous):
    path = tmp_path / "text"
    path.write_text("old")
    assert mode(path) == 0o644
    write_private(path, "new")
    assert path.read_text() == "new"
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_can_be_released(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(OptimizerStateError, match="in use by another server"):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()


def test_one_server_at_a_time(settings_of, grid_of):
    settings = settings_of()
    first = Deployment(settings)
    with pytest.raises(OptimizerStateError, match="in use by another server"):
        Deployment(settings)
    grid = grid_of(settings)
    refused = []

    def second(message, reply):
        with pytest.raises(OptimizerStateError, match="in use by another server"):
            Deployment(settings)
        refused.append(message.metadata.group_id)
        return [reply]

    grid.nodes[100].tamper = {1: second}
    first.run(grid)
    assert refused == ["1"]
    Deployment(settings)  # the first is over

    def test_of_two_processes(settings_of, tmp_path):
        first = Deployment(settings_of())
        script = """
import json, sys
from botorch_dp.integrations.flower.server_app import Deployment
from botorch_dp.integrations.flower.settings import DeploymentSettings
Deployment(DeploymentSettings.from_run_config(json.loads(sys.argv[1])))
"""
        command = [sys.executable, "-c", script]
        command.append(json.dumps(settings_of().to_run_config()))
        done = subprocess.run(command, capture_output=True, text=True)
        assert "OptimizerStateError" in done.stderr
        assert "in use by another server" in done.stderr
        first._lock.release()
        subprocess.run(command, capture_output=True, check=True)
