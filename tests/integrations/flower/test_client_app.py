"""An agent's side: what it needs, what it keeps, and what it tells."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.integrations.flower.agent_store import (
    FileStore,
    agent_file,
    private_best,
)
from botorch_dp.integrations.flower.client_app import agent_index, load_score
from botorch_dp.integrations.flower.messages import Answer, Question
from examples.flower_on_one_machine import demo

from .grid import FakeNode

NAME = "0123456789abcdef" * 2
SECRET = "patient 1234"


def fails(agent, points):
    raise ValueError(SECRET)


def too_few(agent, points):
    return points[0, :1]


def counted(agent, points):
    counted.points += len(points)
    return demo.score(agent, points)


def ask(node, federation, number, broadcast=None, *, final=False, experiment=NAME):
    """Ask as the server does, and return the reply."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    records = Question(federation, experiment, number, broadcast, final).to_records()
    message = Message(records, node.node_id, "query", group_id=str(number))
    (reply,) = node.handle(message)
    return reply


@pytest.fixture
def node_of(settings_of):
    def make(agent=2, **changes):
        state = changes.pop("state", None)
        config = settings_of(**changes).to_run_config()
        return FakeNode(100 + agent, agent, config, state=state)

    return make


def vector(reply):
    return Answer.from_records(reply.content, 20).private_vector


@pytest.mark.parametrize("files", [False, True])
def test_an_agent_goes_on_where_it_was(federation, node_of, tmp_path, double, files):
    """Across processes, and with a file across supernodes."""
    state = tmp_path if files else None
    node = node_of(state=state, num_rounds=4)
    alone = federation.agents(torch.tensor([2], device="cpu"), seed=7)
    broadcast = None
    for number in range(4):
        if files:
            # A supernode that was started again.
            node = node_of(state=state, num_rounds=4)
        X = alone.ask(number, broadcast)
        alone.tell(X, demo.score(2, X[0])[None])
        got = vector(ask(node, federation, number, broadcast))
        assert torch.allclose(got, alone.messages(number)[0], rtol=0, atol=1e-9)
        broadcast = torch.ones(2, 20, **double) * number


def test_nothing_is_evaluated_twice(federation, node_of):
    counted.points = 0
    node = node_of(scores=f"{__name__}:counted")
    first = vector(ask(node, federation, 0))
    assert counted.points == 3
    again = vector(ask(node, federation, 0))  # the first answer was lost
    assert counted.points == 3
    assert torch.equal(first, again)
    ask(node, federation, 1)
    assert counted.points == 4


def test_who_comes_late_begins_as_the_others_did(federation, node_of, double):
    counted.points = 0
    node = node_of(scores=f"{__name__}:counted")
    ask(node, federation, 2, torch.zeros(2, 20, **double))
    assert counted.points == 3 + 1


def test_the_final_round_asks_for_no_vector(federation, node_of):
    node = node_of()
    ask(node, federation, 0)
    answer = Answer.from_records(ask(node, federation, 1, final=True).content, 20)
    assert answer.private_vector is None


@pytest.mark.parametrize(("number", "final"), [(3, False), (10**6, False), (4, True)])
def test_a_round_outside_the_run_is_refused(federation, node_of, number, final):
    """Somebody who could ask for round 1,000,000 would freeze the agent."""
    counted.points = 0
    node = node_of(scores=f"{__name__}:counted")
    ask(node, federation, 0)
    reply = ask(node, federation, number, final=final)
    assert f"Asked for round {number} in a run of 3 rounds" in reply.error.reason
    assert counted.points == 3
    for later in (1, 2):  # it goes on as if nothing had been asked
        assert vector(ask(node, federation, later)).shape == (20,)
    assert not ask(node, federation, 3, final=True).has_error()
    assert counted.points == 3 + 3


def test_an_earlier_round_is_refused(federation, node_of):
    """So that the server notices an agent that was led ahead."""
    node = node_of()
    first = vector(ask(node, federation, 0))
    assert torch.equal(vector(ask(node, federation, 0)), first)
    ask(node, federation, 2)
    reply = ask(node, federation, 1)
    assert "Asked for round 1 after round 2" in reply.error.reason


def test_settings_come_from_the_run(federation, node_of):
    reply = ask(node_of(), replace(federation, num_initial=4), 0)
    assert "not those of the run" in reply.error.reason
    node = node_of()
    del node.run_config["num-rounds"]
    assert "how many rounds" in ask(node, federation, 0).error.reason


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


def test_another_experiment_begins_anew(federation, node_of):
    counted.points = 0
    node = node_of(scores=f"{__name__}:counted")
    ask(node, federation, 0)
    ask(node, federation, 0, experiment="f" * 32)
    assert counted.points == 6


def test_agents_draw_from_the_system_unless_seeded(federation, node_of):
    first = vector(ask(node_of(seed=None), federation, 0))
    second = vector(ask(node_of(seed=None), federation, 0))
    assert not torch.allclose(first, second)


def test_the_seed_is_kept(federation, node_of):
    node = node_of(seed=None)
    first = vector(ask(node, federation, 0))
    assert torch.equal(first, vector(ask(node, federation, 0)))


def test_the_node_chooses_its_own_scores(federation, node_of):
    node = node_of(scores="no_such_module:score")
    node.node_config["scores"] = "examples.flower_on_one_machine.demo:score"
    assert not ask(node, federation, 0).has_error()


def test_why_scores_failed_stays_with_the_agent(federation, node_of, caplog):
    reply = ask(node_of(scores=f"{__name__}:fails"), federation, 0)
    assert reply.has_error()
    assert "see the agent's log" in reply.error.reason
    assert SECRET not in reply.error.reason
    assert SECRET in caplog.text


@pytest.mark.parametrize(
    ("scores", "match"),
    [
        ("demo", "import path such as"),
        ("examples.flower_on_one_machine.demo:nothing", "none called 'nothing'"),
        (f"{__name__}:too_few", "must return 3 scores"),
    ],
)
def test_bad_scores(federation, node_of, scores, match):
    reply = ask(node_of(scores=scores), federation, 0)
    assert match in reply.error.reason


def test_a_path_has_to_be_text():
    with pytest.raises(InvalidArgumentError, match="got None"):
        load_score(None)


@pytest.mark.parametrize("agent", [None, "3", -1, 4])
def test_a_node_knows_its_agent(agent):
    with pytest.raises(InvalidArgumentError, match="number from 0 to 3"):
        agent_index({"agent": agent}, 4)


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


def test_a_message_does_not_cost_ten_seconds():
    script = """
import sys
import botorch_dp.integrations.flower.client_app
import examples.flower_on_one_machine.demo
heavy = ("botorch", "gpytorch", "opacus", "dp_accounting", "scipy", "sklearn")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
