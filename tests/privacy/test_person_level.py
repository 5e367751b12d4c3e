"""What records add up to for a person: by known formulas, and against direct noise."""

import math
from statistics import NormalDist

import pytest
import torch

from botorch_dp import GDP, Certificate, GaussianMechanism, Ledger
from botorch_dp.privacy import ApproxEvent, Declaration, GaussianEvent, PureEvent
from botorch_dp.privacy.person_level import person_epsilon, person_guess


def certificate_of(event, k, **kwargs):
    ledger = Ledger()
    ledger.charge(event, **kwargs)
    declaration = Declaration(records_per_person=k)
    return Certificate.from_ledger(ledger, declaration=declaration)


class TestNumbers:
    @pytest.mark.parametrize("k", [1, 3, 30])
    def test_gaussian_noise_has_k_times_mu(self, k):
        certificate = certificate_of(GaussianEvent(5.0), k)
        direct = certificate_of(GaussianEvent(5.0 / k), None)
        assert person_guess(certificate) == pytest.approx(direct.guess)
        for delta, epsilon in direct.epsilons.items():
            found = person_epsilon(certificate, delta)
            assert found == pytest.approx(epsilon, rel=1e-6)

    def test_pure_privacy_has_k_times_epsilon(self):
        certificate = certificate_of(PureEvent(0.1), 5)
        assert person_guess(certificate) == pytest.approx(1 / (1 + math.exp(-0.5)))
        assert person_epsilon(certificate, 1e-30) == pytest.approx(0.5)

    def test_discrete_noise_has_k_squared_times_rho(self):
        ledger = Ledger()
        mechanism = GaussianMechanism(GDP(0.1), sensitivity=1.0, secure=True)
        mechanism.release(torch.zeros(2, device="cpu"), ledger=ledger)
        declared = Certificate.from_ledger(ledger).with_declaration(
            Declaration(records_per_person=4)
        )
        assert declared.guarantee is None
        rho = 16 * declared.rho
        bound = rho + 2 * math.sqrt(rho * math.log(1e5))
        assert person_epsilon(declared, 1e-5) <= bound
        assert person_epsilon(declared, 1e-5) >= GDP(0.4).to_approx(1e-5).epsilon
        assert person_guess(declared) >= NormalDist().cdf(0.2) - 1e-6
        assert f"rho={rho:.6g}" in dict(declared.rows())["contribution"]

    def test_approximate_privacy_has_a_larger_delta(self):
        certificate = certificate_of(ApproxEvent(0.1, 1e-9), 3)
        grown = 1e-9 * sum(math.exp(0.1 * step) for step in range(3))
        assert grown < 1e-7
        assert person_epsilon(certificate, 1e-5) == pytest.approx(0.3, rel=1e-3)
        assert person_epsilon(certificate, 1e-9) == math.inf

    def test_many_records_overflow_nothing(self):
        certificate = certificate_of(ApproxEvent(2.0, 1e-9), 10**6)
        assert person_epsilon(certificate, 1e-5) == math.inf
        assert person_guess(certificate) == 1.0
        assert certificate.strength == "little"
        assert "little protection" in str(certificate)


class TestWords:
    def test_the_verdict_is_that_of_a_person(self):
        one, many = (certificate_of(GaussianEvent(5.0), k) for k in (1, 30))
        assert one.strength == "strong"
        assert many.strength == "little"
        assert many.sentences[0].startswith(
            "Every record, and every person with at most 30 of them, is protected"
        )
        assert "which of two possible sets of records a person has" in many.sentences[1]
        assert "99.9 % of the time: little protection" in many.sentences[1]
        assert "GDP(mu=6)" in dict(many.rows())["contribution"]
        page = many.to_html()
        assert "class='bad verdict'" in page
        assert "for a person with 30 records" in page

    @pytest.mark.parametrize(
        ("event", "words"),
        [(PureEvent(0.1), "pure epsilon=0.5"), (GaussianEvent(5.0), "rho=0.5")],
    )
    def test_all_totals_are_stated(self, event, words):
        assert words in dict(certificate_of(event, 5).rows())["contribution"]

    def test_without_a_declaration(self):
        row = dict(certificate_of(PureEvent(0.1), None).rows())["contribution"]
        assert "rho is k^2 times as large" in row

    def test_persons_are_not_counted_twice(self):
        certificate = certificate_of(GaussianEvent(5.0), 30, unit="person")
        assert certificate.strength == "strong"
        assert person_guess(certificate) == certificate.guess
