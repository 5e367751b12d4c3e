"""A node that looks often, and a worker that answers in copies of itself."""

import ast
import importlib
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

from botorch_dp.integrations.flower import client_worker, supernode, waiting
from botorch_dp.integrations.flower.supernode import Patience
from botorch_dp.integrations.flower.waiting import Waiting


@pytest.fixture
def naps(monkeypatch):
    """A clock that sleeping moves; returns how long was slept."""
    found, now = [], [100.0]

    def nap(seconds):
        found.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(waiting.time, "sleep", nap)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return found


def test_looks_get_rarer(naps):
    pause = Waiting(3.0)
    while sum(naps) < 600.0:
        pause.sleep()
    assert naps[0] == 0.05
    assert max(naps) == 3.0
    assert len([nap for nap in naps if nap < 3.0]) < 30
    slept = 0.0
    for nap in naps:  # what comes at any time waits for a fifth of it at most
        assert nap <= max(0.05, 0.2 * slept) + 1e-9
        slept += nap


def test_each_wait_begins_anew(naps):
    begun = []
    patience = Patience(lambda: begun.append(len(naps)))
    for _ in range(100):
        patience.sleep(3)
    assert naps[-1] == 3.0
    patience.sleep(0.5)  # a message came
    patience.sleep(0.5)
    assert naps[-2:] == [0.05, 0.05]
    assert begun == [100]
    patience.sleep(3)
    assert naps[-1] == 0.05
    patience.sleep(0.5)
    assert begun == [100, 103]
    assert patience.perf_counter is time.perf_counter


def test_flower_sleeps_as_expected():
    """Three seconds for a message, half of one for the app, in a module of its own."""
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    assert loop.time is time
    found = [
        (ast.unparse(node.func), node.args[0].value)
        for node in ast.walk(ast.parse(inspect.getsource(loop)))
        if isinstance(node, ast.Call) and "sleep" in ast.unparse(node.func)
    ]
    assert set(found) == {("time.sleep", 3), ("time.sleep", 0.5)}


def test_arguments_of_flower(monkeypatch):
    """They are passed on, and Flower does not start a Python for every message."""
    flower = importlib.import_module("flwr.supernode.cli.flower_supernode")
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    ran, started = [], []
    monkeypatch.setattr(loop, "time", time)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(flower, "flower_supernode", lambda: ran.append(sys.argv))
    monkeypatch.setattr(supernode, "_start_worker", lambda *args: started.append(args))
    before = os.umask(0o022)
    try:
        supernode.main(["--insecure", "--host", "127.0.0.1", "--port", "9999"])
        assert os.umask(0o022) == 0o077
        supernode.main(["--insecure", "--isolation", "subprocess"])
    finally:
        os.umask(before)
    arguments = ["--insecure", "--host", "127.0.0.1", "--port", "9999"]
    assert ran[0] == ["flower-supernode", *arguments, "--isolation", "process"]
    assert ran[1] == ["flower-supernode", "--insecure", "--isolation", "subprocess"]
    assert started == [("127.0.0.1", 9999, None)]


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
