"""An agent's side: what it needs, what it keeps, and what it tells."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.flower.client_app import agent_index, load_score
from botorch_dp.integrations.flower.messages import Answer
from examples.flower_on_one_machine import demo

from .grid import ask, counted, vector

COUNTED = f"{counted.__module__}:counted"
SECRET = "patient 1234"


def fails(agent, points):
    raise ValueError(SECRET)


def too_few(agent, points):
    return points[0, :1]


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
    node = node_of(scores=f"{COUNTED}")
    first = vector(ask(node, federation, 0))
    assert counted.points == 3
    again = vector(ask(node, federation, 0))  # the first answer was lost
    assert counted.points == 3
    assert torch.equal(first, again)
    ask(node, federation, 1)
    assert counted.points == 4


def test_who_comes_late_begins_as_the_others_did(federation, node_of, double):
    counted.points = 0
    node = node_of(scores=f"{COUNTED}")
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
    node = node_of(scores=f"{COUNTED}")
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
        ("examples.flower_on_one_machine.demo:nothing", "has no function 'nothing'"),
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
