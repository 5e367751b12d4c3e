"""Questions and answers: what arrives is what was sent, and the rest is refused."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from botorch_dp.exceptions import MessageError
from botorch_dp.federated.messages import Answer, Question

NAME = "0123456789abcdef" * 2


def test_a_question_arrives(federation, double):
    broadcast = torch.randn(2, 20, **double)
    question = Question(federation, NAME, 5, broadcast, final=True)
    got = Question.from_records(question.to_records())
    assert (got.federation, got.experiment, got.number) == (federation, NAME, 5)
    assert torch.equal(got.broadcast, broadcast)
    assert got.final


def test_the_first_question_has_no_broadcast(federation):
    got = Question.from_records(Question(federation, NAME, 0).to_records())
    assert got.broadcast is None
    assert not got.final


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("number", -1, "number -1"),
        ("number", "1", "number '1'"),
        ("experiment", "../../etc/passwd", "32 hexadecimal"),
        ("federation", "{}", "settings cannot be read"),
        ("protocol", 2, "no question of protocol 1"),
    ],
)
def test_a_bad_question_is_refused(federation, field, value, match):
    records = Question(federation, NAME, 0).to_records()
    records["question"][field] = value
    with pytest.raises(MessageError, match=match):
        Question.from_records(records)


def test_an_answer_arrives(double):
    vector = torch.randn(20, **double)
    got = Answer.from_records(Answer(3, 7, vector).to_records(), 20)
    assert (got.agent, got.number) == (3, 7)
    assert torch.equal(got.private_vector, vector)
    assert Answer.from_records(Answer(3, 7).to_records(), 20).private_vector is None


def test_an_answer_without_numbers_is_refused():
    records = Answer(3, 7).to_records()
    records["answer"]["agent"] = "three"
    with pytest.raises(MessageError, match="numbers of an agent and a round"):
        Answer.from_records(records, 20)
    with pytest.raises(MessageError, match="no answer of protocol 1"):
        Answer.from_records(RecordDict(), 20)


def header_of(shape):
    """The first bytes of a file with an array of this shape, without the array."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


BAD = {
    "shape": (Array(np.zeros(19)), r"must have shape \(20,\), got \(19,\)"),
    "matrix": (Array(np.zeros((1, 20))), "must have shape"),
    "oversized": (Array(np.zeros(100_000)), "800128 bytes, too many"),
    "single": (Array(np.zeros(20, dtype=np.float32)), "must be doubles"),
    "nan": (Array(np.full(20, np.nan)), "must be finite"),
    "infinity": (Array(np.full(20, np.inf)), "must be finite"),
    "noise": (Array("float64", (20,), "numpy.ndarray", b"noise"), "cannot be decoded"),
    "type": (Array("float64", (20,), "pickle", b""), "cannot be decoded"),
    "claims": (
        Array("float64", (20,), "numpy.ndarray", header_of((10**12,))),
        "cannot be decoded",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_broken_vector_is_refused(kind):
    array, match = BAD[kind]
    records = Answer(0, 0).to_records()
    records["vector"] = ArrayRecord({"vector": array})
    with pytest.raises(MessageError, match=match):
        Answer.from_records(records, 20)


def test_a_vector_has_to_be_an_array():
    records = Answer(0, 0).to_records()
    records["vector"] = ConfigRecord({"vector": 1.0})
    with pytest.raises(MessageError, match="no array vector"):
        Answer.from_records(records, 20)
