"""The release of a score of candidates: its noise, its cost and its score."""

import numpy as np
import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import BudgetExceededError
from botorch_dp.integrations.sklearn import f1, roc_auc
from botorch_dp.integrations.sklearn.tally_release import TallyRelease
from botorch_dp.privacy import GaussianMechanism, LaplaceMechanism, audit_epsilon
from botorch_dp.privacy.account import RunAccount
from tests.devices import seeded

N = 1000
AUC, F1 = roc_auc().resolved([0, 0, 0, 1]), f1().resolved([0, 0, 0, 1])
TALLIES = {AUC: [20_000.0, 250.0], F1: [200.0, 90.0]}

pytestmark = pytest.mark.cpu_only  # models of scikit-learn are scored on the CPU


def column(tally):
    return torch.tensor(tally, dtype=torch.float64, device="cpu").unsqueeze(-1)


def release_of(scoring, guarantee, ledger=None, n=N, **settings):
    account = RunAccount(Ledger() if ledger is None else ledger, "a score")
    settings = {"generator": None, **settings}
    return TallyRelease(scoring, guarantee, account=account, num_records=n, **settings)


@pytest.mark.parametrize("scoring", TALLIES)
@pytest.mark.parametrize(
    "guarantee", [PureDP(1.0), GDP(1.0), ApproxDP(1.0, 1e-5)], ids=repr
)
def test_noise_and_cost(scoring, guarantee):
    ledger = Ledger(cap=guarantee)
    release = release_of(scoring, guarantee, ledger)
    ((event, count),) = release.planned_releases()
    release.release(column(TALLIES[scoring]))
    exact = 1 - scoring.score_of(TALLIES[scoring], N)
    assert release.loss != exact
    assert release.loss == pytest.approx(exact, abs=12 * release.noise_std)
    assert [(entry.event, entry.count) for entry in ledger.entries] == [(event, count)]
    with pytest.raises(BudgetExceededError):
        release_of(scoring, guarantee, ledger).release(column(TALLIES[scoring]))


@pytest.mark.parametrize("scoring", TALLIES)
@pytest.mark.parametrize("guarantee", [PureDP(2.0), GDP(1.0)], ids=repr)
def test_standard_deviation(scoring, guarantee):
    """Seeded, 1,000 releases: within 12 % (5 standard errors of Laplace noise)."""
    generator, found, stated = seeded(0), [], []
    for _ in range(1000):
        release = release_of(scoring, guarantee, generator=generator)
        release.release(column(TALLIES[scoring]))
        found.append(release.loss)
        stated.append(release.noise_std)
    assert np.std(found) == pytest.approx(np.median(stated), rel=0.12)


def test_counts_have_noise_for_their_sensitivity(monkeypatch):
    """The noise on (U, positives) and on (hits, errors), in closed form."""
    added = []

    def draw(self, value):
        added.append(self.scale if hasattr(self, "scale") else self.noise_std)
        return value

    for kind in (LaplaceMechanism, GaussianMechanism):
        monkeypatch.setattr(kind, "_draw", draw)
    for scoring in (AUC, F1):
        for guarantee in (PureDP(0.5), GDP(0.5)):
            release_of(scoring, guarantee).release(column(TALLIES[scoring]))
    of_auc = 4 / 3, np.sqrt(10) / 3  # of U / (n - 1) and a third of the count
    expected = [*of_auc, 2.0, np.sqrt(2)]
    assert added == pytest.approx([2 * size for size in expected])


@pytest.mark.parametrize("scoring", TALLIES)
def test_audit(scoring):
    """On the worst neighbours, at the claim and with half of the sensitivity."""
    n, claim = 50, 1.0
    worst = {AUC: ([0.0, 49.0], [49.0, 48.0]), F1: ([20.0, 9.0], [19.0, 10.0])}
    tallies = [np.array(tally) for tally in worst[scoring]]
    for factor, is_rejected in ((1.0, False), (2.0, True)):
        guarantee, generator, found = PureDP(claim * factor), seeded(1), []
        for tally in tallies:
            release = release_of(scoring, guarantee, n=n, generator=generator)
            scaled = torch.from_numpy(tally / scoring.units(n)).expand(20_000, 2)
            noisy = release._mechanism.release(
                scaled.contiguous(), ledger=Ledger(), batch_dims=1
            )
            direction = torch.from_numpy((tallies[1] - tallies[0]).round())
            found.append(noisy @ direction.sign())
        result = audit_epsilon(*found, confidence=0.999)
        assert result.rejects(PureDP(claim)) == is_rejected
