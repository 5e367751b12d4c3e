"""The settings of a vote, and what happens if agents score only some candidates."""

import itertools
import math
import subprocess
import sys

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import (
    CenteredBallot,
    Election,
    RankBallot,
    RegretBallot,
    ScoreBallot,
)
from tests.optimizers.problems import DEVICE, DOUBLE, seeded


class TestSettings:
    def test_there_and_back(self):
        election = Election(
            5,
            [{"C": 1.0, "kernel": "rbf"}, [1, 2.5], "best", 3],
            ballot=CenteredBallot(0.2),
            candidates_per_agent=2,
            seed=9,
        )
        assert Election.from_json(election.to_json()) == election

    def test_a_tensor_of_candidates(self):
        grid = torch.tensor([[0.0, 1.0], [2.0, 3.0]], **DOUBLE)
        assert Election(3, grid).candidates == ([0.0, 1.0], [2.0, 3.0])

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"num_agents": 0}, "num_agents"),
            ({"num_agents": 2**20 + 1}, "num_agents must be at most"),
            ({"candidates": []}, "candidates must not be empty"),
            ({"candidates": [math.nan]}, "plain values"),
            ({"candidates": [object()]}, "plain values"),
            ({"candidates": 3}, "plain values"),
            ({"ballot": "ranks"}, "ballot must be a Ballot"),
            ({"candidates_per_agent": 1}, "candidates_per_agent"),
            ({"candidates_per_agent": 4}, "at most 3"),
            ({"seed": -1}, "seed"),
        ],
    )
    def test_refuses(self, changes, match):
        with pytest.raises(InvalidArgumentError, match=match):
            Election(**{"num_agents": 5, "candidates": [1, 2, 3], **changes})

    @pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"num_agents": 1}'])
    def test_refuses_other_texts(self, text):
        with pytest.raises(InvalidArgumentError, match="written by to_json"):
            Election.from_json(text)


class TestAssignment:
    def test_all_score_everything(self):
        rows = Election(3, range(4)).assignment(DEVICE)
        assert rows.tolist() == [[0, 1, 2, 3]] * 3

    @pytest.mark.parametrize(("size", "number"), [(7, 3), (10, 5), (5, 4), (4, 4)])
    def test_is_balanced_and_without_repetition(self, size, number):
        election = Election(31, range(size), candidates_per_agent=number, seed=3)
        rows = election.assignment(DEVICE)
        assert rows.shape == (31, number)
        assert all(len(set(row)) == number for row in rows.tolist())
        counts = rows.flatten().bincount(minlength=size)
        assert int(counts.max() - counts.min()) <= 1

    def test_is_the_same_for_all(self):
        election = Election(9, range(6), candidates_per_agent=2, seed=3)
        rows = election.assignment(DEVICE)
        for agent in range(9):
            assert election.candidates_of(agent).tolist() == rows[agent].tolist()
        other = Election(9, range(6), candidates_per_agent=2, seed=4)
        assert not torch.equal(rows, other.assignment(DEVICE))
        with pytest.raises(InvalidArgumentError, match="agent must be below"):
            election.candidates_of(9)

    def test_every_subset_is_as_likely(self):
        """Of agent 3, over 2,000 seeds: 10 subsets of 3 of 5, chi-squared at 1e-4."""
        counts = {}
        for seed in range(2000):
            election = Election(4, range(5), candidates_per_agent=3, seed=seed)
            row = tuple(election.assignment(DEVICE)[3].tolist())
            counts[row] = counts.get(row, 0) + 1
        assert len(counts) == 10
        assert sum((c - 200) ** 2 / 200 for c in counts.values()) < 33.7


class TestMarks:
    @pytest.mark.parametrize(
        "ballot", [ScoreBallot(), CenteredBallot(10.0), RankBallot()]
    )
    @pytest.mark.parametrize("number", [2, 3, 5])
    def test_some_candidates_shrink_distances_and_keep_the_order(self, ballot, number):
        """The mean over all subsets is a share of all marks, up to a constant."""
        size = 6
        scores = torch.rand(1, size, generator=seeded(4), **DOUBLE)
        election = Election(1, range(size), ballot, candidates_per_agent=number)
        found = []
        for subset in itertools.combinations(range(size), number):
            rows = torch.tensor([subset], device=DEVICE)
            found.append(election.marks(scores[:, subset], rows)[0])
        mean = torch.stack(found).mean(dim=0)
        whole = ballot.mark(scores)[0]
        share = (number - 1) / (size - 1)
        if isinstance(ballot, RankBallot):
            share = number / size
        expected = share * (whole - whole.mean())
        assert torch.allclose(mean - mean.mean(), expected)

    @pytest.mark.parametrize("ballot", [RegretBallot(), RankBallot(), ScoreBallot()])
    def test_others_get_the_mean(self, ballot):
        election = Election(1, range(5), ballot, candidates_per_agent=3)
        rows = torch.tensor([[0, 2, 4]], device=DEVICE)
        row = election.marks(torch.tensor([[0.8, 0.9, 0.85]], **DOUBLE), rows)[0]
        mean = pytest.approx(float(row[[0, 2, 4]].mean()))
        assert row[1].item() == row[3].item() == mean
        assert (row >= 0).all()
        assert (row <= 1).all()

    def test_without_a_finite_score_there_is_no_ballot(self):
        election = Election(1, range(5), candidates_per_agent=3)
        rows = torch.tensor([[0, 2, 4]], device=DEVICE)
        nothing = torch.full((1, 3), math.nan, **DOUBLE)
        assert election.marks(nothing, rows).tolist() == [[0.0] * 5]

    @pytest.mark.parametrize(
        "scores",
        [
            [[0.1, 0.2]],
            torch.zeros(2, 3, device=DEVICE),
            torch.zeros(1, 2, dtype=torch.int64, device=DEVICE),
        ],
    )
    def test_refuses_without_showing(self, scores):
        election = Election(1, range(2))
        with pytest.raises(
            InvalidArgumentError, match="scores must be a 1 x 2"
        ) as info:
            election.marks(scores, election.assignment(DEVICE))
        assert "0.1" not in str(info.value)


def test_an_agent_imports_torch_and_numpy_only():
    script = """
import sys
import botorch_dp.optimizers.vote.election
heavy = ("botorch", "gpytorch", "opacus", "dp_accounting", "scipy", "sklearn", "flwr")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
