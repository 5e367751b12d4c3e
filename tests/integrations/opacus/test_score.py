"""The noisy score of a run: its range, its sensitivity, its noise and its price."""

import math

import pytest
import torch

from botorch_dp import GDP, ApproxDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.score import ScorePlan, plan_score
from botorch_dp.privacy import PrivacyAccountant
from botorch_dp.privacy.audit import audit_mu, mu_audit_power
from botorch_dp.privacy.noise import SeededNoise
from tests.integrations.opacus.runs import seeded

N = 40


def plan(noise_std=0.1, score_range=(0.0, 1.0)):
    return ScorePlan(N, score_range, noise_std)


def mean_without_noise(monkeypatch, scores, score_range=(0.0, 1.0)):
    monkeypatch.setattr(SeededNoise, "add_gaussian", lambda self, value, std: value)
    return plan(score_range=score_range).release(
        scores, account=PrivacyAccountant(), generator=seeded()
    )


class TestMean:
    def test_of_scores_in_the_range(self, tkwargs, monkeypatch):
        scores = torch.rand(N, generator=seeded(), device="cpu").to(**tkwargs)
        found = mean_without_noise(monkeypatch, scores)
        assert found == pytest.approx(float(scores.double().mean()), rel=1e-12)

    @pytest.mark.parametrize(
        ("value", "counts_as"),
        [(7.0, 3.0), (-7.0, -1.0), (math.inf, 3.0), (-math.inf, -1.0), (math.nan, 1.0)],
    )
    def test_clips(self, value, counts_as, double, monkeypatch):
        scores = torch.full((N,), 2.0, **double)
        scores[3] = value
        found = mean_without_noise(monkeypatch, scores, (-1.0, 3.0))
        assert found == pytest.approx((2.0 * (N - 1) + counts_as) / N)

    def test_booleans(self, monkeypatch):
        scores = torch.arange(N, device="cpu") < 10
        assert mean_without_noise(monkeypatch, scores) == pytest.approx(0.25)

    @pytest.mark.parametrize(
        "scores", [[0.5] * N, torch.zeros(N - 1), torch.zeros(N, 1), torch.tensor(0.5)]
    )
    def test_refused(self, scores):
        accountant = PrivacyAccountant()
        with pytest.raises(InvalidArgumentError, match="one score for each of the 40"):
            plan().release(scores, account=accountant, generator=None)
        assert len(accountant) == 0


class TestPrivacy:
    def test_it_is_charged(self):
        accountant = PrivacyAccountant()
        one = plan()
        one.release(torch.zeros(N, device="cpu"), account=accountant, generator=None)
        assert accountant.to_gdp().mu == pytest.approx(0.5 / N / 0.1)
        assert one.event.noise_multiplier == pytest.approx(0.1 * 2 * N)

    @pytest.mark.parametrize("broken", [None, "noise", "clip"])
    def test_audit(self, broken, double, monkeypatch):
        # A record with a score far outside the range, and the same one without a say.
        draw = SeededNoise.add_gaussian
        if broken == "noise":
            monkeypatch.setattr(
                SeededNoise, "add_gaussian", lambda self, v, std: draw(self, v, std / 2)
            )
        if broken == "clip":
            monkeypatch.setattr(torch.Tensor, "clamp", lambda self, *ends: self)
        assert mu_audit_power(true_mu=2.0, claimed_mu=1.0, num_samples=1000) > 0.999
        one = plan(noise_std=0.5 / N)  # mu = 1
        generator = seeded(3)
        scores = torch.full((N,), 0.3, **double)

        def sample(value):
            scores[0] = value
            return torch.tensor(
                [
                    one.release(
                        scores, account=PrivacyAccountant(), generator=generator
                    )
                    for _ in range(1000)
                ],
                **double,
            )

        nothing, most = sample(math.nan), sample(100.0)  # nan contributes nothing
        threshold = (0.3 * (N - 1) + 0.5 + 0.25) / N
        result = audit_mu(nothing, most, threshold=threshold)
        assert result.rejects(GDP(1.0)) == (broken is not None)


class TestRule:
    def test_many_records(self):
        one = plan_score(
            ApproxDP(4.0, 1e-5),
            num_records=10_000,
            score_range=(0.0, 2.0),
            noise_std=None,
        )
        assert one.noise_std == pytest.approx(0.01)

    def test_few_records(self):
        guarantee = ApproxDP(1.0, 1e-5)
        one = plan_score(
            guarantee, num_records=100, score_range=(0.0, 1.0), noise_std=None
        )
        mu = 1 / one.event.noise_multiplier
        assert mu == pytest.approx(0.1 * guarantee.to_gdp().mu)

    def test_given(self):
        given = {"num_records": 10, "score_range": (0.0, 1.0)}
        one = plan_score(GDP(1.0), noise_std=0.3, **given)
        assert one.noise_std == 0.3
        with pytest.raises(InvalidArgumentError, match="score_noise"):
            plan_score(GDP(1.0), noise_std=0.0, **given)
        with pytest.raises(InvalidArgumentError, match="score_range"):
            plan_score(GDP(1.0), num_records=9, score_range=(1, 0), noise_std=None)

    def test_least(self):
        one = plan_score(
            GDP(1.0),
            num_records=10,
            score_range=(0.0, 1.0),
            noise_std=None,
            least_multiplier=7.0,
        )
        assert one.event.noise_multiplier == pytest.approx(7.0)
