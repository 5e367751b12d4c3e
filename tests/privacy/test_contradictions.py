"""An audit contradicts a certificate if the certificate excludes its result."""

import math
from dataclasses import replace

import pytest
import torch

from botorch_dp import GDP, ApproxDP, Certificate, GaussianMechanism, Ledger, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    AuditResult,
    GaussianEvent,
    PureEvent,
    audit_epsilon,
    audit_mu,
)
from botorch_dp.privacy.contradictions import contradicts

NUM = 20_000


def certificate_of(event):
    ledger = Ledger()
    ledger.charge(event)
    return Certificate.from_ledger(ledger)


def gaussian(mu):
    return certificate_of(GaussianEvent(1 / mu))


def mu(bound, num=NUM):
    return AuditResult(bound, "mu", 0.99, num)


def epsilon(bound, delta=0.0, num=NUM):
    return AuditResult(bound, "epsilon", 0.99, num, delta)


class TestContradicts:
    @pytest.mark.parametrize("num", [100, NUM, 10**9])
    @pytest.mark.parametrize("claim", [0.1, 1.0, 6.0])
    def test_a_bound_on_mu_of_gaussian_releases(self, claim, num):
        certificate = gaussian(claim)
        assert not contradicts(certificate, mu(0.999 * claim, num))
        assert contradicts(certificate, mu(1.001 * claim, num))

    def test_without_a_guarantee_in_mu(self):
        """Discrete noise has zCDP and epsilons, and no exact mu."""
        ledger = Ledger()
        mechanism = GaussianMechanism(GDP(0.5), sensitivity=1.0, secure=True)
        mechanism.release(torch.zeros(3, device="cpu"), ledger=ledger)
        certificate = Certificate.from_ledger(ledger)
        assert certificate.guarantee is None
        assert not contradicts(certificate, mu(0.499))
        for bound in (0.9, 5.0, 100.0):
            assert contradicts(certificate, mu(bound))

    def test_a_bound_on_epsilon_of_pure_releases(self):
        certificate = certificate_of(PureEvent(1.0))
        for delta in (0.0, 1e-3):
            assert not contradicts(certificate, epsilon(0.99, delta))
            assert contradicts(certificate, epsilon(1.01, delta))

    def test_a_bound_on_mu_of_pure_releases(self):
        largest = 2 * torch.special.ndtri(
            torch.tensor(math.e / (1 + math.e), dtype=torch.float64, device="cpu")
        )
        certificate = certificate_of(PureEvent(1.0))
        assert not contradicts(certificate, mu(0.999 * float(largest)))
        assert contradicts(certificate, mu(1.001 * float(largest)))

    @pytest.mark.parametrize("delta", [1e-2, 1e-3, 1e-5])
    def test_a_bound_on_epsilon_at_its_delta(self, delta):
        certificate = gaussian(0.44)
        true = GDP(0.44).to_approx(delta).epsilon
        assert not contradicts(certificate, epsilon(0.99 * true, delta, 10**9))
        assert contradicts(certificate, epsilon(1.01 * true, delta, 10**9))
        assert contradicts(certificate, epsilon(50.0, delta))
        assert contradicts(certificate, epsilon(50.0))

    def test_with_pure_epsilon_and_many_samples_gaussian_noise_loses_much(self):
        """No epsilon is true of it at delta zero, so this is no contradiction."""
        certificate = gaussian(0.44)
        assert contradicts(certificate, epsilon(2.5, num=100))
        assert not contradicts(certificate, epsilon(2.5, num=10**12))

    def test_more_than_the_samples_can_show_is_still_below_the_guarantee(self):
        assert not contradicts(gaussian(9.0), mu(8.0, num=10))
        assert not contradicts(certificate_of(PureEvent(30.0)), epsilon(29.0, num=10))

    def test_nothing_contradicts_what_guarantees_nothing(self):
        assert not contradicts(Certificate.not_private("it peeks"), mu(9.0))
        assert not contradicts(gaussian(1.0), mu(0.0))
        assert not contradicts(gaussian(1.0), epsilon(0.0, 0.5))

    def test_an_honest_audit_does_not(self):
        generator = torch.Generator().manual_seed(1)
        samples = torch.randn(
            2, NUM, generator=generator, dtype=torch.float64, device="cpu"
        )
        samples[1] += 1.0
        for found in (audit_mu(*samples), audit_epsilon(*samples, delta=1e-3)):
            assert found.lower_bound > 0.5
            assert not contradicts(gaussian(1.0), found)
            assert contradicts(gaussian(0.25), found)


CONTRADICTING = {
    "a mu": (0.1, mu(2.75)),
    "an epsilon at a delta": (0.44, epsilon(50.0, 1e-3)),
    "an epsilon": (0.44, epsilon(50.0)),
}


class TestWords:
    @pytest.mark.parametrize("name", CONTRADICTING)
    def test_it_is_said_everywhere(self, name):
        claim, audit = CONTRADICTING[name]
        ledger = Ledger()
        ledger.charge(GaussianEvent(1 / claim))
        certificate = Certificate.from_ledger(ledger).with_audit(audit)
        assert certificate.strength == "none"
        assert "an audit contradicts it" in certificate.sentences[0]
        assert dict(certificate.rows())["audit"].endswith(
            "contradicts this certificate"
        )
        page = certificate.to_html(ledger)
        assert "class='bad verdict'" in page
        assert "class='good verdict'" not in page
        found = certificate.verify(ledger)
        assert not found.ok
        assert "An audit contradicts the certificate" in found.findings[0]
        read = Certificate.from_json(certificate.to_json())
        assert read.audits == (audit,)

    def test_a_consistent_audit_changes_nothing(self):
        certificate = gaussian(0.2)
        audited = certificate.with_audit(mu(0.1))
        assert audited.strength == "strong"
        assert audited.sentences == certificate.sentences

    def test_the_delta_is_shown(self):
        assert "at delta=0.001 with" in str(epsilon(1.0, 1e-3))
        assert "delta" not in str(epsilon(1.0))


class TestResult:
    def test_audits_state_their_delta(self):
        samples = torch.linspace(0, 1, 50, dtype=torch.float64, device="cpu")
        assert audit_epsilon(samples, samples, delta=1e-3).delta == 1e-3
        assert audit_mu(samples, samples).delta == 0.0

    def test_approximate_claims(self):
        audit = epsilon(1.0, 1e-3)
        assert audit.rejects(ApproxDP(0.5, 1e-4))
        assert not audit.rejects(ApproxDP(2.0, 1e-3))
        assert audit.rejects(PureDP(0.5))
        for other in (ApproxDP(0.5, 1e-2), GDP(1.0)):
            with pytest.raises(InvalidArgumentError, match="claim"):
                audit.rejects(other)

    @pytest.mark.parametrize(
        "values",
        [
            {"lower_bound": "x"},
            {"lower_bound": math.inf},
            {"unit": "rho"},
            {"confidence": 1.0},
            {"num_samples": 0},
            {"delta": 1.0},
            {"delta": "x"},
            {"unit": "mu", "delta": 1e-3},
        ],
    )
    def test_others_are_refused(self, values):
        with pytest.raises(InvalidArgumentError):
            replace(epsilon(1.0), **values)
