"""An agent's side of a vote: what it needs, what it keeps, and what it tells."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from botorch_dp.integrations.flower.messages import Answer
from botorch_dp.integrations.flower.vote_messages import VoteQuestion
from botorch_dp.optimizers import RankBallot
from examples.flower_on_one_machine import demo

from .grid import NAME
from .votes import ELECTION, expected_marks, vote_node, vote_settings

SECRET = "patient 1234"


def fails(agent, candidates):
    raise ValueError(SECRET)


def too_few(agent, candidates):
    return [0.5]


def diverged(agent, candidates):
    return [math.nan, 0.5, *[0.4] * (len(candidates) - 2)]


def counted(agent, candidates):
    counted.models += len(candidates)
    return demo.accuracies(agent, candidates)


def ask(node, election=ELECTION, winner=None, experiment=NAME):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    question = VoteQuestion(election, experiment, winner)
    number = str(question.number)
    message = Message(question.to_records(), node.node_id, "query", group_id=number)
    (reply,) = node.handle(message)
    return reply


def marks(reply, size=7):
    return Answer.from_records(reply.content, size).private_vector


@pytest.mark.parametrize("per_agent", [None, 3])
def test_it_scores_its_candidates(tmp_path, per_agent):
    election = replace(ELECTION, candidates_per_agent=per_agent, ballot=RankBallot())
    settings = vote_settings(tmp_path, election=election, scores=f"{__name__}:counted")
    counted.models = 0
    found = marks(ask(vote_node(settings, 2), election))
    assert torch.equal(found, expected_marks(election)[2])
    assert counted.models == (per_agent or 7)


def test_nothing_is_trained_twice(tmp_path):
    """If an answer is lost, the server asks again."""
    counted.models = 0
    node = vote_node(vote_settings(tmp_path, scores=f"{__name__}:counted"), 1)
    assert torch.equal(marks(ask(node)), marks(ask(node)))
    assert counted.models == 7
    ask(node, experiment="f" * 32)  # another vote
    assert counted.models == 14


def test_a_model_that_diverged_is_the_worst(tmp_path):
    node = vote_node(vote_settings(tmp_path, scores=f"{__name__}:diverged"), 1)
    found = marks(ask(node))
    assert found[0] == 0.0
    assert found[1] == 1.0


def test_it_takes_the_winner(tmp_path):
    settings = vote_settings(tmp_path)
    node = vote_node(settings, 1, state=tmp_path)
    reply = ask(node, winner=3)
    assert marks(reply) is None
    kept = json.loads((tmp_path / f"winner-{NAME}.json").read_text())
    assert kept == {"index": 3, "candidate": {"rate": 0.1}}
    assert not ask(vote_node(settings, 1), winner=3).has_error()  # without a folder
    lost = vote_node(settings, 1, state=tmp_path / "nowhere")
    assert "folder that exists" in ask(lost, winner=3).error.reason


def test_settings_come_from_the_run(tmp_path):
    counted.models = 0
    node = vote_node(vote_settings(tmp_path, scores=f"{__name__}:counted"), 1)
    reply = ask(node, replace(ELECTION, seed=5))
    assert "not those of the run" in reply.error.reason
    assert counted.models == 0


def test_why_scores_failed_stays_with_the_agent(tmp_path, caplog):
    reply = ask(vote_node(vote_settings(tmp_path, scores=f"{__name__}:fails"), 1))
    assert "see the agent's log" in reply.error.reason
    assert SECRET not in reply.error.reason
    assert SECRET in caplog.text


@pytest.mark.parametrize(
    ("scores", "match"),
    [
        ("demo", "import path such as"),
        (f"{__name__}:too_few", "must return 7 scores"),
    ],
)
def test_bad_scores(tmp_path, scores, match):
    reply = ask(vote_node(vote_settings(tmp_path, scores=scores), 1))
    assert match in reply.error.reason


def test_the_node_chooses_its_own_scores(tmp_path):
    node = vote_node(vote_settings(tmp_path, scores="no_such_module:scores"), 1)
    node.node_config["scores"] = "examples.flower_on_one_machine.demo:accuracies"
    assert not ask(node).has_error()


def test_a_message_does_not_cost_ten_seconds():
    script = """
import sys
import botorch_dp.integrations.flower.vote_client_app
import examples.flower_on_one_machine.demo
heavy = ("botorch", "gpytorch", "opacus", "dp_accounting", "scipy", "sklearn")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
