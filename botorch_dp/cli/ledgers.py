"""Commands that read a ledger: ``show``, ``verify``, ``export``, ``plot``, ``html``."""

import argparse
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch_dp.cli.answer import Answer, add_command
from botorch_dp.cli.pages import add_output, write
from botorch_dp.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from botorch_dp.privacy import Ledger, LedgerEntry


def add_to(commands: Any) -> None:
    """Add the commands to what ``add_subparsers`` returned."""
    help = "Read a ledger: what was spent, and whether its rows were changed."
    parser = commands.add_parser("ledger", help=help, description=help)
    actions = parser.add_subparsers(metavar="action", required=True)
    _add_show(actions)
    _add_verify(actions)
    _add_export(actions)
    _add_plot(actions)
    _add_html(actions)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the ledger: a file or a URL")


def open_ledger(place: str) -> "Ledger":
    """Open a ledger that exists; opening checks every row. Never create one."""
    refuse_missing(place)
    from botorch_dp.privacy import Ledger

    return Ledger(place)


def refuse_missing(place: str) -> None:
    """Raise unless there is a ledger at a place."""
    from botorch_dp.privacy.stores.opening import store_exists

    if not store_exists(place):
        raise InvalidArgumentError(f"There is no ledger {place}.")


def _add_show(actions: Any) -> None:
    parser = add_command(
        actions,
        "show",
        _show,
        help="Show what was spent, on what, when, and what is left.",
        examples=(
            "  botorch-dp ledger show ledger.sqlite\n"
            "  botorch-dp ledger show ledger.sqlite --delta 1e-7 --json\n"
        ),
    )
    _add_file(parser)
    parser.add_argument(
        "--delta", type=float, help="delta of the epsilon (default: the cap's, or 1e-5)"
    )


def _show(options: argparse.Namespace) -> Answer:
    ledger = open_ledger(options.file)
    from botorch_dp.privacy.ledger_summary import spent_by_any

    delta = ledger.report_delta if options.delta is None else options.delta
    spent = spent_by_any(ledger.entries, delta)
    view = ledger.view()
    return Answer(
        ledger.summary(delta),
        {
            **_identity(ledger),
            "cap": None if ledger.cap is None else ledger.cap.to_dict(),
            "filter": ledger.filter,
            "unit": ledger.unit,
            "adjacency": ledger.adjacency,
            "spent": {
                "epsilon": spent.amount,
                "delta": delta,
                "method": spent.method,
            },
            "num_partitions": len({e.partition for e in view.entries} - {""}),
            "budgets": {
                one.name: {
                    "cap": one.cap.to_dict(),
                    "spent": one.spent.amount,
                    "limit": one.limit,
                    "unit": one.spent.unit,
                }
                for one in view.budgets
            },
        },
    )


def _add_verify(actions: Any) -> None:
    parser = add_command(
        actions,
        "verify",
        _verify,
        help="Check every row and the chain of digests; exit code 1 if one is wrong.",
        examples=(
            "  botorch-dp ledger verify ledger.sqlite\n"
            "  botorch-dp ledger verify ledger.sqlite --digest 3fa9... # noted\n"
        ),
    )
    _add_file(parser)
    parser.add_argument(
        "--digest",
        help="a digest that was noted before; an older copy, or rewritten rows, do not "
        "have it",
    )


def _verify(options: argparse.Namespace) -> Answer:
    ledger = open_ledger(options.file)
    data: dict[str, Any] = {"valid": True, **_identity(ledger)}
    text = (
        f"valid: {data['num_charges']} charge(s) for {data['num_releases']} "
        f"release(s)\nname    {data['name']}\ndigest  {data['digest']}"
    )
    if options.digest is None or ledger.has_had(options.digest.lower()):
        return Answer(text, data)
    return Answer(
        f"NOT VALID: the ledger {options.file} never had the digest {options.digest}. "
        "It is another ledger, an older copy, or its rows were changed.",
        {**data, "valid": False, "missing_digest": options.digest},
        is_finding=True,
    )


