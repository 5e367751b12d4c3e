"""Budgets: shares of a guarantee, affordable plans, and what one record can move."""

import math
import warnings
from fractions import Fraction
from statistics import NormalDist

import pytest
import torch

from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.privacy import (
    GDP,
    RDP,
    ApproxDP,
    GaussianEvent,
    GaussianMechanism,
    Ledger,
    PermuteAndFlipEvent,
    PrivacyAccountant,
    PureDP,
    ZCDPEvent,
)
from botorch_dp.privacy.budget import (
    after_choice,
    check_affordable,
    check_gaussian,
    mean_sensitivity,
    share_of_a_step,
    warn_of_large_delta,
)
from tests.devices import DEVICE, seeded


class TestShares:
    @pytest.mark.parametrize("num_steps", [1, 7, 100])
    def test_squares_of_mu_add_up(self, num_steps):
        share = share_of_a_step(
            GDP(0.8), num_steps, sensitivity=0.3, size=4, secure=False
        )
        assert num_steps * share.mu**2 == pytest.approx(0.64, rel=1e-12)

    @pytest.mark.parametrize("guarantee", [ApproxDP(1.0, 1e-5), RDP(8.0, 0.5)])
    def test_all_steps_together_meet_the_guarantee(self, guarantee):
        share = share_of_a_step(guarantee, 20, sensitivity=1.0, size=1, secure=False)
        accountant = PrivacyAccountant()
        accountant.compose(GaussianEvent(1 / share.mu), 20)
        total = accountant.to_gdp()
        assert total.mu == pytest.approx(guarantee.to_gdp().mu, rel=1e-9)

    def test_a_discrete_grid_is_paid_for(self):
        pytest.importorskip("opendp")
        whole = ApproxDP(1.0, 1e-5)
        share = share_of_a_step(whole, 10, sensitivity=0.1, size=3, secure=True)
        mechanism = GaussianMechanism(share, sensitivity=0.1, secure=True)
        all_at_once = GaussianMechanism(whole, sensitivity=1.0, secure=True)
        spent = 10 * mechanism.event(3).zcdp_rho
        assert spent <= 1 / (2 * all_at_once.noise_std**2) * (1 + 1e-9)


class TestAfterChoice:
    @staticmethod
    def reserve(guarantee, mu):
        ledger = Ledger(cap=guarantee)
        each = GaussianEvent(math.sqrt(20) / mu)
        plan = [(PermuteAndFlipEvent(0.3), 1), (each, 20)]
        check_affordable(ledger, plan, "replace_one")

    @pytest.mark.parametrize(
        "guarantee", [ApproxDP(1.0, 1e-5), GDP(0.5), RDP(8.0, 0.5)]
    )
    def test_a_ledger_accepts_just_that(self, guarantee):
        mu = after_choice(guarantee, 0.3).mu
        self.reserve(guarantee, mu)
        with pytest.raises(BudgetExceededError):
            self.reserve(guarantee, 1.01 * mu)

    @pytest.mark.parametrize("guarantee", [ApproxDP(1.0, 1e-5), RDP(8.0, 0.5)])
    def test_discrete_noise(self, guarantee):
        mu = after_choice(guarantee, 0.3, secure=True).mu
        assert mu <= after_choice(guarantee, 0.3).mu

        def reserve(mu):
            plan = [(PermuteAndFlipEvent(0.3), 1), (ZCDPEvent(mu**2 / 40), 20)]
            check_affordable(Ledger(cap=guarantee), plan, "replace_one")

        reserve(mu)
        with pytest.raises(BudgetExceededError):
            reserve(1.01 * mu)
        with pytest.raises(InvalidArgumentError, match="leaves part of"):
            after_choice(guarantee, 1.2, secure=True)

    def test_numbers(self):
        # Phi(mu'/2) = e^eps'/(1 + e^eps'): mu' of 0.3 in closed form.
        used = 2 * NormalDist().inv_cdf(1 / (1 + math.exp(-0.3)))
        assert after_choice(GDP(0.5), 0.3).mu == pytest.approx(
            math.sqrt(0.25 - used**2)
        )
        moment = (math.exp(0.3 * 7.5) + math.exp(-0.3 * 7.5)) / (
            math.exp(0.15) + math.exp(-0.15)
        )
        used = math.log(moment) / 7
        assert after_choice(RDP(8.0, 0.5), 0.3).mu == pytest.approx(
            math.sqrt(2 * (0.5 - used) / 8)
        )
        # More than basic composition leaves, less than there is without a choice.
        basic = ApproxDP(0.7, 1e-5).to_gdp().mu
        mu = after_choice(ApproxDP(1.0, 1e-5), 0.3).mu
        assert basic * 1.005 < mu < ApproxDP(1.0, 1e-5).to_gdp().mu

    @pytest.mark.parametrize(
        ("guarantee", "epsilon", "match"),
        [
            (ApproxDP(1.0, 1e-5), 1.1, r"epsilon.*leaves part of ApproxDP.*1\.1"),
            (GDP(0.5), 0.5, r"epsilon.*leaves part of GDP.*0\.5"),
            (RDP(8.0, 0.5), 0.7, r"epsilon.*leaves part of RDP.*0\.7"),
            (PureDP(1.0), 0.5, "that Gaussian noise can meet"),
            (GDP(1.0), 0.0, "epsilon.*0"),
        ],
    )
    def test_nothing_left(self, guarantee, epsilon, match):
        with pytest.raises(InvalidArgumentError, match=match):
            after_choice(guarantee, epsilon)


