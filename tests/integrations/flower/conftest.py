"""A small federation, and nodes for its agents."""

from importlib import import_module

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from botorch_dp.integrations.flower import waiting
from botorch_dp.integrations.flower.node_keys import key_file
from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.optimizers.fts.federation import Federation
from examples.flower_on_one_machine.keys import write_node_key

from .grid import FakeGrid, FakeNode

SCORES = "examples.flower_on_one_machine.demo:score"


@pytest.fixture
def federation():
    return Federation(
        num_agents=4,
        lower=(0.0, -1.0),
        upper=(1.0, 1.0),
        lengthscale=(0.3, 0.3),
        num_features=20,
        num_regions=2,
        num_initial=3,
        num_candidates=100,
    )


@pytest.fixture
def settings_of(federation, tmp_path):
    """Settings of three rounds that do not wait long, with changes."""

    def make(**changes):
        values = {
            "federation": federation,
            "num_rounds": 3,
            "clip_norm": 5.0,
            "noise_multiplier": 1.0,
            "sampling_rate": 0.5,
            "output": str(tmp_path / "server"),
            "scores": SCORES,
            "timeout": 0.3,
            "start_timeout": 0.1,
            "seed": 7,
        }
        return DeploymentSettings(**{**values, **changes})

    return make


@pytest.fixture
def grid_of(tmp_path):
    """A grid with a node for every agent; with files if asked for."""

    def make(settings, *, files=False):
        nodes = []
        for agent in range(settings.federation.num_agents):
            state = tmp_path / f"agent-{agent}" if files else None
            if state is not None:
                state.mkdir(exist_ok=True)
            config = settings.to_run_config()
            name = settings.apps["client"]
            app = import_module(f"botorch_dp.integrations.flower.{name}").app
            nodes.append(FakeNode(100 + agent, agent, config, state=state, app=app))
        return FakeGrid(nodes)

    return make


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


@pytest.fixture
def node_of(settings_of):
    def make(agent=2, **changes):
        state = changes.pop("state", None)
        config = settings_of(**changes).to_run_config()
        return FakeNode(100 + agent, agent, config, state=state)

    return make


@pytest.fixture
def naps(monkeypatch):
    """A clock that sleeping moves; returns how long was slept."""
    found, now = [], [100.0]

    def nap(seconds):
        found.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(waiting.time, "sleep", nap)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return found
