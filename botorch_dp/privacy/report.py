"""Reports: a certificate and its ledger as one page of HTML, without the network.

Everything in a report is public: it shows a certificate, the charges of a ledger, and
nothing else. Every text is escaped.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import certificate_text as words
from botorch_dp.privacy.report_html import card, escaped, page, section, table
from botorch_dp.privacy.report_ledger import (
    charges,
    chart,
    name_to_show,
    summary_rows,
)
from botorch_dp.privacy.report_lights import STRENGTH, lights

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate
    from botorch_dp.privacy.ledger import Ledger
    from botorch_dp.privacy.verification import Verification

# What the card of a certificate shows when it is opened.
_FOLDED = ("not covered", "versions", "parameters", "Renyi DP", "not stated")
_SUMMARY = "Not covered, not stated, and technical details"


def certificate_page(
    certificate: "Certificate",
    ledger: "Ledger | None" = None,
    *,
    public_key: str | os.PathLike[str] | None = None,
) -> str:
    """Return a whole page about a certificate.

    Args:
        certificate: The certificate.
        ledger: Its ledger, which adds the budget over time and all charges, unless the
            two contradict each other.
        public_key: The file of the public key of who should have signed.
    """
    title = certificate.declaration.data_set or "Privacy report"
    found = certificate.verify(ledger, public_key=public_key)
    verdict = _warning(found) if found.findings else _sentences(certificate)
    parts = [
        f"<header><p class='kind'>{escaped(words.title(certificate))}</p>"
        f"<h1>{escaped(title)}</h1>{verdict}</header>",
        section("At a glance", lights(certificate, found)),
    ]
    if ledger is not None and not found.findings:
        parts += ledger_sections(_part_of(certificate, ledger), exact_times=False)
    parts += _details(certificate)
    return page(title, parts)


def ledger_page(ledger: "Ledger") -> str:
    """Return a whole page about a ledger."""
    name = name_to_show(ledger)
    rows = summary_rows(ledger.view(), ledger.report_delta)
    header = f"<header><p class='kind'>Privacy ledger</p><h1>{escaped(name)}</h1>"
    parts = [f"{header}</header>", section("At a glance", table(rows))]
    return page(name, [*parts, *ledger_sections(ledger, exact_times=True)])


def write_page(page: str, path: str | os.PathLike[str]) -> Path:
    """Write a page to a file, and return the file."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InvalidArgumentError(
            f"path must be in an existing folder, got {str(path)!r}."
        )
    path.write_text(page, encoding="utf-8")
    return path


def certificate_card(certificate: "Certificate") -> str:
    """Return a certificate for notebooks and for pages of other programs."""
    title = f"<p class='kind'>{escaped(words.title(certificate))}</p>"
    most: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for row in words.rows(certificate):
        (others if row[0] in _FOLDED else most).append(row)
    details = ""
    if others:
        details = f"<details><summary>{_SUMMARY}</summary>{table(others)}</details>"
    return card(title + _sentences(certificate) + table(most) + details)


def ledger_card(ledger: "Ledger") -> str:
    """Return a ledger for notebooks."""
    view = ledger.view()
    title = f"<caption>Privacy ledger: {escaped(name_to_show(ledger))}</caption>"
    rows = table(summary_rows(view, ledger.report_delta), title)
    return card(rows + charges(view.entries, exact_times=True))


def result_card(
    title: str, rows: Iterable[tuple[str, str]], certificate: "Certificate"
) -> str:
    """Return a result for notebooks.

    Args:
        title: What it is.
        rows: Pairs of a label and a text.
        certificate: Its certificate, whose sentences are shown.
    """
    kind = f"<p class='kind'>{escaped(title)}</p>"
    return card(kind + _sentences(certificate) + table(rows))


def ledger_sections(ledger: "Ledger", *, exact_times: bool) -> list[str]:
    """Return the budget over time and the charges of a ledger.

    Args:
        ledger: The ledger.
        exact_times: Whether to show the time of day of each charge.
    """
    entries = ledger.entries
    if not entries:
        return [section("Releases", "<p>Nothing was charged yet.</p>")]
    budget = chart(entries, ledger.cap, ledger.report_delta)
    released = charges(entries, exact_times=exact_times)
    return [
        section("Budget over time", budget),
        section("What was released, and when", released),
    ]


def _part_of(certificate: "Certificate", ledger: "Ledger") -> "Ledger":
    """Return the part of a ledger that a certificate is for."""
    partition = certificate.partition
    return ledger.whole.partition(partition) if partition else ledger


def _sentences(certificate: "Certificate") -> str:
    return _verdict(STRENGTH[certificate.strength], certificate.sentences)


def _warning(found: "Verification") -> str:
    first = "NOT verified: do not rely on anything in this report."
    return _verdict("bad", (first, *found.findings))


def _verdict(light: str, sentences: Iterable[str]) -> str:
    lead = "".join(f"<p class='says'>{escaped(text)}</p>" for text in sentences)
    return f"<div class='{light} verdict'>{lead}</div>"


def _details(certificate: "Certificate") -> list[str]:
    """Return the rest of a certificate, by subject."""
    if not certificate.private:
        return [section("Details", table(words.rows(certificate)))]
    subjects = {
        "Guarantee": (
            *("protects", "neighbours", "contribution", "epsilon", "guarantee"),
            *("pure DP", "zCDP", "Renyi DP", "accounting", "cap", "run"),
        ),
        "Assumptions and trust": ("holds", "training data", "trust", "bias"),
        "Methods": ("noise", "audit", "parameters"),
        "Not covered": ("not covered",),
    }
    rows = words.rows(certificate)
    sections = [
        section(title, table([row for row in rows if row[0] in labels]))
        for title, labels in subjects.items()
    ]
    declared = certificate.declaration.rows()
    sections.append(section("Declared by the owner of the data", table(declared)))
    own = [*words.identity(certificate), ("digest", certificate.digest)]
    return [*sections, section("This certificate", table(own))]
