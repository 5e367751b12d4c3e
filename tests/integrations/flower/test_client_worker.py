"""A worker that answers each message in a fork of itself."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from flwr.supernode.runtime import run_clientapp

from botorch_dp.integrations.flower import client_worker


class Worker:
    """Serves tasks that this class hands out, in a thread of its own."""

    def __init__(self, monkeypatch, run):
        self.tasks, self.looks = [], 0
        monkeypatch.setattr(client_worker, "_next_task", self._next)
        read, self.wakes = os.pipe()
        self.thread = threading.Thread(
            target=client_worker.serve,
            args=("127.0.0.1:1", None),
            kwargs={"wakes": read, "run": run},
        )
        self.thread.start()

    def _next(self, client):
        self.looks += 1
        return self.tasks.pop() if self.tasks else ""

    def give(self, *tokens):
        self.tasks += tokens
        os.write(self.wakes, b"\n")

    def stop(self):
        os.close(self.wakes)
        self.thread.join(timeout=5.0)
        assert not self.thread.is_alive()


@pytest.fixture
def worker_of(monkeypatch):
    started = []

    def make(run):
        started.append(Worker(monkeypatch, run))
        return started[-1]

    yield make
    for worker in started:
        worker.stop()


def lines(path, count):
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= count:
            return sorted(found)
        time.sleep(0.01)
    raise AssertionError(found)


def test_each_message_has_a_process_of_its_own(worker_of, tmp_path):
    path = tmp_path / "out"
    here = os.getpid()

    def run(address, token, insecure, certificates):
        assert (address, insecure, certificates) == ("127.0.0.1:1", True, None)
        text = f"{token} {os.getpid()} {os.getppid() == here}\n"
        descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, text.encode())
        if token == "b":
            os.kill(os.getpid(), signal.SIGKILL)
        if token == "c":
            raise ValueError("the worker goes on")
        sys.exit(3)

    worker = worker_of(run)
    worker.give("a", "b", "c")
    found = [line.split() for line in lines(path, 3)]
    assert [token for token, _, _ in found] == ["a", "b", "c"]
    assert len({process for _, process, _ in found}) == 3
    assert all(child == "True" for _, _, child in found)
    worker.give("d")
    assert lines(path, 4)[3].startswith("d ")


def test_copies_draw_different_numbers(worker_of, tmp_path):
    path = tmp_path / "out"

    def run(address, token, insecure, certificates):
        drawn = np.random.random(), float(torch.rand((), device="cpu"))
        descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, f"{drawn[0]} {drawn[1]}\n".encode())

    np.random.random()  # the state that copies would share exists before the first
    worker_of(run).give("a", "b", "c")
    found = [line.split() for line in lines(path, 3)]
    assert len({first for first, _ in found}) == 3
    assert len({second for _, second in found}) == 3


def test_the_worker_answers_as_flower_does():
    parameters = inspect.signature(run_clientapp.run_clientapp).parameters
    assert list(parameters)[:4] == [
        "runtime_api_address",
        "token",
        "insecure",
        "certificates",
    ]
    assert client_worker.run_clientapp is run_clientapp.run_clientapp


def test_the_worker_ends_with_the_node():
    """Also before the node's own interface was there."""
    command = [sys.executable, "-m", "botorch_dp.integrations.flower.client_worker"]
    with subprocess.Popen([*command, "127.0.0.1:9"], stdin=subprocess.PIPE) as worker:
        time.sleep(1.0)
        assert worker.poll() is None
        worker.stdin.close()
        assert worker.wait(timeout=60.0) == 0
