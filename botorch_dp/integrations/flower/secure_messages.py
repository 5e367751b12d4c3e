"""The messages of a secure sum: what the server and an agent say in each stage.

What they say is bytes for each agent. The server sends, in the four stages: nothing;
the public keys of all agents; the encrypted shares from all others; which share of each
agent it wants. An agent answers: its own public keys; encrypted shares for all others;
its masked vector; the shares that the server wants.

Needs torch, numpy and flwr only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from botorch_dp.exceptions import MessageError
from botorch_dp.integrations.flower.messages import PROTOCOL, Question, read_record
from botorch_dp.integrations.flower.secure_sum import KEYS, STAGES, VECTOR

_WHOLE = np.dtype("<i8")  # little-endian on every machine


@dataclass(frozen=True, eq=False)
class SumQuestion:
    """What the server asks an agent in a stage.

    Args:
        question: The question of the round; its broadcast comes with the first stage.
        stage: The stage, from 1 to 4.
        items: What the server says of each agent.
    """

    question: Question
    stage: int
    items: Mapping[int, bytes] = field(default_factory=dict)

    def to_records(self) -> RecordDict:
        """Return the question as the content of a message."""
        records = self.question.to_records()
        record = records["question"]
        assert isinstance(record, ConfigRecord)
        record.update(_to_fields(self.stage, self.items))
        return records

    @classmethod
    def from_records(cls, records: RecordDict) -> "SumQuestion":
        """Return the question in a message, or raise a MessageError."""
        question = Question.from_records(records)
        num_agents = question.federation.num_agents
        stage, items = _from_fields(read_record(records, "question"), num_agents)
        return cls(question, stage, items)


@dataclass(frozen=True)
class SumAnswer:
    """What an agent answers in a stage.

    Args:
        agent: The index of the agent.
        number: The index of the round.
        stage: The stage.
        items: What the agent says of each agent.
    """

    agent: int
    number: int
    stage: int
    items: Mapping[int, bytes]

    def to_records(self) -> RecordDict:
        """Return the answer as the content of a message."""
        record = ConfigRecord(
            {"protocol": PROTOCOL, "agent": self.agent, "number": self.number}
        )
        record.update(_to_fields(self.stage, self.items))
        return RecordDict({"answer": record})

    @classmethod
    def from_records(
        cls, records: RecordDict, *, stage: int, num_agents: int, num_entries: int
    ) -> "SumAnswer":
        """Return the answer in a message, or raise a MessageError.

        Args:
            records: The content of the message.
            stage: The stage in which it was asked.
            num_agents: The number N of agents.
            num_entries: The number of entries of a vector.
        """
        fields = read_record(records, "answer")
        agent, number = fields.get("agent"), fields.get("number")
        if not isinstance(agent, int) or not isinstance(number, int):
            raise MessageError("An answer needs the numbers of an agent and a round.")
        answered, items = _from_fields(fields, num_agents)
        if answered != stage:
            raise MessageError(f"The answer is for stage {answered}, not {stage}.")
        if stage in (KEYS, VECTOR) and set(items) != {agent}:
            raise MessageError("The answer must be about the agent itself.")
        if stage == VECTOR:
            vector_from_bytes(items[agent], num_entries)
        return cls(agent, number, stage, items)

    @property
    def own(self) -> bytes:
        """What the agent says of itself: its public keys, or its masked vector."""
        return self.items[self.agent]


def vector_to_bytes(vector: Tensor) -> bytes:
    """Return whole numbers (int64) as bytes."""
    return vector.cpu().numpy().astype(_WHOLE).tobytes()


def vector_from_bytes(data: bytes, num_entries: int) -> Tensor:
    """Return the whole numbers in bytes, or raise a MessageError."""
    if len(data) != _WHOLE.itemsize * num_entries:
        raise MessageError(
            f"The vector must be {_WHOLE.itemsize * num_entries} bytes, got "
            f"{len(data)}."
        )
    return torch.from_numpy(np.frombuffer(data, dtype=_WHOLE).astype(np.int64))


def _to_fields(stage: int, items: Mapping[int, bytes]) -> dict[str, Any]:
    return {"stage": stage, "agents": list(items), "items": list(items.values())}


def _from_fields(
    fields: Mapping[str, Any], num_agents: int
) -> tuple[int, dict[int, bytes]]:
    stage, agents, items = (fields.get(name) for name in ("stage", "agents", "items"))
    if stage not in STAGES:
        raise MessageError(f"There is no stage {stage!r}.")
    if not isinstance(agents, list) or not isinstance(items, list):
        raise MessageError("The message has no lists of agents and items.")
    known = all(type(one) is int and 0 <= one < num_agents for one in agents)
    if not known or len(set(agents)) < len(agents):
        raise MessageError("The message names an agent twice, or one that is unknown.")
    if len(items) != len(agents) or not all(isinstance(one, bytes) for one in items):
        raise MessageError("The message must have bytes for each agent.")
    return stage, dict(zip(agents, items, strict=True))
