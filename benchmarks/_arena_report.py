"""The tables and the picture of the arena, from its stored results."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _arena_real
from benchmarks._arena_cells import CELLS, CHOOSE, REPORT, Cell
from benchmarks._arena_store import load
from benchmarks._arena_verdicts import (
    LEAST_DIFFERENCE,
    LEAST_RANGE,
    LOSS,
    TIE,
    WIN,
    Comparison,
    Results,
    compare,
    gaps,
    mean_regret,
    of_kind,
)
from benchmarks._common import RESULTS, Row, table
from benchmarks.contenders import (
    ALTERNATIVE,
    CONTENDERS,
    NO_SEARCH,
    NOT_PRIVATE,
    OURS,
)

# The least n epsilon from which a method should be near one that is not private.
LARGE_SIGNAL = 5000
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- arena: begin -->", "<!-- arena: end -->"
NEAR = 0.1
# The least regret in the picture: smaller ones are drawn here.
LEAST_SHOWN = 5e-4
Buckets = Mapping[str, Callable[[Cell], bool]]


def _signal(low: float, high: float) -> Callable[[Cell], bool]:
    return lambda cell: low <= cell.signal < high


def _dims(low: int, high: int) -> Callable[[Cell], bool]:
    return lambda cell: low <= cell.dim <= high


SIGNALS: Buckets = {
    "nε ≤ 150": _signal(0, 300),
    "nε = 500": _signal(300, 1000),
    "nε = 1,500": _signal(1000, 3000),
    "nε = 5,000": _signal(3000, 10_000),
    "nε ≥ 15,000": _signal(10_000, 1e9),
}
SIGNAL_CENTRES = (150, 500, 1500, 5000, 15_000)
DIMS: Buckets = {
    "d = 2–3": _dims(2, 3),
    "d = 4–6": _dims(4, 6),
    "d = 10": _dims(10, 10),
    "d = 20–50": _dims(20, 50),
}
TEXT = {
    CHOOSE: """Cells to choose defaults on""",
    REPORT: """Cells that only report

Their records and optima are other draws than those of the cells above. Defaults were
chosen on the cells above, with one exception: that `minimize` explores in up to four
dimensions instead of six was decided when both halves had been looked at (the cells
above had four losses in six dimensions, these two). Before that change, `minimize` had
14 wins, 43 ties and 2 losses here. `private-bo`, `peek then pick` and LogEI have two
seeds, the others five.""",
}
INTRODUCTION = """\
Our methods, private alternatives of 20 to 40 lines each (`benchmarks/contenders`), and
searches that are not private. A cell is a synthetic task
(`benchmarks/problems/arena_tasks.py`), a dimension d, a number n of records and an
epsilon; delta is 1e-5 and losses lie between 0 and 1. The regret is the mean loss on
fresh records above the least one. In each cell a method is compared with the best
private alternative *in hindsight*, seed by seed: it wins or loses if the mean
difference is beyond two standard errors and beyond 0.002. "Ties below 0.002" are those
where both regrets are smaller than that: nothing is left to win. The cells are split
into halves by a hash of their names.

`python -m benchmarks.arena` runs what is missing; every number is computed from
`benchmarks/results/arena.json`.

![Mean regret over n epsilon](arena.png)"""


def markdown(results: Results, real: Sequence[str] = ()) -> str:
    """Return the page of the arena.

    Args:
        results: The results of the synthetic tasks.
        real: The sections about real tasks.
    """
    parts = ["# The arena", INTRODUCTION]
    for half, text in TEXT.items():
        cells = {name: results[name] for name in results if CELLS[name].half == half}
        if cells:
            parts += [f"## {text}", *_half(cells)]
    return "\n\n".join([*parts, *real]) + "\n"


def _half(results: Results) -> list[str]:
    known = {method for cell in results.values() for method in cell}
    ours = {name: compare(results, name) for name in of_kind(OURS, known)}
    lost = [one for cells in ours.values() for one in cells if one.verdict == LOSS]
    worse = [
        one for cells in ours.values() for one in cells if one.is_worse_than_no_search
    ]
    parts = [
        "### Against the best alternative in hindsight",
        table([_verdicts(name, cells) for name, cells in ours.items()]),
        "### Behind the best method that is not private",
        f"Smooth tasks with n epsilon of at least {LARGE_SIGNAL:,}, in percent of the "
        "difference between no search and the best method that is not private, where "
        f"it is at least {LEAST_RANGE}.",
        table([_gap_row(results, name) for name in ours]),
        "### Median regret",
        table(medians(results, SIGNALS)),
        table(medians(results, DIMS)),
    ]
    if lost:
        parts += ["### Losses against an alternative", table(_by_cell(lost))]
    if worse:
        rows: list[Row] = [
            {
                "method": one.method,
                "cell": one.cell,
                "regret": f"{one.regret:.4f}",
                "above no search": str(one.from_no_search),
            }
            for one in worse
        ]
        parts += ["### Worse than no search by two standard errors", table(rows)]
    return parts


def _verdicts(name: str, cells: Sequence[Comparison]) -> Row:
    verdicts = [one.verdict for one in cells]
    return {
        "method": name,
        "cells": len(cells),
        "wins": verdicts.count(WIN),
        "ties": verdicts.count(TIE),
        f"ties below {LEAST_DIFFERENCE}": sum(
            max(one.regret, one.rival_regret) < LEAST_DIFFERENCE
            for one in cells
            if one.verdict == TIE
        ),
        "losses": verdicts.count(LOSS),
        "worse than no search": sum(one.is_worse_than_no_search for one in cells),
    }


def _by_cell(lost: Iterable[Comparison]) -> list[Row]:
    return [
        {
            "method": one.method,
            "cell": one.cell,
            "regret": f"{one.regret:.4f}",
            "best alternative": one.rival,
            "its regret": f"{one.rival_regret:.4f}",
            "difference": str(one.difference),
        }
        for one in lost
    ]


def _gap_row(results: Results, name: str) -> Row:
    shares = gaps(results, name, LARGE_SIGNAL)
    if not shares:
        return {"method": name, "cells": 0}
    farthest = max(shares, key=lambda cell: shares[cell])
    return {
        "method": name,
        "cells": len(shares),
        "median": f"{100 * statistics.median(shares.values()):.1f} %",
        "within 10 %": sum(share <= NEAR for share in shares.values()),
        "largest": f"{100 * shares[farthest]:.1f} % ({farthest})",
    }


def medians(results: Results, buckets: Buckets) -> list[Row]:
    """Return the median over cells of each method's mean regret, in each bucket."""
    known = {method for cell in results.values() for method in cell}
    rows: list[Row] = []
    for name, method in CONTENDERS.items():
        if name not in known:
            continue
        row: Row = {"method": name, "kind": method.kind}
        for label, is_inside in buckets.items():
            regrets = _regrets(results, name, is_inside)
            row[label] = f"{statistics.median(regrets):.4f}" if regrets else ""
        rows.append(row)
    return rows


