"""The commands that read a ledger."""

import csv
import io
import json
import shutil
import sqlite3
import sys

import pytest

from botorch_dp import ApproxDP, Certificate, Ledger, PureDP
from botorch_dp.cli import main
from botorch_dp.privacy import GaussianEvent, PureEvent
from botorch_dp.privacy.stores.postgres import PostgresStore


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path, cap=ApproxDP(1.0, 1e-6))
    ledger.charge(GaussianEvent(20.0), count=3, mechanism="gaussian", run="one, two")
    ledger.charge(PureEvent(0.01), condition="a\ncondition")
    return path


def run(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_no_command_creates_a_ledger(tmp_path, capsys):
    for action in ("show", "verify", "export", "plot", "html"):
        assert main(["ledger", action, str(tmp_path / "none")]) == 2
        assert "There is no ledger" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_command_changes_a_ledger(file, tmp_path):
    before = file.read_bytes()
    for action in ("show", "verify", "export"):
        assert main(["ledger", action, str(file)]) == 0
    assert file.read_bytes() == before


class TestShow:
    def test_is_the_summary(self, file, capsys):
        assert main(["ledger", "show", str(file)]) == 0
        assert capsys.readouterr().out == f"{Ledger(file).summary()}\n"
        assert main(["ledger", "show", str(file), "--delta", "1e-3"]) == 0
        assert capsys.readouterr().out == f"{Ledger(file).summary(1e-3)}\n"

    def test_as_json(self, file, capsys):
        found = run(capsys, "ledger", "show", file)
        ledger = Ledger(file)
        assert found["spent"]["epsilon"] == ledger.spent(1e-6)
        assert found["spent"]["delta"] == 1e-6
        assert found["cap"] == {"type": "ApproxDP", "epsilon": 1.0, "delta": 1e-6}
        assert (found["num_charges"], found["num_releases"]) == (2, 4)
        assert (found["unit"], found["adjacency"]) == ("record", "replace_one")
        assert found["digest"] == ledger.digest

    def test_without_cap_or_charges(self, tmp_path, capsys):
        Ledger(tmp_path / "new")
        found = run(capsys, "ledger", "show", tmp_path / "new")
        assert found["cap"] is None
        assert found["unit"] is None
        assert found["spent"] == {
            "epsilon": 0.0,
            "delta": 1e-5,
            "method": found["spent"]["method"],
        }


@pytest.fixture
def parts(tmp_path):
    """A ledger with two partitions and a team."""
    path = tmp_path / "parts.sqlite"
    ledger = Ledger(path, cap=PureDP(1.0))
    ledger.charge(PureEvent(0.125))
    ledger.partition("north").charge(PureEvent(0.25), mechanism="m")
    team = ledger.partition("south").budget("ads", PureDP(0.75))
    team.charge(PureEvent(0.5))
    return path


class TestParts:
    def test_shows_the_most_that_any_record_spent(self, parts, capsys):
        found = run(capsys, "ledger", "show", parts, "--delta", "1e-9")
        assert found["spent"]["epsilon"] == pytest.approx(0.625)
        assert found["num_partitions"] == 2
        assert found["budgets"]["ads"] == {
            "cap": {"type": "PureDP", "epsilon": 0.75},
            "spent": pytest.approx(0.5),
            "limit": 0.75,
            "unit": "epsilon",
        }
        assert main(["ledger", "show", str(parts)]) == 0
        text = capsys.readouterr().out
        assert "(the most that a record of 2 partitions spent)" in text
        assert "team   ads: PureDP(epsilon=0.75), epsilon=0.25 of 0.75 is left" in text

    def test_exports_the_labels(self, parts, capsys):
        rows = run(capsys, "ledger", "export", parts)["charges"]
        labels = [(row["partition"], row["budget"]) for row in rows]
        assert labels == [("", ""), ("north", ""), ("south", "ads")]
        assert main(["ledger", "export", str(parts), "--format", "csv"]) == 0
        [first, *_] = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert first["partition"] == first["budget"] == ""

    def test_a_page(self, parts, tmp_path, capsys):
        output = tmp_path / "ledger.html"
        assert main(["ledger", "html", str(parts), "--output", str(output)]) == 0
        assert capsys.readouterr().out == f"wrote {output}\n"
        assert "ads: PureDP(epsilon=0.75)" in output.read_text("utf-8")

    def test_it_names_the_ledger_as_certificates_do(self, parts, capsys):
        found = run(capsys, "ledger", "verify", parts)
        ledger = Ledger(parts)
        assert found["name"] == Certificate.from_ledger(ledger).head.ledger
        assert main(["ledger", "verify", str(parts)]) == 0
        text = capsys.readouterr().out
        assert found["name"] in text
        assert ledger.id not in text


@pytest.mark.parametrize("action", ["show", "verify", "export"])
def test_no_command_creates_a_ledger_on_a_server(action, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(PostgresStore, "exists", lambda url: bool(asked.append(url)))
    url = "postgresql://db.example/privacy?ledger=none"
    assert main(["ledger", action, url]) == 2
    assert asked == [url]
    assert "There is no ledger" in capsys.readouterr().err


class TestVerify:
    def test_a_valid_ledger(self, file, capsys):
        found = run(capsys, "ledger", "verify", file)
        assert found["valid"] is True
        assert found["digest"] == Ledger(file).digest

    @pytest.mark.parametrize(
        "edit",
        [
            "UPDATE rows SET text = replace(text, '20.0', '90.0') WHERE id = 1",
            "DELETE FROM rows WHERE id = 1",
            "UPDATE rows SET digest = 'x' WHERE id = 2",
            "UPDATE header SET text = replace(text, '1.0', '9.0')",
        ],
    )
    def test_edited_rows_are_found(self, file, capsys, edit):
        with sqlite3.connect(file) as connection:
            for name in ("rows_UPDATE", "rows_DELETE", "header_UPDATE"):
                connection.execute(f"DROP TRIGGER {name}")
            assert connection.execute(edit).rowcount == 1
        connection.close()
        assert main(["ledger", "verify", str(file)]) == 1
        assert capsys.readouterr().err.startswith("botorch-dp: ")

    def test_a_noted_digest(self, file, tmp_path, capsys):
        copy = tmp_path / "copy.sqlite"
        shutil.copy(file, copy)
        earlier = Ledger(file).digest
        Ledger(file).charge(GaussianEvent(20.0))
        latest = Ledger(file).digest
        for digest in (earlier, latest, latest.upper()):
            assert main(["ledger", "verify", str(file), "--digest", digest]) == 0
        assert main(["ledger", "verify", str(copy), "--digest", earlier]) == 0
        capsys.readouterr()
        # The copy is valid by itself, but older than what was noted.
        assert main(["ledger", "verify", str(copy), "--digest", latest]) == 1
        assert capsys.readouterr().out.startswith("NOT VALID")
        assert main(["ledger", "verify", str(copy), "--digest", latest, "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["valid"] is False


class TestExport:
    def test_json_lines(self, file, capsys):
        assert main(["ledger", "export", str(file)]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["number"] for row in rows] == [1, 2]
        assert rows[0]["event"] == GaussianEvent(20.0).to_dict()
        assert (rows[0]["count"], rows[0]["run"]) == (3, "one, two")
        assert rows[1]["condition"] == "a\ncondition"
        assert run(capsys, "ledger", "export", file) == {"charges": rows}

    def test_csv(self, file, capsys):
        assert main(["ledger", "export", str(file), "--format", "csv"]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out, newline="")))
        assert [row["number"] for row in rows] == ["1", "2"]
        assert rows[0]["run"] == "one, two"
        assert json.loads(rows[0]["event"]) == GaussianEvent(20.0).to_dict()
        assert rows[1]["condition"] == "a\ncondition"


class TestPlot:
    @pytest.mark.parametrize(
        ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<")]
    )
    def test_a_picture(self, file, tmp_path, name, start):
        pytest.importorskip("matplotlib")
        output = tmp_path / name
        assert main(["ledger", "plot", str(file), "--output", str(output)]) == 0
        assert output.read_bytes().startswith(start)

    def test_another_ending(self, file, tmp_path, capsys):
        output = tmp_path / "a.txt"
        assert main(["ledger", "plot", str(file), "--output", str(output)]) == 2
        assert "--output must end in .png" in capsys.readouterr().err
        assert not output.exists()

    def test_without_the_extra(self, file, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert main(["ledger", "plot", str(file)]) == 2
        assert "botorch-dp[plots]" in capsys.readouterr().err
