"""A small vote, and nodes for its agents."""

import math
from dataclasses import replace

import torch

from botorch_dp import Election
from botorch_dp.integrations.flower import vote_client_app
from botorch_dp.integrations.flower.vote_settings import VoteSettings
from examples.flower_on_one_machine import demo

from .grid import FakeGrid, FakeNode

RATES = [{"rate": 10.0**k} for k in range(-4, 3)]
ELECTION = Election(4, RATES)


def vote_settings(tmp_path, **changes):
    values = {
        "election": ELECTION,
        "epsilon": 2.0,
        "output": str(tmp_path / "server"),
        "scores": "examples.flower_on_one_machine.demo:accuracies",
        "timeout": 0.3,
        "start_timeout": 0.1,
        "seed": 7,
    }
    return VoteSettings(**{**values, **changes})


def vote_node(settings, agent, *, state=None):
    config = settings.to_run_config()
    app = vote_client_app.app
    return FakeNode(100 + agent, agent, config, state=state, app=app)


def vote_grid(settings, *, folder=None):
    nodes = []
    for agent in range(settings.num_agents):
        state = None if folder is None else folder / f"agent-{agent}"
        if state is not None:
            state.mkdir(exist_ok=True)
        nodes.append(vote_node(settings, agent, state=state))
    return FakeGrid(nodes)


def expected_marks(election, absent=()):
    """Return the marks that agents send, from the settings."""
    rows = election.assignment("cpu")
    marks = []
    for agent, indices in enumerate(rows):
        candidates = [election.candidates[i] for i in indices.tolist()]
        scores = torch.tensor(
            [demo.accuracies(agent, candidates)], dtype=torch.float64, device="cpu"
        )
        marks.append(election.marks(scores, indices[None])[0])
    marks = torch.stack(marks)
    marks[list(absent)] = 0.0
    return marks


def certain(settings):
    return replace(settings, epsilon=1e6)


def broken(agent, candidates):
    return [math.nan for _ in candidates]
