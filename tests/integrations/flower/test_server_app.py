"""The server's side: equal to the simulation, and calm when agents are not."""

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from botorch_dp import Certificate, Ledger
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.flower import server_app
from botorch_dp.integrations.flower.server_app import Deployment
from botorch_dp.optimizers.core.checkpoint import read_checkpoint

from .deployments import (
    CPU,
    answer,
    assert_close,
    deploy,
    private_log,
    replaced,
    simulate,
    without_names,
    zeroed,
)
from .grid import FakeNode


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


class TestFaults:
    @pytest.fixture
    def settings(self, settings_of, federation):
        values = {**json.loads(federation.to_json()), "trust": "never"}
        local = type(federation)(**values)
        return settings_of(federation=local, sampling_rate=0.9)

    def test_nothing_of_it_is_public(self, settings, grid_of, tmp_path, caplog):
        """Shown files differ by numbers that noise hides, not in what they tell."""
        caplog.set_level(logging.DEBUG)
        calm, troubled = grid_of(settings), grid_of(settings)
        troubled.nodes[101].tamper = {1: replaced(answer(1, 1, np.full(20, np.nan)))}
        states = []
        for name, grid in (("calm", calm), ("troubled", troubled)):
            other = {**settings.__dict__, "output": str(tmp_path / name)}
            deploy(type(settings)(**other), grid)
            state = read_checkpoint(tmp_path / name / "state.pt", CPU)
            state["server"].pop("run_id")
            state["server"].pop("broadcast")
            states.append(
                (
                    state["federation"],
                    state["server"],
                    state["broadcasts"].shape,
                    without_names(tmp_path / name / "certificate.txt"),
                    sorted(path.name for path in (tmp_path / name).iterdir()),
                )
            )
        assert states[0] == states[1]
        assert "node" not in caplog.text
        private = tmp_path / "troubled" / "private"
        assert private.stat().st_mode & 0o077 == 0

    def test_one_that_flower_cannot_read(self, settings, grid_of):
        grid = grid_of(settings)
        grid.poisoned = {103: ValueError("no such object")}
        everything = {number: [3] for number in range(3)}
        assert_close(deploy(settings, grid), zeroed(settings, everything))
        assert "node 103: unreadable, ValueError('no such" in private_log(settings)

    def test_unreadable_replies_stay_on_their_line(self, settings, grid_of):
        grid = grid_of(settings)
        kind = type("Bad", (RuntimeError,), {"__repr__": lambda _: "a\nb"})
        grid.poisoned = {103: kind()}
        deploy(settings, grid)
        assert "node 103: unreadable, a\\nb" in private_log(settings)

    def test_without_a_superlink_it_stops(self, settings, grid_of):
        grid = grid_of(settings)
        grid.poisoned = {103: httpx.ConnectError("gone")}
        with pytest.raises(httpx.ConnectError):
            deploy(settings, grid)
        assert not len(Ledger(path=f"{settings.output}/ledger.sqlite"))

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
        assert "round 0: no answer from agents [0, 1, 2]" in private_log(settings)

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


class TestKeys:
    """The operator's keys say who is who."""

    @pytest.fixture
    def settings(self, settings_of, federation):
        return settings_of(
            federation=replace(federation, trust="never"), sampling_rate=0.9
        )

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

    def test_a_rogue_node_is_not_asked(self, settings, grid_of, keys_of):
        grid = self.rogue_grid(settings, grid_of)
        settings = replace(settings, keys=keys_of(grid))  # those of the four agents
        assert_close(deploy(settings, grid), zeroed(settings, {}))
        assert "bound" not in private_log(settings)
        assert {message.metadata.dst_node_id for message in grid.sent} == {
            100,
            101,
            102,
            103,
        }

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
