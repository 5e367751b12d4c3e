"""Ballots: by hand, by brute force, and always between 0 and 1."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import (
    ApprovalBallot,
    Ballot,
    CenteredBallot,
    RankBallot,
    RegretBallot,
    ScoreBallot,
)
from tests.optimizers.problems import DEVICE, DOUBLE, seeded

BALLOTS = [
    ScoreBallot(-1.0, 3.0),
    CenteredBallot(0.2),
    RegretBallot(0.3),
    RankBallot(),
    ApprovalBallot(2),
]


def marks(ballot, *scores):
    return ballot.mark(torch.tensor([scores], **DOUBLE))[0].tolist()


class TestByHand:
    def test_scores(self):
        assert marks(ScoreBallot(0.5, 1.0), 0.4, 0.5, 0.75, 1.0, 7.0) == [
            0.0,
            0.0,
            0.5,
            1.0,
            1.0,
        ]

    def test_centered(self):
        found = marks(CenteredBallot(0.5), 1.0, 1.25, 1.5, 4.25)  # the mean is 2
        assert found == [0.0, 0.0, 0.0, 1.0]
        assert marks(CenteredBallot(0.5), 1.75, 2.25) == [0.25, 0.75]

    def test_regret(self):
        assert marks(RegretBallot(0.5), 1.0, 1.25, 1.5, 0.0) == [0.0, 0.5, 1.0, 0.0]

    def test_ranks(self):
        assert marks(RankBallot(), 5.0, -1.0, 7.0) == [0.5, 0.0, 1.0]
        assert marks(RankBallot(), 5.0, 5.0, 7.0, -1.0, 5.0) == [
            0.5,
            0.5,
            1.0,
            0.0,
            0.5,
        ]

    def test_approval(self):
        assert marks(ApprovalBallot(2), 5.0, -1.0, 7.0) == [1.0, 0.0, 1.0]
        assert marks(ApprovalBallot(2), 5.0, 5.0, 7.0, 1.0) == [0.5, 0.5, 1.0, 0.0]
        assert marks(ApprovalBallot(9), 5.0, -1.0) == [1.0, 1.0]

    @pytest.mark.parametrize("ballot", BALLOTS)
    def test_levels_do_not_matter(self, ballot):
        """What an agent adds to all its scores changes nothing."""
        scores = torch.rand(6, 9, generator=seeded(1), **DOUBLE)
        shifted = ballot.mark(scores + 0.5)
        same = torch.allclose(ballot.mark(scores), shifted)
        assert same != isinstance(ballot, ScoreBallot)


def test_ranks_count_whom_a_candidate_beats():
    scores = torch.randint(5, (40, 8), generator=seeded(2), device=DEVICE).double()
    wins = (scores.unsqueeze(-1) > scores.unsqueeze(-2)).double().sum(dim=-1)
    ties = (scores.unsqueeze(-1) == scores.unsqueeze(-2)).double().sum(dim=-1) - 1
    assert torch.allclose(RankBallot().mark(scores), (wins + ties / 2) / 7)


class TestBroken:
    @pytest.mark.parametrize("ballot", BALLOTS)
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_counts_as_the_worst(self, ballot, bad):
        found = marks(ballot, 0.1, bad, 0.3, 0.2)
        rest = marks(ballot, 0.1, 0.3, 0.2)
        assert found[1] == 0.0
        assert found[2] == max(found)
        if not isinstance(ballot, RankBallot):  # it beats the broken one
            assert [found[0], *found[2:]] == pytest.approx(rest)

    @pytest.mark.parametrize("ballot", BALLOTS)
    def test_nothing_but_broken_ones_is_no_ballot(self, ballot):
        assert marks(ballot, math.nan, math.inf, -math.inf) == [0.0, 0.0, 0.0]

    @pytest.mark.parametrize("ballot", BALLOTS)
    @given(
        scores=st.lists(
            st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=6
        )
    )
    def test_marks_lie_between_0_and_1(self, ballot, scores):
        found = torch.tensor(marks(ballot, *scores), **DOUBLE)
        assert ((found >= 0) & (found <= 1)).all()


class TestSpread:
    @pytest.mark.parametrize("ballot", BALLOTS)
    @pytest.mark.parametrize("size", [2, 3, 7, 30])
    def test_no_ballot_exceeds_it(self, ballot, size):
        scores = torch.randn(500, size, generator=seeded(3), **DOUBLE)
        found = ballot.mark(torch.cat([scores, scores.round(), 0.1 * scores]))
        rows = found - found.mean(dim=-1, keepdim=True)
        assert float(rows.norm(dim=-1).max()) <= ballot.spread(size) * (1 + 1e-12)

    @pytest.mark.parametrize("size", [2, 3, 7, 30])
    def test_ranks_and_approvals_attain_it(self, size):
        scores = torch.arange(size, **DOUBLE)[None]
        for ballot in (RankBallot(), ApprovalBallot(1), ApprovalBallot(size // 2)):
            row = ballot.mark(scores)[0]
            assert float((row - row.mean()).norm()) == pytest.approx(
                ballot.spread(size)
            )

    def test_of_any_marks(self):
        rows = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], **DOUBLE)] * 6)
        norms = (rows - rows.mean(dim=-1, keepdim=True)).norm(dim=-1)
        assert float(norms.max()) == pytest.approx(ScoreBallot().spread(6))

    def test_one_candidate_has_noise_all_the_same(self):
        assert all(ballot.spread(1) > 0 for ballot in BALLOTS)


class TestPlain:
    @pytest.mark.parametrize("ballot", BALLOTS)
    def test_there_and_back(self, ballot):
        assert Ballot.from_dict(json.loads(json.dumps(ballot.to_dict()))) == ballot

    @pytest.mark.parametrize(
        "state", [{}, {"type": "Ballot"}, {"type": "RegretBallot"}, None, []]
    )
    def test_refuses(self, state):
        with pytest.raises(InvalidArgumentError, match="state"):
            Ballot.from_dict(state)

    @pytest.mark.parametrize(
        ("make", "name"),
        [
            (lambda: ScoreBallot(1.0, 1.0), "low and high"),
            (lambda: CenteredBallot(0.0), "width"),
            (lambda: RegretBallot(math.inf), "width"),
            (lambda: ApprovalBallot(0), "num_approved"),
        ],
    )
    def test_bad_rules(self, make, name):
        with pytest.raises(InvalidArgumentError, match=name):
            make()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_marks_are_double(dtype):
    scores = torch.rand(3, 4, generator=seeded(1), dtype=dtype, device=DEVICE)
    assert all(ballot.mark(scores).dtype == torch.float64 for ballot in BALLOTS)
