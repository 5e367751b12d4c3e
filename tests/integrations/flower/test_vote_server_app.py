"""The server's side of a vote: equal to the vote in one process, and what it writes."""

import json
import logging
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from botorch_dp import Certificate, Ledger, PureDP
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.flower import vote_server_app
from botorch_dp.integrations.flower.vote_server_app import VoteDeployment
from botorch_dp.optimizers import VoteServer
from botorch_dp.optimizers.core.checkpoint import read_checkpoint

from .deployments import CPU, answer, replaced, without_names
from .votes import ELECTION, certain, expected_marks, vote_grid, vote_settings


def simulated(settings, absent=()):
    """Return the winner of the same vote in one process."""
    generator = torch.Generator(device="cpu").manual_seed(settings.seed)
    server = VoteServer(
        settings.election, PureDP(settings.epsilon), generator=generator
    )
    return server.release(expected_marks(settings.election, absent))


def run(settings, grid):
    return VoteDeployment(settings).run(grid)


class TestEqualsTheSimulation:
    @pytest.mark.parametrize("per_agent", [None, 3])
    @pytest.mark.parametrize("seed", range(4))
    def test_when_all_answer(self, tmp_path, per_agent, seed):
        election = replace(ELECTION, candidates_per_agent=per_agent)
        settings = vote_settings(tmp_path, election=election, seed=seed, epsilon=0.1)
        assert run(settings, vote_grid(settings)).index == simulated(settings)

    def test_winners_differ(self, tmp_path):
        """So that the test above can fail."""
        settings = [vote_settings(tmp_path, seed=s, epsilon=0.1) for s in range(4)]
        assert len({simulated(one) for one in settings}) > 1

    def test_hostile_marks_count_as_one_vote(self, tmp_path):
        settings = certain(vote_settings(tmp_path))
        grid = vote_grid(settings)
        loud = np.full(7, -1e9)
        loud[0] = 1e9
        grid.nodes[103].tamper = {0: replaced(answer(3, 0, loud))}
        marks = expected_marks(ELECTION)
        marks[3] = torch.eye(7, dtype=torch.float64, device=CPU)[0]
        assert run(settings, grid).index == int(marks.sum(dim=0).argmax()) != 0

    def test_through_flower(self, tmp_path, capsys):
        settings = vote_settings(tmp_path)
        context = Context(
            run_id=1,
            node_id=1,
            node_config={},
            state=RecordDict(),
            run_config=settings.to_run_config(),
        )
        before = os.umask(0o022)
        try:
            vote_server_app.app(vote_grid(settings, folder=tmp_path), context)
            assert os.umask(0o022) == 0o077
        finally:
            os.umask(before)
        winner = simulated(settings)
        text = (tmp_path / "server" / "winner.json").read_text()
        assert json.loads(text)["index"] == winner
        assert f"candidate {winner}" in capsys.readouterr().out
        for agent in range(4):  # all of them know
            (kept,) = (tmp_path / f"agent-{agent}").glob("winner-*.json")
            assert json.loads(kept.read_text())["index"] == winner


class TestFiles:
    def test_what_is_written(self, tmp_path):
        settings = vote_settings(tmp_path)
        result = run(settings, vote_grid(settings))
        folder = tmp_path / "server"
        winner = json.loads((folder / "winner.json").read_text())
        assert winner == {"index": result.index, "candidate": result.candidate}
        certificate = Certificate.from_json((folder / "certificate.json").read_text())
        assert (certificate.unit, certificate.adjacency) == ("agent", "zero_out")
        assert certificate.num_releases == 1
        assert str(certificate) in (folder / "certificate.txt").read_text()
        assert len(Ledger(path=folder / "ledger.sqlite")) == 1
        written = [folder, *folder.rglob("*")]
        assert [path for path in written[:2] if path.stat().st_mode & 0o077] == []

    def test_nothing_public_tells_who_was_there(self, tmp_path, caplog):
        caplog.set_level(logging.DEBUG)
        found = []
        for name, silent in (("all", set()), ("some", {0})):
            settings = certain(vote_settings(tmp_path, output=str(tmp_path / name)))
            grid = vote_grid(settings)
            grid.nodes[101].silent = silent
            run(settings, grid)
            state = read_checkpoint(tmp_path / name / "state.pt", CPU)
            state.pop("run_id")
            files = sorted(path.name for path in (tmp_path / name).iterdir())
            text = without_names(tmp_path / name / "certificate.txt")
            found.append((state, files, text))
        assert found[0] == found[1]
        assert "node" not in caplog.text
        log = (tmp_path / "some" / "private" / "server.log").read_text()
        assert "round 0: no answer from agents [1]" in log

    def test_a_vote_that_was_held_is_told_again(self, tmp_path):
        settings = vote_settings(tmp_path, seed=None)
        first = run(settings, vote_grid(settings))
        grid = vote_grid(settings)
        assert run(settings, grid).index == first.index
        assert {one.metadata.group_id for one in grid.sent} == {"1"}  # no ballots
        assert len(Ledger(path=f"{settings.output}/ledger.sqlite")) == 1

    def test_before_the_charge_it_begins_again(self, tmp_path):
        settings = vote_settings(tmp_path)
        grid = vote_grid(settings)

        def stop(message, reply):
            raise KeyboardInterrupt

        grid.nodes[102].tamper = {0: stop}
        with pytest.raises(KeyboardInterrupt):
            run(settings, grid)
        assert not len(Ledger(path=f"{settings.output}/ledger.sqlite"))
        grid.nodes[102].tamper = {}
        assert run(settings, grid).index == simulated(settings)

    def test_after_the_charge_it_is_over(self, tmp_path, monkeypatch):
        settings = vote_settings(tmp_path)
        deployment = VoteDeployment(settings)

        def crash(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(deployment.server._mechanism, "_draw", crash)
        with pytest.raises(KeyboardInterrupt):
            deployment.run(vote_grid(settings))
        with pytest.raises(OptimizerStateError, match="interrupted before"):
            run(settings, vote_grid(settings))
        assert len(Ledger(path=f"{settings.output}/ledger.sqlite")) == 1

    def test_refuses_other_files(self, tmp_path):
        settings = vote_settings(tmp_path)
        run(settings, vote_grid(settings))
        with pytest.raises(OptimizerStateError, match="other settings"):
            VoteDeployment(replace(settings, epsilon=3.0))
        path = tmp_path / "server" / "state.pt"
        torch.save({"server": 3}, path)
        with pytest.raises(OptimizerStateError, match="not the state of a vote"):
            VoteDeployment(settings)
        path.write_bytes(b"noise")
        with pytest.raises(OptimizerStateError, match="cannot be read"):
            VoteDeployment(settings)

    def test_one_server_for_a_folder(self, tmp_path):
        first = VoteDeployment(vote_settings(tmp_path))
        with pytest.raises(OptimizerStateError, match="in use"):
            VoteDeployment(vote_settings(tmp_path))
        first.run(vote_grid(first.settings))
        VoteDeployment(vote_settings(tmp_path))
