"""Agents with parts of the domain of their own."""

import dataclasses

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers import Federation
from botorch_dp.optimizers.fts.maximization import maximize, values
from botorch_dp.optimizers.fts.own_spaces import OwnSpaces
from tests.optimizers.problems import DEVICE, DOUBLE, seeded

N, P, M = 5, 4, 20
FEDERATION = Federation(
    num_agents=N,
    lower=(0.0, -1.0),
    upper=(2.0, 1.0),
    lengthscale=(0.3, 0.3),
    num_features=M,
    num_regions=P,
    num_initial=4,
    num_candidates=60,
)
LOWER, UPPER = torch.tensor([[0.0, -1.0], [2.0, 1.0]], **DOUBLE)


def boxes(seed=0):
    corners = torch.rand(N, 2, 2, generator=seeded(seed), **DOUBLE).sort(dim=1).values
    return LOWER + corners * (UPPER - LOWER)


def grid():
    axis = torch.linspace(0.0, 1.0, 21, **DOUBLE)
    return LOWER + torch.cartesian_prod(axis, axis) * (UPPER - LOWER)


def wide(seed=0):
    """Boxes that contain points of the grid."""
    own = boxes(seed)
    own[:, 0], own[:, 1] = own[:, 0] - 0.2, own[:, 1] + 0.2
    return own.clamp(LOWER, UPPER)


def inside(X, own):
    lower, upper = own[:, None, 0] - 1e-9, own[:, None, 1] + 1e-9
    return torch.equal(X, X.maximum(lower).minimum(upper))


class TestAgents:
    @pytest.mark.parametrize("candidates", [None, grid()], ids=["box", "grid"])
    @pytest.mark.parametrize("local", ["fresh", "shared"])
    def test_stay_in_their_boxes(self, candidates, local):
        """Also where the broadcast and the gradient point out of them."""
        own = wide()
        federation = dataclasses.replace(FEDERATION, local=local)
        agents = federation.agents(
            candidates=candidates, own_bounds=own, seed=1, device=DEVICE
        )
        for number in range(6):
            told = 10 * torch.randn(P, M, generator=seeded(number), **DOUBLE)
            X = agents.ask(number, told if number else None)
            assert inside(X, own)
            agents.tell(X, X.sum(dim=-1))

    @pytest.mark.parametrize("candidates", [None, grid()], ids=["box", "grid"])
    def test_are_in_the_batch_as_alone(self, candidates):
        own = wide()
        settings = {"candidates": candidates, "seed": 1, "device": DEVICE}
        batch = FEDERATION.agents(own_bounds=own, **settings)
        alone = FEDERATION.agents(
            torch.tensor([3], device=DEVICE), own_bounds=own[3:4], **settings
        )
        for number in range(3):
            X, x = batch.ask(number), alone.ask(number)
            assert torch.allclose(X[3:4], x, atol=1e-8)
            batch.tell(X, X.sum(dim=-1))
            alone.tell(x, x.sum(dim=-1))

    def test_begin_in_their_regions_where_they_can(self):
        own = torch.stack([LOWER, UPPER]).repeat(N, 1, 1)
        own[1, 1] = torch.tensor([0.5, -0.5], **DOUBLE)  # not in region 1
        agents = FEDERATION.agents(own_bounds=own, seed=1, device=DEVICE)
        X = agents.ask(0)
        found = FEDERATION.regions().index(agents.domain.to_unit(X))
        assert found[[0, 2, 3, 4]].eq(agents.assignment[[0, 2, 3, 4], None]).all()
        assert inside(X, own)

    def test_another_box_is_another_state(self):
        agents = FEDERATION.agents(own_bounds=boxes(), seed=1, device=DEVICE)
        other = FEDERATION.agents(own_bounds=boxes(1), seed=1, device=DEVICE)
        with pytest.raises(OptimizerStateError, match="own_bounds="):
            other.load_private_state_dict(agents.private_state_dict())


class TestMaximize:
    @pytest.mark.parametrize("p", [1, P])
    def test_against_a_fine_grid(self, p):
        """Maxima in boxes are as good as the best of 2,500 points, nearly."""
        features, regions = FEDERATION.features(device=DEVICE), FEDERATION.regions()
        weights = torch.randn(N, p, M, generator=seeded(3), **DOUBLE)
        own = (wide() - LOWER) / (UPPER - LOWER)
        tried = torch.rand(400, 2, generator=seeded(4), **DOUBLE)
        best = maximize(features, regions, weights, tried, climb=True, within=own)
        assert inside(best.unsqueeze(1), own)
        axis = torch.linspace(0.0, 1.0, 50, **DOUBLE)
        fine = torch.cartesian_prod(axis, axis)
        fine = own[:, None, 0] + fine * (own[:, None, 1] - own[:, None, 0])
        most = values(features, regions, weights, fine).amax(dim=-1)
        found = values(features, regions, weights, best.unsqueeze(1)).squeeze(-1)
        assert (found > most - 0.05).all()

    def test_one_function_in_each_box(self):
        features, regions = FEDERATION.features(device=DEVICE), FEDERATION.regions()
        weights = torch.randn(1, P, M, generator=seeded(3), **DOUBLE)
        candidates = (grid() - LOWER) / (UPPER - LOWER)
        own = (wide() - LOWER) / (UPPER - LOWER)
        best = maximize(features, regions, weights, candidates, climb=False, within=own)
        for box, x in zip(own, best, strict=True):
            kept = (candidates - candidates.clamp(*box)).abs().amax(dim=-1) < 1e-9
            mine = candidates[kept]
            value = values(features, regions, weights, mine)
            assert torch.equal(x, mine[int(value.argmax())])


class TestRefuses:
    def test_boxes(self):
        domain = FEDERATION.domain(device=DEVICE)
        with pytest.raises(InvalidArgumentError, match="lower corners"):
            OwnSpaces(boxes().flip(1), domain)
        with pytest.raises(InvalidArgumentError, match="within bounds"):
            OwnSpaces(boxes() + 5.0, domain)
        tiny = torch.tensor([[[0.01, 0.01], [0.02, 0.02]]], **DOUBLE)
        with pytest.raises(InvalidArgumentError, match="contain a candidate"):
            OwnSpaces(tiny, FEDERATION.domain(grid(), device=DEVICE))
        with pytest.raises(InvalidArgumentError, match="own_bounds"):
            FEDERATION.agents(own_bounds=boxes()[:2], device=DEVICE)
