"""Where an agent keeps its observations between two messages.

Flower answers each message in a process of its own and passes it ``context.state``,
which a supernode keeps in memory: it is lost when the supernode stops. An agent whose
node config names a folder (``state="/path"``) keeps a file there instead. A crash
leaves the old file or the new one.

Everything here is private to the agent. Needs torch, numpy and flwr only.
"""

import io
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from flwr.app import ConfigRecord, Context
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.fts.agents import FTSAgents
from botorch_dp.optimizers.fts.federation import Federation

_TYPES = {
    "federation": str,
    "agent": int,
    "seed": int,
    "number": int,
    "state": dict,
    "given": int,
}


@dataclass
class AgentMemory:
    """What an agent remembers of an experiment.

    Args:
        federation: The settings of the federation, as text.
        agent: The index of the agent.
        seed: The seed of its choices; drawn from the operating system by default.
        number: The last round in which it has evaluated; -1 for none.
        state: The agent's :meth:`FTSAgents.private_state_dict`; None before round 0.
        given: The last round to whose secure sum it has given its share; -1 for none.
    """

    federation: str
    agent: int
    seed: int = field(default_factory=lambda: secrets.randbits(62))
    number: int = -1
    state: dict[str, Any] | None = None
    given: int = -1

    def agents(self) -> FTSAgents:
        """Return the agent with its observations, as a batch of one.

        Raises:
            OptimizerStateError: If the state is not that of such an agent.
        """
        federation = Federation.from_json(self.federation)
        index = torch.tensor([self.agent], device="cpu")
        agents = federation.agents(index, seed=self.seed, device="cpu")
        if self.state is not None:
            agents.load_private_state_dict(self.state)
        return agents


class FileStore:
    """Keeps the memory in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> AgentMemory | None:
        """Return what was saved, or None if nothing was.

        Raises:
            OptimizerStateError: If the file is damaged or is not an agent's file.
        """
        if not self.path.exists():
            return None
        stored = read_checkpoint(self.path, torch.device("cpu"))
        stored.setdefault("given", -1)  # older files have no such field
        if {name: type(value) for name, value in stored.items()} != _TYPES or not all(
            isinstance(stored["state"].get(name), Tensor) for name in ("X", "Y", "seen")
        ):
            raise OptimizerStateError(
                f"{str(self.path)!r} is not the file of an agent: restore it, or "
                "remove it to begin anew."
            )
        return AgentMemory(**stored)

    def save(self, memory: AgentMemory) -> None:
        """Save the memory in place of the previous one."""
        write_checkpoint(self.path, vars(memory))


class ContextStore:
    """Keeps the memory in Flower's state of the node, until the supernode stops.

    It does not read the memory of another experiment.
    """

    def __init__(self, context: Context, experiment: str) -> None:
        self._context, self._experiment = context, experiment

    def load(self) -> AgentMemory | None:
        """Return what was saved, or None if nothing was."""
        record = self._context.state.get("memory")
        if not isinstance(record, ConfigRecord):
            return None
        if record["experiment"] != self._experiment:
            return None
        data = record["memory"]
        assert isinstance(data, bytes)
        return AgentMemory(**torch.load(io.BytesIO(data), weights_only=True))

    def save(self, memory: AgentMemory) -> None:
        """Save the memory in place of the previous one."""
        data = io.BytesIO()
        torch.save(vars(memory), data)
        self._context.state["memory"] = ConfigRecord(
            {"experiment": self._experiment, "memory": data.getvalue()}
        )


AgentStore: TypeAlias = FileStore | ContextStore


def open_store(context: Context, experiment: str, agent: int) -> AgentStore:
    """Return the file that the node config asks for, or else Flower's own state."""
    folder = context.node_config.get("state")
    if folder is None:
        return ContextStore(context, experiment)
    if not isinstance(folder, str) or not Path(folder).is_dir():
        raise InvalidArgumentError(
            f"state in the node config must be a folder that exists, got {folder!r}: "
            "create it so that nobody else can read it."
        )
    return FileStore(agent_file(folder, agent, experiment))


def agent_file(folder: str | os.PathLike[str], agent: int, experiment: str) -> Path:
    """Return the path of an agent's file, which is private to the agent."""
    return Path(folder) / f"agent-{agent}-{experiment}.pt"


def private_best(path: str | os.PathLike[str]) -> tuple[Tensor, float]:
    """Return an agent's best point and its score there: private to the agent.

    Args:
        path: The path of the agent's file.
    """
    memory = FileStore(path).load()
    if memory is None:
        raise InvalidArgumentError(
            f"path must be the file of an agent that has evaluated, got {path!r}."
        )
    x, scores = memory.agents().best
    return x[0], float(scores[0])
