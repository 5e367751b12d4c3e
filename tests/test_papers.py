"""The page about the papers: its rows are complete, and what they point to exists."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT)]

import papers  # noqa: E402

ROWS = [(path.stem, row) for path in papers.files() for row in papers.read(path)]
GOOD = {
    "item": "Line 4",
    "what": "What it is.",
    "where": "docs/papers.md",
    "theirs": "-",
    "verdict": "reproduced",
    "ours": "1",
}
MEASURED = {"file": "new", "section": "speed", "column": "seconds", "ours": None}


def row(**changes):
    return papers.Row(**{**GOOD, **changes})


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A file of results with a section of two rows."""
    rows = [
        {"what": "this", "seconds": 1.23456, "error": "2 ± 1"},
        {"what": "that", "seconds": 3.0, "error": "4 ± 1"},
    ]
    (tmp_path / "new.json").write_text(json.dumps({"speed": rows}))
    monkeypatch.setattr(papers, "RESULTS", tmp_path)


@pytest.mark.parametrize(
    "row", [row for _, row in ROWS], ids=[f"{p}-{row.item}" for p, row in ROWS]
)
def test_rows_are_complete(row):
    row.check()


def test_items_are_listed_once():
    for path in papers.files():
        items = [row.item for row in papers.read(path)]
        assert len(items) == len(set(items))
        assert path.stem in papers.PAPERS


def test_nothing_is_missing_without_a_reason():
    text = papers.fragment()
    assert "missing" not in text
    for path in papers.files():
        assert f"## {papers.PAPERS[path.stem]}\n" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) == len(ROWS) + 2 * len(papers.files())
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 8 for line in tables)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"what": " "}, "what must not be empty"),
        ({"verdict": "fine"}, "verdict 'fine' is unknown"),
        ({"verdict": "omitted"}, "'omitted' needs a why"),
        ({"ours": None}, "either ours or file"),
        (MEASURED | {"ours": "1"}, "either ours or file"),
        ({"where": "nowhere.py"}, "'nowhere.py' does not exist"),
        ({"where": ["docs/papers.md", "-"]}, "'-' does not exist"),
        (MEASURED | {"file": "old"}, "no results 'old.json'"),
        (MEASURED | {"column": None}, "file needs section and column"),
        (MEASURED | {"section": "cost"}, "no section 'cost'"),
        (MEASURED | {"column": "minutes"}, "no column 'minutes'"),
        (MEASURED | {"select": {"which": "this"}}, "no column 'which'"),
        (MEASURED | {"select": {"what": "other"}}, "picks no row"),
    ],
)
def test_bad_rows(results, changes, match):
    with pytest.raises(papers.RowError, match=match):
        row(**changes).check()


def test_values(results):
    that = {"select": {"what": "that"}}
    assert row(**MEASURED).value() == "1.235 / 3"
    assert row(**MEASURED | that).value() == "3"
    both = row(**MEASURED | that | {"column": ["seconds", "error"]})
    assert both.value() == "seconds: 3, error: 4 ± 1"


def test_sections_by_title():
    by_name = {"file": "dp_gibo", "section": "huber_regression", "column": "mu"}
    title = "Huber regression (4.2): d = 4, n = 100, T = 100, b = 2, B = 1"
    for section in (by_name["section"], title):
        one = row(**{**by_name, "ours": None, "section": section})
        assert one.value() == "[1](generated/benchmarks/dp_gibo.md)"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[[row]]\nitem = 'a'\nwhat = 'b'", "missing"),
        ("[[row]]\nitem = 'a'\nwhen = 'b'", r"unknown keys \['when'\]"),
    ],
)
def test_bad_files(tmp_path, text, match):
    path = tmp_path / "000.toml"
    path.write_text(text)
    with pytest.raises(papers.RowError, match=match):
        papers.read(path)


def test_tables_keep_their_columns():
    text = papers.table([row(what="a | b\nc", where="docs/papers.md")])
    assert r"a \| b c | [papers](papers.md) | - | 1 | **reproduced** |" in text
    code = papers.table([row(where=["docs/_ext/papers.py", "docs/about.md"])])
    assert "`docs/_ext/papers.py` [about](about.md)" in code
