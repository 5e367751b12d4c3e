"""The commands that read a certificate."""

import json
import webbrowser

import pytest

from botorch_dp import Certificate, Ledger, PureDP
from botorch_dp.cli import main
from botorch_dp.privacy import GaussianEvent, PureEvent


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.charge(GaussianEvent(2.0), mechanism="gradient")
    return ledger


@pytest.fixture
def certificate(ledger):
    return Certificate.from_ledger(ledger)


@pytest.fixture
def file(certificate, tmp_path):
    file = tmp_path / "certificate.json"
    file.write_text(certificate.to_json(), encoding="utf-8")
    return str(file)


def alter(file, *, digest=False, **values):
    """Edit a certificate, and write a new digest if that is wanted."""
    with open(file, encoding="utf-8") as stream:
        text = json.dumps({**json.load(stream), **values})
    if digest:
        text = Certificate.from_json(text, check_digest=False).to_json()
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text)


class TestShow:
    def test_what_it_says(self, certificate, file, capsys):
        assert main(["certificate", "show", file]) == 0
        assert capsys.readouterr().out == f"{certificate}\n"
        assert main(["certificate", "show", file, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == json.loads(certificate.to_json())

    @pytest.mark.parametrize("content", [None, b"{}", b"no JSON", b"\xff\xfe"])
    def test_what_is_no_certificate(self, content, tmp_path, capsys):
        file = tmp_path / "other"
        if content is not None:
            file.write_bytes(content)
        assert main(["certificate", "show", str(file)]) == 2
        text = capsys.readouterr()
        assert text.out == ""
        assert text.err.count("\n") == 1

    @pytest.mark.parametrize("action", ["show", "html"])
    def test_an_altered_one(self, file, capsys, action, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        alter(file, num_releases=7)
        assert main(["certificate", action, file]) == 1
        assert "was altered after the certificate was written" in (
            capsys.readouterr().err
        )
        assert not (tmp_path / "report.html").exists()

    @pytest.mark.parametrize("action", ["show", "verify", "html"])
    def test_one_of_version_one(self, file, capsys, action):
        alter(file, certificate=1)
        assert main(["certificate", action, file]) == 1
        assert "version 1, which has no digest" in capsys.readouterr().err


class TestVerify:
    def test_all_is_well(self, file, ledger, capsys):
        arguments = ["certificate", "verify", file, "--ledger", ledger.path]
        assert main(arguments) == 0
        assert capsys.readouterr().out.startswith("The certificate is verified.\n")
        assert main([*arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["verified"]
        assert found["findings"] == []
        assert len(found["checked"]) == 1

    def test_an_altered_file(self, file, ledger, capsys):
        alter(file, num_releases=7)
        assert main(["certificate", "verify", file, "--ledger", ledger.path]) == 1
        text = capsys.readouterr().out
        assert text.startswith("NOT verified.")
        assert "does not match its own digest" in text

    def test_a_removed_digest(self, file, ledger, capsys):
        alter(file, num_releases=7)
        with open(file, encoding="utf-8") as stream:
            state = {**json.load(stream), "digest": None}
        with open(file, "w", encoding="utf-8") as stream:
            json.dump(state, stream)
        assert main(["certificate", "verify", file, "--ledger", ledger.path]) == 1
        assert "its digest is None" in capsys.readouterr().err

    def test_an_altered_number(self, file, ledger, capsys):
        alter(file, num_releases=7, digest=True)
        arguments = ["certificate", "verify", file, "--ledger", ledger.path]
        assert main([*arguments, "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert not found["verified"]
        assert "num_releases is 7 in the certificate" in found["findings"][0]

    def test_later_charges(self, file, ledger, capsys):
        arguments = ["certificate", "verify", file, "--ledger", ledger.path]
        assert main([*arguments, "--current"]) == 0
        ledger.charge(GaussianEvent(2.0))
        assert main(arguments) == 0
        assert "note     The ledger has had 1 more charge(s)" in capsys.readouterr().out
        assert main([*arguments, "--current"]) == 1
        assert "wrong    The ledger has had 1 more" in capsys.readouterr().out

    def test_another_ledger(self, file, tmp_path, capsys):
        other = Ledger(tmp_path / "other.sqlite")
        other.charge(GaussianEvent(2.0))
        assert main(["certificate", "verify", file, "--ledger", other.path]) == 1
        assert "This is another ledger" in capsys.readouterr().out

    def test_a_ledger_that_is_not_there(self, file, tmp_path, capsys):
        missing = tmp_path / "none"
        assert main(["certificate", "verify", file, "--ledger", str(missing)]) == 2
        assert "There is no ledger" in capsys.readouterr().err
        assert not missing.exists()

    def test_nothing_to_check_against(self, file, capsys):
        assert main(["certificate", "verify", file]) == 1
        text = capsys.readouterr().out
        assert "Nothing was checked" in text
        assert "Give --ledger, --public-key or both." in text

    def test_of_a_partition(self, tmp_path, capsys):
        ledger = Ledger(tmp_path / "parts.sqlite", cap=PureDP(1.0))
        ledger.partition("north").charge(PureEvent(0.5))
        ledger.partition("south").charge(PureEvent(0.25))
        file = tmp_path / "north.json"
        certificate = Certificate.from_ledger(ledger.partition("north"))
        file.write_text(certificate.to_json(), encoding="utf-8")
        arguments = ["certificate", "verify", str(file), "--ledger", ledger.path]
        assert main(arguments) == 0
        assert "'north'" in capsys.readouterr().out
        alter(file, partition="south", digest=True)
        assert main(arguments) == 1


class TestHTML:
    def test_a_page(self, file, ledger, tmp_path, capsys):
        output = tmp_path / "page.html"
        arguments = ["certificate", "html", file, "--output", str(output)]
        assert main(arguments) == 0
        assert capsys.readouterr().out == f"wrote {output}\n"
        assert "Budget over time" not in output.read_text("utf-8")
        assert main([*arguments, "--ledger", ledger.path]) == 0
        page = output.read_text("utf-8")
        assert "Budget over time" in page
        assert "agrees with the ledger" in page

    def test_a_page_of_what_does_not_verify(self, file, tmp_path, capsys):
        other = Ledger(tmp_path / "other.sqlite")
        other.charge(GaussianEvent(2.0), mechanism="not of this one")
        output = tmp_path / "page.html"
        arguments = ["certificate", "html", file, "--output", str(output)]
        assert main([*arguments, "--ledger", other.path]) == 1
        assert "wrong    This is another ledger" in capsys.readouterr().out
        page = output.read_text("utf-8")
        assert "class='bad verdict'" in page
        assert "not of this one" not in page

    @pytest.mark.parametrize("found", [True, False])
    def test_opened(self, file, tmp_path, capsys, monkeypatch, found):
        opened = []
        monkeypatch.setattr(
            webbrowser, "open", lambda u: bool(opened.append(u)) | found
        )
        output = tmp_path / "page.html"
        arguments = ["certificate", "html", file, "--output", str(output), "--open"]
        assert main(arguments) == 0
        assert opened == [output.resolve().as_uri()]
        assert ("found no browser" in capsys.readouterr().out) != found


class TestSign:
    def test_a_signature(self, file, ledger, tmp_path, capsys):
        pytest.importorskip("cryptography")
        key, signed = str(tmp_path / "officer.key"), str(tmp_path / "signed.json")
        assert main(["certificate", "create-key", key]) == 0
        assert "keep it secret" in capsys.readouterr().out
        arguments = ["certificate", "sign", file, "--ledger", ledger.path]
        assert main([*arguments, "--key", key, "--output", signed]) == 0
        check = ["certificate", "verify", signed, "--public-key", f"{key}.pub"]
        assert main(check) == 0
        alter(signed, created="2020-01-01", digest=True)
        assert main(check) == 1
        assert "signature is not that" in capsys.readouterr().out

    def test_what_counts_all_charges(self, file, ledger, tmp_path, capsys):
        pytest.importorskip("cryptography")
        key, signed = tmp_path / "officer.key", tmp_path / "signed.json"
        assert main(["certificate", "create-key", str(key)]) == 0
        ledger.charge(GaussianEvent(2.0))
        arguments = ["certificate", "sign", file, "--ledger", ledger.path]
        arguments += ["--key", str(key), "--output", str(signed)]
        assert main(arguments) == 1
        assert "1 more charge(s) since" in capsys.readouterr().err
        assert not signed.exists()
        assert main([*arguments, "--outdated"]) == 0
        text = capsys.readouterr().out
        assert "note: The ledger has had 1 more charge(s) since" in text
        assert "not signed" not in text

    def test_only_what_agrees_with_its_ledger(self, file, ledger, tmp_path, capsys):
        pytest.importorskip("cryptography")
        key, signed = tmp_path / "officer.key", tmp_path / "signed.json"
        assert main(["certificate", "create-key", str(key)]) == 0
        alter(file, num_releases=7, digest=True)
        arguments = ["certificate", "sign", file, "--ledger", ledger.path]
        assert main([*arguments, "--key", str(key), "--output", str(signed)]) == 1
        assert "num_releases is 7" in capsys.readouterr().err
        assert not signed.exists()