def _regrets(
    results: Results, method: str, is_inside: Callable[[Cell], bool]
) -> list[float]:
    return [
        mean_regret(cell, method)
        for name, cell in results.items()
        if method in cell and is_inside(CELLS[name])
    ]


def draw(results: Results, path: Path) -> None:
    """Draw the mean regret over n epsilon: a panel for each range of dimensions."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9), layout="constrained")
    panels: Any = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
    known = {method for cell in results.values() for method in cell}
    colors = colormaps["tab20"].colors  # type: ignore[attr-defined]
    bright = colormaps["Dark2"].colors  # type: ignore[attr-defined]
    styles: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(of_kind(ALTERNATIVE, known)):
        styles[name] = {"color": colors[index % 20], "lw": 1.2, "marker": "."}
    for index, name in enumerate(of_kind(NOT_PRIVATE, known)):
        style = ("--", ":", "-.")[index % 3]
        styles[name] = {"color": "0.35", "lw": 1.2, "ls": style}
    for index, name in enumerate(of_kind(OURS, known)):
        styles[name] = {"color": bright[index % 8], "lw": 3.5, "marker": "o"}
    for panel, (title, in_dims) in zip(panels, DIMS.items(), strict=True):
        for name, style in styles.items():
            x, y = _line(results, name, in_dims)
            label = f"{name} (NOT private)" if "ls" in style else name
            panel.plot(x, y, label=label, **style)
        panel.set(title=title, xscale="log", yscale="log")
        panel.set_ylim(LEAST_SHOWN / 1.3, 1.2)
        panel.grid(alpha=0.3)
    for panel in panels[2:]:
        panel.set_xlabel("n × epsilon")
    for panel in panels[::2]:
        panel.set_ylabel("mean regret over the cells")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right", fontsize=8)
    figure.savefig(path, dpi=110)


def _line(
    results: Results, method: str, in_dims: Callable[[Cell], bool]
) -> tuple[list[float], list[float]]:
    x, y = [], []
    for centre, in_signal in zip(SIGNAL_CENTRES, SIGNALS.values(), strict=True):
        regrets = _regrets(
            results,
            method,
            lambda cell, inside=in_signal: in_dims(cell) and inside(cell),
        )
        if regrets:
            x.append(float(centre))
            # Regret can be slightly negative: the least loss is found by local search.
            y.append(max(statistics.mean(regrets), LEAST_SHOWN))
    return x, y


def page_of(folder: Path) -> str:
    """Return the page made from the results in a folder."""
    real = _arena_real.sections(load(folder / "arena_real.json"))
    return markdown(load(folder / "arena.json"), real)


def measured(results: Results) -> list[list[float]]:
    """Return n epsilon, d and what ``minimize`` leaves of the start's regret.

    One row for each cell, as :func:`botorch_dp.expect` reads them.
    """
    rows = []
    for name, cell in results.items():
        if "minimize" in cell and NO_SEARCH in cell:
            start = mean_regret(cell, NO_SEARCH)
            left = max(0.0, mean_regret(cell, "minimize")) / start
            rows.append([CELLS[name].signal, CELLS[name].dim, float(f"{left:.3g}")])
    return sorted(rows)


def summary(results: Results) -> str:
    """Return the verdicts of our methods on the cells that report: README's table."""
    cells = {name: one for name, one in results.items() if CELLS[name].half == REPORT}
    known = {method for cell in cells.values() for method in cell}
    found = {name: compare(cells, name) for name in of_kind(OURS, known)}
    whole = {name: one for name, one in found.items() if len(one) == len(cells)}
    return table([_verdicts(name, one) for name, one in whole.items()])


def write_summary(folder: Path = RESULTS) -> None:
    """Rewrite README's table."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    text = summary(load(folder / "arena.json"))
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def write_report(folder: Path = RESULTS, expectations: Path | None = None) -> None:
    """Write ``arena.md`` and ``arena.png`` from the results in a folder.

    Args:
        folder: The folder with the results.
        expectations: The file that ``botorch_dp.expect`` reads, or None.
    """
    results = load(folder / "arena.json")
    (folder / "arena.md").write_text(page_of(folder))
    draw(results, folder / "arena.png")
    if expectations is not None and (rows := measured(results)):
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        expectations.write_text(f"[\n{lines}\n]\n")
