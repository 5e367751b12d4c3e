"""README's code runs as pasted, and every command that it names exists."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import _arena_report
from benchmarks._arena_store import load
from benchmarks.sklearn_search import BEGIN, END, summary

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.default_device
@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_code_runs(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_there_is_code_on_the_first_screen():
    assert README.index("```python") < 1000


def test_commands_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"make ([a-z]+)", README))
    assert named
    assert named <= targets


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text()):
        assert (ROOT / target).exists(), target


def test_the_table_is_what_was_measured():
    results = ROOT / "benchmarks" / "results" / "sklearn_search.json"
    table = README.partition(BEGIN)[2].partition(END)[0]
    assert table.strip() == summary(json.loads(results.read_text()))


def test_so_is_the_table_of_the_arena():
    table = README.partition(_arena_report.BEGIN)[2].partition(_arena_report.END)[0]
    results = load(_arena_report.RESULTS / "arena.json")
    assert table.strip() == _arena_report.summary(results)


def test_so_is_the_sentence_below_it():
    results = ROOT / "benchmarks" / "results" / "sklearn_search.json"
    for section, rows in json.loads(results.read_text()).items():
        (column,) = {key for row in rows for key in row if key.startswith("points ")}
        behind = [row[column] for row in rows if row["search"].endswith("epsilon = 1")]
        assert len(behind) == 2
        limit = 0.5 if section in ("hundred_thousand", "activities") else 1.0
        assert max(float(text.split()[0]) for text in behind) <= limit
