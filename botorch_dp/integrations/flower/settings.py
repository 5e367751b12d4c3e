"""The settings of a deployment: public, since Flower shows them to every agent.

Flower stores them as the app's run config, which is flat and has dashes in names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from botorch_dp._validation import check_choice, check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.fts.federation import Federation
from botorch_dp.optimizers.fts.honest import check_num_honest

# The modules of server and client by whom agents trust.
_APPS = {
    "server": ("server_app", "client_app"),
    "aggregation": ("secure_server_app", "secure_client_app"),
}


@dataclass(frozen=True)
class DeploymentSettings:
    """The settings of a deployed federation.

    Args:
        federation: The settings that agents and server share.
        num_rounds: The number of broadcasts.
        clip_norm: The bound S of the agents' vectors.
        noise_multiplier: The ratio z of noise to sensitivity.
        output: The folder on the server's machine for state, ledger and certificate. A
            run that finds them there continues with the next round.
        scores: The import path of the agents' score function, ``"module:function"``;
            an agent's node config may name another.
        sampling_rate: The probability q that an agent is in the sample of a round.
        sample_size: The size of a uniform sample, instead of ``sampling_rate``.
        trust: Whom agents trust: ``"server"``, or ``"aggregation"``, where the server
            sees the sums of noisy vectors only.
        num_honest: For ``"aggregation"``, the number H of agents in every sum that
            surely add their share of the noise; two thirds of all by default.
        threshold: For ``"aggregation"``, the least number of agents in a sum, without
            which nothing is revealed. If at most ``threshold - num_honest`` agents
            collude with the server, every sum has ``num_honest`` honest ones. By
            default, and at least, the larger one of H and N - H + 1.
        sensitivity: ``"tight"`` or ``"paper"``.
        keys: The folder on the server's machine with the agents' public keys,
            ``agent-0.pub`` and so on. Without it a node is the agent for which it first
            answers, so a stranger can take an agent's place: for local trials only.
        timeout: The number of seconds to wait for agents in a round, or in each of its
            four stages for ``"aggregation"``.
        start_timeout: The number of seconds to wait for all agents before round 0.
        seed: The seed of noise and choices: for experiments only. Agents see it, so the
            noise hides nothing from them. With ``"aggregation"`` it seeds choices only.

    Example:
        >>> federation = Federation(
        ...     num_agents=4, lower=(0.0,), upper=(1.0,), lengthscale=(0.1,)
        ... )
        >>> settings = DeploymentSettings(
        ...     federation, num_rounds=10, clip_norm=5.0, noise_multiplier=1.0,
        ...     sampling_rate=0.5, output="/srv/fts", scores="hospital:auc",
        ... )
        >>> DeploymentSettings.from_run_config(settings.to_run_config()) == settings
        True
    """

    federation: Federation
    num_rounds: int
    clip_norm: float
    noise_multiplier: float
    output: str
    scores: str
    sampling_rate: float | None = None
    sample_size: int | None = None
    trust: str = "server"
    num_honest: int | None = None
    threshold: int | None = None
    sensitivity: str = "tight"
    keys: str | None = None
    timeout: float = 60.0
    start_timeout: float = 120.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_count("num_rounds", self.num_rounds)
        check_choice("trust", self.trust, tuple(_APPS))
        check_deployment(self)
        if self.trust == "aggregation":
            self._check_aggregation()
        elif (self.num_honest, self.threshold) != (None, None):
            raise InvalidArgumentError(
                "num_honest and threshold are for trust='aggregation', got trust="
                f"{self.trust!r}."
            )

    def _check_aggregation(self) -> None:
        if self.sample_size is not None or self.sampling_rate is None:
            raise InvalidArgumentError(
                "trust='aggregation' needs sampling_rate, because each agent draws for "
                f"itself, got sample_size={self.sample_size!r}."
            )
        honest = check_num_honest(self.num_honest, self.num_agents)
        # With N - H secrets or fewer, those who are not honest find no mask.
        least = max(honest, self.num_agents - honest + 1)
        threshold = least if self.threshold is None else self.threshold
        check_count("threshold", threshold)
        if not least <= threshold <= self.num_agents:
            raise InvalidArgumentError(
                f"threshold must be between {least} and {self.num_agents} for "
                f"{self.num_agents} agents, of which {honest} are honest, got "
                f"{threshold}."
            )
        # All agents see the numbers themselves.
        object.__setattr__(self, "num_honest", honest)
        object.__setattr__(self, "threshold", threshold)

    @property
    def apps(self) -> dict[str, str]:
        """The modules of both apps."""
        return dict(zip(("server", "client"), _APPS[self.trust], strict=True))

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return self.federation.num_agents

    def to_run_config(self) -> dict[str, str | int | float | bool]:
        """Return the settings as Flower's run config."""
        return write_run_config(self, federation=self.federation.to_json())

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> "DeploymentSettings":
        """Return the settings in a run config."""
        values = read_run_config(cls, config)
        values["federation"] = Federation.from_json(str(values.get("federation")))
        try:
            return cls(**values)
        except TypeError as error:
            raise InvalidArgumentError(
                f"The run config is incomplete: {error}."
            ) from error


def check_deployment(settings: Any) -> None:
    """Check what the settings of all deployments have in common."""
    check_positive("timeout", settings.timeout)
    check_positive("start_timeout", settings.start_timeout)
    if settings.seed is not None:
        check_count("seed", settings.seed, minimum=0)
    for name in ("output", "keys"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_absolute():
            raise InvalidArgumentError(
                f"{name} must be an absolute path on the server's machine, got "
                f"{path!r}."
            )


def write_run_config(settings: Any, **texts: str) -> dict[str, Any]:
    """Return a dataclass as a run config, with some of its fields as texts."""
    values = {
        item.name.replace("_", "-"): getattr(settings, item.name)
        for item in fields(settings)
    }
    values |= texts
    return {name: value for name, value in values.items() if value is not None}


def read_run_config(cls: type[Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a dataclass by the names of its fields."""
    known = {item.name.replace("_", "-"): item.name for item in fields(cls)}
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise InvalidArgumentError(f"The run config has unknown keys: {unknown}.")
    return {known[name]: value for name, value in config.items()}
