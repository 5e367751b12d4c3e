"""Weights of agents: the paper's softmax, and its schedule."""

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.fts.weights import ExplorationWeights
from tests.optimizers.problems import DEVICE


class TestExplorationWeights:
    def test_is_the_papers_softmax(self):
        assignment = torch.tensor([0, 1, 0, 2, 1], device=DEVICE)
        weights = ExplorationWeights(assignment, 3)
        for number, a in ((0, 15.0), (9, 15.0), (24, 7.5), (39, 0.0), (99, 0.0)):
            own = (assignment == torch.arange(3, device=DEVICE).unsqueeze(-1)).double()
            expected = torch.exp(a * own + 1)
            expected = expected / expected.sum(dim=-1, keepdim=True)
            assert torch.allclose(weights(number), expected)

    def test_hold_and_fall(self):
        assignment = torch.tensor([0, 1], device=DEVICE)
        never = ExplorationWeights(assignment, 2, hold=0, fall=0)
        assert never.preference(0) == 0.0
        once = ExplorationWeights(assignment, 2, hold=1, fall=0)
        assert [once.preference(number) for number in (0, 1)] == [15.0, 0.0]
        assert once.describe() != never.describe()

    def test_refuses(self):
        for regions in ([0, 3], [-1, 0]):
            with pytest.raises(InvalidArgumentError, match="regions from 0 to 1"):
                ExplorationWeights(torch.tensor(regions, device=DEVICE), 2)
        for wrong in (
            torch.zeros(2, device=DEVICE),
            torch.zeros(0, device=DEVICE),
            [0, 1],
        ):
            with pytest.raises(InvalidArgumentError, match="assignment must be"):
                ExplorationWeights(wrong, 2)
        with pytest.raises(InvalidArgumentError, match="strength"):
            ExplorationWeights(torch.tensor([0], device=DEVICE), 1, strength=-1.0)
