"""The parts of a report that show a ledger: what was spent, on what, and when."""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from botorch_dp.privacy.entries import LedgerEntry
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.ledger_book import LedgerView
from botorch_dp.privacy.ledger_summary import spending_over_time, spent_by_any
from botorch_dp.privacy.report_html import escaped
from botorch_dp.privacy.spending import budget_limit
from botorch_dp.privacy.stores.postgres import is_postgres_url

if TYPE_CHECKING:
    from botorch_dp.privacy.ledger import Ledger

# Longer tables of releases show the first and the last charges.
_MOST_ROWS = 200
_MOST_POINTS = 40
_LONG_NUMBER = re.compile(r"\d+\.\d{6,}(?:e[+-]?\d+)?")
_NO_LABEL = {"partition": "all", "budget": "none"}


def name_to_show(ledger: "Ledger") -> str:
    """Return the name of a ledger, without the folder or the server it is kept on."""
    path = ledger.path
    if path is None:
        name = "in memory"
    elif is_postgres_url(path):
        name = unquote(path.rpartition("ledger=")[2])
    else:
        name = path.replace("\\", "/").rpartition("/")[2]
    partition = ledger.view().partition
    return f"{name}, partition {partition!r}" if partition else name


def summary_rows(view: LedgerView, delta: float) -> list[tuple[str, str]]:
    """Return what was spent, and what is left, as pairs of a label and a text."""
    rows = [("charges", str(len(view.entries)))]
    names = {entry.partition for entry in view.entries} - {""}
    if names and not view.partition:
        rows.append(("partitions", str(len(names))))
    if view.entries:
        spent = spent_by_any(view.entries, delta)
        text = f"epsilon={spent.amount:.6g} at delta={delta:.3g}, by {spent.method}"
        if names and not view.partition:
            text += "; the most that a record of any partition has spent"
        rows.append(("spent", text))
    cap = view.header.cap
    if cap is not None:
        rows.append(("cap", repr(cap)))
    if view.counted is not None and cap is not None:
        limit = budget_limit(cap)
        left = view.counted.left(limit)
        text = f"{view.counted.unit}={left:.6g} of {limit:.6g} ({left / limit:.1%})"
        rows.append(("left", text))
    rows += [
        (
            "team",
            f"{one.name}: {one.cap!r}, {one.spent.unit}="
            f"{one.spent.left(one.limit):.6g} of {one.limit:.6g} is left",
        )
        for one in view.budgets
    ]
    return rows


def charges(entries: Sequence[LedgerEntry], *, exact_times: bool) -> str:
    """Return the table of charges, without the middle of a long one.

    Args:
        entries: The charges.
        exact_times: Whether to show the time of day, which may depend on the data:
            only to whoever has the ledger anyway.
    """
    if not entries:
        return ""
    shown: list[LedgerEntry | None] = list(entries)
    if len(entries) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        shown = [*entries[:half], None, *entries[-half:]]
    labels = [
        name
        for name in ("partition", "budget")
        if any(getattr(entry, name) for entry in entries)
    ]
    names = [
        *("charge", "time (UTC)" if exact_times else "day", "releases", "mechanism"),
        *("cost of one", "noise"),
        *("team" if name == "budget" else name for name in labels),
    ]
    rows = []
    for entry in shown:
        if entry is None:
            hidden = len(entries) - _MOST_ROWS
            text = f"... {hidden} more charges ..."
            rows.append(f"<tr><td colspan='{len(names)}'>{text}</td></tr>")
            continue
        cells = [
            str(entry.number),
            entry.time[: 19 if exact_times else 10].replace("T", " "),
            str(entry.count),
            entry.mechanism or "unnamed",
            _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.6g}", repr(entry.event)),
            entry.noise,
            *(getattr(entry, name) or _NO_LABEL[name] for name in labels),
        ]
        rows.append("<tr>" + "".join(f"<td>{escaped(c)}</td>" for c in cells) + "</tr>")
    head = "".join(f"<th scope='col'>{name}</th>" for name in names)
    return (
        f"<div class='wide'><table class='charges'><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def chart(entries: Sequence[LedgerEntry], cap: Guarantee | None, delta: float) -> str:
    """Return what was spent after each charge, as a picture in SVG."""
    measure = delta if cap is None else cap
    found = list(spending_over_time(entries, measure, most_points=_MOST_POINTS))
    unit = found[-1][1].unit
    points = [(0, 0.0), *((number, one.amount) for number, one in found)]
    limit = None if cap is None else budget_limit(cap)
    finite = [value for _, value in points if value != float("inf")]
    most = max([*finite, limit or 0.0, 1e-9])
    top, step = 1.12 * most, _round_step(most)
    width, height, left, bottom = 640.0, 220.0, 52.0, 34.0
    last = points[-1][0]

    def at(number: float, value: float) -> tuple[float, float]:
        x = left + (width - left - 12) * number / last
        return x, height - bottom - (height - bottom - 10) * min(value, top) / top

    path = ""
    for number, value in points:
        x, y = at(number, value)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    x_end, _ = at(last, 0.0)
    marks = "".join(
        f"<line class='grid' x1='{left}' x2='{x_end:.1f}' y1='{y:.1f}' y2='{y:.1f}'/>"
        f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end'>{value:.3g}</text>"
        for value in (number * step for number in range(int(most / step) + 1))
        for _, y in [at(0, value)]
    )
    if limit is not None:
        _, y = at(0, limit)
        marks += (
            f"<line class='cap' x1='{left}' x2='{x_end:.1f}' y1='{y:.1f}' "
            f"y2='{y:.1f}'/>"
            f"<text class='cap' x='{left + 6:.1f}' y='{y - 5:.1f}'>cap "
            f"{limit:.4g}</text>"
        )
    if unit == "epsilon":
        unit = "Epsilon"
        if cap is None or isinstance(cap, ApproxDP):
            unit += f" at delta={delta if cap is None else cap.delta:.3g}"
    label = f"{unit} after each charge: {points[-1][1]:.6g} at the end"
    return (
        f"<figure><svg viewBox='0 0 {width:g} {height:g}' role='img' "
        f"aria-label='{escaped(label)}'>{marks}"
        f"<path class='spent' d='{path}'/>"
        f"<text x='{left}' y='{height - 10:g}'>0</text>"
        f"<text x='{x_end:.1f}' y='{height - 10:g}' text-anchor='end'>{last} "
        f"charge(s)</text></svg><figcaption>{escaped(label)}.</figcaption></figure>"
    )


def _round_step(most: float) -> float:
    """Return a round distance between two to five lines of a grid."""
    power = 10.0 ** math.floor(math.log10(most))
    return next(one * power for one in (0.2, 0.5, 1.0, 2.0) if most / (one * power) < 5)
