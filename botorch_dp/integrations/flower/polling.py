"""Ask all connected agents a question, and collect what they answer in time.

The server waits for ``timeout`` seconds. An agent that has not answered by then counts
as zero. While no agent is connected, or fewer than a quorum, the server waits.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from botorch_dp.integrations.flower.messages import MESSAGE_TYPE
from botorch_dp.integrations.flower.node_keys import read_keys
from botorch_dp.integrations.flower.roll_call import (
    AnyAnswer,
    RollCall,
    open_private_log,
)
from botorch_dp.integrations.flower.waiting import Waiting

# The longest time in seconds between polls for replies and nodes. Flower's own
# send_and_receive polls every three seconds.
_POLL = 0.5
_LAST = 2.0  # the last seconds of a round, in which each poll asks for all replies


class AgentPoll:
    """Asks agents and returns their vectors, which are private.

    Args:
        num_agents: The number of agents N.
        num_entries: The number of entries of a vector.
        private: A private folder for the log and the bindings of nodes to agents.
        keys: The folder with the agents' public keys; None for local trials.
        timeout: The number of seconds to wait for agents in a round.
        start_timeout: The number of seconds to wait for all agents at the beginning.
        quorum: The number of agents without which a round does not begin.

    Attributes:
        private_log: The log in the private folder.
    """

    def __init__(
        self,
        num_agents: int,
        num_entries: int,
        *,
        private: Path,
        keys: str | os.PathLike[str] | None,
        timeout: float,
        start_timeout: float,
        quorum: int = 1,
    ) -> None:
        self.num_agents, self.timeout = num_agents, timeout
        self.quorum = quorum
        self.start_timeout = start_timeout
        self._agents_of_keys = None if keys is None else read_keys(keys, num_agents)
        self.private_log = open_private_log(private)
        self._roll_call = RollCall(
            num_agents,
            num_entries,
            private_log=self.private_log,
            private_path=private / "nodes.json",
        )

    def ask(self, grid: Grid, question: RecordDict, number: int) -> Tensor:
        """Return the vectors of a round, zero for agents without one: private.

        Args:
            grid: Flower's connection to the agents.
            question: The content of the message to all agents: public.
            number: The index of the round, starting at 0.
        """
        nodes, agents = self._connected(grid)
        return self._roll_call.vectors(
            self._send(grid, dict.fromkeys(nodes, question), number),
            number=number,
            connected=set(grid.get_node_ids()),
            agents_of_nodes=agents,
        )

    def ask_all(
        self,
        grid: Grid,
        question: RecordDict,
        read: Callable[[RecordDict], AnyAnswer],
        number: int,
    ) -> dict[int, AnyAnswer]:
        """Return the answers of a round by agent.

        Args:
            grid: Flower's connection to the agents.
            question: The content of the message to all agents: public.
            read: Returns the answer in a message, or raises a MessageError.
            number: The index of the round, starting at 0.
        """
        nodes, agents = self._connected(grid)
        return self._roll_call.answers(
            self._send(grid, dict.fromkeys(nodes, question), number),
            read,
            number=number,
            connected=set(grid.get_node_ids()),
            agents_of_nodes=agents,
        )

    def ask_each(
        self,
        grid: Grid,
        questions: Mapping[int, RecordDict],
        read: Callable[[RecordDict], AnyAnswer],
        number: int,
    ) -> dict[int, AnyAnswer]:
        """Return the answers of agents that have answered before, by agent.

        Args:
            grid: Flower's connection to the agents.
            questions: The content of the message to each agent.
            read: Returns the answer in a message, or raises a MessageError.
            number: The index of the round, starting at 0.
        """
        nodes, agents = self._nodes(grid)
        known = self._roll_call.private_nodes if agents is None else agents
        chosen = {
            node: questions[known[node]]
            for node in nodes
            if known.get(node) in questions
        }
        return self._roll_call.answers(
            self._send(grid, chosen, number),
            read,
            number=number,
            connected=set(grid.get_node_ids()),
            agents_of_nodes=agents,
            asked=set(questions),
        )

    def wait_for_all(self, grid: Grid) -> None:
        """Wait until all agents are connected, for ``start_timeout`` at most."""
        deadline = time.monotonic() + self.start_timeout
        while time.monotonic() < deadline:
            if len(self._nodes(grid)[0]) >= self.num_agents:
                return
            time.sleep(_POLL)

    def _send(
        self, grid: Grid, questions: Mapping[int, RecordDict], number: int
    ) -> list[tuple[int, Message]]:
        """Return the replies of nodes to their questions."""
        if not questions:
            return []
        # A later answer would not count, so the message ends with the round.
        ttl, group = self.timeout, str(number)
        messages = [
            Message(question, node, MESSAGE_TYPE, ttl=ttl, group_id=group)
            for node, question in questions.items()
        ]
        asked = dict(zip(grid.push_messages(messages), questions, strict=True))
        return self._replies(grid, asked)

    def _replies(
        self, grid: Grid, asked: Mapping[str, int]
    ) -> list[tuple[int, Message]]:
        """Return the replies that arrive in time, with the nodes that were asked."""
        waiting = deque(identifier for identifier in asked if identifier)
        deadline = time.monotonic() + self.timeout
        replies: list[tuple[int, Message]] = []
        pause = Waiting(_POLL)
        while waiting and (left := deadline - time.monotonic()) > 0:
            # Each miss costs a call, so a poll gives up after a few.
            misses = len(waiting) if left < _LAST else 1 + len(waiting) // 8
            for _ in range(len(waiting)):
                identifier = waiting.popleft()
                arrived = self._reply(grid, identifier, asked[identifier])
                if arrived is None:
                    waiting.append(identifier)
                    misses -= 1
                    if not misses:
                        break
                else:
                    # Not the node that a reply names: its sender wrote that.
                    replies += [(asked[identifier], reply) for reply in arrived]
            if waiting:
                pause.sleep()
        return replies

    def _reply(self, grid: Grid, identifier: str, node: int) -> list[Message] | None:
        """Return the reply to a message, or None if there is none yet."""
        try:
            # One at a time, because an unreadable reply would hide the others.
            return list(grid.pull_messages([identifier])) or None
        except httpx.HTTPError:
            raise  # the superlink has stopped; the run can be resumed
        except Exception as error:
            self.private_log.warning("node %d: unreadable, %r", node, error)
            return []

    def _nodes(self, grid: Grid) -> tuple[list[int], dict[int, int] | None]:
        """Return the nodes to ask, and their agents if the operator listed keys."""
        if self._agents_of_keys is None:
            return sorted(grid.get_node_ids()), None
        known = self._agents_of_keys
        agents = {
            node.node_id: known[node.public_key]
            for node in grid.get_nodes()
            if node.public_key in known
        }
        return sorted(agents), agents

    def _connected(self, grid: Grid) -> tuple[list[int], dict[int, int] | None]:
        """Wait for enough nodes, because a release without them would be wasted."""
        while True:
            nodes, agents = self._nodes(grid)
            if len(nodes) >= self.quorum:
                return nodes, agents
            time.sleep(_POLL)
