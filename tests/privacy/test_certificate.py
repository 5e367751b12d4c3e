"""Certificates say everything, and say it again after a round trip."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from statistics import NormalDist

import pytest
import torch

from botorch_dp import (
    GDP,
    ApproxDP,
    Certificate,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    PureDP,
)
from botorch_dp.exceptions import CertificateError, InvalidArgumentError
from botorch_dp.privacy import (
    ApproxEvent,
    AssumedEvent,
    Declaration,
    GaussianEvent,
    PureEvent,
)
from botorch_dp.privacy.certificate import TOLD_RECORDS


@pytest.fixture
def make_ledger(generator, double):
    def make(unit="record"):
        ledger = Ledger(cap=ApproxDP(8.0, 1e-6))
        mechanism = GaussianMechanism(
            GDP(0.5), sensitivity=1.0, generator=generator, unit=unit
        )
        for _ in range(4):
            mechanism.release(torch.zeros(2, **double), ledger=ledger)
        return ledger

    return make


@pytest.fixture
def ledger(make_ledger):
    return make_ledger()


class TestContent:
    def test_numbers_are_the_accountants(self, ledger):
        certificate = Certificate.from_ledger(ledger)
        assert certificate.guarantee == GDP(1.0)
        assert certificate.num_releases == 4
        assert list(certificate.epsilons) == [1e-3, 1e-5, 1e-6, 1e-7]
        for delta, epsilon in certificate.epsilons.items():
            assert epsilon == pytest.approx(GDP(1.0).epsilon(delta))

    def test_text_says_who_how_and_under_what(self, make_ledger):
        text = str(
            Certificate.from_ledger(
                make_ledger(unit="user"),
                assumptions=("under the GP prior of k",),
                parameters={"clip_norm": 1.0},
            )
        )
        for part in (
            "FOR EXPERIMENTS ONLY",
            "every user",
            "replace_one: one user is replaced by any other",
            "GDP(mu=1)",
            "4.37718 at delta=1e-05",
            "exact Gaussian composition, 4 release(s)",
            "under the GP prior of k",
            "seeded noise: for experiments only",
            "side channels",
            "low bits of floating-point noise",
            "clip_norm=1.0",
            "botorch-dp 0.1",
            "torch 2.",
        ):
            assert part in text

    def test_a_conditional_release_is_never_certified_as_worst_case(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(1.0), mechanism="gaussian, run 1")
        ledger.charge(
            AssumedEvent(0.1, 0.01), mechanism="laplace", condition="smooth losses"
        )
        text = str(Certificate.from_ledger(ledger))
        assert "worst case over all" not in text
        assert "NOT worst case: some releases hold assuming smooth losses" in text

    def test_an_assumed_event_is_never_worst_case_whatever_it_is_called(self):
        ledger = Ledger()
        ledger.charge(AssumedEvent(0.1, 0.01), mechanism="laplace")
        text = str(Certificate.from_ledger(ledger))
        assert "worst case over all" not in text
        assert "NOT worst case: some releases hold under an assumption" in text

    def test_the_unit_is_that_of_the_charges(self, make_ledger):
        certificate = Certificate.from_ledger(make_ledger(unit="agent"))
        assert certificate.unit == "agent"
        with pytest.raises(InvalidArgumentError, match=r"unit.*'agent'.*'record'"):
            Certificate.from_ledger(make_ledger(unit="agent"), unit="record")

    def test_says_that_it_counts_its_ledger_alone(self, ledger):
        text = str(Certificate.from_ledger(ledger))
        assert "counts what its ledger was charged, nothing else" in text

    def test_says_what_holds_of_adaptive_releases(self, ledger):
        assert "only the cap of the ledger is valid" in str(
            Certificate.from_ledger(ledger)
        )

    def test_not_private(self):
        certificate = Certificate.not_private("it peeks", parameters={"steps": 3})
        assert not certificate.private
        text = str(certificate)
        assert text.startswith("NOT PRIVATE: it peeks")
        assert "nobody" in text
        assert "steps=3" in text
        assert "epsilon" not in text
        assert Certificate.from_json(certificate.to_json()) == certificate
        assert "NOT PRIVATE" in certificate._repr_html_()

    def test_worst_case_is_the_default_assumption(self, ledger):
        assert "worst case" in str(Certificate.from_ledger(ledger))

    def test_system_and_secure_noise(self, double):
        system, secure = Ledger(), Ledger()
        value = torch.zeros(2, **double)
        LaplaceMechanism(PureDP(1.0), sensitivity=1.0).release(value, ledger=system)
        LaplaceMechanism(PureDP(1.0), sensitivity=1.0, secure=True).release(
            value, ledger=secure
        )
        texts = [str(Certificate.from_ledger(ledger)) for ledger in (system, secure)]
        assert not any("EXPERIMENTS" in text for text in texts)
        assert "low bits of floating-point" in texts[0]
        assert "low bits of floating-point" not in texts[1]
        assert "exact discrete noise" in texts[1]
        assert Certificate.from_ledger(system).guarantee is None

    def test_one_release_with_floating_point_noise_spoils_the_lot(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(1.0), noise="secure")
        assert "low bits of floating-point" not in str(Certificate.from_ledger(ledger))
        ledger.charge(GaussianEvent(1.0), noise="system")
        certificate = Certificate.from_ledger(ledger)
        assert certificate.noise == ("secure", "system")
        assert "low bits of floating-point" in str(certificate)
        assert len(certificate.excluded) == 6

    def test_releases_are_counted_not_charges(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(4.0), count=3)
        ledger.charge(GaussianEvent(4.0), count=2)
        certificate = Certificate.from_ledger(ledger)
        assert certificate.num_releases == 5
        assert "5 release(s)" in str(certificate)

    def test_one_seeded_release_spoils_the_lot(self, ledger, double):
        GaussianMechanism(GDP(0.1), sensitivity=1.0).release(
            torch.zeros(2, **double), ledger=ledger
        )
        certificate = Certificate.from_ledger(ledger)
        assert certificate.noise == ("seeded", "system")
        assert certificate.for_experiments_only

    def test_html_is_a_table_with_everything_escaped(self, ledger):
        certificate = Certificate.from_ledger(
            ledger, parameters={"note": "<script>alert(1)</script>"}
        )

        class Cells(HTMLParser):
            def __init__(self):
                super().__init__()
                self.tags, self.text = [], []

            def handle_starttag(self, tag, attrs):
                self.tags.append(tag)

            def handle_data(self, data):
                self.text.append(data)

        parser = Cells()
        parser.feed(certificate._repr_html_())
        assert "script" not in parser.tags
        assert parser.tags.count("tr") == len(certificate.rows())
        for label, text in certificate.rows():
            assert label in parser.text
            assert text in parser.text


class TestJSON:
    def test_round_trips(self, ledger, double):
        certificate = Certificate.from_ledger(
            ledger, parameters={"clip_norm": 1.0, "steps": 4, "name": "run"}
        )
        text = certificate.to_json()
        again = Certificate.from_json(text)
        assert again == certificate
        assert str(again) == str(certificate)
        assert json.loads(text)["guarantee"] == {"type": "GDP", "mu": 1.0}

    def test_round_trips_without_a_total(self, double):
        ledger = Ledger()
        LaplaceMechanism(PureDP(1.0), sensitivity=1.0).release(
            torch.zeros(2, **double), ledger=ledger
        )
        certificate = Certificate.from_ledger(ledger)
        assert Certificate.from_json(certificate.to_json()) == certificate

    def test_infinite_epsilon_is_json_too(self):
        ledger = Ledger()
        ledger.charge(ApproxEvent(0.1, 1e-4))
        certificate = Certificate.from_ledger(ledger)
        assert certificate.epsilons[1e-5] == float("inf")
        text = certificate.to_json()
        assert "Infinity" not in text
        assert Certificate.from_json(text) == certificate

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", '{"certificate": 2}', '{"certificate": 3, "x": 0}']
    )
    def test_other_text(self, text):
        with pytest.raises(InvalidArgumentError, match="to_json"):
            Certificate.from_json(text)

    def test_tensors_are_not_json(self, ledger, double):
        certificate = Certificate.from_ledger(
            ledger, parameters={"x": torch.zeros(1, **double)}
        )
        with pytest.raises(InvalidArgumentError, match="parameters"):
            certificate.to_json()


class TestBadInput:
    def test_empty_ledger(self):
        with pytest.raises(InvalidArgumentError, match="at least one charge"):
            Certificate.from_ledger(Ledger())

    def test_unit(self, ledger):
        with pytest.raises(InvalidArgumentError, match=r"unit.*'row'"):
            Certificate.from_ledger(ledger, unit="row")

    def test_noise(self):
        ledger = Ledger()
        with pytest.raises(InvalidArgumentError, match=r"noise.*'dice'"):
            ledger.charge(GaussianEvent(1.0), noise="dice")


class TestDeltas:
    def certify(self, ledger, number, **options):
        parameters = {"num_records": number}
        return Certificate.from_ledger(ledger, parameters=parameters, **options)

    @pytest.mark.parametrize(
        ("number", "deltas"),
        [
            (500, [1e-3, 1e-5, 1e-6, 1e-7]),
            (1000, [1e-5, 1e-6, 1e-7]),
            (1_000_000, [1e-7]),
            (10**9, [1e-10]),
            ("many", [1e-3, 1e-5, 1e-6, 1e-7]),
        ],
    )
    def test_only_small_ones(self, ledger, number, deltas):
        found = self.certify(ledger, number).epsilons
        assert list(found) == pytest.approx(deltas)

    def test_a_large_one_is_refused(self, ledger):
        with pytest.raises(InvalidArgumentError, match=r"deltas.*1000.*0\.001"):
            self.certify(ledger, 1000, deltas=[1e-3])
        assert list(self.certify(ledger, 999, deltas=[1e-3]).epsilons) == [1e-3, 1e-6]

    @pytest.mark.parametrize(
        ("parameters", "deltas"),
        [
            ({"num_persons": 50_000}, [1e-5, 1e-7]),
            ({"num_persons": 50_000, "num_records": 10**9}, [1e-5, 1e-7]),
            ({"num_records": 50_000}, [1e-5, 1e-7]),  # at least as many as persons
            ({}, [1e-3, 1e-5, 1e-7]),
        ],
    )
    def test_below_one_over_the_number_of_persons(self, parameters, deltas):
        ledger = Ledger()
        ledger.charge(GaussianEvent(2.0), unit="person")
        found = Certificate.from_ledger(ledger, parameters=parameters)
        assert list(found.epsilons) == deltas


class TestWords:
    @pytest.mark.parametrize(
        ("mu", "guess"), [(1.0, "69.2 %"), (0.1, "52.0 %"), (5.0, "99.4 %")]
    )
    def test_the_guess_is_that_of_the_table(self, mu, guess):
        ledger = Ledger()
        ledger.charge(GaussianEvent(1 / mu))
        certificate = Certificate.from_ledger(ledger)
        assert certificate.guess == pytest.approx(NormalDist().cdf(mu / 2))
        assert guess in certificate.sentences[1]

    def test_of_pure_releases(self):
        ledger = Ledger()
        ledger.charge(PureEvent(1.0))
        certificate = Certificate.from_ledger(ledger)
        assert certificate.pure_epsilon == 1.0
        assert certificate.guess == pytest.approx(math.e / (1 + math.e))

    def test_native_parameters_of_gaussian_releases(self, ledger):
        certificate = Certificate.from_ledger(ledger)
        assert certificate.rho == pytest.approx(0.5)
        for order, divergence in certificate.renyi.items():
            assert divergence == pytest.approx(order / 2)

    @pytest.mark.parametrize(
        ("epsilon", "strength"),
        [(1.0, "strong"), (1.1, "unclear"), (20.0, "unclear"), (21.0, "little")],
    )
    def test_strength(self, epsilon, strength):
        ledger = Ledger()
        ledger.charge(ApproxEvent(epsilon, 1e-5))
        certificate = Certificate.from_ledger(ledger, deltas=[1e-5])
        assert certificate.strength == strength

    def test_seeded_noise_protects_nobody(self, ledger):
        certificate = Certificate.from_ledger(ledger)
        assert certificate.strength == "none"
        assert "Nobody is protected" in certificate.sentences[0]

    def test_the_cap_and_what_is_left(self):
        ledger = Ledger(cap=GDP(1.0))
        ledger.charge(GaussianEvent(1 / 0.6))
        text = str(Certificate.from_ledger(ledger))
        assert "mu=0.6 is spent, 0.8 of 1 (80.0%) is left" in text

    @pytest.mark.parametrize(("k", "words"), [(1, "at most one"), (3, "GDP(mu=3)")])
    def test_records_per_person(self, ledger, k, words):
        declaration = Declaration(records_per_person=k)
        certificate = Certificate.from_ledger(ledger, declaration=declaration)
        assert words in dict(certificate.rows())["contribution"]

    def test_training_data(self, ledger):
        row = dict(Certificate.from_ledger(ledger).rows())["training data"]
        assert row.startswith("covered only if the training was charged")
        pytest.importorskip("opacus")
        searches = pytest.importorskip("botorch_dp.integrations.sklearn.methods")
        runs = pytest.importorskip("botorch_dp.integrations.opacus.composition")
        for stated in (TOLD_RECORDS, searches.PROTECTED, runs._ASSUMPTIONS[0]):
            told = Certificate.from_ledger(ledger, assumptions=[stated])
            assert dict(told.rows())["training data"] == "as stated above"

    def test_the_larger_of_two(self):
        one, other = Ledger(), Ledger(cap=GDP(9.0))
        one.charge(GaussianEvent(2.0))
        other.charge(GaussianEvent(1.0))
        parts = [Certificate.from_ledger(ledger) for ledger in (one, other)]
        larger = Certificate.larger(parts)
        assert larger.guarantee == GDP(1.0)
        assert (larger.guess, larger.rho) == (parts[1].guess, parts[1].rho)
        assert larger.renyi == parts[1].renyi
        assert (larger.head, larger.cap, larger.num_releases) == (None, None, 2)
        assert not larger.verify(one).ok

    def test_version_one_is_refused(self):
        with pytest.raises(CertificateError, match="version 1"):
            Certificate.from_json('{"certificate": 1}')

    def test_the_registry(self, ledger):
        declaration = Declaration(data_set="Visits", owner="Ward 3")
        entry = Certificate.from_ledger(ledger, declaration=declaration).to_registry()
        assert entry["deployment"]["privacy_loss"]["privacy_parameters"] == {"mu": 1.0}
        assert entry["url_slug"].startswith("visits-ward-3-20")
        assert json.loads(json.dumps(entry)) == entry
        with pytest.raises(InvalidArgumentError, match="not private"):
            Certificate.not_private("it peeks").to_registry()


class TestLargeDeltas:
    """At a large delta every epsilon is small, and says nothing."""

    @pytest.fixture
    def ledger(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(noise_multiplier=1.0))
        return ledger

    def test_they_do_not_make_a_guarantee_strong(self, ledger):
        certificate = Certificate.from_ledger(ledger, deltas=[0.9])
        assert certificate.epsilons == {0.9: 0.0}
        assert certificate.main_delta is None
        assert certificate.strength == "unclear"
        assert "no epsilon is stated" in certificate.sentences[1]

    def test_nor_does_that_of_the_cap(self):
        ledger = Ledger(cap=ApproxDP(50.0, 0.5))
        ledger.charge(GaussianEvent(noise_multiplier=1.0))
        certificate = Certificate.from_ledger(ledger)
        assert certificate.epsilons[0.5] == 0.0
        assert (certificate.main_delta, certificate.strength) == (1e-5, "unclear")

    def test_no_epsilon_is_not_strong(self, ledger):
        few = Certificate.from_ledger(
            ledger, parameters={"num_records": 50}, deltas=[1e-3]
        )
        many = Certificate.from_ledger(ledger, parameters={"num_records": 10**9})
        larger = Certificate.larger([few, many])
        assert larger.epsilons == {}
        assert larger.strength == "unclear"

    @pytest.mark.parametrize("delta", [0.5, 0.01])
    def test_they_do_not_verify(self, ledger, delta):
        certificate = Certificate.from_ledger(ledger, deltas=[delta])
        [finding] = certificate.verify(ledger).findings
        assert "at a delta of at most 0.001" in finding

    def test_nor_those_above_one_over_the_number_of_units(self, ledger):
        certificate = replace(
            Certificate.from_ledger(ledger), parameters={"num_records": 2000}
        )
        [finding] = certificate.verify(ledger).findings
        assert "one over the number of units, 2000" in finding


class TestLarger:
    @pytest.mark.parametrize(
        ("name", "fields"),
        [
            ("unit", {"unit": "person"}),
            ("adjacency", {"adjacency": "zero_out"}),
            ("private", None),
        ],
    )
    def test_units_are_not_mixed(self, name, fields):
        def charged(**fields):
            ledger = Ledger()
            ledger.charge(GaussianEvent(noise_multiplier=1.0), **fields)
            return Certificate.from_ledger(ledger)

        other = Certificate.not_private("no noise")
        if fields is not None:
            other = charged(**fields)
        with pytest.raises(InvalidArgumentError, match=f"agree on {name}"):
            Certificate.larger([charged(), other])


def test_no_text_adds_a_line():
    spoof = "x\n  epsilon             0.01 at delta=1e-07\r\x1b[2K\u2028y"
    ledger = Ledger()
    ledger.charge(PureEvent(1.0), condition=spoof)
    certificate = Certificate.from_ledger(ledger, parameters={spoof: spoof})
    certificate = certificate.with_declaration(Declaration(owner=spoof))
    lines = str(certificate).splitlines()
    starts = [line for line in lines if line.startswith("  epsilon ")]
    assert len(starts) == len(certificate.epsilons)
    assert not [line for line in lines if not line.isprintable()]
    reason = Certificate.not_private(spoof)
    assert not [line for line in str(reason).splitlines() if line.startswith("  eps")]
