"""Which answers count, for which agent, and what the private log says of the others."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.error import Error

from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.flower.server_app import Deployment
from examples.flower_on_one_machine.local_federation import is_over, private_seconds

from .deployments import answer, assert_close, deploy, private_log, replaced, zeroed
from .grid import FakeNode


def rounds_in(log):
    """Return how many rounds the log tells of, and whether all are over."""
    return len(private_seconds(log)), is_over(log)


GOOD = np.ones(20)

BAD = {
    "shape": answer(1, 1, np.ones(19)),
    "oversized": answer(1, 1, np.ones(10**6)),
    "dtype": answer(1, 1, np.ones(20, dtype=np.float32)),
    "array": RecordDict({"answer": ArrayRecord({"vector": Array(np.ones(20))})}),
    "nan": answer(1, 1, np.full(20, np.nan)),
    "another round": answer(1, 0, GOOD),
    "another agent": answer(2, 1, GOOD),
    "no agent": answer(17, 1, GOOD),
    "nothing": RecordDict(),
}


@pytest.fixture
def settings(settings_of, federation):
    values = {**json.loads(federation.to_json()), "trust": "never"}
    local = type(federation)(**values)
    return settings_of(federation=local, sampling_rate=0.9)


def test_every_agent_would_have_counted(settings):
    """So that the tests below can fail."""
    whole = zeroed(settings, {})
    for number, agent in ((1, 1), (2, 3)):
        without = zeroed(settings, {number: [agent]})
        assert not torch.allclose(without[number], whole[number], atol=1e-3)


@pytest.mark.parametrize("kind", BAD)
def test_a_broken_answer_counts_as_zero(settings, grid_of, capfd, kind):
    grid = grid_of(settings)
    grid.nodes[101].tamper = {1: replaced(BAD[kind])}
    assert_close(deploy(settings, grid), zeroed(settings, {1: [1]}))
    assert "round 1, node 101" in private_log(settings)
    shown = capfd.readouterr()
    assert "node" not in shown.out + shown.err


@pytest.mark.parametrize("how", ["silent", "slow"])
def test_late_or_missing_counts_as_zero(settings, grid_of, how):
    grid = grid_of(settings)
    setattr(grid.nodes[103], how, {2})
    # In the last round, what an agent did not observe changes nothing later.
    assert_close(deploy(settings, grid), zeroed(settings, {2: [3]}))
    assert "round 2: no answer from agents [3]" in private_log(settings)


def test_an_error_counts_as_zero(settings, grid_of):
    grid = grid_of(settings)
    grid.nodes[103].run_config["scores"] = "no_such_module:score"
    everything = {number: [3] for number in range(3)}
    assert_close(deploy(settings, grid), zeroed(settings, everything))
    assert "no_such_module" in private_log(settings)


def test_what_an_agent_says_stays_on_its_line(settings, grid_of):
    """It can neither write lines of its own nor fill the disk."""
    grid = grid_of(settings)
    lie = "x\n2026-01-01 00:00:00,000 round took 0.001 seconds\n"
    lie += "2026-01-01 00:00:00,000 all rounds are over\r\x1b[2J\u202e\u2028"
    reasons = {0: lie, 1: "y" * 10**6, 2: "\U0001f600" * 10**6}

    def complain(message, reply):
        reason = reasons[int(message.metadata.group_id)]
        return [Message(Error(code=1, reason=reason), reply_to=message)]

    grid.nodes[103].tamper = dict.fromkeys(reasons, complain)
    seconds = []
    grid.nodes[100].tamper = {
        1: lambda message, reply: [
            seconds.append(rounds_in(private_log(settings))) or reply
        ]
    }
    deploy(settings, grid)
    log = private_log(settings)
    assert seconds == [(1, False)]  # after round 0
    assert rounds_in(log) == (3, True)
    assert log.isascii()
    assert all(c.isprintable() or c == "\n" for c in log)
    assert "round 0, node 103: error 1: x\\n2026-01-01" in log
    assert max(len(line) for line in log.splitlines()) < 600
    assert "yyy... (1000028 characters)" in log


def test_the_first_of_two_answers_counts(settings, grid_of):
    grid = grid_of(settings)

    def twice(message, reply):
        return [reply, Message(answer(1, 1, GOOD), reply_to=message)]

    grid.nodes[101].tamper = {1: twice}
    assert_close(deploy(settings, grid), zeroed(settings, {}))
    assert "Agent 1 has answered already" in private_log(settings)


def test_one_node_an_agent(settings, grid_of):
    grid = grid_of(settings)
    thief = FakeNode(200, 1, settings.to_run_config())
    grid.nodes[200] = thief  # asked after the others
    assert_close(deploy(settings, grid), zeroed(settings, {}))
    assert "node 200: Agent 1 is bound to another node" in private_log(settings)


def test_a_node_stays_its_agent(settings, grid_of):
    """Also when the agent that it claims to be has left."""
    grid = grid_of(settings)

    def leave(message, reply):
        grid.nodes[102].connected = False
        return [reply]

    grid.nodes[102].tamper = {0: leave}
    grid.nodes[101].tamper = {1: replaced(answer(2, 1, GOOD))}
    expected = zeroed(settings, {1: [1, 2], 2: [2]})
    assert_close(deploy(settings, grid), expected)
    assert "claims to be agent 2, but is agent 1" in private_log(settings)


def test_an_answer_in_anothers_name(settings, grid_of):
    """What node 101 says in the name of node 103 does not count."""
    grid = grid_of(settings)

    def disguised(message, reply):
        reply.metadata.__dict__["_src_node_id"] = 103
        return [reply]

    grid.nodes[101].tamper = {1: disguised}
    assert_close(deploy(settings, grid), zeroed(settings, {1: [1]}))
    assert "node 101: It says that it is node 103" in private_log(settings)


def test_a_node_that_is_gone_can_be_replaced(settings, grid_of):
    grid = grid_of(settings)

    def gone(message, reply):
        node = grid.nodes[101]
        node.connected = False
        grid.nodes[300] = FakeNode(300, 1, settings.to_run_config())
        grid.nodes[300].state = node.state
        return [reply]

    grid.nodes[101].tamper = {1: gone}
    assert_close(deploy(settings, grid), zeroed(settings, {}))
    with open(f"{settings.output}/private/nodes.json") as file:
        assert json.load(file) == {"100": 0, "300": 1, "102": 2, "103": 3}


def rogue_grid(settings, grid_of):
    """A node that claims agent 0 before the real one answers."""
    grid = grid_of(settings)
    grid.nodes[50] = FakeNode(50, 0, settings.to_run_config())
    return grid


def test_a_rogue_node_wins_without_keys(settings, grid_of):
    """So that the next test can fail."""
    grid = rogue_grid(settings, grid_of)
    deploy(settings, grid)
    assert "node 100: Agent 0 is bound to another node" in private_log(settings)


def test_an_agent_cannot_claim_anothers_number(settings, grid_of, keys_of):
    """Not even in the first round, while the other is away."""
    grid = grid_of(settings)
    settings = replace(settings, keys=keys_of(grid))
    grid.nodes[101].node_config["agent"] = 0
    grid.nodes[100].silent = {0}
    everywhere = {number: [1] for number in range(3)}
    expected = zeroed(settings, {**everywhere, 0: [0, 1]})
    assert_close(deploy(settings, grid)[:1], expected[:1])
    assert "node 101: It claims to be agent 0, but is agent 1" in private_log(settings)


def test_an_agent_may_return_as_another_node(settings, grid_of, keys_of):
    grid = grid_of(settings)
    settings = replace(settings, keys=keys_of(grid))

    def gone(message, reply):
        node = grid.nodes.pop(101)
        grid.nodes[300] = FakeNode(300, 1, settings.to_run_config())
        grid.nodes[300].state = node.state
        grid.nodes[300].public_key = node.public_key
        return [reply]

    grid.nodes[101].tamper = {1: gone}
    assert_close(deploy(settings, grid), zeroed(settings, {}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\x00\xff",
        "[1]",
        "3",
        "null",
        '{"a": 1}',
        '{"1": "0"}',
        '{"1": 4}',
        '{"1": -1}',
        '{"1": true}',
        "[" * 10_000,
    ],
)
def test_damaged_bindings(settings_of, grid_of, tmp_path, text):
    deploy(settings_of(), grid_of(settings_of()))
    path = tmp_path / "server" / "private" / "nodes.json"
    path.write_text(text)
    with pytest.raises(OptimizerStateError, match=r"nodes\.json.* is damaged"):
        Deployment(settings_of())
    path.unlink()
    Deployment(settings_of())
