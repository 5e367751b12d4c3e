"""Random numbers of agents: the same alone and together, and as they should be."""

import pytest
import torch
from scipy.stats import kstest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.fts.randomness import AgentRandomness
from tests.optimizers.problems import DEVICE


def numbers(*values):
    return torch.tensor(values, device=DEVICE)


class TestAgentRandomness:
    @pytest.mark.parametrize("size", [1, 3, 4, 5, 100])
    def test_alone_and_together(self, size):
        randomness = AgentRandomness(5)
        together = randomness.uniforms("x", 3, torch.arange(20, device=DEVICE), size)
        assert together.shape == (20, size)
        for some in ([7], [0, 1, 2], [2, 3, 9, 19]):
            alone = AgentRandomness(5).uniforms("x", 3, numbers(*some), size)
            assert torch.equal(alone, together[some])

    def test_purposes_rounds_seeds_and_agents_differ(self):
        def draw(seed=1, purpose="a", number=1, agent=1):
            return AgentRandomness(seed).uniforms(purpose, number, numbers(agent), 50)

        others = [draw(seed=2), draw(purpose="b"), draw(number=2), draw(agent=2)]
        for other in others:
            assert not torch.isin(draw(), other).any()

    def test_distributions(self):
        # 20,000 numbers: a Kolmogorov-Smirnov test at level 1e-3, seeds fixed.
        randomness = AgentRandomness(8)
        agents = torch.arange(200, device=DEVICE)
        uniforms = randomness.uniforms("x", 1, agents, 100)
        normals = randomness.normals("x", 2, agents, 100)
        assert 0.0 < uniforms.min() < uniforms.max() < 1.0
        assert kstest(uniforms.flatten().cpu().numpy(), "uniform").pvalue > 1e-3
        assert kstest(normals.flatten().cpu().numpy(), "norm").pvalue > 1e-3
        assert uniforms.unique().numel() == uniforms.numel()

    def test_a_seed_nobody_knows(self):
        first, second = AgentRandomness(), AgentRandomness()
        assert first.seed != second.seed
        assert first.child_seed("x", 1) != first.child_seed("x", 2)

    def test_refuses(self):
        with pytest.raises(InvalidArgumentError, match="seed"):
            AgentRandomness(-1)
