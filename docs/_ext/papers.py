"""Make the tables of the papers: what they print, where it is here, and our number.

The rows are in ``benchmarks/papers/*.toml``; the file's name is the paper's number, and
the numbers that were measured come from ``benchmarks/results``. A row has

* ``item``: the line, theorem, figure or table of the paper;
* ``what``: one sentence on what it is;
* ``where``: the path of the code or of a page of these docs, or a list of them;
* ``theirs``: what the paper prints, "-" if that is a picture or no number;
* ``ours``: text; or ``file``, ``section``, ``select`` and ``column``: the results, the
  title (or name) of their section, the values of columns that pick rows, and the column
  or columns to show;
* ``verdict``: one of :data:`VERDICTS`;
* ``why``: the reason, unless the verdict is in :data:`PLAIN`.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import benchmark_pages

from benchmarks._common import RESULTS

ROOT = RESULTS.parents[1]
ROWS = RESULTS.parent / "papers"
PAPERS = {
    "000": "DP-GIBO: Sopa, Marusic, Avella-Medina and Cunningham (2025)",
    "001": "Private release: Kusner, Gardner, Garnett and Weinberger (2015)",
    "003": "LDP-BO: online optimization with sliced Wasserstein compression (2025)",
    "004": "DP-FTS-DE: Dai, Low and Jaillet (2021)",
}
VERDICTS = {
    "reproduced": "our implementation does what the paper says, or measures the same",
    "contradicted": "we measured the opposite",
    "differs": "it is here, but not as printed, or measured in another setting",
    "proven": "the statement holds; the library relies on it or computes it",
    "repaired": "as printed it does not hold; the library has a version that does",
    "calculator": "a function computes the bound from what the user asserts",
    "impossible": "it cannot be done with public information or available data",
    "omitted": "it is not here",
}
# Verdicts that need no reason.
PLAIN = ("reproduced", "proven")
NOWHERE = "-"
# Without code of ours, for these verdicts only.
ABSENT = ("impossible", "omitted")


class RowError(ValueError):
    """A row that is not well-formed, or points to what does not exist."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a paper's table, see the text of this module."""

    item: str
    what: str
    where: str | list[str]
    theirs: str
    verdict: str
    ours: str | None = None
    file: str | None = None
    section: str | None = None
    select: dict[str, Any] = field(default_factory=dict)
    column: str | list[str] | None = None
    why: str = ""

    def check(self) -> None:
        """Raise unless everything that the row needs is there, and exists."""
        for name in ("item", "what", "theirs"):
            if not getattr(self, name).strip():
                raise RowError(f"{self.item!r}: {name} must not be empty")
        if self.verdict not in VERDICTS:
            raise RowError(f"{self.item}: the verdict {self.verdict!r} is unknown")
        if self.verdict not in PLAIN and not self.why.strip():
            raise RowError(f"{self.item}: {self.verdict!r} needs a why")
        if (self.ours is None) == (self.file is None):
            raise RowError(f"{self.item}: give either ours or file")
        for path in self.paths:
            if path == NOWHERE and self.verdict in ABSENT:
                continue
            if not (ROOT / path).exists():
                raise RowError(f"{self.item}: {path!r} does not exist")
        self.value()

    @property
    def paths(self) -> list[str]:
        """Where it is."""
        return [self.where] if isinstance(self.where, str) else self.where

    def value(self) -> str:
        """Return our number or text, as Markdown."""
        if self.file is None:
            return str(self.ours)
        path = RESULTS / f"{self.file}.json"
        if not path.exists():
            raise RowError(f"{self.item}: there are no results {path.name!r}")
        if self.section is None or self.column is None:
            raise RowError(f"{self.item}: file needs section and column")
        rows = [row for row in self._section(path) if self._picks(row)]
        if not rows:
            raise RowError(f"{self.item}: select={self.select!r} picks no row")
        shown = " / ".join(self._shown(row) for row in rows)
        has_page = path in benchmark_pages.files()
        page = f"generated/benchmarks/{self.file}.md"
        return f"[{shown}]({page})" if has_page else shown

    def _section(self, path: Path) -> list[dict[str, Any]]:
        results = json.loads(path.read_text())
        titles = benchmark_pages.titles(path.stem)
        names = [self.section, *(n for n in titles if titles[n] == self.section)]
        for name in names:
            if name in results:
                return list(results[name])
        raise RowError(f"{self.item}: {path.name} has no section {self.section!r}")

    def _picks(self, row: dict[str, Any]) -> bool:
        for name, value in self.select.items():
            if name not in row:
                raise RowError(f"{self.item}: no column {name!r} in {self.section!r}")
            if row[name] != value:
                return False
        return True

    def _shown(self, row: dict[str, Any]) -> str:
        single = isinstance(self.column, str)
        columns = [self.column] if isinstance(self.column, str) else self.column
        parts = []
        for name in columns or []:
            if name not in row:
                raise RowError(f"{self.item}: no column {name!r} in {self.section!r}")
            value = row[name]
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            parts.append(text if single else f"{name}: {text}")
        return ", ".join(parts)


def read(path: Path) -> list[Row]:
    """Return the rows of a paper."""
    known = {one.name for one in fields(Row)}
    rows = []
    for entry in tomllib.loads(path.read_text()).get("row", []):
        unknown = entry.keys() - known
        if unknown:
            raise RowError(f"{entry.get('item')}: unknown keys {sorted(unknown)}")
        try:
            rows.append(Row(**entry))
        except TypeError as error:
            raise RowError(f"{entry.get('item')}: {error}") from error
    return rows


def files() -> list[Path]:
    """Return the files of rows, one for each paper."""
    return sorted(ROWS.glob("*.toml"))


def table(rows: list[Row]) -> str:
    """Return the table of a paper, as Markdown."""
    lines = [
        "| item | what | where | theirs | ours | verdict | why |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        row.check()
        cells = (
            row.item,
            row.what,
            " ".join(map(_link, row.paths)),
            row.theirs,
            row.value(),
            f"**{row.verdict}**",
            row.why,
        )
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def fragment() -> str:
    """Return the verdicts and all tables, which a page includes."""
    parts = [f"- **{name}**: {text}." for name, text in VERDICTS.items()]
    text = "\n".join(parts) + "\n"
    for path in files():
        rows = read(path)
        counts = {name: sum(r.verdict == name for r in rows) for name in VERDICTS}
        summary = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
        title = PAPERS.get(path.stem, path.stem)
        text += f"\n## {title}\n\n{len(rows)} rows: {summary}.\n\n{table(rows)}\n"
    return text


def pages() -> Iterator[tuple[str, str]]:
    """Return the name of the fragment, and its text."""
    yield "papers.inc", fragment()


def _link(path: str) -> str:
    """Return a link to a page of these docs, or the path of code."""
    page = path.removeprefix("docs/")
    is_page = page != path and page.endswith(".md")
    return f"[{page.removesuffix('.md')}]({page})" if is_page else f"`{path}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
