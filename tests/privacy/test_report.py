"""Reports show the numbers of the certificate, escape all texts, and load nothing."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    ApproxDP,
    AuditResult,
    Certificate,
    Declaration,
    GaussianEvent,
    Ledger,
    PureDP,
    PureEvent,
    create_key,
)
from botorch_dp.privacy.ledger_summary import spending_over_time
from botorch_dp.privacy.report import write_page
from botorch_dp.privacy.report_html import escaped

EVIL = "<script>alert('x')</script>\"onload='y'"
VOID = {"meta", "line", "path"}


class Page(HTMLParser):
    """The tags, texts and attributes of a page, which must be well formed."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.attributes, self.open = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def ledger():
    ledger = Ledger(cap=ApproxDP(3.0, 1e-6))
    for _ in range(4):
        ledger.charge(GaussianEvent(8.0), mechanism="gradient")
    return ledger


@pytest.fixture
def certificate(ledger):
    return Certificate.from_ledger(
        ledger,
        parameters={"num_records": 500, "clip_norm": 1.0},
        declaration=Declaration(data_set="visits", owner="Ward 3"),
    )


class TestPage:
    def test_sections_and_numbers(self, ledger, certificate):
        page = Page(certificate.to_html(ledger))
        assert page.tags.count("h1") == 1
        for title in (
            "At a glance",
            "Budget over time",
            "What was released, and when",
            "Guarantee",
            "Assumptions and trust",
            "Methods",
            "Not covered",
            "Declared by the owner of the data",
            "This certificate",
        ):
            assert title in page.texts
        for text in (
            *certificate.sentences,
            certificate.digest,
            "agrees with the ledger",
        ):
            assert text in page.texts
        rows = [row for row in certificate.rows() if row[0] != "not stated"]
        for label, text in rows:
            assert label in page.texts
            assert text in page.texts

    def test_one_row_for_each_charge(self, ledger):
        page = Page(ledger.to_html())
        assert page.texts.count("gradient") == len(ledger)
        assert page.texts.count(repr(GaussianEvent(8.0))) == len(ledger)

    def test_long_numbers_are_rounded(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(20**0.5))
        assert "GaussianEvent(noise_multiplier=4.47214)" in Page(ledger.to_html()).texts

    def test_a_long_ledger_is_shortened(self):
        ledger = Ledger()
        ledger.charge_many([(GaussianEvent(90.0), 1)] * 205, mechanism="m")
        page = Page(ledger.to_html())
        assert page.texts.count("m") == 200
        assert "... 5 more charges ..." in page.texts

    def test_the_chart_ends_at_what_was_spent(self, ledger):
        *_, (number, spent) = spending_over_time(
            ledger.entries, ledger.cap, most_points=3
        )
        assert number == len(ledger)
        assert spent.amount == pytest.approx(ledger.spent())
        label = dict(Page(ledger.to_html()).attributes)["aria-label"]
        assert f"{ledger.spent():.6g} at the end" in label

    def test_it_loads_nothing(self, ledger, certificate):
        page = certificate.to_html(ledger)
        assert not re.search(r"https?:|url\(|@import|<link|<img|src=|<script", page)

    def test_nothing_can_be_injected(self):
        ledger = Ledger()
        ledger.charge(GaussianEvent(1.0), mechanism=EVIL, condition=EVIL)
        names = ("data_set", "purpose", "owner", "contact", "other_releases")
        certificate = Certificate.from_ledger(
            ledger,
            parameters={EVIL: EVIL},
            declaration=Declaration(**dict.fromkeys(names, EVIL)),
        )
        certificate = replace(certificate, versions={EVIL: EVIL}, accountant=EVIL)
        for html in (
            certificate.to_html(ledger),
            ledger.to_html(),
            certificate._repr_html_(),
            ledger._repr_html_(),
        ):
            page = Page(html)
            assert "script" not in page.tags
            assert "onload" not in dict(page.attributes)
            assert EVIL in "".join(page.texts)

    def test_only_the_ledgers_own_page_has_times_of_day(self, ledger, certificate):
        time = ledger.entries[0].time
        page = certificate.to_html(ledger)
        assert time[:10] in Page(page).texts
        assert time[11:16] not in page
        assert ledger.id not in page
        assert time[:19].replace("T", " ") in Page(ledger.to_html()).texts

    def test_it_is_neither_light_nor_dark_by_itself(self, certificate):
        page = certificate.to_html()
        assert "prefers-color-scheme:dark" in page
        assert "@media print" in page
        assert "name='viewport'" in page

    def test_a_certificate_that_the_ledger_contradicts(self, ledger, certificate):
        altered = replace(certificate, num_releases=1)
        text = "".join(Page(altered.to_html(ledger)).texts)
        assert "num_releases is 1 in the certificate, and 4 by the ledger" in text
        assert "agrees with the ledger" not in text

    def test_an_audit_that_contradicts(self, certificate):
        for bound, light in ((0.1, "good"), (5.0, "bad")):
            audited = certificate.with_audit(AuditResult(bound, "mu", 0.99, 100))
            row = re.search(r"<tr>(?:(?!<tr>).)*Audit</th>", audited.to_html())
            assert f"'{light} light'" in row.group()

    def test_not_private(self):
        page = Page(Certificate.not_private("it peeks").to_html())
        assert "Nobody is protected: it peeks." in page.texts
        assert "nothing is guaranteed" in page.texts

    def test_an_empty_ledger(self):
        assert "Nothing was charged yet." in Page(Ledger().to_html()).texts


