"""Agents: alone and in a batch, in a box and on a grid, present and absent."""

import dataclasses

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers import Federation, FTSAgent
from botorch_dp.optimizers.fts.randomness import AgentRandomness
from tests.optimizers.problems import DEVICE, DOUBLE, same_state, seeded

N, P, M = 6, 4, 30
FEDERATION = Federation(
    num_agents=N,
    lower=(-1.0, 0.0),
    upper=(1.0, 5.0),
    lengthscale=(0.3, 0.3),
    num_features=M,
    num_regions=P,
    num_initial=3,
    num_candidates=200,
)


def peaks(agents):
    agents = agents.double() / N
    return torch.stack([agents - 0.5, 2.0 + agents], dim=-1)


def scores(X, agents):
    return -(X - peaks(agents).unsqueeze(1)).square().sum(dim=-1)


def step(agents, number, broadcast=None, where=None):
    X = agents.ask(number, broadcast)
    agents.tell(X, scores(X, agents.agents), where)
    return X


def broadcast(seed=0):
    return torch.randn(P, M, generator=seeded(seed), **DOUBLE)


def grid():
    axis = torch.linspace(0.0, 1.0, 12, **DOUBLE)
    return torch.cartesian_prod(2 * axis - 1, 5 * axis)


class TestAlone:
    @pytest.mark.parametrize("candidates", [None, grid()], ids=["box", "grid"])
    @pytest.mark.parametrize("local", ["fresh", "shared"])
    @pytest.mark.parametrize("center", [False, True])
    def test_is_as_in_the_batch(self, candidates, local, center):
        federation = dataclasses.replace(FEDERATION, local=local, center=center)
        batch = federation.agents(candidates=candidates, seed=4, device=DEVICE)
        alone = [
            federation.agents(
                torch.tensor([n], device=DEVICE),
                candidates=candidates,
                seed=4,
                device=DEVICE,
            )
            for n in range(N)
        ]
        for number in range(4):
            told = broadcast(number) if number else None
            X = step(batch, number, told)
            Y = torch.cat([step(agent, number, told) for agent in alone])
            assert torch.allclose(X, Y, atol=1e-8)
            messages = torch.cat([agent.messages(number) for agent in alone])
            assert torch.allclose(batch.messages(number), messages, atol=1e-8)

    def test_one_agent(self):
        agent = FTSAgent(
            2,
            features=FEDERATION.features(device=DEVICE),
            domain=FEDERATION.domain(device=DEVICE),
            regions=FEDERATION.regions(),
            num_initial=3,
            local="shared",
            randomness=AgentRandomness(4),
        )
        assert agent.assignment.tolist() == [2]
        assert agent.ask(0).shape == (1, 3, 2)


class TestSamples:
    """Messages and local choices are samples of the posterior, not its mean."""

    def test_messages_have_the_posteriors_moments(self):
        """2,000 agents with the same three scores; standard errors of 1/45 of a sd."""
        federation = dataclasses.replace(
            FEDERATION, num_agents=2000, num_regions=1, num_features=8
        )
        agents = federation.agents(seed=1, device=DEVICE)
        X = agents.ask(0)[:1].expand(2000, 3, 2)
        agents.tell(X, scores(X, torch.zeros(2000, device=DEVICE)))
        phi = agents.features(agents.domain.to_unit(X[0]))
        A = phi.mT @ phi / 1e-2 + torch.eye(8, **DOUBLE)
        mean = torch.linalg.solve(A, phi.mT @ scores(X, agents.agents * 0)[0] / 1e-2)
        covariance = torch.linalg.inv(A)
        drawn = agents.messages(1)
        deviation = covariance.diagonal().sqrt()
        error = (drawn.mean(dim=0) - mean) / deviation * 2000**0.5
        assert error.abs().max() < 4.5
        found = torch.cov(drawn.mT) / (deviation.unsqueeze(-1) * deviation)
        expected = covariance / (deviation.unsqueeze(-1) * deviation)
        assert torch.allclose(found, expected, atol=0.12)

    @pytest.mark.parametrize("local", ["fresh", "shared"])
    def test_local_choices_differ_where_knowledge_does_not(self, local):
        federation = dataclasses.replace(
            FEDERATION, num_agents=50, num_regions=1, local=local
        )
        agents = federation.agents(seed=1, device=DEVICE)
        X = agents.ask(0)[:1].expand(50, 3, 2)
        agents.tell(X, scores(X, torch.zeros(50, device=DEVICE)))
        assert len(torch.unique(agents.ask(1).squeeze(1), dim=0)) > 20

    def test_scores_of_any_size_stay_with_their_agent(self):
        for center in (False, True):
            federation = dataclasses.replace(FEDERATION, center=center, trust="never")
            agents, other = (
                federation.agents(seed=1, device=DEVICE),
                federation.agents(seed=1, device=DEVICE),
            )
            X = agents.ask(0)
            Y = scores(X, agents.agents)
            other.tell(X, Y)
            Y = Y.clone()
            Y[2] = torch.tensor([1.7e308, -1.7e308, 1.7e308], **DOUBLE)
            agents.tell(X, Y)
            asked = agents.ask(1)
            assert asked.isfinite().all()
            rest = torch.arange(N, device=DEVICE) != 2
            assert torch.equal(asked[rest], other.ask(1)[rest])
            assert torch.equal(agents.messages(1)[rest], other.messages(1)[rest])


