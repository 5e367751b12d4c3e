"""Settings of a deployment, as arguments and as Flower's run config."""

from dataclasses import replace

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


class TestAggregation:
    def test_default_numbers(self, settings_of, federation):
        for num_agents, honest, threshold in ((4, 3, 3), (20, 14, 14), (3, 2, 2)):
            many = replace(federation, num_agents=num_agents)
            settings = settings_of(federation=many, trust="aggregation")
            assert (settings.num_honest, settings.threshold) == (honest, threshold)
        assert settings_of().num_honest is None
        assert settings_of().threshold is None

    @pytest.mark.parametrize("num_agents", [2, 5, 8, 20])
    def test_who_is_not_honest_is_too_few_for_the_masks(
        self, federation, settings_of, num_agents
    ):
        many = replace(federation, num_agents=num_agents)
        for honest in range(1, num_agents + 1):
            least = settings_of(
                federation=many, trust="aggregation", num_honest=honest
            ).threshold
            assert least >= honest
            assert least > num_agents - honest
            assert least > num_agents / 2

    def test_arguments(self, settings_of):
        for changes, match in (
            ({"trust": "nobody"}, "trust must be"),
            ({"num_honest": 3}, "are for trust='aggregation'"),
            ({"threshold": 3}, "are for trust='aggregation'"),
        ):
            with pytest.raises(InvalidArgumentError, match=match):
                settings_of(**changes)
        for changes, match in (
            ({"num_honest": 5}, "at most the number of agents"),
            ({"threshold": 5}, "threshold must be between 3 and 4"),
            ({"threshold": 2}, "threshold must be between 3 and 4"),
            ({"num_honest": 1, "threshold": 3}, "threshold must be between 4 and 4"),
            ({"threshold": 3.0}, "threshold"),
            ({"sampling_rate": None, "sample_size": 2}, "needs sampling_rate"),
        ):
            with pytest.raises(InvalidArgumentError, match=match):
                settings_of(trust="aggregation", **changes)

    def test_run_config(self, settings_of):
        settings = settings_of(trust="aggregation", threshold=4)
        config = settings.to_run_config()
        assert (config["num-honest"], config["threshold"]) == (3, 4)
        assert type(settings).from_run_config(config) == settings

    def test_apps(self, settings_of):
        assert settings_of().apps == {"server": "server_app", "client": "client_app"}
        assert settings_of(trust="aggregation").apps == {
            "server": "secure_server_app",
            "client": "secure_client_app",
        }
