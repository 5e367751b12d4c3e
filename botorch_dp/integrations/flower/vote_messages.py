"""What the server of a vote asks its agents, as Flower records: public.

Agents answer with :class:`~botorch_dp.integrations.flower.messages.Answer`, whose
vector has a mark for each candidate. Needs torch, numpy and flwr only.
"""

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from botorch_dp.exceptions import InvalidArgumentError, MessageError
from botorch_dp.integrations.flower.messages import PROTOCOL, is_experiment, read_record
from botorch_dp.optimizers.vote.election import Election

BALLOT_ROUND = 0
WINNER_ROUND = 1


@dataclass(frozen=True)
class VoteQuestion:
    """A question for a ballot, or the winner.

    Args:
        election: The settings of the vote.
        experiment: 32 hexadecimal digits that identify the vote, also after a restart.
        winner: The index of the winner; None if the server asks for ballots.

    Example:
        >>> question = VoteQuestion(Election(4, ["a", "b"]), "0" * 32)
        >>> VoteQuestion.from_records(question.to_records()) == question
        True
    """

    election: Election
    experiment: str
    winner: int | None = None

    @property
    def number(self) -> int:
        """The index of the round: 0 for ballots, 1 for the winner."""
        return BALLOT_ROUND if self.winner is None else WINNER_ROUND

    def to_records(self) -> RecordDict:
        """Return the question as the content of a message."""
        record = ConfigRecord(
            {
                "protocol": PROTOCOL,
                "election": self.election.to_json(),
                "experiment": self.experiment,
            }
        )
        if self.winner is not None:
            record["winner"] = self.winner
        return RecordDict({"vote": record})

    @classmethod
    def from_records(cls, records: RecordDict) -> "VoteQuestion":
        """Return the question in a message, or raise a MessageError."""
        fields = read_record(records, "vote")
        experiment, winner = fields.get("experiment"), fields.get("winner")
        # It becomes part of a file name.
        if not is_experiment(experiment):
            raise MessageError("A vote is named by 32 hexadecimal digits.")
        try:
            election = Election.from_json(str(fields.get("election")))
        except InvalidArgumentError as error:
            raise MessageError(f"The settings cannot be read: {error}") from error
        if winner is not None and not (
            type(winner) is int and 0 <= winner < election.num_candidates
        ):
            raise MessageError(f"There is no candidate {winner!r}.")
        return cls(election, str(experiment), winner)
