"""Federated and local Thompson sampling without noise."""

import dataclasses

import pytest
import torch

from botorch_dp import DPFTSDE, Federation
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.optimizers import FTSDE, ThompsonSampling
from botorch_dp.optimizers.fts.simulation import FederatedSimulation
from tests.optimizers.problems import DEVICE, DOUBLE, same_state

N = 20
FEDERATION = Federation(
    num_agents=N,
    lower=(0.0,),
    upper=(1.0,),
    lengthscale=(0.1,),
    num_features=40,
    num_regions=2,
    num_initial=3,
    num_candidates=100,
)
PEAKS = torch.linspace(0.6, 0.7, N, **DOUBLE).unsqueeze(-1)


def scores(X):
    return torch.exp(-((X.squeeze(-1) - PEAKS) ** 2) / 0.02)


def make(cls, federation=FEDERATION, **kwargs):
    return cls(federation, **{"num_steps": 6, "seed": 1, "device": DEVICE, **kwargs})


def test_none_of_them_has_a_server():
    for cls in (FTSDE, ThompsonSampling):
        opt = make(cls)
        assert isinstance(opt, FederatedSimulation)
        assert not isinstance(opt, DPFTSDE)
        assert not hasattr(opt, "server")


def test_without_noise_it_is_fts_de():
    private = make(DPFTSDE, noise_multiplier=1e-6, clip_norm=100.0, sampling_rate=1.0)
    plain = make(FTSDE)
    ours = private.run(scores, progress=False)
    theirs = plain.run(scores, progress=False)
    assert torch.allclose(ours.private_x, theirs.private_x, atol=1e-6)
    assert torch.allclose(ours.broadcasts, theirs.broadcasts, atol=1e-3)


def test_fts_de_sends_weighted_sums():
    opt = make(FTSDE)
    where = torch.ones(N, dtype=torch.bool, device=DEVICE)
    where[3] = False
    opt.tell(scores(opt.ask()), where)
    messages = opt.agents.messages(0)
    messages[3] = 0.0
    expected = FEDERATION.weights(device=DEVICE)(0) @ messages
    result = opt.result()
    assert torch.allclose(result.broadcasts[0], expected)
    assert not result.certificate.private


def test_sharing_helps_where_agents_agree():
    """Simple regret after 4 steps, 40 agents with one function, 5 seeds: FTS-DE has
    at most half of the regret of Thompson sampling."""
    federation = dataclasses.replace(
        FEDERATION, num_agents=40, lengthscale=(0.03,), num_features=100
    )

    def narrow(X):
        return torch.exp(-((X.squeeze(-1) - 0.64) ** 2) / 0.002)

    regrets = {
        cls: sum(
            1.0
            - float(
                make(cls, federation, seed=seed, num_steps=4)
                .run(narrow, progress=False)
                .private_scores.mean()
            )
            for seed in range(5)
        )
        for cls in (FTSDE, ThompsonSampling)
    }
    assert regrets[FTSDE] < 0.5 * regrets[ThompsonSampling]


def test_thompson_sampling_shares_nothing():
    result = make(ThompsonSampling).run(scores, progress=False)
    assert result.broadcasts.shape == (0, 2, 40)
    assert not result.certificate.private


@pytest.mark.parametrize("cls", [FTSDE, ThompsonSampling])
def test_goes_on(cls):
    half, resumed = make(cls), make(cls)
    for _ in range(3):
        half.tell(scores(half.ask()))
    resumed.load_private_state_dict(half.private_state_dict())
    assert same_state(resumed.private_state_dict(), half.private_state_dict())
    assert torch.allclose(resumed.ask(), half.ask(), atol=1e-9)
    result = resumed.run(scores, progress=False)
    assert len(result.private_best_so_far) == 7


def test_refuses_another_federation():
    other = dataclasses.replace(FEDERATION, feature_seed=3)
    state = make(FTSDE, other).private_state_dict()
    with pytest.raises(OptimizerStateError, match="other settings: federation="):
        make(FTSDE).load_private_state_dict(state)
