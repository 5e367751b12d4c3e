"""An agent's side: what it needs, what it keeps, and what it tells."""

import subprocess
import sys

import pytest
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.federated import demo
from botorch_dp.federated.agent_store import FileStore, agent_file, private_best
from botorch_dp.federated.client_app import agent_index, load_score
from botorch_dp.federated.messages import Answer, Question

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
    node = node_of(state=state)
    alone = federation.agents(torch.tensor([2], device="cpu"), seed=7)
    broadcast = None
    for number in range(4):
        if files:
            node = node_of(state=state)  # a supernode that was started again
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
    node.node_config["scores"] = "botorch_dp.federated.demo:score"
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
        ("botorch_dp.federated.demo:nothing", "none called 'nothing'"),
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
import botorch_dp.federated.client_app
import botorch_dp.federated.demo
heavy = ("botorch", "gpytorch", "opacus", "dp_accounting", "scipy", "sklearn")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
