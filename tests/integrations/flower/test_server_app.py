"""The server's side: equal to the simulation, and calm when agents are not."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.app.error import Error
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from botorch_dp import DPFTSDE, Certificate, DPFTSServer, Ledger
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.integrations.flower import server_app
from botorch_dp.integrations.flower.messages import Answer
from botorch_dp.integrations.flower.node_keys import key_file
from botorch_dp.integrations.flower.server_app import Deployment
from botorch_dp.optimizers.core.checkpoint import read_checkpoint
from examples.flower_on_one_machine import demo
from examples.flower_on_one_machine.keys import write_node_key
from examples.flower_on_one_machine.local_federation import is_over, private_seconds

from .grid import FakeNode

CPU = torch.device("cpu")


def deploy(settings, grid):
    deployment = Deployment(settings)
    deployment.run(grid)
    return torch.stack(deployment.broadcasts)


def simulate(settings, absent=None):
    """Return the broadcasts of the simulation; agents are absent by round."""
    N = settings.federation.num_agents
    opt = DPFTSDE(
        settings.federation,
        num_steps=settings.num_rounds,
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
        sampling_rate=settings.sampling_rate,
        sample_size=settings.sample_size,
        sensitivity=settings.sensitivity,
        seed=settings.seed,
        generator=torch.Generator(device="cpu").manual_seed(settings.seed),
    )
    number = 0
    while not opt.done:
        X = opt.ask()
        scores = torch.stack([demo.score(agent, X[agent]) for agent in range(N)])
        where = torch.ones(N, dtype=torch.bool, device="cpu")
        where[(absent or {}).get(number, [])] = False
        opt.tell(scores, where)
        number += 1
    return opt.result().broadcasts


def zeroed(settings, without):
    """Return the broadcasts when the server gets zeros from an agent in a round."""
    # With agents that never follow a broadcast, other rounds do not change.
    assert settings.federation.trust == "never"
    agents = settings.federation.agents(seed=settings.seed)
    server = DPFTSServer(
        settings.federation.weights(),
        settings.federation.num_features,
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
        sampling_rate=settings.sampling_rate,
        num_rounds=settings.num_rounds,
        generator=torch.Generator(device="cpu").manual_seed(settings.seed),
    )
    broadcasts = []
    for number in range(settings.num_rounds):
        X = agents.ask(number)
        agents.tell(X, torch.stack([demo.score(n, X[n]) for n in range(len(X))]))
        messages = agents.messages(number)
        messages[without.get(number, [])] = 0.0
        broadcasts.append(server.release(messages))
    return torch.stack(broadcasts)


def assert_close(got, expected):
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, rtol=0, atol=1e-9)


class TestEqualsTheSimulation:
    @pytest.mark.parametrize(
        "changes", [{}, {"sampling_rate": None, "sample_size": 2}, {"seed": 8}]
    )
    def test_when_all_answer(self, settings_of, grid_of, changes):
        settings = settings_of(**changes)
        assert_close(deploy(settings, grid_of(settings)), simulate(settings))

    def test_when_one_is_away(self, settings_of, grid_of):
        settings = settings_of(num_rounds=4, sampling_rate=0.9)
        grid = grid_of(settings)
        grid.nodes[101].silent = {1, 2}
        expected = simulate(settings, absent={1: [1], 2: [1]})
        assert_close(deploy(settings, grid), expected)
        assert not torch.allclose(expected, simulate(settings))

    def test_through_flower(self, settings_of, grid_of):
        settings = settings_of()
        context = Context(
            run_id=1,
            node_id=1,
            node_config={},
            state=RecordDict(),
            run_config=settings.to_run_config(),
        )
        server_app.app(grid_of(settings), context)
        state = read_checkpoint(f"{settings.output}/state.pt", CPU)
        assert_close(state["broadcasts"], simulate(settings))


def rounds_in(log):
    """Return how many rounds the log tells of, and whether all are over."""
    return len(private_seconds(log)), is_over(log)


def answer(agent, number, vector):
    records = Answer(agent, number).to_records()
    records["answer"]["vector"] = vector.tobytes()
    return records


def replaced(records):
    return lambda message, reply: [Message(records, reply_to=message)]


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


class TestFaults:
    @pytest.fixture
    def settings(self, settings_of, federation):
        values = {**json.loads(federation.to_json()), "trust": "never"}
        local = type(federation)(**values)
        return settings_of(federation=local, sampling_rate=0.9)

    def log(self, settings):
        with open(f"{settings.output}/private/server.log") as file:
            return file.read()

    def test_every_agent_would_have_counted(self, settings):
        """So that the tests below can fail."""
        whole = zeroed(settings, {})
        for number, agent in ((1, 1), (2, 3)):
            without = zeroed(settings, {number: [agent]})
            assert not torch.allclose(without[number], whole[number], atol=1e-3)

    @pytest.mark.parametrize("kind", BAD)
    def test_a_broken_answer_counts_as_zero(self, settings, grid_of, capfd, kind):
        grid = grid_of(settings)
        grid.nodes[101].tamper = {1: replaced(BAD[kind])}
        assert_close(deploy(settings, grid), zeroed(settings, {1: [1]}))
        assert "round 1, node 101" in self.log(settings)
        shown = capfd.readouterr()
        assert "node" not in shown.out + shown.err

    def test_nothing_of_it_is_public(self, settings, grid_of, tmp_path, caplog):
        """Shown files differ by numbers that noise hides, not in what they tell."""
        caplog.set_level(logging.DEBUG)
        calm, troubled = grid_of(settings), grid_of(settings)
        troubled.nodes[101].tamper = {1: replaced(BAD["nan"])}
        states = []
        for name, grid in (("calm", calm), ("troubled", troubled)):
            other = {**settings.__dict__, "output": str(tmp_path / name)}
            deploy(type(settings)(**other), grid)
            state = read_checkpoint(tmp_path / name / "state.pt", CPU)
            state["server"].pop("name")
            state["server"].pop("broadcast")
            states.append(
                (
                    state["federation"],
                    state["server"],
                    state["broadcasts"].shape,
                    (tmp_path / name / "certificate.txt").read_text(),
                    sorted(path.name for path in (tmp_path / name).iterdir()),
                )
            )
        assert states[0] == states[1]
        assert "node" not in caplog.text
        private = tmp_path / "troubled" / "private"
        assert private.stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("how", ["silent", "slow"])
    def test_late_or_missing_counts_as_zero(self, settings, grid_of, how):
        grid = grid_of(settings)
        setattr(grid.nodes[103], how, {2})
        # In the last round, what an agent did not observe changes nothing later.
        assert_close(deploy(settings, grid), zeroed(settings, {2: [3]}))
        assert "round 2: no answer from agents [3]" in self.log(settings)

    def test_an_error_counts_as_zero(self, settings, grid_of):
        grid = grid_of(settings)
        grid.nodes[103].run_config["scores"] = "no_such_module:score"
        everything = {number: [3] for number in range(3)}
        assert_close(deploy(settings, grid), zeroed(settings, everything))
        assert "no_such_module" in self.log(settings)

    def test_one_that_flower_cannot_read(self, settings, grid_of):
        grid = grid_of(settings)
        grid.poisoned = {103: ValueError("no such object")}
        everything = {number: [3] for number in range(3)}
        assert_close(deploy(settings, grid), zeroed(settings, everything))
        assert "node 103: unreadable, ValueError('no such" in self.log(settings)

    def test_what_an_agent_says_stays_on_its_line(self, settings, grid_of):
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
                seconds.append(rounds_in(self.log(settings))) or reply
            ]
        }
        deploy(settings, grid)
        log = self.log(settings)
        assert seconds == [(1, False)]  # after round 0
        assert rounds_in(log) == (3, True)
        assert log.isascii()
        assert all(c.isprintable() or c == "\n" for c in log)
        assert "round 0, node 103: error 1: x\\n2026-01-01" in log
        assert max(len(line) for line in log.splitlines()) < 600
        assert "yyy... (1000028 characters)" in log

    def test_unreadable_replies_stay_on_their_line(self, settings, grid_of):
        grid = grid_of(settings)
        kind = type("Bad", (RuntimeError,), {"__repr__": lambda _: "a\nb"})
        grid.poisoned = {103: kind()}
        deploy(settings, grid)
        assert "node 103: unreadable, a\\nb" in self.log(settings)

    def test_without_a_superlink_it_stops(self, settings, grid_of):
        grid = grid_of(settings)
        grid.poisoned = {103: httpx.ConnectError("gone")}
        with pytest.raises(httpx.ConnectError):
            deploy(settings, grid)
        assert not len(Ledger(path=f"{settings.output}/ledger.sqlite"))

    def test_the_first_of_two_answers_counts(self, settings, grid_of):
        grid = grid_of(settings)

        def twice(message, reply):
            return [reply, Message(answer(1, 1, GOOD), reply_to=message)]

        grid.nodes[101].tamper = {1: twice}
        assert_close(deploy(settings, grid), zeroed(settings, {}))
        assert "Agent 1 has answered already" in self.log(settings)

    def test_looking_costs_few_calls(self, settings_of, grid_of, monkeypatch):
        """While agents work, the server does not ask for each of them each time."""
        settings = settings_of(timeout=30.0, num_rounds=1)
        grid = grid_of(settings)
        looks, pull = [], grid.pull_messages

        def later(message_ids):
            looks.append(message_ids)
            return pull(message_ids) if len(looks) > 8 else []

        monkeypatch.setattr(grid, "pull_messages", later)
        assert_close(deploy(settings, grid), simulate(settings))
        first = [identifier for (identifier,) in looks[:8]]
        assert len(set(first)) == 4  # in turn
        # Eight in vain, and one for each reply of the round and of the last message.
        assert len(looks) == 8 + 2 * 4

    def test_all_are_looked_at_before_the_end(self, settings_of, grid_of, monkeypatch):
        """Three do not answer: that must not keep the fourth from being heard."""
        settings = settings_of(timeout=1.0, num_rounds=1)
        grid = grid_of(settings)
        for node in (100, 101, 102):
            grid.nodes[node].silent = {0, 1}
        asked, pull = [], grid.pull_messages

        def noted(message_ids):
            asked.extend(message_ids)
            return pull(message_ids)

        monkeypatch.setattr(grid, "pull_messages", noted)
        deploy(settings, grid)
        assert len(set(asked[:4])) == 4  # before the first pause
        assert "round 0: no answer from agents [0, 1, 2]" in self.log(settings)

    def test_one_node_an_agent(self, settings, grid_of):
        grid = grid_of(settings)
        thief = FakeNode(200, 1, settings.to_run_config())
        grid.nodes[200] = thief  # asked after the others
        assert_close(deploy(settings, grid), zeroed(settings, {}))
        assert "node 200: Agent 1 is bound to another node" in self.log(settings)

    def test_a_node_stays_its_agent(self, settings, grid_of):
        """Also when the agent that it claims to be has left."""
        grid = grid_of(settings)

        def leave(message, reply):
            grid.nodes[102].connected = False
            return [reply]

        grid.nodes[102].tamper = {0: leave}
        grid.nodes[101].tamper = {1: replaced(answer(2, 1, GOOD))}
        expected = zeroed(settings, {1: [1, 2], 2: [2]})
        assert_close(deploy(settings, grid), expected)
        assert "claims to be agent 2, but is agent 1" in self.log(settings)

    def test_an_answer_in_anothers_name(self, settings, grid_of):
        """What node 101 says in the name of node 103 does not count."""
        grid = grid_of(settings)

        def disguised(message, reply):
            reply.metadata.__dict__["_src_node_id"] = 103
            return [reply]

        grid.nodes[101].tamper = {1: disguised}
        assert_close(deploy(settings, grid), zeroed(settings, {1: [1]}))
        assert "node 101: It says that it is node 103" in self.log(settings)

    def test_a_node_that_is_gone_can_be_replaced(self, settings, grid_of):
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

    def test_it_waits_while_nobody_is_there(self, settings, grid_of, monkeypatch):
        grid = grid_of(settings)
        for node in grid.nodes.values():
            node.connected = False
        naps = []

        def nap(seconds):
            naps.append(seconds)
            if len(naps) == 20:
                assert not len(Ledger(path=f"{settings.output}/ledger.sqlite"))
                for node in grid.nodes.values():
                    node.connected = True

        monkeypatch.setattr(server_app.time, "sleep", nap)
        assert_close(deploy(settings, grid), zeroed(settings, {}))
        assert len(naps) >= 20


@pytest.fixture
def keys_of(tmp_path):
    """Give every node a key, and the operator the keys of the first agents."""

    def make(grid, num_agents=4):
        folder = tmp_path / "keys"
        folder.mkdir()
        for index, node in enumerate(grid.nodes.values()):
            public = write_node_key(tmp_path / f"node-{index}.key")
            node.public_key = public_key_to_bytes(
                load_ssh_public_key(public.read_bytes())
            )
            if index < num_agents:
                public.rename(key_file(folder, index))
        return str(folder)

    return make


class TestKeys:
    """The operator's keys say who is who."""

    @pytest.fixture
    def settings(self, settings_of, federation):
        return settings_of(
            federation=replace(federation, trust="never"), sampling_rate=0.9
        )

    def log(self, settings):
        return (Path(settings.output) / "private" / "server.log").read_text()

    def test_all_agents_count(self, settings, grid_of, keys_of):
        grid = grid_of(settings)
        settings = replace(settings, keys=keys_of(grid))
        assert_close(deploy(settings, grid), zeroed(settings, {}))
        nodes = (Path(settings.output) / "private" / "nodes.json").read_text()
        assert json.loads(nodes) == {"100": 0, "101": 1, "102": 2, "103": 3}

    def rogue_grid(self, settings, grid_of):
        """A node that claims agent 0 before the real one answers."""
        grid = grid_of(settings)
        grid.nodes[50] = FakeNode(50, 0, settings.to_run_config())
        return grid

    def test_a_rogue_node_wins_without_keys(self, settings, grid_of):
        """So that the next test can fail."""
        grid = self.rogue_grid(settings, grid_of)
        deploy(settings, grid)
        assert "node 100: Agent 0 is bound to another node" in self.log(settings)

    def test_a_rogue_node_is_not_asked(self, settings, grid_of, keys_of):
        grid = self.rogue_grid(settings, grid_of)
        settings = replace(settings, keys=keys_of(grid))  # those of the four agents
        assert_close(deploy(settings, grid), zeroed(settings, {}))
        assert "bound" not in self.log(settings)
        assert {message.metadata.dst_node_id for message in grid.sent} == {
            100,
            101,
            102,
            103,
        }

    def test_an_agent_cannot_claim_anothers_number(self, settings, grid_of, keys_of):
        """Not even in the first round, while the other is away."""
        grid = grid_of(settings)
        settings = replace(settings, keys=keys_of(grid))
        grid.nodes[101].node_config["agent"] = 0
        grid.nodes[100].silent = {0}
        everywhere = {number: [1] for number in range(3)}
        expected = zeroed(settings, {**everywhere, 0: [0, 1]})
        assert_close(deploy(settings, grid)[:1], expected[:1])
        assert "node 101: It claims to be agent 0, but is agent 1" in self.log(settings)

    def test_an_agent_may_return_as_another_node(self, settings, grid_of, keys_of):
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

    def test_it_waits_for_known_nodes(self, settings, grid_of, keys_of, monkeypatch):
        """A node with a key of no agent is nobody."""
        grid = self.rogue_grid(settings, grid_of)
        settings = replace(settings, keys=keys_of(grid))
        agents = [grid.nodes[100 + agent] for agent in range(4)]
        for node in agents:
            node.connected = False
        naps = []

        def nap(seconds):
            naps.append(seconds)
            if len(naps) == 20:
                assert not grid.sent
                for node in agents:
                    node.connected = True

        monkeypatch.setattr(server_app.time, "sleep", nap)
        assert_close(deploy(settings, grid), zeroed(settings, {}))


