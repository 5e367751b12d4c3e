"""Checking a certificate: against its ledger, its digest and its signature.

Three things can be wrong, and each has its own check:

* The numbers. They are computed again from the rows of the ledger up to the one that
  the certificate names, so nobody can alter them without the ledger.
* The ledger. The digest in the certificate covers its header and all those rows, so a
  row that was changed, removed, added or moved is found, even if somebody has computed
  all digests in the ledger again.
* The words that follow from no ledger (the declaration, the assumptions, the
  parameters, the date). The certificate's own digest finds edits of the file, unless
  somebody has computed it again. Only a signature binds the words.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botorch_dp._validation import check_instance
from botorch_dp.exceptions import (
    BotorchDPError,
    CertificateError,
    LedgerError,
    LedgerUnavailableError,
)
from botorch_dp.privacy import signatures
from botorch_dp.privacy.certificate_facts import (
    Facts,
    LedgerHead,
    largest_delta,
    name_of,
)
from botorch_dp.privacy.certificate_text import WORST_CASE
from botorch_dp.privacy.contradictions import contradicting
from botorch_dp.privacy.ledger import Ledger
from botorch_dp.privacy.ledger_book import LedgerView
from botorch_dp.privacy.spending import Spending
from botorch_dp.privacy.stores.opening import store_exists

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate

# Machines differ in the last bits of exponentials and of Fourier transforms, which the
# accounting turns into relative differences of up to about 1e-9. Texts show 6 digits.
_ROUNDING = 1e-6
NO_LEDGER = "No ledger was given, so the numbers were not compared with anything."
UNCHECKED = "The signature was not checked: give public_key."
UNSIGNED = (
    "The certificate is not signed. Words that do not follow from the ledger, such as "
    "the declaration, may have been rewritten."
)
_EQUAL = ("unit", "adjacency", "noise", "num_releases", "cap", "has_partitions")
_CLOSE = ("guarantee", "pure_epsilon", "rho", "renyi", "guess", "epsilons", "counted")


@dataclass(frozen=True)
class Verification:
    """What checking a certificate found.

    Attributes:
        findings: What is wrong, in words; empty if nothing is.
        checked: What was checked, in words.
        notes: What a reader should know although it is not wrong.
        with_ledger: Whether the certificate was compared with a ledger.
        with_key: Whether its signature was checked.
    """

    findings: tuple[str, ...]
    checked: tuple[str, ...]
    notes: tuple[str, ...] = ()
    with_ledger: bool = False
    with_key: bool = False

    @property
    def ok(self) -> bool:
        """Whether something was checked, and nothing is wrong."""
        return bool(self.checked) and not self.findings

    def require(self) -> None:
        """Raise unless all is well.

        Raises:
            CertificateError: With everything that was found.
        """
        if not self.ok:
            raise CertificateError(str(self))

    def __str__(self) -> str:
        first = "The certificate is verified." if self.ok else "NOT verified."
        lines = [first if self.ok or self.findings else f"{first} Nothing was checked."]
        lines += [f"  wrong    {text}" for text in self.findings]
        lines += [f"  checked  {text}" for text in self.checked]
        lines += [f"  note     {text}" for text in self.notes]
        return "\n".join(lines)


def verify(
    certificate: "Certificate",
    ledger: Ledger | str | os.PathLike[str] | None,
    *,
    public_key: str | os.PathLike[str] | None = None,
    current: bool = False,
) -> Verification:
    """Check a certificate; see :meth:`Certificate.verify`."""
    check_instance("ledger", ledger, (Ledger, str, os.PathLike, type(None)))
    findings: list[str] = []
    checked: list[str] = []
    notes: list[str] = []
    if certificate.stated_digest not in (None, certificate.digest):
        findings.append(
            "The certificate was altered after it was written: it does not match its "
            "own digest."
        )
    findings += [
        f"An audit contradicts the certificate: {audit}."
        for audit in contradicting(certificate)
    ]
    if ledger is None:
        notes.append(NO_LEDGER)
    elif certificate.head is None:
        findings.append(
            "The certificate names no ledger, so its numbers cannot be checked. "
            "Certificates of baselines, of several ledgers and of users' own devices "
            "name none."
        )
    else:
        head = certificate.head
        checked.append(f"numbers, from the first {head.num_rows} row(s) of the ledger")
        try:
            past, now = _read(ledger, head, certificate.partition)
        except LedgerUnavailableError:
            raise  # an outage is no finding about the certificate
        except BotorchDPError as error:
            findings.append(f"{error}")
        else:
            findings += _other_part(certificate, ledger)
            findings += differences(certificate, past)
            notes += _notes_on_parts(past)
            later = len(now.entries) - len(past.entries)
            if later:
                (findings if current else notes).append(
                    f"The ledger has had {later} more charge(s) since. This "
                    "certificate does not count them."
                )
    findings += _signature_findings(certificate, public_key)
    if public_key is not None:
        checked.append("signature, which binds every word and number")
    elif certificate.signature is None:
        notes.append(UNSIGNED)
    else:
        notes.append(UNCHECKED)
    return Verification(
        tuple(findings),
        tuple(checked),
        tuple(notes),
        with_ledger=ledger is not None,
        with_key=public_key is not None,
    )


def differences(certificate: "Certificate", past: LedgerView) -> Iterator[str]:
    """Yield everything in a certificate that the ledger contradicts.

    Args:
        certificate: The certificate.
        past: The ledger as it was when the certificate was made.
    """
    if not past.entries:
        yield "The ledger had no charges when the certificate was made."
        return
    if wrong := [delta for delta in certificate.epsilons if not 0 < delta < 1]:
        yield f"epsilons has the delta {wrong[0]:g}; it must be between 0 and 1."
        return
    facts = Facts.of(past, certificate.epsilons)
    if not certificate.private:
        yield "private is False, but the ledger was charged."
    if not certificate.epsilons:
        yield "epsilons is empty: the certificate states no epsilon."
    elif certificate.private and certificate.main_delta is None:
        yield (
            "No epsilon is stated at a delta of at most 0.001: at larger ones it says "
            "little."
        )
    largest, number = largest_delta(facts.unit, certificate.parameters)
    if any(delta >= largest for delta in certificate.epsilons):
        yield (
            f"epsilons has a delta of one over the number of units, {number}, or more."
        )
    for name in (*_EQUAL, *_CLOSE):
        ours, theirs = getattr(facts, name), getattr(certificate, name)
        same = _is_close(ours, theirs) if name in _CLOSE else _plain(ours, theirs)
        if not same:
            yield (
                f"{name} is {_shown(theirs)} in the certificate, and {_shown(ours)} "
                "by the ledger."
            )
    for text in facts.conditions:
        if text not in certificate.assumptions:
            yield f"The certificate does not say {text!r}, but the ledger does."
    if facts.conditions and WORST_CASE in certificate.assumptions:
        yield "The certificate claims the worst case, but the ledger does not."


def _other_part(
    certificate: "Certificate", ledger: Ledger | str | os.PathLike[str]
) -> Iterator[str]:
    """Yield that the reader asks about another partition than the certificate."""
    given = ledger.view().partition if isinstance(ledger, Ledger) else ""
    stated = certificate.partition
    # A certificate of the whole ledger is valid for the records of each partition.
    if given and stated not in ("", given):
        yield (
            f"The certificate is for the partition {stated!r}, and the ledger that was "
            f"given is that of the partition {given!r}."
        )


def _notes_on_parts(past: LedgerView) -> list[str]:
    """Return what a reader should know of the partitions of a ledger."""
    if past.partition:
        return [
            f"The certificate is for the partition {past.partition!r}. Charges to "
            "other partitions do not count, and nobody can check that the partitions "
            "are disjoint."
        ]
    if past.has_partitions:
        return [
            "The certificate counts the charges to all partitions together, so it is "
            "valid whether or not they are disjoint. What its cap counts is not."
        ]
    return []


def _read(
    ledger: Ledger | str | os.PathLike[str], head: LedgerHead, partition: str
) -> tuple[LedgerView, LedgerView]:
    """Return a partition of the ledger as it was at ``head``, and as it is now.

    Raises:
        LedgerError: If it is another ledger, or was changed.
    """
    if not isinstance(ledger, Ledger):
        if not store_exists(os.fspath(ledger)):
            raise LedgerError(f"There is no ledger {os.fspath(ledger)}.")
        ledger = Ledger(ledger)
    ledger = ledger.whole
    if partition:
        ledger = ledger.partition(partition)
    if name_of(ledger.id) != head.ledger:
        raise LedgerError(
            f"This is another ledger, {name_of(ledger.id)}. The certificate belongs to "
            f"{head.ledger}."
        )
    if head.num_rows < 1:
        raise LedgerError(
            f"The certificate counts {head.num_rows} rows of the ledger; the first "
            "charge is at least one row."
        )
    past = ledger.verify(head.num_rows)
    if past.head.digest != head.digest:
        raise LedgerError(
            f"The first {head.num_rows} row(s) of the ledger, or its header, are not "
            "those that the certificate was made from: they were changed, removed, "
            "added or moved."
        )
    return past, ledger.verify()


def _signature_findings(
    certificate: "Certificate", public_key: str | os.PathLike[str] | None
) -> list[str]:
    if public_key is None:
        return []
    if certificate.signature is None:
        return ["The certificate is not signed."]
    if not signatures.is_signed(certificate.digest, certificate.signature, public_key):
        return [
            "The signature is not that of the given public key, or the certificate was "
            "altered after it was signed."
        ]
    return []


def _plain(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, tuple):
        theirs = tuple(theirs)
    return bool(ours == theirs)


def _is_close(ours: Any, theirs: Any) -> bool:
    """Return whether values are equal up to the rounding of another machine."""
    if isinstance(ours, Mapping):
        return (
            isinstance(theirs, Mapping)
            and ours.keys() == theirs.keys()
            and all(_is_close(value, theirs[key]) for key, value in ours.items())
        )
    if isinstance(ours, float) and isinstance(theirs, float | int):
        return math.isclose(ours, theirs, rel_tol=_ROUNDING)
    if isinstance(ours, Spending):
        if not isinstance(theirs, Spending) or ours.unit != theirs.unit:
            return False
        # Filters and accountants may differ by version in how they name a method.
        return _is_close(ours.amount, theirs.amount)
    if hasattr(ours, "to_dict") and hasattr(theirs, "to_dict"):
        return _is_close(ours.to_dict(), theirs.to_dict())
    return bool(ours == theirs)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k:g}: {v:.6g}" for k, v in value.items()) + "}"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
