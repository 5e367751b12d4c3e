"""The folder that Flower submits."""

import tomllib

import pytest

from botorch_dp.integrations.flower.app_folder import write_app
from botorch_dp.integrations.flower.settings import DeploymentSettings


@pytest.mark.parametrize("trust", ["server", "aggregation"])
def test_the_app_carries_its_settings(settings_of, tmp_path, trust):
    settings = settings_of(trust=trust)
    folder = write_app(tmp_path / "app", settings)
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert DeploymentSettings.from_run_config(app["config"]) == settings
    for side, path in app["components"].items():
        module, name = path.split(":")
        text = (folder / f"{module.replace('.', '/')}.py").read_text()
        module = settings.apps[side.removesuffix("app")]
        assert f"from botorch_dp.integrations.flower.{module} import {name}" in text