class TestAsk:
    @pytest.mark.parametrize("candidates", [None, grid()], ids=["box", "grid"])
    def test_begins_in_its_own_region(self, candidates):
        agents = FEDERATION.agents(candidates=candidates, seed=1, device=DEVICE)
        X = agents.ask(0)
        assert X.shape == (N, 3, 2)
        unit = agents.domain.to_unit(X)
        expected = (torch.arange(N, device=DEVICE) % P).unsqueeze(-1).expand(N, 3)
        assert torch.equal(FEDERATION.regions().index(unit), expected)

    def test_follows_the_broadcast_as_often_as_it_should(self):
        federation = dataclasses.replace(FEDERATION, num_agents=2000, local="shared")
        agents = federation.agents(seed=1, device=DEVICE)
        X = agents.ask(0)
        agents.tell(X, X.sum(dim=-1))
        told = broadcast()
        # The best point of the broadcast, by brute force over all regions.
        candidates = agents._shared_candidates(4)
        values = agents.features(candidates) @ told.T
        region = agents.regions.index(candidates)
        best = values.take_along_dim(region.unsqueeze(-1), -1).max()
        X = agents.domain.to_unit(agents.ask(4, told)).squeeze(1)
        same = (X.unsqueeze(0) - X.unsqueeze(1)).abs().amax(-1) < 1e-9
        shared = X[same.sum(dim=-1).argmax()]
        share = same.sum(dim=-1).max() / 2000
        # trust = 1/sqrt(4) of 2,000 agents: within 4.5 standard errors of 0.011.
        assert abs(float(share) - 0.5) < 0.05
        region = agents.regions.index(shared)
        assert float(agents.features(shared[None]) @ told[region]) >= float(best) - 1e-9

    @pytest.mark.parametrize(("number", "share"), [(1, 1.0), (9, 1 / 3)])
    def test_trust_falls(self, number, share):
        federation = dataclasses.replace(FEDERATION, num_agents=500, local="shared")
        agents = federation.agents(seed=1, device=DEVICE)
        X = agents.ask(0)
        agents.tell(X, X.sum(dim=-1))
        X = agents.ask(number, broadcast()).squeeze(1)
        _, counts = torch.unique(X, dim=0, return_counts=True)
        # Of 500 agents: within 5 standard errors of 0.021.
        assert abs(int(counts.max()) / 500 - share) < 0.105

    def test_without_a_broadcast_it_searches_alone(self):
        agents = FEDERATION.agents(seed=1, device=DEVICE)
        step(agents, 0)
        X = agents.ask(1)
        assert X.shape == (N, 1, 2)
        assert len(torch.unique(X.squeeze(1), dim=0)) == N

    def test_never_asks_twice_for_the_same_point_of_a_small_set(self):
        federation = dataclasses.replace(FEDERATION, num_regions=1, num_agents=1)
        agents = federation.agents(candidates=grid(), seed=2, device=DEVICE)
        step(agents, 0)
        agents._trust = lambda t: 1.0
        weights = torch.randn(1, M, generator=seeded(), **DOUBLE)
        first, second = (step(agents, number, weights) for number in (1, 2))
        assert not torch.equal(first, second)  # the broadcast's best was taken before

    def test_learns(self):
        agents = dataclasses.replace(FEDERATION, noise_variance=1e-4).agents(
            seed=3, device=DEVICE
        )
        for number in range(25):
            step(agents, number)
        x, value = agents.best
        assert (value > -0.5).all()
        assert torch.allclose(scores(x.unsqueeze(1), agents.agents).squeeze(1), value)