class TestVerification:
    """A page says what was checked, and what was not."""

    @staticmethod
    def row(page, label):
        row = re.search(rf"<tr>(?:(?!<tr>).)*{label}</th>.*?</tr>", page)
        return row and row.group()

    def test_without_a_ledger(self, certificate):
        row = self.row(certificate.to_html(), "Verification")
        assert "'fair light'" in row
        assert "not compared with a ledger" in row

    def test_another_ledger(self, ledger, certificate):
        other = Ledger(cap=ApproxDP(3.0, 1e-6))
        other.charge(GaussianEvent(8.0), mechanism="not of this one")
        page = certificate.to_html(other)
        assert "class='bad verdict'" in page
        assert "NOT verified: do not rely on anything in this report." in page
        assert "This is another ledger" in self.row(page, "Verification")
        assert "not verified" in self.row(page, "Strength")
        assert "not of this one" not in page
        assert "Budget over time" not in page
        assert certificate.sentences[1] not in Page(page).texts

    def test_an_altered_certificate(self, certificate):
        text = certificate.to_json().replace("Ward 3", "Ward 4")
        altered = Certificate.from_json(text, check_digest=False)
        assert "class='bad verdict'" in altered.to_html()

    def test_later_charges(self, ledger, certificate):
        assert self.row(certificate.to_html(ledger), "Note") is None
        ledger.charge(GaussianEvent(90.0))
        row = self.row(certificate.to_html(ledger), "Note")
        assert "1 more charge(s) since" in row

    def test_notes_on_partitions(self, ledger):
        ledger.partition("north").charge(GaussianEvent(90.0))
        north = Certificate.from_ledger(ledger.partition("north"))
        row = self.row(north.to_html(ledger), "Note")
        assert "nobody can check that the partitions are disjoint" in row

    def test_signatures(self, ledger, certificate, tmp_path):
        pytest.importorskip("cryptography")
        public = create_key(tmp_path / "key")
        other = create_key(tmp_path / "other")
        signed = certificate.signed(tmp_path / "key")
        assert "'fair light'" in self.row(certificate.to_html(), "Signature")
        key = signed.signature.public_key
        row = self.row(signed.to_html(ledger), "Signature")
        assert "'fair light'" in row
        assert f"not checked; it states the public key {escaped(key)}" in row
        row = self.row(signed.to_html(ledger, public_key=public), "Signature")
        assert "'good light'" in row
        page = signed.to_html(ledger, public_key=other)
        assert "'good light'" not in self.row(page, "Signature")
        assert "class='bad verdict'" in page

    def test_nothing_reverses_a_text(self, ledger, certificate):
        for evil in ("\u202e", "\u2066", "\u200f", "\n", "\x1b", "\ud800"):
            declaration = Declaration(data_set=f"2{evil}1", owner=evil)
            declared = certificate.with_declaration(declaration)
            page = declared.to_html(ledger) + declared._repr_html_()
            assert "<h1>2 1</h1>" in page
            assert evil == "\n" or evil not in page


class TestParts:
    @pytest.fixture
    def ledger(self):
        ledger = Ledger(cap=PureDP(1.0))
        ledger.charge(PureEvent(0.25), mechanism="common")
        ledger.partition("north").charge(PureEvent(0.5), mechanism="in north")
        team = ledger.partition("south").budget("ads", PureDP(0.5))
        team.charge(PureEvent(0.375), mechanism="in south")
        return ledger

    def test_the_page_of_a_partition(self, ledger):
        north = Certificate.from_ledger(ledger.partition("north"))
        for given in (ledger, ledger.partition("north")):
            page = Page(north.to_html(given))
            assert "in north" in page.texts
            assert "common" in page.texts
            assert "in south" not in page.texts
            assert "agrees with the ledger" in page.texts
            label = dict(page.attributes)["aria-label"]
            assert "0.75 at the end" in label
        assert "is that of the partition" in north.to_html(ledger.partition("south"))

    def test_the_page_of_the_whole(self, ledger):
        page = Page(ledger.to_html())
        assert "0.75 at the end" in dict(page.attributes)["aria-label"]
        for name in ("partition", "team", "north", "south", "ads", "partitions"):
            assert name in page.texts
        [spent] = [text for text in page.texts if text.startswith("epsilon=0.7")]
        assert "the most that a record of any partition has spent" in spent
        [team] = [text for text in page.texts if text.startswith("ads: ")]
        assert "epsilon=0.125 of 0.5 is left" in team

    def test_the_card(self, ledger):
        assert "in south" in Page(ledger._repr_html_()).texts
        part = Page(ledger.partition("north")._repr_html_())
        assert "in south" not in part.texts
        assert any("partition 'north'" in text for text in part.texts)

    def test_names_have_no_folder_and_no_server(self, tmp_path):
        path = tmp_path / "secret folder" / "visits.sqlite"
        path.parent.mkdir()
        page = Ledger(path).to_html()
        assert "visits.sqlite" in page
        assert "secret folder" not in page

    def test_nor_does_a_ledger_on_a_server(self, monkeypatch):
        ledger = Ledger()
        url = "postgresql://owner@db.example:5432/privacy?sslmode=require&ledger=a%20b"
        monkeypatch.setattr(Ledger, "path", url)
        page = ledger.to_html()
        assert "<h1>a b</h1>" in page
        assert "owner" not in page
        assert "db.example" not in page


class TestFile:
    def test_is_written(self, certificate, tmp_path):
        path = write_page(certificate.to_html(), tmp_path / "report.html")
        assert path.read_text() == certificate.to_html()

    def test_needs_a_folder(self, tmp_path):
        with pytest.raises(InvalidArgumentError, match="existing folder"):
            write_page("", tmp_path / "none" / "report.html")
