"""The table of traffic lights: what a reader of a report should know first."""

from typing import TYPE_CHECKING

from botorch_dp.privacy import certificate_text as words
from botorch_dp.privacy.contradictions import contradicting
from botorch_dp.privacy.person_level import person_epsilon, records_of
from botorch_dp.privacy.report_html import escaped
from botorch_dp.privacy.verification import (
    NO_LEDGER,
    UNCHECKED,
    UNSIGNED,
    Verification,
)

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate

Row = tuple[str, str, str]  # a light, a label and a text

STRENGTH = {"strong": "good", "unclear": "fair", "little": "bad", "none": "bad"}
_IN_OTHER_ROWS = (NO_LEDGER, UNCHECKED, UNSIGNED)
_WORDS = {"good": "good", "fair": "look", "bad": "bad"}


def lights(certificate: "Certificate", found: Verification) -> str:
    """Return the table.

    Args:
        certificate: The certificate.
        found: What checking it found.
    """
    rows = [
        _strength(certificate, found),
        _assumptions(certificate),
        _noise(certificate),
        _budget(certificate),
        _audit(certificate),
        _declaration(certificate),
        _verification(found),
        _signature(certificate, found),
        *(("fair", "Note", note) for note in found.notes if note not in _IN_OTHER_ROWS),
    ]
    cells = "".join(
        f"<tr><td><span class='{light} light'>{_WORDS[light]}</span></td>"
        f"<th scope='row'>{escaped(label)}</th><td>{escaped(text)}</td></tr>"
        for light, label, text in rows
    )
    return f"<div class='wide'><table class='lights'>{cells}</table></div>"


def _strength(certificate: "Certificate", found: Verification) -> Row:
    if found.findings:
        return "bad", "Strength", "not verified"
    delta = certificate.main_delta
    if not certificate.private or delta is None:
        return "bad", "Strength", "nothing is guaranteed"
    epsilon = person_epsilon(certificate, delta)
    text = f"{certificate.strength}: epsilon {epsilon:.4g} at delta {delta:.3g}"
    if (k := records_of(certificate)) > 1:
        text += f", for a person with {k} records"
    return STRENGTH[certificate.strength], "Strength", text


def _assumptions(certificate: "Certificate") -> Row:
    conditional = [t for t in certificate.assumptions if t.startswith("NOT worst case")]
    if conditional:
        return "fair", "Assumptions on the data", "; ".join(conditional)
    return "good", "Assumptions on the data", "none: holds in the worst case"


def _noise(certificate: "Certificate") -> Row:
    if certificate.for_experiments_only:
        return "bad", "Noise", "seeded noise, for experiments only"
    if set(certificate.noise) == {"secure"}:
        return "good", "Noise", "exact discrete noise"
    return "fair", "Noise", "floating-point noise"


def _budget(certificate: "Certificate") -> Row:
    [(_, text)] = words.budget(certificate)
    return "fair" if certificate.cap is None else "good", "Budget", text


def _audit(certificate: "Certificate") -> Row:
    text = "; ".join(text for _, text in words.audits(certificate))
    light = "good" if certificate.audits else "fair"
    return "bad" if contradicting(certificate) else light, "Audit", text


def _declaration(certificate: "Certificate") -> Row:
    missing = [t for label, t in words.declared(certificate) if label == "not stated"]
    if missing:
        return "fair", "Declaration", f"not stated: {missing[0]}"
    return "good", "Declaration", "complete"


def _verification(found: Verification) -> Row:
    if found.findings:
        return "bad", "Verification", "; ".join(found.findings)
    if found.with_ledger:
        return "good", "Verification", "agrees with the ledger"
    return "fair", "Verification", "not compared with a ledger"


def _signature(certificate: "Certificate", found: Verification) -> Row:
    if certificate.signature is None:
        return "fair", "Signature", "none: words may have been rewritten"
    key = certificate.signature.public_key
    if not found.with_key:
        text = f"not checked; it states the public key {key}"
        return "fair", "Signature", text
    if found.findings:
        return "fair", "Signature", f"by the public key {key}; see Verification"
    return "good", "Signature", f"agrees with the public key {key}"
