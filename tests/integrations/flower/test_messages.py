"""Questions and answers: what arrives is what was sent, and the rest is refused."""

import struct

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from botorch_dp.exceptions import MessageError
from botorch_dp.integrations.flower.messages import Answer, Question

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
        ("protocol", 1, "no question of protocol 2"),
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
    with pytest.raises(MessageError, match="no answer of protocol 2"):
        Answer.from_records(RecordDict(), 20)


BAD = {
    "short": (bytes(8 * 19), r"must be 160 bytes for shape \(20,\), got 152"),
    "long": (bytes(10**6), "got 1000000"),
    "empty": (b"", "got 0"),
    "single": (np.zeros(20, dtype=np.float32).tobytes(), "got 80"),
    "a file": (Array(np.zeros(20)).data, "got 288"),
    "nan": (np.full(20, np.nan).tobytes(), "must be finite"),
    "infinity": (np.full(20, np.inf).tobytes(), "must be finite"),
    "one infinity": (np.r_[np.zeros(19), -np.inf].tobytes(), "must be finite"),
    "text": ("0" * 160, "must be bytes"),
    "numbers": ([0.0] * 20, "must be bytes"),
    "a number": (1.0, "must be bytes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_broken_vector_is_refused(kind):
    data, match = BAD[kind]
    records = Answer(0, 0).to_records()
    records["answer"]["vector"] = data
    with pytest.raises(MessageError, match=match):
        Answer.from_records(records, 20)


def test_a_vector_travels_as_little_endian_doubles():
    vector = torch.arange(3, dtype=torch.float64, device="cpu")
    records = Answer(0, 0, vector).to_records()
    assert records["answer"]["vector"] == struct.pack("<3d", 0.0, 1.0, 2.0)
    assert list(records) == ["answer"]  # one record: Flower sends each in a call


def test_a_vector_may_be_written_to():
    vector = torch.zeros(3, dtype=torch.float64, device="cpu")
    got = Answer.from_records(Answer(0, 0, vector).to_records(), 3).private_vector
    got += 1.0
    assert got.tolist() == [1.0, 1.0, 1.0]


def test_an_answer_has_to_be_a_record_of_its_kind():
    records = RecordDict({"answer": ArrayRecord({"agent": Array(np.zeros(20))})})
    with pytest.raises(MessageError, match="no answer of protocol 2"):
        Answer.from_records(records, 20)
