"""The release of a mean loss: its noise, its cost and its state."""

import math

import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import BudgetExceededError
from botorch_dp.integrations.sklearn.score_release import ScoreRelease
from botorch_dp.privacy import GaussianMechanism, LaplaceMechanism

N, RANGE = 200, (-1.0, 3.0)
LOSSES = torch.full((N, 1), 2.0, dtype=torch.float64, device="cpu")


def release_of(guarantee, ledger, **settings):
    settings = {"generator": None, "adjacency": "replace_one", **settings}
    return ScoreRelease(
        guarantee, ledger=ledger, loss_range=RANGE, num_records=N, **settings
    )


@pytest.mark.parametrize(
    ("guarantee", "std"),
    [
        # The mean of N losses in a range of length 4 moves by 4 / N.
        (PureDP(0.5), math.sqrt(2) * 4 / N / 0.5),
        (GDP(0.5), 4 / N / 0.5),
        (ApproxDP(1.0, 1e-5), 4 / N / ApproxDP(1.0, 1e-5).to_gdp().mu),
    ],
)
def test_noise_and_cost(guarantee, std):
    ledger = Ledger(cap=guarantee)
    release = release_of(guarantee, ledger)
    assert release.noise_std == pytest.approx(std)
    ((event, count),) = release.planned_releases()
    release.release(LOSSES)
    assert release.loss != 2.0
    assert release.loss == pytest.approx(2.0, abs=20 * std)
    assert [(entry.event, entry.count) for entry in ledger.entries] == [(event, count)]
    assert release.planned_releases() == []
    assert release.num_lost == 0
    with pytest.raises(BudgetExceededError):
        release_of(guarantee, ledger).release(LOSSES)


def test_mean_of_the_noise():
    """Seeded, 400 releases: their mean is within 4 standard errors of the loss."""
    found = []
    for seed in range(400):
        generator = torch.Generator(device="cpu").manual_seed(seed)
        release = release_of(PureDP(1.0), Ledger(), generator=generator)
        release.release(LOSSES)
        found.append(release.loss)
    found = torch.tensor(found, dtype=torch.float64, device="cpu")
    assert abs(found.mean() - 2.0) < 4 * release.noise_std / 20
    assert found.std() == pytest.approx(release.noise_std, rel=0.25)


@pytest.mark.parametrize("kind", [PureDP(1.0), GDP(1.0)])
def test_lost_between_the_charge_and_the_draw(kind, monkeypatch):
    ledger = Ledger()
    release = release_of(kind, ledger)
    state = release.state_dict()

    def fail(self, value):
        raise KeyboardInterrupt

    for mechanism in (GaussianMechanism, LaplaceMechanism):
        monkeypatch.setattr(mechanism, "_draw", fail)
    with pytest.raises(KeyboardInterrupt):
        release.release(LOSSES)
    again = release_of(kind, ledger)
    again.load_state_dict(state)
    for one in (release, again):
        assert one.num_lost == 1
        assert one.loss is None
        assert one.planned_releases() == []  # not for free, and not twice


class TestState:
    def test_resumed(self):
        ledger = Ledger()
        release = release_of(GDP(1.0), ledger)
        release.release(LOSSES)
        again = release_of(GDP(1.0), ledger)
        again.load_state_dict(release.state_dict())
        assert again.loss == release.loss
        assert len(ledger) == 1

    def test_charges_what_another_ledger_lacks(self):
        release = release_of(GDP(1.0), Ledger())
        release.release(LOSSES)
        ledger = Ledger()
        release_of(GDP(1.0), ledger).load_state_dict(release.state_dict())
        assert len(ledger) == 1

    def test_a_score_without_its_charge(self):
        release = release_of(GDP(1.0), Ledger())
        state = {**release.state_dict(), "loss": 0.5}
        with pytest.raises(ValueError, match=r"a score 0\.5 with 0 charges"):
            release.load_state_dict(state)