def _identity(ledger: "Ledger") -> dict[str, Any]:
    from botorch_dp.privacy.certificate_facts import name_of

    entries = ledger.entries
    return {
        "ledger": ledger.path,
        "name": name_of(ledger.id),  # as certificates know it
        "digest": ledger.digest,
        "num_charges": len(entries),
        "num_releases": sum(entry.count for entry in entries),
    }


def _add_export(actions: Any) -> None:
    parser = add_command(
        actions,
        "export",
        _export,
        help="Print all charges, one on each line.",
        examples=(
            "  botorch-dp ledger export ledger.sqlite > charges.jsonl\n"
            "  botorch-dp ledger export ledger.sqlite --format csv > charges.csv\n"
        ),
    )
    _add_file(parser)
    parser.add_argument(
        "--format",
        choices=("jsonl", "csv"),
        default="jsonl",
        help="JSON lines (default) or comma-separated values",
    )


def _export(options: argparse.Namespace) -> Answer:
    rows = [_row(entry) for entry in open_ledger(options.file).entries]
    if options.format == "jsonl":
        text = "\n".join(json.dumps(row) for row in rows)
    else:
        sheet = io.StringIO()
        writer = csv.writer(sheet, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for row in rows:
            row["event"] = json.dumps(row["event"])
            writer.writerow([row[name] for name in _COLUMNS])
        text = sheet.getvalue().rstrip("\n")
    return Answer(text, {"charges": rows})


_COLUMNS = (
    "number",
    "time",
    "run",
    "mechanism",
    "event",
    "count",
    "adjacency",
    "unit",
    "noise",
    "condition",
    "partition",
    "budget",
)


def _row(entry: "LedgerEntry") -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in _COLUMNS}
    return {**row, "event": entry.event.to_dict()}


def _add_plot(actions: Any) -> None:
    parser = add_command(
        actions,
        "plot",
        _plot,
        help="Draw the spent budget and the cap (extra: plots).",
        examples=(
            "  botorch-dp ledger plot ledger.sqlite\n"
            "  botorch-dp ledger plot ledger.sqlite --output spent.svg\n"
        ),
    )
    _add_file(parser)
    parser.add_argument(
        "--output",
        default="ledger.png",
        help="the picture; its ending says whether PNG, SVG or PDF (default: "
        "ledger.png)",
    )
    parser.add_argument("--delta", type=float, help="delta of the epsilon")


def _plot(options: argparse.Namespace) -> Answer:
    from botorch_dp._imports import import_extra

    ledger = open_ledger(options.file)
    kind = Path(options.output).suffix.lower()
    if kind not in (".png", ".svg", ".pdf"):
        raise InvalidArgumentError(
            f"--output must end in .png, .svg or .pdf, got {options.output!r}."
        )
    matplotlib = import_extra("matplotlib", extra="plots", purpose="ledger plot")
    matplotlib.use("agg")  # no window
    from botorch_dp.plots import plot_ledger

    figure = plot_ledger(ledger, delta=options.delta).figure
    figure.savefig(options.output, dpi=150)
    import_extra("matplotlib.pyplot", extra="plots", purpose="ledger plot").close(
        figure
    )
    return Answer(f"wrote {options.output}", {"output": options.output})


def _add_html(actions: Any) -> None:
    parser = add_command(
        actions,
        "html",
        _html,
        help="Write a report: one page of HTML that needs no network.",
        examples=(
            "  botorch-dp ledger html ledger.sqlite\n"
            "  botorch-dp ledger html ledger.sqlite --output ledger.html --open\n"
        ),
    )
    _add_file(parser)
    add_output(parser)


def _html(options: argparse.Namespace) -> Answer:
    return write(open_ledger(options.file).to_html(), options)
