"""Who answers for which agent, and which answers count.

A node is bound to the agent that it first answers for, and never answers for another.
An agent is bound to one node; another may take over only when that one is gone. An
answer that breaks a rule counts as none, as does one that is broken, late or missing.

All of this is private: that an agent took part is what a broadcast must not tell. What
was refused goes to a private log, and the bindings to a private file.
"""

import json
import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from flwr.app import Message
from torch import Tensor

from botorch_dp.exceptions import MessageError
from botorch_dp.federated.messages import Answer


class RollCall:
    """Turns a round's replies into the ``N x M`` tensor that a server releases from.

    Args:
        num_agents: The number of agents N.
        num_features: How many numbers M a vector has.
        private_log: Where refusals go.
        private_path: A file that keeps the bindings; None keeps them in memory.

    Attributes:
        private_nodes: The agent of each node.
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
            stored = json.loads(self._path.read_text())
            self.private_nodes = {int(node): int(stored[node]) for node in stored}

    def vectors(
        self,
        replies: Iterable[Message],
        *,
        number: int,
        asked: Mapping[str, int],
        connected: Collection[int],
    ) -> Tensor:
        """Return the vectors that count, zero for agents without one: private.

        Args:
            replies: In the order in which they arrived.
            number: Of the round.
            asked: The node to which each message of this round was sent.
            connected: The nodes that are there.
        """
        vectors = torch.zeros(
            self.num_agents, self.num_features, dtype=torch.float64, device="cpu"
        )
        answered: set[int] = set()
        before = dict(self.private_nodes)
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                answer = self._checked(reply, number, asked)
                self._bind(node, answer.agent, connected)
                if answer.agent in answered:
                    raise MessageError(f"Agent {answer.agent} has answered already.")
            except MessageError as error:
                self._log.warning("round %d, node %d: %s", number, node, error)
                continue
            answered.add(answer.agent)
            if answer.private_vector is not None:
                vectors[answer.agent] = answer.private_vector
        silent = sorted(set(range(self.num_agents)) - answered)
        self._log.info("round %d: no answer from agents %s", number, silent)
        if self.private_nodes != before:
            self._save()
        return vectors

    def _checked(self, reply: Message, number: int, asked: Mapping[str, int]) -> Answer:
        if reply.has_error():
            raise MessageError(f"error {reply.error.code}: {reply.error.reason}")
        if asked.get(reply.metadata.reply_to_message_id) != reply.metadata.src_node_id:
            raise MessageError("This node was not asked that.")
        answer = Answer.from_records(reply.content, self.num_features)
        if answer.number != number:
            raise MessageError(f"An answer of round {answer.number}.")
        if not 0 <= answer.agent < self.num_agents:
            raise MessageError(f"There is no agent {answer.agent}.")
        return answer

    def _bind(self, node: int, agent: int, connected: Collection[int]) -> None:
        known = self.private_nodes.get(node)
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
        if self._path is None:
            return
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump(self.private_nodes, file)
        os.replace(temporary, self._path)


def open_private_log(folder: str | os.PathLike[str]) -> logging.Logger:
    """Return a logger that writes to ``server.log`` in a folder and nowhere else.

    Flower uploads what a ServerApp prints or logs, for whoever may read its runs.
    """
    path = Path(folder) / "server.log"
    log = logging.getLogger(f"{__name__}.private.{path}")
    log.setLevel(logging.INFO)
    log.propagate = False
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    return log
