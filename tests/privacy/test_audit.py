"""Audits: their confidence and their power, by simulation and by exact computation."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from botorch_dp import GDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    audit_epsilon,
    audit_epsilon_finite,
    audit_mu,
    mu_audit_power,
    worst_log_ratio,
)
from botorch_dp.privacy.audit import _upper
from tests.devices import DEVICE


def gaussians(rng, mu, num):
    pair = rng.normal(size=(2, num))
    pair[1] += mu
    return [torch.from_numpy(side) for side in pair]


class TestConfidence:
    @pytest.mark.parametrize("threshold", [0.5, None])
    def test_a_true_claim_is_rarely_rejected(self, threshold):
        # At confidence 0.9, of 200 audits of a true claim about 20 may reject; more
        # than 34 would have probability below 1e-3 if the confidence were as stated.
        rng = np.random.default_rng(1)
        rejected = sum(
            audit_mu(
                *gaussians(rng, 1.0, 400), confidence=0.9, threshold=threshold
            ).rejects(GDP(1.0))
            for _ in range(200)
        )
        assert rejected <= 34

    def test_clopper_pearson_covers(self):
        # The limit is the largest p that does not make the count too small.
        for count, num in ((0, 10), (3, 50), (49, 50)):
            limit = float(_upper(count, num, 0.05))
            assert stats.binom.cdf(count, num, limit) == pytest.approx(0.05)
        assert float(_upper(10, 10, 0.05)) == 1.0


class TestPower:
    @pytest.mark.parametrize(("num", "factor"), [(2500, 1.2), (150, 2.0), (1000, 1.5)])
    def test_published_sample_sizes(self, num, factor):
        power = mu_audit_power(true_mu=factor, claimed_mu=1.0, num_samples=num)
        assert power > 0.95

    def test_agrees_with_simulation(self):
        rng = np.random.default_rng(2)
        power = mu_audit_power(true_mu=1.5, claimed_mu=1.0, num_samples=150)
        found = np.mean(
            [
                audit_mu(*gaussians(rng, 1.5, 150), threshold=0.75).rejects(1.0)
                for _ in range(500)
            ]
        )
        assert 0.1 < power < 0.95
        assert found == pytest.approx(
            power, abs=4 * math.sqrt(power * (1 - power) / 500)
        )

    def test_learned_threshold_finds_the_direction(self):
        rng = np.random.default_rng(3)
        low, high = gaussians(rng, 2.0, 4000)
        for pair in ((low, high), (high, low)):
            result = audit_mu(*pair)
            assert result.rejects(GDP(1.5))
            assert not result.rejects(GDP(2.0))
            assert result.num_samples == 2000

    def test_laplace_epsilon(self):
        rng = np.random.default_rng(4)
        x, y = (torch.from_numpy(rng.laplace(size=6000)) for _ in range(2))
        result = audit_epsilon(x, y + 1.0)
        assert 0.8 < result.lower_bound < 1.0
        assert not result.rejects(PureDP(1.0))
        assert result.rejects(PureDP(0.8))

    def test_delta_is_subtracted(self):
        # A mechanism that tells all with probability 0.1: infinite epsilon at
        # delta = 0, none left at delta = 0.1.
        rng = np.random.default_rng(5)
        told = torch.from_numpy((rng.random(20_000) < 0.1) * 1.0)
        silent = torch.zeros_like(told)
        assert audit_epsilon(silent, told, threshold=0.5).lower_bound > 4
        assert audit_epsilon(
            silent, told, threshold=0.5, delta=0.12
        ).lower_bound == pytest.approx(0.0, abs=0.05)

    def test_finite_outcomes(self):
        rng = np.random.default_rng(6)
        p = np.array([0.5, 0.3, 0.2])
        q = np.array([0.3, 0.2, 0.5])
        exact = worst_log_ratio(
            torch.from_numpy(np.log(p)), torch.from_numpy(np.log(q))
        )
        assert exact == pytest.approx(math.log(2.5))
        x, y = (torch.from_numpy(rng.choice(3, 20_000, p=w)) for w in (p, q))
        for pair in ((x, y), (y, x)):
            result = audit_epsilon_finite(*pair, num_outcomes=3)
            assert 0.8 * exact < result.lower_bound < exact

    def test_nothing_to_find(self):
        x = torch.zeros(100, dtype=torch.int64, device=DEVICE)
        assert audit_epsilon_finite(x, x, num_outcomes=2).lower_bound == 0.0


class TestBadInput:
    @pytest.mark.parametrize(
        ("x", "y", "match"),
        [
            ([1.0] * 5, None, "samples"),
            ((2, 5), None, r"samples.*\(2, 5\)"),
            ((3,), None, r"samples.*\(3,\)"),
            ((5,), (6,), "as many.*5.*6"),
        ],
    )
    def test_samples(self, x, y, match, double):
        x = torch.zeros(x, **double) if isinstance(x, tuple) else x
        y = torch.zeros(y, **double) if isinstance(y, tuple) else x
        with pytest.raises(InvalidArgumentError, match=match):
            audit_mu(x, y)

    def test_other_arguments(self, double):
        x = torch.zeros(10, **double)
        with pytest.raises(InvalidArgumentError, match="confidence"):
            audit_mu(x, x, confidence=1.0)
        with pytest.raises(InvalidArgumentError, match="num_outcomes"):
            audit_epsilon_finite(x, x, num_outcomes=1)
        with pytest.raises(InvalidArgumentError, match="num_outcomes"):
            audit_epsilon_finite(x + 7, x, num_outcomes=3)
        with pytest.raises(InvalidArgumentError, match="num_samples"):
            mu_audit_power(true_mu=1.0, claimed_mu=1.0, num_samples=0)
        with pytest.raises(InvalidArgumentError, match="shape"):
            worst_log_ratio(x, x[:3])

    def test_a_given_threshold_has_a_direction(self):
        low, high = gaussians(np.random.default_rng(8), 3.0, 1000)
        assert audit_mu(low, high, threshold=1.5).lower_bound > 2.5
        for audit in (audit_mu, audit_epsilon):
            with pytest.raises(InvalidArgumentError, match="swap"):
                audit(high, low, threshold=1.5)

    def test_values(self, double):
        x = torch.zeros(10, **double)
        with pytest.raises(InvalidArgumentError, match="finite"):
            audit_mu(x * math.nan, x)
        for delta in (-1.0, 1.0, math.nan):
            with pytest.raises(InvalidArgumentError, match="delta"):
                audit_epsilon(x, x, delta=delta)
        with pytest.raises(InvalidArgumentError, match="num_outcomes"):
            audit_epsilon_finite(x - 1, x, num_outcomes=3)

    def test_claims_in_another_unit(self, double):
        result = audit_mu(torch.zeros(10, **double), torch.ones(10, **double))
        with pytest.raises(InvalidArgumentError, match=r"mu.*PureDP"):
            result.rejects(PureDP(1.0))
        assert result.unit == "mu"
