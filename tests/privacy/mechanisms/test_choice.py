"""What all mechanisms that choose share: scale, batches and chunks of scores."""

import pytest
import torch

from botorch_dp import ExponentialMechanism, Ledger, PermuteAndFlipMechanism, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy.mechanisms import choice
from tests.privacy.mechanisms.cases import CHOICES, make


class TestParameters:
    @pytest.mark.parametrize(
        "mechanism", [ExponentialMechanism, PermuteAndFlipMechanism]
    )
    def test_replacement_is_not_monotone(self, mechanism):
        with pytest.raises(InvalidArgumentError, match=r"monotone.*replace_one"):
            mechanism(PureDP(1.0), sensitivity=1.0, monotone=True)

    @pytest.mark.parametrize("kind", CHOICES)
    def test_monotone_scores_need_half_the_scale(self, kind):
        assert make(kind).scale == 1.0
        assert make(kind, monotone=True, adjacency="add_or_remove_one").scale == 0.5


@pytest.mark.parametrize("kind", CHOICES)
class TestChunks:
    def test_each_choice_is_charged(self, kind, double):
        ledger = Ledger()
        chosen = make(kind).release(torch.zeros(4, 5, 3, **double), ledger=ledger)
        assert chosen.shape == (4, 5)
        assert ledger.entries[0].count == 20

    def test_a_million_candidates(self, kind, monkeypatch, double):
        monkeypatch.setattr(choice, "_CHUNK", 1000)
        scores = torch.zeros(1_000_000, **double)
        scores[654_321] = 1e3
        mechanism = make(kind)
        assert int(mechanism.release(scores, ledger=Ledger())) == 654_321
        lazily = (scores[i : i + 1000] for i in range(0, 1_000_000, 1000))
        assert int(mechanism.release(lazily, ledger=Ledger())) == 654_321

    def test_bad_chunks(self, kind, double):
        ledger = Ledger()
        good, bad = torch.zeros(2, 3, **double), torch.zeros(3, 3, **double)
        with pytest.raises(InvalidArgumentError, match="at least one chunk"):
            make(kind).release([], ledger=ledger)
        with pytest.raises(InvalidArgumentError, match="int64"):
            make(kind).release([good, good.long()], ledger=ledger)
        assert len(ledger) == 0
        with pytest.raises(InvalidArgumentError, match=r"batch shape.*\(3,\)"):
            make(kind).release([good, bad], ledger=ledger)
        assert len(ledger) == 0
        with pytest.raises(InvalidArgumentError, match=r"batch shape.*\(3,\)"):
            make(kind).release(iter([good, bad]), ledger=ledger)
