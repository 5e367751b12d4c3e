"""README's code runs as pasted, and every command that it names exists."""

import json
import re
import shlex
import webbrowser
from pathlib import Path

import pytest

from benchmarks import _arena_report
from benchmarks._arena_store import load
from benchmarks.sklearn_search import BEGIN, END, summary
from botorch_dp import Certificate, Ledger
from botorch_dp.cli import main
from botorch_dp.privacy import GaussianEvent

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


def test_two_commands_open_a_report(tmp_path, monkeypatch, capsys):
    """`make demo` writes a ledger and a certificate, and `make report` shows them."""
    start = README.partition("## Start")[2]
    assert re.findall("^make [a-z]+", start, re.M)[:2] == ["make demo", "make report"]
    demo = (ROOT / "tutorials" / "demo.py").read_text()
    assert 'FOLDER = Path("build")' in demo
    assert 'FOLDER / "ledger.sqlite", FOLDER / "certificate.json"' in demo
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    command = re.search(r"^report:.*?/botorch-dp (.*?)$", makefile, re.M | re.DOTALL)[1]

    monkeypatch.chdir(tmp_path)
    Path("build").mkdir()
    ledger = Ledger("build/ledger.sqlite")
    ledger.charge(GaussianEvent(2.0))
    text = Certificate.from_ledger(ledger).to_json()
    Path("build/certificate.json").write_text(text, encoding="utf-8")
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: not opened.append(url))
    assert main(shlex.split(command)) == 0
    assert opened == [(tmp_path / "build" / "report.html").as_uri()]
    page = Path("build/report.html").read_text("utf-8")
    assert "agrees with the ledger" in page


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
    searches = ("digits", "breast_cancer", "hundred_thousand", "activities")
    for section, rows in json.loads(results.read_text()).items():
        if section not in searches:  # other comparisons, which README.md leaves out
            continue
        (column,) = {key for row in rows for key in row if key.startswith("points ")}
        behind = [row[column] for row in rows if row["search"].endswith("epsilon = 1")]
        assert len(behind) == 2
        limit = 0.5 if section in ("hundred_thousand", "activities") else 1.0
        assert max(float(text.split()[0]) for text in behind) <= limit
