"""Processes: none of them is left."""

import os
import sys

import pytest

from examples.flower_on_one_machine.processes import (
    Processes,
    free_ports,
    wait_for_port,
)

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
