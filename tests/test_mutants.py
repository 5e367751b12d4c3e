"""The runner of mutants: what it calls caught, survived and stale."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "mutants" / "run.py"
CODE = """\
def double(x):
    y = 2 * x
    return y


def triple(x):
    return 3 * x
"""
TESTS = """\
import time

import pytest

from botorch_dp import double, triple


@pytest.mark.parametrize("x", [0, 1])
def test_double(x):
    assert double(x) == 2 * x


class TestTriple:
    def test_nothing(self):
        assert triple(0) == 0

    def test_interrupted(self):
        if triple(1) != 3:
            raise KeyboardInterrupt

    def test_in_time(self):
        time.sleep(60 if triple(1) != 3 else 0)


def test_that_fails():
    assert double(1) == 3
"""


def mutant(name, old, new, *tests, file="botorch_dp/__init__.py"):
    named = ", ".join(f"'tests/test_it.py{test}'" for test in tests)
    return (
        f"[[mutant]]\nname = '{name}'\nfile = '{file}'\nold = '{old}'\n"
        f"new = '{new}'\ntests = [{named}]\n"
    )


MUTANTS = [
    mutant("found", "2 * x", "3 * x", "::test_double"),
    mutant("found-by-one-of-two", "3 * x", "3 + x", "::TestTriple::test_nothing"),
    mutant("found-by-accident", "3 * x", "4 * x", "::TestTriple::test_interrupted"),
    mutant("unnoticed", "3 * x", "4 * x", "::TestTriple::test_nothing"),
    mutant("endless", "3 * x", "4 * x", "::TestTriple::test_in_time"),
    mutant("no-import", "def double", "def double2", "::test_double"),
    mutant("gone", "5 * x", "6 * x", "::test_double"),
    mutant("twice", "return", "return 1 +", "::test_double"),
    mutant("moved", "2 * x", "3 * x", "::test_double", file="botorch_dp/old.py"),
    mutant("no-python", "2 * x", "2 *", "::test_double"),
    mutant("no-test", "2 * x", "3 * x", "::test_of_old"),
    mutant("failing-test", "2 * x", "3 * x", "::test_that_fails"),
]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "botorch_dp").mkdir()
    (tmp_path / "botorch_dp" / "__init__.py").write_text(CODE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    (tmp_path / "list.toml").write_text("\n".join(MUTANTS))

    def run(*options, mutants=tmp_path / "list.toml"):
        command = [sys.executable, RUNNER, "--root", tmp_path, "--mutants", mutants]
        ended = subprocess.run([*command, *options], capture_output=True, text=True)
        return ended.returncode, ended.stdout + ended.stderr

    return run


def said_of(name, text):
    """Return the first line about a mutant."""
    (line, *_) = re.findall(rf"^{name}:? .*$", text, re.MULTILINE)
    return line


def test_all_kinds(run, tmp_path):
    code, text = run("--timeout", "10", "--jobs", "3")
    assert code == 1
    assert "caught" in said_of("found", text)
    assert "test_it.py::test_double[1]" in said_of("found", text)
    assert "caught" in said_of("found-by-one-of-two", text)
    assert "caught" in said_of("found-by-accident", text)
    assert "SURVIVED" in said_of("unnoticed", text)
    assert "TIMED OUT" in said_of("endless", text)
    assert "STALE" in said_of("no-import", text)  # no test has seen the break
    for name, why in (
        ("gone", "0 times, not once"),
        ("twice", "2 times, not once"),
        ("moved", "missing; the text is in botorch_dp/__init__.py"),
        ("no-python", "not Python"),
        ("no-test", "test_of_old is missing"),
        ("failing-test", "fails without any break"),
    ):
        assert "mutant is stale" in said_of(name, text)
        assert why in said_of(name, text)
    assert "3 of 12 caught" in text
    assert (tmp_path / "botorch_dp" / "__init__.py").read_text() == CODE
    assert {path.name for path in tmp_path.iterdir()} == {
        "botorch_dp",
        "tests",
        "list.toml",
    }


def test_some_that_are_caught(run):
    code, text = run("--only", "found*")
    assert code == 0
    assert "3 of 3 caught" in text
    code, text = run("--only", "lost")
    assert code == 1
    assert "There is no mutant 'lost'" in text


def test_without_running_anything(run):
    code, text = run("--check")
    assert code == 1
    assert "12 mutants, 4 stale" in text
    assert run("--check", "--only", "found", "unnoticed")[0] == 0
    code, text = run("--list", "--only", "found")
    assert (code, text) == (0, "found  (botorch_dp/__init__.py)\n")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (MUTANTS[0] * 2, "unique"),
        (MUTANTS[0].replace("old", "before"), "must have"),
        (mutant("same", "2 * x", "2 * x", "::test_double"), "changes nothing"),
        (mutant("untested", "2 * x", "3 * x"), "no tests"),
    ],
    ids=["twice", "incomplete", "no change", "no tests"],
)
def test_bad_lists(run, tmp_path, text, match):
    (tmp_path / "bad.toml").write_text(text)
    code, said = run("--list", mutants=tmp_path / "bad.toml")
    assert code == 1
    assert match in said


def test_our_list_can_be_read():
    spec = importlib.util.spec_from_file_location("mutants_run", RUNNER)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses
    spec.loader.exec_module(module)
    assert len(module.load(RUNNER.parent / "mutants.toml")) > 100
