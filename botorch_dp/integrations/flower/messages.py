"""The messages between server and agents, as Flower records.

In every round the server sends each agent a question, which is public, and each agent
answers with a vector, which only the server may see. Numbers are sent as plain bytes in
the same record as the rest, because Flower sends every record and array in a separate
call. What arrives is not trusted: it must be the expected number of finite numbers.

Needs torch, numpy and flwr only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError, MessageError
from botorch_dp.optimizers.fts.federation import Federation

PROTOCOL = 2
MESSAGE_TYPE = "query"
_EXPERIMENT = re.compile(r"[0-9a-f]{32}")
_DOUBLES = np.dtype("<f8")  # little-endian on every machine


@dataclass(frozen=True, eq=False)
class Question:
    """What the server asks every agent in a round: public.

    Args:
        federation: The settings of the federation.
        experiment: 32 hexadecimal digits that identify the run, also after a restart.
        number: The index of the round, starting at 0.
        broadcast: The last broadcast, ``P x M``; None before the first.
        final: Whether all rounds are over, so that no vector is needed.

    Example:
        >>> federation = Federation(
        ...     num_agents=4, lower=(0.0,), upper=(1.0,), lengthscale=(0.1,)
        ... )
        >>> question = Question(federation, "0" * 32, number=0)
        >>> Question.from_records(question.to_records()).federation == federation
        True
    """

    federation: Federation
    experiment: str
    number: int
    broadcast: Tensor | None = None
    final: bool = False

    def to_records(self) -> RecordDict:
        """Return the question as the content of a message."""
        record = ConfigRecord(
            {
                "protocol": PROTOCOL,
                "federation": self.federation.to_json(),
                "experiment": self.experiment,
                "number": self.number,
                "final": self.final,
            }
        )
        if self.broadcast is not None:
            record["broadcast"] = _to_bytes(self.broadcast)
        return RecordDict({"question": record})

    @classmethod
    def from_records(cls, records: RecordDict) -> "Question":
        """Return the question in a message, or raise a MessageError."""
        fields = read_record(records, "question")
        number, experiment = fields.get("number"), fields.get("experiment")
        if not isinstance(number, int) or number < 0:
            raise MessageError(f"A round cannot have number {number!r}.")
        # It becomes part of a file name.
        if not is_experiment(experiment):
            raise MessageError("An experiment is named by 32 hexadecimal digits.")
        try:
            federation = Federation.from_json(str(fields.get("federation")))
        except InvalidArgumentError as error:
            raise MessageError(f"The settings cannot be read: {error}") from error
        broadcast = None
        if "broadcast" in fields:
            shape = (federation.num_regions, federation.num_features)
            broadcast = _from_bytes(fields, "broadcast", shape)
        final = bool(fields.get("final"))
        return cls(federation, str(experiment), number, broadcast, final)


@dataclass(frozen=True, eq=False)
class Answer:
    """What an agent answers: the vector is private to the agent and the server.

    Args:
        agent: The index of the agent.
        number: The index of the round.
        private_vector: A sample of its ``M`` weights; None in the final round.
    """

    agent: int
    number: int
    private_vector: Tensor | None = None

    def to_records(self) -> RecordDict:
        """Return the answer as the content of a message."""
        record = ConfigRecord(
            {"protocol": PROTOCOL, "agent": self.agent, "number": self.number}
        )
        if self.private_vector is not None:
            record["vector"] = _to_bytes(self.private_vector)
        return RecordDict({"answer": record})

    @classmethod
    def from_records(cls, records: RecordDict, num_features: int) -> "Answer":
        """Return the answer in a message, or raise a MessageError.

        Args:
            records: The content of the message.
            num_features: The number M of entries of a vector.
        """
        fields = read_record(records, "answer")
        agent, number = fields.get("agent"), fields.get("number")
        if not isinstance(agent, int) or not isinstance(number, int):
            raise MessageError("An answer needs the numbers of an agent and a round.")
        vector = None
        if "vector" in fields:
            vector = _from_bytes(fields, "vector", (num_features,))
        return cls(agent, number, vector)


def is_experiment(name: object) -> bool:
    """Return whether it is 32 hexadecimal digits."""
    return isinstance(name, str) and _EXPERIMENT.fullmatch(name) is not None


def read_record(records: RecordDict, name: str) -> Mapping[str, Any]:
    """Return the fields of a record of this protocol, or raise a MessageError."""
    fields = records.get(name)
    if not isinstance(fields, ConfigRecord) or fields.get("protocol") != PROTOCOL:
        raise MessageError(f"The message has no {name} of protocol {PROTOCOL}.")
    return fields


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().double().numpy().astype(_DOUBLES).tobytes()


def _from_bytes(fields: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the finite doubles of this shape, or raise a MessageError."""
    data = fields[name]
    expected = _DOUBLES.itemsize * int(np.prod(shape))
    if not isinstance(data, bytes):
        raise MessageError(f"The {name} must be bytes.")
    if len(data) != expected:
        raise MessageError(
            f"The {name} must be {expected} bytes for shape {shape}, got {len(data)}."
        )
    values = np.frombuffer(data, dtype=_DOUBLES).reshape(shape)
    if not np.isfinite(values).all():
        raise MessageError(f"The {name} must be finite.")
    return torch.from_numpy(values.astype(np.float64))  # a writable copy
