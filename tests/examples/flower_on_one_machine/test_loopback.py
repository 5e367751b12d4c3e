"""The program: what it starts, and what it prints."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.integrations.flower.vote_server_app import VoteDeployment
from botorch_dp.integrations.flower.vote_settings import VoteSettings
from examples.flower_on_one_machine import loopback
from examples.flower_on_one_machine.local_federation import private_seconds
from tests.integrations.flower.deployments import deploy, private_log
from tests.integrations.flower.grid import FakeGrid, FakeNode
from tests.integrations.flower.votes import vote_grid


class InThisProcess:
    """Stands for a superlink and supernodes."""

    def __init__(self, folder, settings):
        self.folder, self.settings = folder, settings
        self.num_agents = settings.num_agents
        self.killed = []

    def agent_folder(self, agent):
        path = self.folder / f"agent-{agent}"
        path.mkdir(exist_ok=True)
        return path

    def submit(self):
        config = self.settings.to_run_config()
        nodes = [
            FakeNode(100 + agent, agent, config, state=self.agent_folder(agent))
            for agent in range(self.num_agents)
        ]
        deploy(self.settings, FakeGrid(nodes))

    def wait(self, *, rounds, timeout):
        assert len(self.private_seconds()) >= rounds

    def private_seconds(self):
        return private_seconds(private_log(self.settings))

    def kill_agent(self, agent):
        self.killed.append(agent)

    def finish(self, *, timeout):
        return {"network-traffic": {"total-bytes": 5000}}


@pytest.fixture
def started(monkeypatch):
    found = []

    @contextmanager
    def fake(folder, settings, *, tls):
        found.append((InThisProcess(folder, settings), tls))
        yield found[-1][0]

    monkeypatch.setattr(loopback, "loopback", fake)
    monkeypatch.setattr(loopback.signal, "signal", lambda *_: None)
    return found


def test_the_settings_are_those_of_a_run(tmp_path):
    settings = loopback.demo_settings(tmp_path, agents=3, rounds=5, timeout=20.0)
    assert DeploymentSettings.from_run_config(settings.to_run_config()) == settings
    assert settings.federation.num_agents == 3
    assert Path(settings.output).parent == tmp_path


@pytest.mark.default_device
def test_it_reports(started, tmp_path, capsys):
    arguments = ["--agents", "2", "--rounds", "4", "--kill", "--output"]
    loopback.main([*arguments, str(tmp_path / "new")])
    ((whole, tls),) = started
    assert not tls
    assert whole.killed == [1]
    shown = capsys.readouterr().out
    for text in ("round 4:", "agent 1: ", "every agent with all its data", "round, as"):
        assert text in shown
    assert "killing agent 1" in shown
    assert (tmp_path / "new" / "server" / "certificate.txt").exists()


@pytest.mark.default_device
def test_a_vote(started, tmp_path, capsys, monkeypatch):
    def submit(self):
        VoteDeployment(self.settings).run(vote_grid(self.settings))

    monkeypatch.setattr(InThisProcess, "submit", submit)
    loopback.main(["--vote", "--agents", "3", "--output", str(tmp_path)])
    ((whole, _),) = started
    settings = whole.settings
    assert VoteSettings.from_run_config(settings.to_run_config()) == settings
    shown = capsys.readouterr().out
    assert "the winner is {'rate': " in shown
    assert "every agent with all its data" in shown


@pytest.mark.default_device
def test_nothing_is_left_of_a_temporary_folder(started, capsys):
    loopback.main(["--agents", "1", "--rounds", "1", "--tls"])
    ((whole, tls),) = started
    assert tls
    assert not whole.folder.exists()
    assert "killed" not in capsys.readouterr().out
