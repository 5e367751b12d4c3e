"""Settings of a deployment, as arguments and as Flower's run config."""

import pytest

from botorch_dp.exceptions import InvalidArgumentError


def test_arguments(settings_of):
    with pytest.raises(InvalidArgumentError, match="output must be an absolute"):
        settings_of(output="server")
    with pytest.raises(InvalidArgumentError, match="keys must be an absolute"):
        settings_of(keys="keys")
    with pytest.raises(InvalidArgumentError, match="timeout must be"):
        settings_of(timeout=0.0)
    with pytest.raises(InvalidArgumentError, match="seed must be"):
        settings_of(seed=-1)


def test_run_config(settings_of):
    settings = settings_of(seed=None)
    config = settings.to_run_config()
    assert "seed" not in config
    assert all(isinstance(value, str | int | float) for value in config.values())
    with pytest.raises(InvalidArgumentError, match=r"unknown keys: \['sed'\]"):
        type(settings).from_run_config({**config, "sed": 3})
    del config["clip-norm"]
    with pytest.raises(InvalidArgumentError, match=r"incomplete.*clip_norm"):
        type(settings).from_run_config(config)
