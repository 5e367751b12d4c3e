"""What an agent keeps between two messages, in a file or in Flower's own state."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.integrations.flower.agent_store import (
    FileStore,
    agent_file,
    private_best,
)
from examples.flower_on_one_machine import demo

from .grid import NAME, ask, counted


class Unsafe:
    """What torch refuses to load, with the advice to load it all the same."""


DAMAGED = {
    "noise": lambda path: path.write_bytes(b"not a checkpoint"),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[:-300]),
    "unsafe": lambda path: torch.save(Unsafe(), path),
    "list": lambda path: torch.save([1], path),
    "other keys": lambda path: torch.save({"seed": 1}, path),
    "other types": lambda path: torch.save(
        {"federation": "", "seed": 1, "number": "0", "state": {}}, path
    ),
    "no arrays": lambda path: torch.save(
        {"federation": "", "seed": 1, "number": 0, "state": {}}, path
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file(federation, node_of, tmp_path, caplog, kind):
    node = node_of(state=tmp_path)
    ask(node, federation, 0)
    path = agent_file(tmp_path, 2, NAME)
    DAMAGED[kind](path)
    reply = ask(node, federation, 1)
    assert "file cannot be used: see its log" in reply.error.reason
    assert str(tmp_path) not in reply.error.reason
    assert str(path) in caplog.text
    with pytest.raises(OptimizerStateError, match="remove it to begin anew") as raised:
        private_best(path)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    assert "weights_only" not in str(raised.value) + caplog.text


def test_an_older_file(federation, node_of, tmp_path):
    """It does not say which sums the agent has given its share to."""
    ask(node_of(state=tmp_path), federation, 0)
    path = agent_file(tmp_path, 2, NAME)
    stored = torch.load(path, weights_only=True)
    del stored["given"]
    torch.save(stored, path)
    assert FileStore(path).load().given == -1
    assert not ask(node_of(state=tmp_path), federation, 1).has_error()


def test_another_experiment_begins_anew(federation, node_of):
    counted.points = 0
    node = node_of(scores=f"{counted.__module__}:counted")
    ask(node, federation, 0)
    ask(node, federation, 0, experiment="f" * 32)
    assert counted.points == 6


def test_the_folder_has_to_be_there(federation, node_of, tmp_path):
    reply = ask(node_of(state=tmp_path / "missing"), federation, 0)
    assert "must be a folder that exists" in reply.error.reason


def test_the_best_is_for_the_agent(federation, node_of, tmp_path):
    node = node_of(state=tmp_path)
    for number in range(3):
        ask(node, federation, number)
    path = agent_file(tmp_path, 2, NAME)
    assert path.stat().st_mode & 0o077 == 0
    x, score = private_best(path)
    assert score == pytest.approx(float(demo.score(2, x[None])), abs=1e-12)
    state = FileStore(path).load().state
    assert score == float(state["Y"][state["seen"]].max())
    with pytest.raises(InvalidArgumentError, match="agent that has evaluated"):
        private_best(tmp_path / "missing.pt")
