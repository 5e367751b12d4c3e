"""Settings of a deployed vote, as arguments, as a run config, and as an app."""

import tomllib

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.flower import VoteSettings, write_app

from .votes import vote_settings


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"output": "server"}, "output must be an absolute"),
        ({"keys": "keys"}, "keys must be an absolute"),
        ({"timeout": 0.0}, "timeout"),
        ({"start_timeout": -1.0}, "start_timeout"),
        ({"seed": -1}, "seed"),
    ],
)
def test_arguments(tmp_path, changes, match):
    with pytest.raises(InvalidArgumentError, match=match):
        vote_settings(tmp_path, **changes)


def test_run_config(tmp_path):
    settings = vote_settings(tmp_path, seed=None)
    config = settings.to_run_config()
    assert "seed" not in config
    assert all(isinstance(value, str | int | float) for value in config.values())
    assert VoteSettings.from_run_config(config) == settings
    with pytest.raises(InvalidArgumentError, match=r"unknown keys: \['sed'\]"):
        VoteSettings.from_run_config({**config, "sed": 3})
    with pytest.raises(InvalidArgumentError, match="written by to_json"):
        VoteSettings.from_run_config({**config, "election": "{}"})
    del config["epsilon"]
    with pytest.raises(InvalidArgumentError, match=r"incomplete.*epsilon"):
        VoteSettings.from_run_config(config)


def test_the_app_carries_its_settings(tmp_path):
    settings = vote_settings(tmp_path)
    folder = write_app(tmp_path / "app", settings)
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert VoteSettings.from_run_config(app["config"]) == settings
    for side in ("server", "client"):
        text = (folder / "dp_fts_app" / f"{side}.py").read_text()
        assert f"flower.vote_{side}_app import app" in text
