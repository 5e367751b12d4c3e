"""Commands that read a certificate: ``show``, ``verify``, ``html`` and ``sign``."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch_dp.cli.answer import Answer, add_command
from botorch_dp.cli.ledgers import open_ledger, refuse_missing
from botorch_dp.cli.pages import add_output, write

if TYPE_CHECKING:
    from botorch_dp.privacy import Certificate


def add_to(commands: Any) -> None:
    """Add the commands to what ``add_subparsers`` returned."""
    help = "Read, check, sign or show a certificate that Certificate.to_json wrote."
    parser = commands.add_parser("certificate", help=help, description=help)
    actions = parser.add_subparsers(metavar="action", required=True)
    _add_show(actions)
    _add_verify(actions)
    _add_html(actions)
    _add_sign(actions)
    _add_create_key(actions)


def read_certificate(file: str, *, check_digest: bool = True) -> "Certificate":
    """Return the certificate in a file."""
    from botorch_dp.privacy import Certificate

    text = Path(file).read_text("utf-8")
    return Certificate.from_json(text, check_digest=check_digest)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the certificate, as JSON")


def _add_public_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--public-key", help="the file of the public key of who should have signed"
    )


def _add_show(actions: Any) -> None:
    parser = add_command(
        actions,
        "show",
        _show,
        help="Show what a certificate says. It is not checked against a ledger.",
        examples="  botorch-dp certificate show certificate.json\n",
    )
    _add_file(parser)


def _show(options: argparse.Namespace) -> Answer:
    certificate = read_certificate(options.file)
    return Answer(str(certificate), json.loads(certificate.to_json()))


def _add_verify(actions: Any) -> None:
    parser = add_command(
        actions,
        "verify",
        _verify,
        help="Check a certificate against its ledger, its digest and its signature; "
        "exit code 1 unless all of them agree.",
        examples=(
            "  botorch-dp certificate verify certificate.json --ledger ledger.sqlite\n"
            "  botorch-dp certificate verify certificate.json --ledger "
            "'postgresql://db/privacy?ledger=patients'\n"
            "  botorch-dp certificate verify certificate.json --ledger ledger.sqlite "
            "--current\n"
            "  botorch-dp certificate verify certificate.json --public-key "
            "officer.key.pub\n"
        ),
    )
    _add_file(parser)
    parser.add_argument("--ledger", help="the ledger: a file or a URL")
    _add_public_key(parser)
    parser.add_argument(
        "--current",
        action="store_true",
        help="charges that came after the certificate are a finding (exit code 1)",
    )


def _verify(options: argparse.Namespace) -> Answer:
    if options.ledger is not None:
        refuse_missing(options.ledger)
    certificate = read_certificate(options.file, check_digest=False)
    found = certificate.verify(
        options.ledger, public_key=options.public_key, current=options.current
    )
    text = str(found)
    if not (options.ledger or options.public_key):
        text += "\nGive --ledger, --public-key or both."
    data = {"verified": found.ok, **asdict(found)}
    return Answer(text, data, is_finding=not found.ok)


def _add_html(actions: Any) -> None:
    parser = add_command(
        actions,
        "html",
        _html,
        help="Write a report: one page of HTML that needs no network.",
        examples=(
            "  botorch-dp certificate html certificate.json --ledger ledger.sqlite\n"
            "  botorch-dp certificate html certificate.json --output report.html "
            "--open\n"
        ),
    )
    _add_file(parser)
    parser.add_argument(
        "--ledger",
        help="its ledger, which adds the budget over time, what was released and when, "
        "and whether both agree; exit code 1 if they do not",
    )
    _add_public_key(parser)
    add_output(parser)


def _html(options: argparse.Namespace) -> Answer:
    certificate = read_certificate(options.file)
    ledger = None if options.ledger is None else open_ledger(options.ledger)
    key = options.public_key
    answer = write(certificate.to_html(ledger, public_key=key), options)
    found = certificate.verify(ledger, public_key=key)
    if not found.findings:
        return answer
    return Answer(f"{answer.text}\n{found}", answer.data, is_finding=True)


def _add_sign(actions: Any) -> None:
    parser = add_command(
        actions,
        "sign",
        _sign,
        help="Check a certificate and sign it (extra: signatures); exit code 1 if it "
        "does not agree with its ledger, or does not count all charges.",
        examples=(
            "  botorch-dp certificate create-key officer.key\n"
            "  botorch-dp certificate sign certificate.json --ledger ledger.sqlite "
            "--key officer.key --output signed.json\n"
        ),
    )
    _add_file(parser)
    parser.add_argument("--ledger", required=True, help="its ledger: a file or a URL")
    parser.add_argument("--key", required=True, help="the file of a private key")
    parser.add_argument("--output", required=True, help="the signed certificate")
    parser.add_argument(
        "--outdated",
        action="store_true",
        help="sign it although the ledger was charged since",
    )


def _sign(options: argparse.Namespace) -> Answer:
    from botorch_dp.privacy.verification import UNSIGNED

    refuse_missing(options.ledger)
    certificate = read_certificate(options.file)
    found = certificate.verify(options.ledger, current=not options.outdated)
    found.require()
    signed = certificate.signed(options.key)
    Path(options.output).write_text(signed.to_json(), encoding="utf-8")
    notes = [note for note in found.notes if note != UNSIGNED]
    return Answer(
        "\n".join([f"wrote {options.output}", *(f"note: {note}" for note in notes)]),
        {"output": options.output, "digest": signed.digest, "notes": notes},
    )


def _add_create_key(actions: Any) -> None:
    parser = add_command(
        actions,
        "create-key",
        _create_key,
        help="Create a key pair for signatures (extra: signatures).",
        examples="  botorch-dp certificate create-key officer.key\n",
    )
    parser.add_argument(
        "file", metavar="FILE", help="the private key; .pub is added for the public one"
    )


def _create_key(options: argparse.Namespace) -> Answer:
    from botorch_dp.privacy import create_key

    public = create_key(options.file)
    return Answer(
        f"wrote {options.file} (keep it secret) and {public} (give it to readers)",
        {"key": options.file, "public_key": str(public)},
    )
