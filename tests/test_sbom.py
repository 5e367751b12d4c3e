"""The bill of materials: its structure, and that it forgets nothing."""

import importlib.util
import json
import re
import tomllib
import uuid
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("packaging")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SPEC = importlib.util.spec_from_file_location("sbom", ROOT / ".ci" / "sbom.py")
sbom = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sbom)


@pytest.fixture(scope="module")
def bill():
    versions = sbom.locked((ROOT / "constraints.txt").read_text())
    return sbom.bill(versions, PROJECT)


def test_the_lock():
    text = "# a comment\nTorch==2.13.0\nruamel.yaml_clib==1.0 # why\n\n"
    assert sbom.locked(text) == {"torch": "2.13.0", "ruamel-yaml-clib": "1.0"}


def test_the_header(bill):
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["specVersion"] == "1.6"
    assert bill["version"] == 1
    assert uuid.UUID(bill["serialNumber"].removeprefix("urn:uuid:"))
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("botorch-dp", PROJECT["version"])
    assert root["licenses"] == [{"expression": "MIT"}]
    assert re.fullmatch(r"[\dT:-]+\+00:00", bill["metadata"]["timestamp"])


def test_every_locked_package_is_a_component_once(bill):
    locked = sbom.locked((ROOT / "constraints.txt").read_text())
    components = {one["name"]: one for one in bill["components"]}
    assert len(components) == len(bill["components"]) == len(locked)
    for name, exact in locked.items():
        component = components[name]
        assert component["type"] == "library"
        assert component["version"] == exact
        assert component["purl"] == component["bom-ref"] == f"pkg:pypi/{name}@{exact}"


def test_licences_have_one_of_the_two_forms(bill):
    licensed = 0
    for component in bill["components"]:
        licenses = component.get("licenses", [])
        licensed += bool(licenses)
        if any("expression" in one for one in licenses):
            assert len(licenses) == 1
        else:
            assert all(one["license"]["name"] for one in licenses)
    if version("numpy") == sbom.locked((ROOT / "constraints.txt").read_text())["numpy"]:
        assert licensed > 0.9 * len(bill["components"])


def test_dependencies_are_components(bill):
    refs = {one["bom-ref"] for one in bill["components"]}
    refs.add(bill["metadata"]["component"]["bom-ref"])
    listed = [one["ref"] for one in bill["dependencies"]]
    assert sorted(listed) == sorted(refs)
    for one in bill["dependencies"]:
        assert set(one["dependsOn"]) <= refs
    direct = {ref.partition("@")[0] for ref in bill["dependencies"][0]["dependsOn"]}
    assert {"pkg:pypi/torch", "pkg:pypi/botorch", "pkg:pypi/optuna"} <= direct


def test_another_version_than_the_locked_one_has_no_licence(capsys):
    found = sbom.bill({"numpy": "0.0.1", "not-there": "1.0"}, PROJECT)
    assert all("licenses" not in one for one in found["components"])
    assert "numpy 0.0.1 is not installed" in capsys.readouterr().err


def test_the_same_lock_gives_the_same_file(bill, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    versions = sbom.locked((ROOT / "constraints.txt").read_text())
    first, second = (json.dumps(sbom.bill(versions, PROJECT)) for _ in range(2))
    assert first == second
    assert json.loads(first)["serialNumber"] == bill["serialNumber"]
    assert json.loads(first)["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"
