"""The entry point: exit codes, errors in one line, and help without heavy imports."""

import contextlib
import json
import re
import shlex
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import botorch_dp
from botorch_dp import Certificate, Ledger
from botorch_dp.cli import audits, budgets, main
from botorch_dp.cli.answer import Answer
from botorch_dp.cli.entry import _parser
from botorch_dp.exceptions import BotorchDPWarning, LedgerUnavailableError
from botorch_dp.privacy import PureEvent
from botorch_dp.privacy.stores import sqlite

COMMANDS = [
    ["epsilon"],
    ["plan"],
    ["audit"],
    *(["ledger", action] for action in ("show", "verify", "export", "plot")),
    ["certificate", "show"],
]


def test_python_m_and_help_import_nothing_heavy():
    script = """
import sys
import botorch_dp.cli
sys.argv = ["botorch-dp", "--help"]
try:
    botorch_dp.cli.main()
except SystemExit as end:
    assert end.code == 0
heavy = ("torch", "numpy", "scipy", "botorch", "opacus", "matplotlib", "optuna")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "usage: botorch-dp" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    done = subprocess.run(
        [sys.executable, "-m", "botorch_dp", "ledger", "show", "/nowhere/at all"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == "botorch-dp: There is no ledger /nowhere/at all.\n"


def test_the_installed_command_is_main():
    from importlib.metadata import entry_points

    found = entry_points(group="console_scripts", name="botorch-dp")
    for entry in found:  # none in an environment that was installed before
        assert entry.load() is main


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"  botorch-dp {' '.join(command)} " in text
    assert "--json" in text


def test_the_commands_of_the_guide_can_be_parsed():
    page = Path(__file__).parents[2] / "docs" / "command_line.md"
    lines = re.findall(r"^botorch-dp (.+)$", page.read_text("utf-8"), re.M)
    for line in lines:
        assert _parser().parse_args(shlex.split(line.partition(" ||")[0])).run
    for command in COMMANDS:
        assert any(line.startswith(" ".join(command)) for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [[], ["nothing"], ["epsilon"], ["ledger"], ["epsilon", "--mu", "1", "--rho", "1"]],
)
def test_wrong_usage_is_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: botorch-dp" in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"{botorch_dp.__version__}\n"


def test_an_error_of_the_library_is_one_line_and_code_2(capsys):
    assert main(["epsilon", "--mu", "-1", "--delta", "1e-5"]) == 2
    text = capsys.readouterr()
    assert text.out == ""
    assert text.err.startswith("botorch-dp: --mu must be a finite number above 0")
    assert text.err.count("\n") == 1


def test_a_bug_is_not_hidden(monkeypatch):
    def broken(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(budgets, "_epsilon", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["epsilon", "--mu", "1", "--delta", "1e-5"])


def test_a_finding_is_code_1_with_and_without_json(monkeypatch, capsys):
    answer = Answer("text", {"bound": float("inf")}, is_finding=True)
    monkeypatch.setattr(audits, "_audit", lambda _: answer)
    arguments = ["audit", "--mechanism", "gaussian", "--mu", "1"]
    assert main(arguments) == 1
    assert capsys.readouterr().out == "text\n"
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"bound": None}


@pytest.mark.filterwarnings("default::botorch_dp.exceptions.BotorchDPWarning")
def test_a_warning_is_one_line(monkeypatch, capsys):
    def warned(_):
        warnings.warn("of\nthis", BotorchDPWarning, stacklevel=1)
        return Answer("done", {})

    before = warnings.showwarning
    monkeypatch.setattr(budgets, "_epsilon", warned)
    assert main(["epsilon", "--mu", "1", "--delta", "1e-5"]) == 0
    assert capsys.readouterr().err == "botorch-dp: warning: of this\n"
    assert warnings.showwarning is before


def test_a_damaged_ledger_is_a_finding(tmp_path, capsys):
    file = tmp_path / "ledger.sqlite"
    Ledger(file)
    file.write_bytes(b"no ledger" * 100)
    for action in ("show", "verify", "export"):
        assert main(["ledger", action, str(file)]) == 1
        text = capsys.readouterr()
        assert text.out == ""
        assert text.err.startswith("botorch-dp: ")
        assert text.err.count("\n") == 1


@pytest.mark.parametrize("command", [["epsilon", "--mu", "1", "--delta", "1e-5"]])
def test_a_reader_that_has_seen_enough(command):
    process = subprocess.Popen(
        [sys.executable, "-m", "botorch_dp", *command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()  # as `head` does
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


class TestOutages:
    """They are not findings: nothing is known about the ledger."""

    def test_a_server_that_does_not_answer(self, tmp_path, capsys):
        pytest.importorskip("psycopg")
        url = "postgresql://nobody@127.0.0.1:1/db?ledger=x"
        ledger = Ledger()
        ledger.charge(PureEvent(0.5))
        file = tmp_path / "certificate.json"
        file.write_text(Certificate.from_ledger(ledger).to_json())
        for command in (
            ["ledger", "verify", url],
            ["ledger", "show", url],
            ["certificate", "verify", str(file), "--ledger", url],
        ):
            assert main(command) == 2
            assert "cannot be used" in capsys.readouterr().err

    def test_a_folder(self, tmp_path, capsys):
        assert main(["ledger", "verify", str(tmp_path)]) == 2
        assert "not a ledger but a folder" in capsys.readouterr().err

    def test_a_locked_file(self, tmp_path, monkeypatch):
        path = tmp_path / "ledger.sqlite"
        Ledger(path).charge(PureEvent(0.5))
        monkeypatch.setattr(sqlite, "_LOCK_TIMEOUT_SECONDS", 0.01)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(LedgerUnavailableError, match="locked"):
                Ledger(path)

    def test_an_outage_is_no_finding_about_a_certificate(self, tmp_path, monkeypatch):
        path = tmp_path / "ledger.sqlite"
        Ledger(path).charge(PureEvent(0.5))
        certificate = Certificate.from_ledger(Ledger(path))
        monkeypatch.setattr(sqlite, "_LOCK_TIMEOUT_SECONDS", 0.01)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(LedgerUnavailableError):
                certificate.verify(path)
