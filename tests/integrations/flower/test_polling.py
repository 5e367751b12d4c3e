"""Asking agents: who is asked, what counts, and how long it takes."""

import httpx
import numpy as np
import pytest
import torch

from botorch_dp.integrations.flower import polling
from botorch_dp.integrations.flower.polling import AgentPoll

from .deployments import answer, replaced
from .votes import ELECTION, expected_marks, vote_grid, vote_settings

ARGUMENTS = {"keys": None, "timeout": 0.3, "start_timeout": 0.1}


@pytest.fixture
def grid(tmp_path):
    return vote_grid(vote_settings(tmp_path))


@pytest.fixture
def question():
    from botorch_dp.integrations.flower.vote_messages import VoteQuestion

    return VoteQuestion(ELECTION, "0" * 32).to_records()


def poll(tmp_path, **changes):
    return AgentPoll(4, 7, private=tmp_path, **{**ARGUMENTS, **changes})


def test_vectors_come_in_the_order_of_agents(tmp_path, grid, question):
    found = poll(tmp_path).ask(grid, question, 0)
    assert torch.equal(found, expected_marks(ELECTION))


@pytest.mark.parametrize("kind", ["silent", "slow", "broken"])
def test_who_does_not_answer_counts_as_zero(tmp_path, grid, question, kind):
    node = grid.nodes[102]
    if kind == "broken":
        node.tamper = {0: replaced(answer(2, 0, np.full(7, np.inf)))}
    else:
        setattr(node, kind, {0})
    found = poll(tmp_path).ask(grid, question, 0)
    assert torch.equal(found, expected_marks(ELECTION, absent=[2]))
    assert "[2]" in (tmp_path / "server.log").read_text()


def test_unreadable_replies_count_as_zero(tmp_path, grid, question):
    grid.poisoned = {101: ValueError("no such object")}
    found = poll(tmp_path).ask(grid, question, 0)
    assert torch.equal(found, expected_marks(ELECTION, absent=[1]))
    grid.poisoned = {101: httpx.ConnectError("gone")}
    with pytest.raises(httpx.ConnectError):
        poll(tmp_path).ask(grid, question, 0)


def test_only_nodes_with_listed_keys_are_asked(tmp_path, grid, question, keys_of):
    keys = keys_of(grid, num_agents=4)
    grid.nodes[103].public_key = b"a stranger"
    found = poll(tmp_path, keys=keys).ask(grid, question, 0)
    assert torch.equal(found, expected_marks(ELECTION, absent=[3]))
    assert {one.metadata.dst_node_id for one in grid.sent} == {100, 101, 102}


def test_it_waits_for_all_and_then_goes_on(tmp_path, grid, monkeypatch):
    naps, clock = [], [0.0]

    def nap(seconds):
        naps.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(polling.time, "sleep", nap)
    monkeypatch.setattr(polling.time, "monotonic", lambda: clock[0])
    poll(tmp_path, start_timeout=10.0).wait_for_all(grid)
    assert not naps
    grid.nodes[101].connected = False
    poll(tmp_path, start_timeout=10.0).wait_for_all(grid)
    assert sum(naps) == pytest.approx(10.0)
