"""Questions of a vote: there and back, and what is refused."""

import pytest
from flwr.app import RecordDict

from botorch_dp.exceptions import MessageError
from botorch_dp.integrations.flower.vote_messages import VoteQuestion

from .grid import NAME
from .votes import ELECTION


@pytest.mark.parametrize(("winner", "number"), [(None, 0), (0, 1), (6, 1)])
def test_there_and_back(winner, number):
    question = VoteQuestion(ELECTION, NAME, winner)
    assert VoteQuestion.from_records(question.to_records()) == question
    assert question.number == number


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"protocol": 1}, "no vote of protocol"),
        ({"experiment": "../../etc/passwd"}, "32 hexadecimal digits"),
        ({"experiment": 3}, "32 hexadecimal digits"),
        ({"election": "{}"}, "settings cannot be read"),
        ({"winner": 7}, "no candidate 7"),
        ({"winner": -1}, "no candidate -1"),
        ({"winner": 1.0}, "no candidate 1.0"),
        ({"winner": True}, "no candidate True"),
    ],
)
def test_refuses(changes, match):
    records = VoteQuestion(ELECTION, NAME, 1).to_records()
    for key, value in changes.items():
        records["vote"][key] = value
    with pytest.raises(MessageError, match=match):
        VoteQuestion.from_records(records)


def test_a_message_without_a_question():
    with pytest.raises(MessageError, match="no vote"):
        VoteQuestion.from_records(RecordDict())
