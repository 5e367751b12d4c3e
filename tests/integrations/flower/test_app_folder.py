"""The folder that Flower submits."""

import tomllib

from botorch_dp.integrations.flower.app_folder import write_app
from botorch_dp.integrations.flower.settings import DeploymentSettings


def test_the_app_carries_its_settings(settings_of, tmp_path):
    settings = settings_of()
    folder = write_app(tmp_path / "app", settings)
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert DeploymentSettings.from_run_config(app["config"]) == settings
    for side, path in app["components"].items():
        module, name = path.split(":")
        text = (folder / f"{module.replace('.', '/')}.py").read_text()
        assert (
            f"from botorch_dp.integrations.flower.{side[:-3]}_app import {name}" in text
        )