class TestFiles:
    def test_only_the_owner_can_read_them(self, settings_of, grid_of, tmp_path):
        """Whatever the umask was and whatever was there before."""
        settings = settings_of()
        private = tmp_path / "server" / "private"
        private.mkdir(parents=True, mode=0o755)
        (private / "server.log").touch(mode=0o644)
        context = Context(
            run_id=1,
            node_id=1,
            node_config={},
            state=RecordDict(),
            run_config=settings.to_run_config(),
        )
        before = os.umask(0o022)
        try:
            server_app.app(grid_of(settings), context)
            assert os.umask(0o022) == 0o077
        finally:
            os.umask(before)
        written = [tmp_path / "server", *(tmp_path / "server").rglob("*")]
        assert {path.name for path in written} >= {
            "certificate.txt",
            "certificate.json",
            "state.pt",
            "ledger.sqlite",
            "server.log",
            "nodes.json",
        }
        assert [path for path in written if path.stat().st_mode & 0o077] == []

    def test_one_server_at_a_time(self, settings_of, grid_of):
        settings = settings_of()
        first = Deployment(settings)
        with pytest.raises(OptimizerStateError, match="in use by another server"):
            Deployment(settings)
        grid = grid_of(settings)
        refused = []

        def second(message, reply):
            with pytest.raises(OptimizerStateError, match="in use by another server"):
                Deployment(settings)
            refused.append(message.metadata.group_id)
            return [reply]

        grid.nodes[100].tamper = {1: second}
        first.run(grid)
        assert refused == ["1"]
        Deployment(settings)  # the first is over

    def test_of_two_processes(self, settings_of, tmp_path):
        first = Deployment(settings_of())
        script = """
import json, sys
from botorch_dp.integrations.flower.server_app import Deployment
from botorch_dp.integrations.flower.settings import DeploymentSettings
Deployment(DeploymentSettings.from_run_config(json.loads(sys.argv[1])))
"""
        command = [sys.executable, "-c", script]
        command.append(json.dumps(settings_of().to_run_config()))
        done = subprocess.run(command, capture_output=True, text=True)
        assert "OptimizerStateError" in done.stderr
        assert "in use by another server" in done.stderr
        first._lock.release()
        subprocess.run(command, capture_output=True, check=True)

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
    def test_damaged_bindings(self, settings_of, grid_of, tmp_path, text):
        deploy(settings_of(), grid_of(settings_of()))
        path = tmp_path / "server" / "private" / "nodes.json"
        path.write_text(text)
        with pytest.raises(OptimizerStateError, match=r"nodes\.json.* is damaged"):
            Deployment(settings_of())
        path.unlink()
        Deployment(settings_of())

    def test_damaged_state(self, settings_of, tmp_path):
        Deployment(settings_of())._save()
        path = tmp_path / "server" / "state.pt"
        torch.save({"federation": settings_of().federation.to_json()}, path)
        with pytest.raises(OptimizerStateError, match="not the state of a server"):
            Deployment(settings_of())
        path.write_bytes(b"noise")
        with pytest.raises(OptimizerStateError, match="cannot be read") as raised:
            Deployment(settings_of())
        assert "weights_only" not in str(raised.value)

    def test_what_is_written(self, settings_of, grid_of, tmp_path):
        settings = settings_of()
        broadcasts = deploy(settings, grid_of(settings))
        folder = tmp_path / "server"
        text = (folder / "certificate.json").read_text()
        certificate = Certificate.from_json(text)
        assert certificate.num_releases == 3
        assert certificate.adjacency == "zero_out"
        assert str(certificate) in (folder / "certificate.txt").read_text()
        assert len(Ledger(path=folder / "ledger.sqlite")) == 3
        state = read_checkpoint(folder / "state.pt", CPU)
        assert torch.equal(state["broadcasts"], broadcasts)
        assert torch.equal(state["server"]["broadcast"], broadcasts[-1])

    @pytest.mark.parametrize("stop_after", [1, 2])
    @pytest.mark.parametrize("files", [True, False])
    def test_a_resumed_run_equals_a_whole_one(
        self, settings_of, grid_of, stop_after, files
    ):
        settings = settings_of()
        grid = grid_of(settings, files=files)
        first = Deployment(settings)

        def stop(message, reply):
            raise KeyboardInterrupt

        grid.nodes[102].tamper = {stop_after: stop}
        with pytest.raises(KeyboardInterrupt):
            first.run(grid)
        assert first.server.num_broadcasts == stop_after
        grid.nodes[102].tamper = {}
        if files:
            grid = grid_of(settings, files=True)  # new supernodes, with the same files
        assert_close(deploy(settings, grid), simulate(settings))
        assert len(Ledger(path=f"{settings.output}/ledger.sqlite")) == 3

    def test_a_finished_run_releases_nothing_more(self, settings_of, grid_of):
        settings = settings_of()
        grid = grid_of(settings)
        whole = deploy(settings, grid)
        assert torch.equal(deploy(settings, grid), whole)
        assert len(Ledger(path=f"{settings.output}/ledger.sqlite")) == 3

    def test_a_round_that_was_paid_for_is_over(self, settings_of, grid_of, monkeypatch):
        """A crash after the charge: its broadcast is lost, its cost is not."""
        settings = settings_of(seed=None)
        grid = grid_of(settings)
        save, saves = Deployment._save, []

        def crash(self):
            saves.append(self.server.num_broadcasts)
            if self.server.num_broadcasts == 2:
                raise KeyboardInterrupt
            save(self)

        monkeypatch.setattr(Deployment, "_save", crash)
        with pytest.raises(KeyboardInterrupt):
            deploy(settings, grid)
        monkeypatch.undo()
        assert len(deploy(settings, grid)) == 2
        assert len(Ledger(path=f"{settings.output}/ledger.sqlite")) == 3

    def test_another_federation_needs_another_folder(self, settings_of, federation):
        Deployment(settings_of())._save()
        values = {**json.loads(federation.to_json()), "num_initial": 4}
        with pytest.raises(OptimizerStateError, match="another federation"):
            Deployment(settings_of(federation=type(federation)(**values)))
        with pytest.raises(OptimizerStateError, match="other settings"):
            Deployment(settings_of(clip_norm=6.0))


class TestSettings:
    def test_arguments(self, settings_of):
        with pytest.raises(InvalidArgumentError, match="output must be an absolute"):
            settings_of(output="server")
        with pytest.raises(InvalidArgumentError, match="keys must be an absolute"):
            settings_of(keys="keys")
        with pytest.raises(InvalidArgumentError, match="timeout must be"):
            settings_of(timeout=0.0)
        with pytest.raises(InvalidArgumentError, match="seed must be"):
            settings_of(seed=-1)

    def test_run_config(self, settings_of):
        settings = settings_of(seed=None)
        config = settings.to_run_config()
        assert "seed" not in config
        assert all(isinstance(value, str | int | float) for value in config.values())
        with pytest.raises(InvalidArgumentError, match=r"unknown keys: \['sed'\]"):
            type(settings).from_run_config({**config, "sed": 3})
        del config["clip-norm"]
        with pytest.raises(InvalidArgumentError, match=r"incomplete.*clip_norm"):
            type(settings).from_run_config(config)
