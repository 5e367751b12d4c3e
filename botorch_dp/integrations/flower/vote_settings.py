"""The settings of a deployed vote: public, since Flower shows them to every agent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from botorch_dp._validation import check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.flower.settings import (
    check_deployment,
    read_run_config,
    write_run_config,
)
from botorch_dp.optimizers.vote.election import Election


@dataclass(frozen=True)
class VoteSettings:
    """The settings of a deployed vote.

    Args:
        election: The settings that agents and server share.
        epsilon: The pure epsilon of the vote, for each agent with all its data.
        output: The folder on the server's machine for winner, state, ledger and
            certificate.
        scores: The import path of the agents' score function, ``"module:function"``;
            an agent's node config may name another. It takes the agent's index and a
            list of candidates, and returns a score for each, which is maximized.
        keys: The folder on the server's machine with the agents' public keys,
            ``agent-0.pub`` and so on. Without it a node is the agent for which it first
            answers, so a stranger can take an agent's place: for local trials only.
        timeout: The number of seconds to wait for the agents' ballots. They train all
            their models in this time.
        start_timeout: The number of seconds to wait for all agents before the vote.
        seed: The seed of the noise: for experiments only. Agents see it, so the noise
            hides nothing from them.

    Example:
        >>> election = Election(100, [{"C": 0.1}, {"C": 1.0}, {"C": 10.0}])
        >>> settings = VoteSettings(
        ...     election, epsilon=1.0, output="/srv/vote", scores="hospital:accuracies"
        ... )
        >>> VoteSettings.from_run_config(settings.to_run_config()) == settings
        True
    """

    #: The modules of both apps.
    apps: ClassVar[dict[str, str]] = {
        "server": "vote_server_app",
        "client": "vote_client_app",
    }

    election: Election
    epsilon: float
    output: str
    scores: str
    keys: str | None = None
    timeout: float = 600.0
    start_timeout: float = 120.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_deployment(self)

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return self.election.num_agents

    def to_run_config(self) -> dict[str, str | int | float | bool]:
        """Return the settings as Flower's run config."""
        return write_run_config(self, election=self.election.to_json())

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> "VoteSettings":
        """Return the settings in a run config."""
        values = read_run_config(cls, config)
        values["election"] = Election.from_json(str(values.get("election")))
        try:
            return cls(**values)
        except TypeError as error:
            raise InvalidArgumentError(
                f"The run config is incomplete: {error}."
            ) from error
