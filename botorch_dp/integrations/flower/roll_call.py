"""Which node answers for which agent, and which answers count.

The operator's keys say which node belongs to which agent. Without keys, a node is bound
to the agent for which it first answers, and cannot answer for another one. Another node
may take over an agent only when the first is gone. An answer that breaks a rule does
not count, nor does a broken or late one.

All of this is private, because a broadcast must not reveal whether an agent took part.
Refusals go to a private log, and the bindings to a private file.
"""

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from botorch_dp.exceptions import MessageError, OptimizerStateError
from botorch_dp.integrations.flower.messages import Answer
from botorch_dp.integrations.flower.private_files import write_private

_MAX_WARNING = 500  # characters of a warning in the log


class _Numbered(Protocol):
    """An answer: of which agent, and for which round."""

    @property
    def agent(self) -> int: ...

    @property
    def number(self) -> int: ...


AnyAnswer = TypeVar("AnyAnswer", bound=_Numbered)


class RollCall:
    """Turns the replies of a round into the ``N x M`` vectors for the server.

    Args:
        num_agents: The number of agents N.
        num_features: The number M of entries of a vector.
        private_log: The log for refusals.
        private_path: A file that keeps the bindings; None keeps them in memory.

    Attributes:
        private_nodes: The agent of each node.

    Raises:
        OptimizerStateError: If the file cannot be read.
    """

    def __init__(
        self,
        num_agents: int,
        num_features: int,
        *,
        private_log: logging.Logger,
        private_path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.num_agents, self.num_features = num_agents, num_features
        self._log = private_log
        self._path = None if private_path is None else Path(private_path)
        self.private_nodes: dict[int, int] = {}
        if self._path is not None and self._path.exists():
            self.private_nodes = _read_nodes(self._path, num_agents)

    def vectors(
        self,
        replies: Iterable[tuple[int, Message]],
        *,
        number: int,
        connected: Collection[int],
        agents_of_nodes: Mapping[int, int] | None = None,
    ) -> Tensor:
        """Return the vectors that count, zero for agents without one: private.

        Args:
            replies: The node that was asked and its reply, in the order of arrival.
            number: The index of the round, starting at 0.
            connected: The connected nodes.
            agents_of_nodes: The agent of each node by its key; None if the operator
                listed no keys.
        """
        vectors = torch.zeros(
            self.num_agents, self.num_features, dtype=torch.float64, device="cpu"
        )
        answers = self.answers(
            replies,
            self._read_answer,
            number=number,
            connected=connected,
            agents_of_nodes=agents_of_nodes,
        )
        for agent, answer in answers.items():
            if answer.private_vector is not None:
                vectors[agent] = answer.private_vector
        return vectors

    def answers(
        self,
        replies: Iterable[tuple[int, Message]],
        read: Callable[[RecordDict], AnyAnswer],
        *,
        number: int,
        connected: Collection[int],
        agents_of_nodes: Mapping[int, int] | None = None,
        asked: Collection[int] | None = None,
    ) -> dict[int, AnyAnswer]:
        """Return the answers that count, by agent.

        Args:
            replies: The node that was asked and its reply, in the order of arrival.
            read: Returns the answer in a message, or raises a MessageError.
            number: The index of the round, starting at 0.
            connected: The connected nodes.
            agents_of_nodes: The agent of each node by its key; None if the operator
                listed no keys.
            asked: The agents that were asked; all if None.
        """
        answered: dict[int, AnyAnswer] = {}
        before = dict(self.private_nodes)
        if agents_of_nodes is not None:
            self.private_nodes = dict(agents_of_nodes)
        for node, reply in replies:
            try:
                answer = self._checked(node, reply, read, number)
                self._bind(node, answer.agent, connected, agents_of_nodes is None)
                if answer.agent in answered:
                    raise MessageError(f"Agent {answer.agent} has answered already.")
            except MessageError as error:
                self._log.warning("round %d, node %d: %s", number, node, error)
                continue
            answered[answer.agent] = answer
        everyone = range(self.num_agents) if asked is None else asked
        silent = sorted(set(everyone) - set(answered))
        self._log.info("round %d: no answer from agents %s", number, silent)
        if self.private_nodes != before:
            self._save()
        return answered

    def _read_answer(self, records: RecordDict) -> Answer:
        return Answer.from_records(records, self.num_features)

    def _checked(
        self,
        node: int,
        reply: Message,
        read: Callable[[RecordDict], AnyAnswer],
        number: int,
    ) -> AnyAnswer:
        if reply.has_error():
            raise MessageError(f"error {reply.error.code}: {reply.error.reason}")
        # The node writes this itself, but the superlink has checked whose reply it is.
        if reply.metadata.src_node_id != node:
            raise MessageError(f"It says that it is node {reply.metadata.src_node_id}.")
        answer = read(reply.content)
        if answer.number != number:
            raise MessageError(f"The answer is for round {answer.number}.")
        if not 0 <= answer.agent < self.num_agents:
            raise MessageError(f"There is no agent {answer.agent}.")
        return answer

    def _bind(
        self, node: int, agent: int, connected: Collection[int], may_claim: bool
    ) -> None:
        known = self.private_nodes.get(node)
        if known is None and not may_claim:
            raise MessageError("Its key belongs to no agent.")
        if known is not None and known != agent:
            raise MessageError(f"It claims to be agent {agent}, but is agent {known}.")
        if known == agent:
            return
        holders = [
            other for other, bound in self.private_nodes.items() if bound == agent
        ]
        if any(other in connected for other in holders):
            raise MessageError(f"Agent {agent} is bound to another node.")
        for other in holders:
            # Without authentication a supernode gets a new id when it starts again.
            del self.private_nodes[other]
        self.private_nodes[node] = agent

    def _save(self) -> None:
        if self._path is not None:
            write_private(self._path, json.dumps(self.private_nodes))


def _read_nodes(path: Path, num_agents: int) -> dict[int, int]:
    """Return the bindings in a file, or raise an OptimizerStateError."""
    try:
        stored = json.loads(path.read_bytes())
        nodes = {int(node): agent for node, agent in stored.items()}
        whole = all(type(agent) is int for agent in nodes.values())
    except (ValueError, AttributeError, RecursionError):
        whole = False
    if not whole or not all(0 <= agent < num_agents for agent in nodes.values()):
        raise OptimizerStateError(
            f"{str(path)!r} is damaged: it must be a JSON object from nodes to agents "
            f"below {num_agents}. Restore it, or remove it to bind nodes anew."
        )
    return nodes


class _OneLine(logging.Formatter):
    """Keeps a record on one line and a warning short, since agents choose its text."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = record.getMessage()
        longest = _MAX_WARNING if record.levelno >= logging.WARNING else len(text)
        # Escapes line ends, terminal sequences and characters outside ASCII.
        line = text[:longest].encode("unicode_escape").decode("ascii")
        if longest < len(text):
            line = f"{line[:longest]}... ({len(text)} characters)"
        return f"{record.asctime} {line}"


def open_private_log(folder: str | os.PathLike[str]) -> logging.Logger:
    """Return a logger that writes only to ``server.log`` in a folder.

    Flower uploads what a ServerApp prints or logs, for everyone who may read its runs.
    """
    path = Path(folder) / "server.log"
    log = logging.getLogger(f"{__name__}.private.{path}")
    log.setLevel(logging.INFO)
    log.propagate = False
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    path.touch(mode=0o600)
    path.chmod(0o600)  # the file may exist with other permissions
    handler = logging.FileHandler(path)
    handler.setFormatter(_OneLine("%(asctime)s %(message)s"))
    log.addHandler(handler)
    return log
