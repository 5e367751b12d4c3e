"""A vote in one process: ask, tell, and agents that are away."""

import math

import pytest
import torch

from botorch_dp import GDP, Ledger, PrivateVote, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers import RankBallot, VoteServer
from tests.optimizers.problems import DEVICE, DOUBLE, seeded

N, M = 30, 6
CERTAIN = PureDP(1e6)  # noise that changes nothing


def vote(guarantee=CERTAIN, **kwargs):
    kwargs.setdefault("device", DEVICE)
    return PrivateVote(list(range(M)), num_agents=N, guarantee=guarantee, **kwargs)


def table(seed=0):
    return torch.rand(N, M, generator=seeded(seed), **DOUBLE)


class TestRun:
    @pytest.mark.parametrize("per_agent", [None, 3])
    def test_is_the_server_told_the_marks(self, per_agent):
        scores = table()
        made = vote(candidates_per_agent=per_agent, ballot=RankBallot())
        rows = made.ask()
        assert rows.shape == (N, per_agent or M)
        made.tell(scores.gather(1, rows))
        marks = made.election.marks(scores.gather(1, rows), rows)
        server = VoteServer(made.election, CERTAIN)
        assert made.result().index == server.release(marks)
        assert made.result().index == int(marks.sum(dim=0).argmax())

    def test_run(self):
        scores = table()
        made = vote(ballot=RankBallot())
        result = made.run(lambda rows: scores.gather(1, rows))
        assert result.index == int(RankBallot().mark(scores).sum(dim=0).argmax())
        assert made.run(lambda rows: 1 / 0).index == result.index  # it is over

    def test_who_is_away_has_no_vote(self):
        """Whatever is told of them; agents who are there decide."""
        scores = torch.zeros(N, M, **DOUBLE)
        scores[: N // 2, 1] = 1.0
        scores[N // 2 :, 2] = 1.0
        scores[0] = torch.nan
        for away, winner in ((slice(0, 5), 2), (slice(20, 30), 1)):
            made = vote()
            made.ask()
            where = torch.ones(N, dtype=torch.bool, device=DEVICE)
            where[away] = False
            made.tell(scores, where)
            assert made.result().index == winner

    def test_nobody_is_there(self):
        made = vote(PureDP(1.0))
        made.ask()
        made.tell(table(), torch.zeros(N, dtype=torch.bool, device=DEVICE))
        assert made.result().index in range(M)
        assert len(made.ledger) == 1

    def test_indices_are_a_copy(self):
        made = vote()
        made.ask().zero_()
        assert made.ask().tolist() == [list(range(M))] * N

    def test_another_precision(self):
        made = vote()
        made.ask()
        made.tell(table().float())
        assert made.done

    def test_two_votes_share_a_ledger(self):
        """A coarse one, then one between the neighbours of its winner."""
        ledger = Ledger(cap=PureDP(1.0))
        for _ in range(2):
            result = vote(PureDP(0.5), ledger=ledger).run(lambda rows: table())
        assert ledger.spent(1e-12) == pytest.approx(1.0)
        assert result.certificate.num_releases == 2
        with pytest.raises(BudgetExceededError):
            vote(PureDP(0.5), ledger=ledger).ask()

    def test_certificate(self):
        result = vote(GDP(1.0), trust="nobody").run(lambda rows: table())
        assert result.certificate.parameters["num_agents"] == N
        assert result.sums.shape == (M,)


class TestRefuses:
    def test_the_wrong_order(self):
        made = vote()
        with pytest.raises(OptimizerStateError, match="ask"):
            made.tell(table())
        made.ask()
        made.tell(table())
        with pytest.raises(OptimizerStateError, match="is over"):
            made.ask()
        with pytest.raises(OptimizerStateError, match="is over"):
            made.tell(table())

    def test_scores_and_presence(self):
        made = vote()
        made.ask()
        with pytest.raises(InvalidArgumentError, match="30 x 6"):
            made.tell(table()[:, 1:])
        with pytest.raises(InvalidArgumentError, match="where"):
            made.tell(table(), torch.ones(N, device=DEVICE))
        with pytest.raises(InvalidArgumentError, match="objective"):
            made.run(table())
        assert not len(made.ledger)
        made.tell(table())  # as if nothing had happened

    def test_private_scores_never_raise(self):
        for bad in (math.nan, math.inf, -math.inf, 1e308):
            made = vote()
            made.ask()
            made.tell(torch.full((N, M), bad, **DOUBLE))
            assert made.result().index in range(M)

    def test_a_state_has_no_scores(self):
        """Two data sets with the same winner leave the same state."""
        states = []
        for seed in (0, 1):
            made = vote()
            scores = table(seed)
            scores[:, 3] = 2.0
            made.ask()
            made.tell(scores)
            state = made.state_dict()
            state.pop("run_id")
            states.append(state)
        assert states[0] == states[1]
