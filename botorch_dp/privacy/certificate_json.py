"""Certificates as JSON, and their digests.

The digest covers the canonical form: sorted keys, no spaces, ASCII, and the shortest
decimal of every number. It finds accidents and careless edits. Somebody who edits the
file with care writes a new digest; the ledger contradicts altered numbers, and a
signature contradicts everything else.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from botorch_dp.exceptions import CertificateError, InvalidArgumentError
from botorch_dp.privacy.accountant import Spending
from botorch_dp.privacy.audit import AuditResult
from botorch_dp.privacy.certificate_facts import LedgerHead
from botorch_dp.privacy.declaration import Declaration
from botorch_dp.privacy.guarantees import Guarantee
from botorch_dp.privacy.signatures import Signature

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate

VERSION = 2
_GUARANTEES = ("guarantee", "cap")
_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("private", "has_partitions"),
    int: ("num_releases",),
    str: ("unit", "adjacency", "accountant", "created"),
    list: ("assumptions", "noise", "audits", "epsilons", "renyi"),
    dict: ("parameters", "versions", "declaration"),
}
_NUMBERS = (int, float)
_CURVES = ("epsilons", "renyi")
_RECORDS = {
    "counted": Spending,
    "head": LedgerHead,
    "declaration": Declaration,
    "signature": Signature,
}


def digest(certificate: "Certificate") -> str:
    """Return the digest of a certificate without its signature."""
    state = _state_of(certificate)
    del state["signature"]
    try:
        text = _canonical(state)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"parameters must be plain JSON values, got {certificate.parameters!r}."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def dump(certificate: "Certificate") -> str:
    """Return a certificate as JSON, with its digest."""
    stated = digest(certificate)
    return json.dumps(
        {**_state_of(certificate), "digest": stated}, indent=2, allow_nan=False
    )


def load(
    kind: type["Certificate"], text: str, *, check_digest: bool = True
) -> "Certificate":
    """Return the certificate in a JSON text.

    Raises:
        CertificateError: If the text was altered, or is of an earlier version.
        InvalidArgumentError: If the text is no certificate.
    """
    try:
        state = json.loads(text, object_pairs_hook=_distinct)
        number = state.pop("certificate")
        if number == 1:
            raise CertificateError(
                "text is a certificate of version 1, which has no digest and names no "
                "ledger, so that nothing in it can be checked. Make a new one from the "
                "ledger: Certificate.from_ledger(Ledger(path))."
            )
        if number != VERSION or not isinstance(number, int):
            raise ValueError(f"unknown version {number!r}")
        stated = state.pop("digest", None)
        _check_types(state)
        stated = _stated_digest(stated)
        certificate = kind(**_fields_of(state), stated_digest=stated)
        actual = certificate.digest
        if _canonical({"certificate": number, **state}) != _canonical(
            _state_of(certificate)
        ):
            raise ValueError("it has values that to_json does not write")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"text must be a certificate that to_json wrote: {error}."
        ) from error
    if check_digest and actual != stated:
        raise CertificateError(
            "text was altered after the certificate was written: it does not match its "
            "digest. Ask the owner for the original."
        )
    return certificate


def _stated_digest(value: object) -> str:
    """Return the digest that a text states; without one nobody can check it."""
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise CertificateError(
            f"text was altered after the certificate was written: its digest is "
            f"{value!r}, not 64 hexadecimal digits. Ask the owner for the original."
        )
    return value


def _canonical(state: Mapping[str, Any]) -> str:
    """Return the one text that plain values have."""
    return json.dumps(
        state,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, of which every reader reads the same values."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _check_types(state: Mapping[str, Any]) -> None:
    """Raise unless values have the types that ``to_json`` writes."""
    for kind, names in _TYPES.items():
        for name in names:
            if type(state[name]) is not kind:
                raise ValueError(f"{name} is {state[name]!r}, not a {kind.__name__}")
    head = state["head"]
    if head is not None and type(head["num_rows"]) is not int:
        raise ValueError(f"num_rows is {head['num_rows']!r}, not an int")
    texts = [*state["assumptions"], *state["noise"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"assumptions and noise have {texts!r}, not only texts")
    if type(state["guess"]) not in _NUMBERS:
        raise ValueError(f"guess is {state['guess']!r}, not a number")
    for name in _CURVES:
        for key, value in state[name]:
            if type(key) not in _NUMBERS or type(value) not in (*_NUMBERS, type(None)):
                raise ValueError(f"{name} has {[key, value]!r}, not two numbers")


def _state_of(certificate: "Certificate") -> dict[str, Any]:
    """Return everything in a certificate as plain values."""
    state = {
        item.name: getattr(certificate, item.name)
        for item in fields(certificate)
        if item.name != "stated_digest"
    }
    for name in _GUARANTEES:
        state[name] = None if state[name] is None else state[name].to_dict()
    for name in _CURVES:  # JSON has no infinity, and no numbers as keys
        state[name] = [
            [key, value if math.isfinite(value) else None]
            for key, value in state[name].items()
        ]
    for name in _RECORDS:
        state[name] = None if state[name] is None else asdict(state[name])
    if state["counted"] and not math.isfinite(state["counted"]["amount"]):
        state["counted"]["amount"] = None
    state["audits"] = [asdict(audit) for audit in certificate.audits]
    for name in ("assumptions", "noise"):
        state[name] = list(state[name])
    for name in ("parameters", "versions"):
        state[name] = dict(state[name])
    return {"certificate": VERSION, **state}


def _fields_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a certificate that ``_state_of`` described."""
    values = dict(state)
    for name in _GUARANTEES:
        if values[name] is not None:
            values[name] = Guarantee.from_dict(values[name])
    for name in _CURVES:
        values[name] = {
            key: math.inf if value is None else value for key, value in values[name]
        }
    if values["counted"] and values["counted"]["amount"] is None:
        values["counted"] = {**values["counted"], "amount": math.inf}
    for name, kind in _RECORDS.items():
        if values[name] is not None:
            values[name] = kind(**values[name])
    values["audits"] = tuple(AuditResult(**audit) for audit in values["audits"])
    for name in ("assumptions", "noise"):
        values[name] = tuple(values[name])
    return values