class TestGaussian:
    @pytest.mark.parametrize("guarantee", [GDP(1.0), ApproxDP(1.0, 1e-5), RDP(2.0, 1)])
    def test_can_be_met(self, guarantee):
        assert check_gaussian(guarantee, False) is guarantee

    @pytest.mark.parametrize(
        ("guarantee", "secure", "match"),
        [
            (1.0, False, "must be a GDP, an ApproxDP or an RDP"),
            (PureDP(1.0), False, "that Gaussian noise can meet"),
            (GDP(1.0), True, "with secure=True"),
        ],
    )
    def test_cannot_be_met(self, guarantee, secure, match):
        with pytest.raises(InvalidArgumentError, match=match):
            check_gaussian(guarantee, secure)


class TestAffordable:
    def test_what_fits_and_what_does_not(self):
        ledger = Ledger(cap=GDP(1.0))
        check_affordable(ledger, [(GaussianEvent(2.0), 4)], "replace_one")
        with pytest.raises(BudgetExceededError):
            check_affordable(ledger, [(GaussianEvent(2.0), 5)], "replace_one")
        assert len(ledger) == 0


class TestMeanSensitivity:
    @pytest.mark.parametrize("n", [10, 1000, 100_000])
    def test_bounds_means_that_are_computed(self, n):
        """A record at one end or the other, the others anywhere, in doubles."""
        generator = seeded(n)
        values = torch.rand(n, generator=generator, dtype=torch.float64, device=DEVICE)
        means = []
        for end in (0.0, 1.0):
            values[n // 2] = end
            means.append(Fraction(float(values.sum())) / n)
        assert means[1] - means[0] <= Fraction(mean_sensitivity(1.0, n))

    def test_is_hardly_more_than_the_width_over_n(self):
        assert 0.003 < mean_sensitivity(3.0, 1000) < 0.003 * (1 + 1e-9)


class TestLargeDelta:
    def test_warns_above_one_over_n(self):
        with pytest.warns(WeakGuaranteeWarning, match="publishing a record at random"):
            warn_of_large_delta(ApproxDP(1.0, 0.011), 100, stacklevel=2)

    @pytest.mark.parametrize("guarantee", [ApproxDP(1.0, 0.01), GDP(3.0), PureDP(9.0)])
    def test_says_nothing_otherwise(self, guarantee):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_large_delta(guarantee, 100)
