"""Where an agent keeps what it has observed between two messages.

Each message has a process of its own, which Flower hands ``context.state``, which a
supernode keeps in memory: it is gone when the supernode stops. So an agent whose node
config names a folder (``state="/path"``) keeps a file there instead, written so that a
crash leaves the old file or the new one.

Everything here is private to the agent. Needs torch, numpy and flwr only.
"""

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.fts.federation import Federation

_ARRAYS = ("agents", "X", "Y", "seen")
_TYPES = {"federation": str, "seed": int, "number": int, "state": dict}


@dataclass
class AgentMemory:
    """What an agent remembers of an experiment.

    Args:
        federation: The settings that all share, as text.
        seed: Of its own choices; drawn from the operating system by default.
        number: The last round in which it has evaluated; -1 for none.
        state: What :meth:`FTSAgents.private_state_dict` returned; None before round 0.
    """

    federation: str
    seed: int = field(default_factory=lambda: secrets.randbits(62))
    number: int = -1
    state: dict[str, Any] | None = None


class AgentStore(Protocol):
    """Keeps the memory of one agent in one experiment."""

    def load(self) -> AgentMemory | None:
        """Return what was saved, None if nothing was."""

    def save(self, memory: AgentMemory) -> None:
        """Keep the memory in place of what was saved before."""


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
    """Return the path of an agent's file: private to the agent."""
    return Path(folder) / f"agent-{agent}-{experiment}.pt"


class FileStore:
    """Keeps the memory in a file.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> AgentMemory | None:
        """Return what was saved, None if nothing was.

        Raises:
            OptimizerStateError: If the file is damaged or not an agent's.
        """
        if not self.path.exists():
            return None
        stored = read_checkpoint(self.path, torch.device("cpu"))
        if {name: type(value) for name, value in stored.items()} != _TYPES or not all(
            isinstance(stored["state"].get(name), Tensor) for name in _ARRAYS
        ):
            raise OptimizerStateError(
                f"{str(self.path)!r} is not the file of an agent: restore it, or "
                "remove it to begin anew."
            )
        return AgentMemory(**stored)

    def save(self, memory: AgentMemory) -> None:
        """Keep the memory in place of what was saved before."""
        write_checkpoint(
            self.path,
            {
                "federation": memory.federation,
                "seed": memory.seed,
                "number": memory.number,
                "state": memory.state,
            },
        )


class ContextStore:
    """Keeps the memory in Flower's state of the node, until the supernode stops.

    Args:
        context: Of the message at hand.
        experiment: Its name: what another experiment left is not read.
    """

    def __init__(self, context: Context, experiment: str) -> None:
        self._context, self._experiment = context, experiment

    def load(self) -> AgentMemory | None:
        """Return what was saved, None if nothing was."""
        memory = self._context.state.get("memory")
        arrays = self._context.state.get("observed")
        if (
            not isinstance(memory, ConfigRecord)
            or not isinstance(arrays, ArrayRecord)
            or memory["experiment"] != self._experiment
        ):
            return None
        state: dict[str, Any] = {
            name: memory[name] for name in ("fingerprint", "domain", "seed")
        }
        for name in _ARRAYS:
            state[name] = torch.from_numpy(np.array(arrays[name].numpy()))
        federation, seed, number = (
            memory[name] for name in ("federation", "seed", "number")
        )
        assert isinstance(federation, str)
        assert isinstance(seed, int)
        assert isinstance(number, int)
        return AgentMemory(federation, seed, number, state)

    def save(self, memory: AgentMemory) -> None:
        """Keep the memory in place of what was saved before."""
        assert memory.state is not None
        self._context.state["memory"] = ConfigRecord(
            {
                "experiment": self._experiment,
                "federation": memory.federation,
                "seed": memory.seed,
                "number": memory.number,
                "fingerprint": memory.state["fingerprint"],
                "domain": memory.state["domain"],
            }
        )
        self._context.state["observed"] = ArrayRecord(
            {name: Array(memory.state[name].cpu().numpy()) for name in _ARRAYS}
        )


def private_best(path: str | os.PathLike[str]) -> tuple[Tensor, float]:
    """Return an agent's best point and its score there: private to the agent.

    Args:
        path: The agent's file.

    Raises:
        InvalidArgumentError: If there is no such file.
        OptimizerStateError: If the file is damaged or not an agent's.
    """
    memory = FileStore(path).load()
    if memory is None or memory.state is None:
        raise InvalidArgumentError(
            f"path must be the file of an agent that has evaluated, got {path!r}."
        )
    federation = Federation.from_json(memory.federation)
    agents = federation.agents(memory.state["agents"], seed=memory.seed, device="cpu")
    agents.load_private_state_dict(memory.state)
    x, scores = agents.best
    return x[0], float(scores[0])
