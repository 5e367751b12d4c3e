"""A small federation, and nodes for its agents."""

import pytest

from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.optimizers.fts.federation import Federation

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
            nodes.append(FakeNode(100 + agent, agent, config, state=state))
        return FakeGrid(nodes)

    return make
