"""What pyproject.toml declares, the oldest versions, and the workflow files."""

import ast
import importlib.util
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

import botorch_dp

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[\w+\])?>=([\d.]+)")


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(*extras):
    """Return the lower bounds of the core and of some extras."""
    listed = [*PROJECT["dependencies"], *(r for extra in extras for r in EXTRAS[extra])]
    return {normalized((m := REQUIREMENT.match(r))[1]): m[2] for r in listed}


def third_party_imports(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # never imported
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "botorch_dp":
                # Namespaces such as google belong to many distributions.
                yield "protobuf" if name.startswith("google.protobuf") else top


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("integrations/flower", ["federated"]),
        ("integrations/optuna", ["optuna"]),
        ("integrations/sklearn", ["sklearn"]),
        ("plots", ["plots"]),
        ("problems", ["sklearn"]),
        ("", []),
    ],
)
def test_everything_imported_is_declared(folder, extras):
    package = ROOT / "botorch_dp"
    special = [package / f for f in ("integrations", "plots", "problems")]
    imported = set()
    for path in sorted((package / folder).rglob("*.py")):
        if folder or not any(path.is_relative_to(other) for other in special):
            imported |= set(third_party_imports(path))
    assert imported
    distributions = packages_distributions()
    declared = requirements(*extras)
    for name in imported:
        owners = {normalized(owner) for owner in distributions.get(name, [name])}
        assert owners & set(declared), f"{name} in botorch_dp/{folder}"


def test_the_oldest_versions_are_those_declared():
    lines = (ROOT / "constraints-minimum.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    makefile = (ROOT / "Makefile").read_text()
    extras = re.search(r"MINIMUM_TORCH.*\n.*\[(.+)\]", makefile)[1].split(",")
    declared = requirements(*extras)
    pinned["torch"] = re.search(r"^MINIMUM_TORCH \?= (.+)$", makefile, re.M)[1]
    assert {normalized(name) for name in pinned} == set(declared)
    for name, exact in pinned.items():
        parts, exact_parts = declared[normalized(name)].split("."), exact.split(".")
        # 2.6 allows 2.6.0: missing parts are zeros.
        assert exact_parts == parts + ["0"] * (len(exact_parts) - len(parts)), name


def test_versions():
    assert botorch_dp.__version__ == version("botorch-dp")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {PROJECT['version']}\n" in changelog


def test_workflows_call_make():
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    paths = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert paths
    for path in paths:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            commands = [step["run"] for step in job["steps"] if "run" in step]
            assert commands
            for command in commands:
                words = command.split()
                assert words[:2] == ["bash", ".ci/run"] or (
                    words[0] == "make" and words[1] in targets
                )


def description(url):
    """Return what package indexes show."""
    spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.description((ROOT / "README.md").read_text(), url)


LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_links_of_the_description_are_absolute():
    pytest.importorskip("setuptools")
    url = "https://example.org/botorch_dp/blob/v1"
    relative = LINK.findall((ROOT / "README.md").read_text())
    found = LINK.findall(description(f"{url}/"))
    assert len(found) == len(relative) > 20
    assert all(target.startswith("https://") for target in found)
    assert f"{url}/docs/choosing.md" in found
    assert f"{url}/docs/demo.png?raw=true" in found


def test_without_an_address_they_are_plain_text():
    pytest.importorskip("setuptools")
    text = description("")
    assert all(target.startswith("https://") for target in LINK.findall(text))
    assert "docs/demo.png" not in text
    assert "the command line" in text
