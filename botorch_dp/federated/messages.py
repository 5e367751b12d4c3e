"""What server and agents say to each other, as Flower records.

In every round the server asks each agent a question, which is public, and each agent
answers with a vector, which only the server may see. Arrays that arrive are checked
before they are decoded: their bytes were chosen by someone else.

Needs torch, numpy and flwr only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError, MessageError
from botorch_dp.optimizers.federation import Federation

PROTOCOL = 1
MESSAGE_TYPE = "query"
_EXPERIMENT = re.compile(r"[0-9a-f]{32}")
_HEADER = 512  # bytes that numpy may put before an array; it takes 128


@dataclass(frozen=True, eq=False)
class Question:
    """What the server asks every agent in a round: public.

    Args:
        federation: The settings that all share.
        experiment: 32 hexadecimal digits that name the run, also when it is resumed.
        number: Of the round, from 0.
        broadcast: The last broadcast, ``P x M``; None before the first.
        final: Whether no vector is wanted any more.

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
        records = RecordDict()
        records["question"] = ConfigRecord(
            {
                "protocol": PROTOCOL,
                "federation": self.federation.to_json(),
                "experiment": self.experiment,
                "number": self.number,
                "final": self.final,
            }
        )
        if self.broadcast is not None:
            records["broadcast"] = _to_record("broadcast", self.broadcast)
        return records

    @classmethod
    def from_records(cls, records: RecordDict) -> "Question":
        """Return the question in a message, or raise a MessageError."""
        fields = _config(records, "question")
        number, experiment = fields.get("number"), fields.get("experiment")
        if not isinstance(number, int) or number < 0:
            raise MessageError(f"A round cannot have number {number!r}.")
        # It becomes part of a file's name.
        if not isinstance(experiment, str) or not _EXPERIMENT.fullmatch(experiment):
            raise MessageError("An experiment is named by 32 hexadecimal digits.")
        try:
            federation = Federation.from_json(str(fields.get("federation")))
        except InvalidArgumentError as error:
            raise MessageError(f"The settings cannot be read: {error}") from error
        broadcast = None
        if "broadcast" in records:
            shape = (federation.num_regions, federation.num_features)
            broadcast = _from_record(records, "broadcast", shape)
        return cls(federation, experiment, number, broadcast, bool(fields.get("final")))


@dataclass(frozen=True, eq=False)
class Answer:
    """What an agent answers: its vector is private to it and the server.

    Args:
        agent: The agent's number.
        number: Of the round.
        private_vector: A sample of its weights, ``M``; None in the final round.
    """

    agent: int
    number: int
    private_vector: Tensor | None = None

    def to_records(self) -> RecordDict:
        """Return the answer as the content of a message."""
        records = RecordDict()
        records["answer"] = ConfigRecord(
            {"protocol": PROTOCOL, "agent": self.agent, "number": self.number}
        )
        if self.private_vector is not None:
            records["vector"] = _to_record("vector", self.private_vector)
        return records

    @classmethod
    def from_records(cls, records: RecordDict, num_features: int) -> "Answer":
        """Return the answer in a message, or raise a MessageError.

        Args:
            records: The content of the message.
            num_features: How many numbers M a vector has.
        """
        fields = _config(records, "answer")
        agent, number = fields.get("agent"), fields.get("number")
        if not isinstance(agent, int) or not isinstance(number, int):
            raise MessageError("An answer has the numbers of an agent and a round.")
        vector = None
        if "vector" in records:
            vector = _from_record(records, "vector", (num_features,))
        return cls(agent, number, vector)


def _config(records: RecordDict, name: str) -> Mapping[str, Any]:
    fields = records.get(name)
    if not isinstance(fields, ConfigRecord) or fields.get("protocol") != PROTOCOL:
        raise MessageError(f"The message has no {name} of protocol {PROTOCOL}.")
    return fields


def _to_record(name: str, tensor: Tensor) -> ArrayRecord:
    array = np.ascontiguousarray(tensor.detach().cpu().double().numpy())
    return ArrayRecord({name: Array(array)})


def _from_record(records: RecordDict, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the finite doubles of this shape, or raise a MessageError."""
    record = records[name]
    array = record.get(name) if isinstance(record, ArrayRecord) else None
    if not isinstance(array, Array):
        raise MessageError(f"The message has no array {name}.")
    # The size first: a header of a few bytes can claim any shape.
    if len(array.data) > 8 * int(np.prod(shape)) + _HEADER:
        raise MessageError(f"The {name} has {len(array.data)} bytes, too many.")
    try:
        values = array.numpy()
    except Exception as error:  # numpy raises many kinds for damaged bytes
        raise MessageError(f"The {name} cannot be decoded.") from error
    if not isinstance(values, np.ndarray) or values.dtype != np.float64:
        raise MessageError(f"The {name} must be doubles.")
    if values.shape != shape:
        raise MessageError(f"The {name} must have shape {shape}, got {values.shape}.")
    if not np.isfinite(values).all():
        raise MessageError(f"The {name} must be finite.")
    return torch.from_numpy(np.array(values))  # a copy that may be written to
