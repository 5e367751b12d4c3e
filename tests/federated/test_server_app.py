"""The server's side: equal to the simulation, and calm when agents are not."""

import json
import logging

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from botorch_dp import DPFTSDE, Certificate, DPFTSServer, Ledger
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.federated import demo, server_app
from botorch_dp.federated.messages import Answer
from botorch_dp.federated.server_app import Deployment
from botorch_dp.optimizers.checkpoint import read_checkpoint

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


def answer(agent, number, vector):
    records = Answer(agent, number).to_records()
    records["vector"] = ArrayRecord({"vector": Array(vector)})
    return records


def replaced(records):
    return lambda message, reply: [Message(records, reply_to=message)]


GOOD = np.ones(20)
BAD = {
    "shape": answer(1, 1, np.ones(19)),
    "oversized": answer(1, 1, np.ones(10**6)),
    "dtype": answer(1, 1, np.ones(20, dtype=np.int64)),
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

    def test_an_answer_to_anothers_message(self, settings, grid_of):
        """What node 101 says in the name of node 103 does not count."""
        grid = grid_of(settings)

        def disguised(message, reply):
            reply.metadata.__dict__["_src_node_id"] = 103
            return [reply]

        grid.nodes[101].tamper = {1: disguised}
        assert_close(deploy(settings, grid), zeroed(settings, {1: [1]}))
        assert "node 103: This node was not asked that" in self.log(settings)

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


class TestFiles:
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
        with pytest.raises(InvalidArgumentError, match="absolute path"):
            settings_of(output="server")
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
