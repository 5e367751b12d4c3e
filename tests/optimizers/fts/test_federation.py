"""The settings of a federation: what they make, and which are refused."""

import dataclasses

import pytest
import torch

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers import Federation
from tests.optimizers.problems import DEVICE

N = 6
FEDERATION = Federation(
    num_agents=N,
    lower=(-1.0, 0.0),
    upper=(1.0, 5.0),
    lengthscale=(0.3, 0.3),
    num_features=30,
    num_regions=4,
    num_initial=3,
    num_candidates=200,
)


def test_everyone_makes_the_same():
    other = Federation.from_json(FEDERATION.to_json())
    assert (
        other.features(device=DEVICE).fingerprint
        == FEDERATION.features(device=DEVICE).fingerprint
    )
    assert (
        other.features(seed=1, device=DEVICE).fingerprint
        != FEDERATION.features(device=DEVICE).fingerprint
    )
    assert (
        other.domain(device=DEVICE).fingerprint
        == FEDERATION.domain(device=DEVICE).fingerprint
    )
    assert other.assignment().tolist() == [0, 1, 2, 3, 0, 1]
    assert torch.equal(
        other.weights(device=DEVICE)(0), FEDERATION.weights(device=DEVICE)(0)
    )
    assert FEDERATION.regions().cuts == [2, 2]


def test_agents():
    assert FEDERATION.agents(device=DEVICE).num_agents == N
    some = FEDERATION.agents(
        torch.tensor([1, 4], device=DEVICE), dtype=torch.float32, device=DEVICE
    )
    assert some.agents.tolist() == [1, 4]
    assert some.ask(0).dtype == torch.float32
    with pytest.raises(InvalidArgumentError, match="indices must be below"):
        FEDERATION.agents(torch.tensor([N], device=DEVICE), device=DEVICE)


def test_json():
    assert Federation.from_json(FEDERATION.to_json()) == FEDERATION
    for text in ("{}", "[]", "no", '{"num_agents": 3}'):
        with pytest.raises(InvalidArgumentError, match="written by to_json"):
            Federation.from_json(text)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_agents": 0}, "num_agents"),
        ({"lower": (0.0,)}, "one number per dimension"),
        ({"lower": (2.0, 0.0)}, "bounds must be"),
        ({"lengthscale": (0.0, 1.0)}, "lengthscale must be"),
        ({"trust": "always"}, "trust must be one of"),
        ({"local": "none"}, "local must be one of"),
        ({"num_initial": 0}, "num_initial"),
        ({"num_candidates": 0}, "num_candidates"),
        ({"noise_variance": -1.0}, "noise_variance"),
        ({"strength": -1.0}, "strength"),
    ],
)
def test_bad_settings_are_refused(changes, match):
    with pytest.raises(InvalidArgumentError, match=match):
        dataclasses.replace(FEDERATION, **changes)
