"""A node that looks often, and a worker that answers in copies of itself."""

import ast
import importlib
import inspect
import os
import sys
import time

from botorch_dp.integrations.flower import supernode
from botorch_dp.integrations.flower.supernode import Patience


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
