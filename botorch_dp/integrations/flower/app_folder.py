"""The folder that ``flwr run`` submits: the settings, and the names of both apps."""

import json
import os
from pathlib import Path

from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.integrations.flower.vote_settings import VoteSettings

_PACKAGE = "dp_fts_app"
_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "dp-fts-app"
version = "1.0.0"
description = "Private federated Bayesian optimization"
license = "MIT"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "botorch-dp"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
{config}
"""
# Flower looks for the name in the text of the module.
_MODULE = '''\
"""The {side} of a federation, as Flower finds it."""

from botorch_dp.integrations.flower.{module} import app

__all__ = ["app"]
'''


def write_app(
    folder: str | os.PathLike[str], settings: DeploymentSettings | VoteSettings
) -> Path:
    """Write an app that ``flwr run`` can submit.

    Args:
        folder: The folder, created if it does not exist. You may add a module with the
            agents' score function to it.
        settings: The settings of the deployment.

    Returns:
        The folder.
    """
    folder = Path(folder)
    package = folder / _PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    # Strings, numbers and booleans are written alike in JSON and TOML.
    config = "\n".join(
        f"{name} = {json.dumps(value)}"
        for name, value in settings.to_run_config().items()
    )
    text = _PYPROJECT.format(package=_PACKAGE, config=config)
    (folder / "pyproject.toml").write_text(text)
    (package / "__init__.py").write_text('"""A federation."""\n')
    for side, module in settings.apps.items():
        text = _MODULE.format(side=side, module=module)
        (package / f"{side}.py").write_text(text)
    return folder