class TestAbsent:
    def test_scores_of_absent_agents_are_ignored(self):
        agents, other = (
            FEDERATION.agents(seed=1, device=DEVICE),
            FEDERATION.agents(seed=1, device=DEVICE),
        )
        where = torch.tensor([True, False, True, True, False, True], device=DEVICE)
        for number in range(3):
            X = agents.ask(number)
            Y = scores(X, agents.agents)
            agents.tell(X, Y, where if number == 1 else None)
            Y = Y.clone()
            if number == 1:
                Y[~where] = torch.nan  # not observed, said in another way
            other.tell(other.ask(number), Y)
        assert torch.allclose(agents.messages(2), other.messages(2))
        assert agents._models.counts.tolist() == [5, 4, 5, 5, 4, 5]

    def test_best_of_those_who_have_one(self):
        agents = FEDERATION.agents(seed=1, device=DEVICE)
        X = agents.ask(0)
        where = torch.tensor([False] + [True] * 5, device=DEVICE)
        agents.tell(X, scores(X, agents.agents), where)
        assert agents.best[1][0] == -torch.inf
        assert agents.best[0][0].isnan().all()
        assert agents.best[1][1:].isfinite().all()


class TestState:
    @pytest.mark.parametrize("center", [False, True])
    def test_goes_on(self, center):
        federation = dataclasses.replace(FEDERATION, center=center)
        whole, half = (
            federation.agents(seed=5, device=DEVICE),
            federation.agents(seed=5, device=DEVICE),
        )
        for number in range(3):
            step(whole, number)
            step(half, number)
        resumed = federation.agents(
            device=DEVICE
        )  # of another seed, until it has loaded
        resumed.load_private_state_dict(half.private_state_dict())
        assert same_state(resumed.private_state_dict(), half.private_state_dict())
        X, Y = step(whole, 3, broadcast()), step(resumed, 3, broadcast())
        assert torch.allclose(X, Y, atol=1e-9)
        assert torch.allclose(whole.messages(3), resumed.messages(3), atol=1e-9)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"feature_seed": 1}, "other settings: features="),
            ({"upper": (1.0, 6.0)}, "other settings: domain="),
            ({"noise_variance": 1.0}, "noise_variance=0.01 there, 1.0 here"),
            ({"center": True}, "center=False there, True here"),
        ],
    )
    def test_refuses_others(self, changes, match):
        state = FEDERATION.agents(seed=5, device=DEVICE).private_state_dict()
        other = dataclasses.replace(FEDERATION, **changes).agents(device=DEVICE)
        with pytest.raises(OptimizerStateError, match=match):
            other.load_private_state_dict(state)

    def test_refuses_other_agents_and_candidates(self):
        state = FEDERATION.agents(seed=5, device=DEVICE).private_state_dict()
        some = FEDERATION.agents(torch.arange(3, device=DEVICE), device=DEVICE)
        with pytest.raises(OptimizerStateError, match=r"agents=\[\(0, 6\)\] there"):
            some.load_private_state_dict(state)
        with pytest.raises(OptimizerStateError, match="domain="):
            FEDERATION.agents(candidates=grid(), device=DEVICE).load_private_state_dict(
                state
            )


class TestRefuses:
    def test_arguments(self):
        with pytest.raises(InvalidArgumentError, match="ascending"):
            FEDERATION.agents(torch.tensor([2, 1], device=DEVICE), device=DEVICE)
        agents = FEDERATION.agents(device=DEVICE)
        agents.tell(agents.ask(0), torch.zeros(N, 3, **DOUBLE))
        wrong = torch.zeros(P, M + 1, **DOUBLE)
        with pytest.raises(InvalidArgumentError, match=r"broadcast must be .* 4 x 30"):
            agents.ask(1, wrong)
        with pytest.raises(InvalidArgumentError, match="broadcast must be finite"):
            agents.ask(1, torch.full((P, M), torch.nan, **DOUBLE))
        with pytest.raises(InvalidArgumentError, match="X and Y must have shapes"):
            agents.tell(agents.ask(0), torch.zeros(N, 4, **DOUBLE))
        with pytest.raises(InvalidArgumentError, match="candidates must lie in every"):
            FEDERATION.agents(candidates=grid()[:1], device=DEVICE).ask(0)

    def test_too_early(self):
        with pytest.raises(OptimizerStateError, match="No agent has a score yet"):
            FEDERATION.agents(device=DEVICE).best  # noqa: B018

    def test_indices(self):
        for wrong in ([], [0.0], [[0]]):
            with pytest.raises(
                InvalidArgumentError, match="agents must be an n tensor of"
            ):
                FEDERATION.agents(torch.tensor(wrong, device=DEVICE), device=DEVICE)

    def test_single_precision(self):
        agents = FEDERATION.agents(seed=1, dtype=torch.float32, device=DEVICE)
        X = step(agents, 0)
        assert X.dtype == agents.messages(0).dtype == torch.float32
