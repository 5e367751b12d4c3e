"""Generate the benchmark pages from the JSON that ``make benchmarks`` writes.

Numbers come from ``benchmarks/results``, titles and texts from the source of each
benchmark (read, not run), and the layout from the function that lays out the tables in
``benchmarks/results`` as well. The arena, which has verdicts to compute, lays out its
own page.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks import _arena_report
from benchmarks._common import RESULTS, page

SOURCES = RESULTS.parent
ARENA = "arena"
# Results that are shown on the page of others.
PARTS = ("arena_real", "local_bo_cells", "selection_pools")
RAW = "The numbers: `benchmarks/results/{name}.json`; the code: `benchmarks/{name}.py`."


def benchmark_page(path: Path) -> str:
    """Return the page of one file of results, in Markdown."""
    if path.stem == ARENA:
        return _arena_report.page_of(path.parent)
    results = json.loads(path.read_text())
    title, texts = _source_of(path.stem)
    known = {name: text for name, text in texts.items() if name in results}
    unknown = {name: None for name in results if name not in texts}
    return page(title, {**known, **unknown}, results)


def files() -> list[Path]:
    """Return the files of results that have a page of their own."""
    return [path for path in sorted(RESULTS.glob("*.json")) if path.stem not in PARTS]


def pictures() -> list[Path]:
    """Return the pictures that the pages show."""
    return sorted(RESULTS.glob("*.png"))


def pages() -> Iterator[tuple[str, str]]:
    """Return the names of all benchmark pages, and their text."""
    for path in files():
        raw = RAW.format(name=path.stem)
        yield f"{path.stem}.md", f"{benchmark_page(path)}\n{raw}\n"


def titles(name: str) -> dict[str, str]:
    """Return the titles of the sections of a benchmark, by name."""
    _, texts = _source_of(name)
    return {key: text.splitlines()[0].strip() for key, text in texts.items() if text}


def _source_of(name: str) -> tuple[str, dict[str, str | None]]:
    """Return a benchmark's title and the docstrings of its functions, in order."""
    path = SOURCES / f"{name}.py"
    if not path.exists():
        return name, {}
    tree = ast.parse(path.read_text())
    texts = {
        node.name: ast.get_docstring(node, clean=False)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    calls = [
        node.args
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "report"
    ]
    titles = [args[1].value for args in calls if isinstance(args[1], ast.Constant)]
    return (titles or [name])[0], texts
