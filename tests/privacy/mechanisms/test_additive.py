"""Gaussian and Laplace noise.

Audits show each mechanism at its claim, and reject it when its noise is 1.5 times too
small or its sensitivity off by two. Noise that cannot be seeded is audited at
confidence 1 - 1e-6, so that a sound mechanism fails once in a million runs. The power
against both faults is above 1 - 1e-6 for Gaussian noise (mu_audit_power, exact); for
Laplace noise it was measured with other seeds: 100 of 100.
"""

import pytest
import torch

from botorch_dp import (
    GDP,
    RDP,
    ApproxDP,
    GaussianMechanism,
    Ledger,
    PrivacyAccountant,
    PureDP,
)
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    UnsupportedConversionError,
)
from botorch_dp.privacy import (
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SecureNoise,
    ZCDPEvent,
    audit_epsilon,
    audit_mu,
    mu_audit_power,
)
from tests.devices import DEVICE
from tests.privacy.mechanisms.cases import (
    SOURCES,
    Broken,
    confidence_for,
    make,
    noise_arguments,
)


class TestParameters:
    def test_gaussian_noise_is_never_pure(self):
        with pytest.raises(UnsupportedConversionError, match="Laplace"):
            GaussianMechanism(PureDP(1.0), sensitivity=1.0)


class TestEvents:
    def test_gaussian(self):
        assert make("gaussian").noise_std == 0.5
        assert make("gaussian").event(3) == GaussianEvent(1.0)

    def test_laplace(self):
        assert make("laplace").event(3) == LaplaceEvent(1.0)

    @pytest.mark.parametrize("grid", [None, -10])
    def test_secure_costs_come_from_the_sampler(self, grid):
        source = SecureNoise(grid)
        gaussian = make("gaussian", secure=source).event(7)
        laplace = make("laplace", secure=source).event(7)
        assert isinstance(gaussian, ZCDPEvent)
        assert isinstance(laplace, PureEvent)
        excess = 0.0 if grid is None else 1e-3
        assert gaussian.rho >= 0.5 * (1 + excess)
        assert laplace.epsilon >= 1.0 + excess
        assert gaussian.rho == pytest.approx(0.5, rel=0.1)

    @pytest.mark.parametrize("kind", ["gaussian", "laplace"])
    def test_a_grid_too_coarse_for_the_noise(self, kind, double):
        ledger = Ledger()
        mechanism = make(kind, secure=SecureNoise(-2))
        with pytest.raises(InvalidArgumentError, match=r"2\^-2.*too coarse"):
            mechanism.release(torch.zeros(100, **double), ledger=ledger)
        assert len(ledger) == 0

    @pytest.mark.parametrize("secure", [False, True])
    def test_a_mechanism_fits_a_cap_of_its_own_guarantee(self, secure, double):
        guarantee = ApproxDP(1.0, 1e-5)
        ledger = Ledger(cap=guarantee)
        mechanism = GaussianMechanism(guarantee, sensitivity=1.0, secure=secure)
        mechanism.release(torch.zeros(3, **double), ledger=ledger)
        with pytest.raises(BudgetExceededError):
            mechanism.release(torch.zeros(3, **double), ledger=ledger)

    def test_secure_renyi(self, double):
        ledger = Ledger(cap=RDP(8.0, 1.0))
        mechanism = GaussianMechanism(RDP(8.0, 1.0), sensitivity=1.0, secure=True)
        mechanism.release(torch.zeros(3, **double), ledger=ledger)
        assert len(ledger) == 1


class TestBatches:
    @pytest.mark.parametrize("kind", ["gaussian", "laplace"])
    def test_each_batch_element_is_charged(self, kind, double):
        ledger = Ledger()
        value = torch.zeros(4, 5, 2, **double)
        assert make(kind).release(value, ledger=ledger, batch_dims=2).shape == (4, 5, 2)
        make(kind).release(value, ledger=ledger)
        assert [entry.count for entry in ledger.entries] == [20, 1]


class TestAudits:
    def outputs(self, mechanism, shift, num=8000):
        """Outputs on two neighbouring values that differ by ``shift``."""
        accountant = PrivacyAccountant()
        values = (
            torch.zeros(num, dtype=torch.float64, device=DEVICE) for _ in range(2)
        )
        return [
            mechanism.release(value + by, ledger=accountant, batch_dims=1)
            for value, by in zip(values, (0.0, shift), strict=True)
        ]

    @pytest.mark.parametrize("source", SOURCES)
    def test_gaussian(self, source, generator):
        arguments = noise_arguments(source, generator)
        confidence = confidence_for(source)
        power = mu_audit_power(
            true_mu=1.5, claimed_mu=1.0, num_samples=8000, confidence=confidence
        )
        assert power > 0.999999

        def audit(mechanism, shift):
            return audit_mu(
                *self.outputs(mechanism, shift),
                threshold=shift / 2,
                confidence=confidence,
            )

        claim = GDP(1.0)
        good = audit(make("gaussian", **arguments), 0.5)
        assert not good.rejects(claim)
        assert good.lower_bound > 0.7
        assert audit(Broken.noise(make("gaussian", **arguments)), 0.5).rejects(claim)
        assert audit(make("gaussian", **arguments), 1.0).rejects(claim)

    @pytest.mark.parametrize("source", SOURCES)
    def test_laplace(self, source, generator):
        arguments = noise_arguments(source, generator)

        def audit(mechanism, shift):
            return audit_epsilon(
                *self.outputs(mechanism, shift),
                threshold=0.0,
                confidence=confidence_for(source),
            )

        claim = PureDP(1.0)
        good = audit(make("laplace", **arguments), 0.5)
        assert not good.rejects(claim)
        assert good.lower_bound > 0.7
        assert audit(Broken.noise(make("laplace", **arguments)), 0.5).rejects(claim)
        assert audit(make("laplace", **arguments), 1.0).rejects(claim)
