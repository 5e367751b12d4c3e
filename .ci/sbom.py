"""Write a software bill of materials: ``python .ci/sbom.py > build/sbom.json``.

CycloneDX 1.6, in JSON. Versions come from constraints.txt. Licences and dependencies
come from the metadata of installed packages, if the installed version is the locked
one. The same lock gives the same file, apart from the time (SOURCE_DATE_EPOCH sets it).
"""

import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/schema/bom-1.6")
# A classifier ends with the name of the licence.
_CLASSIFIER = "License :: "
_LONGEST_NAME = 100


def normalized(name: str) -> str:
    """Return the name of a package as package URLs spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, str]:
    """Return the version of each package in a lock file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {normalized(name): version.strip() for name, version in pairs}


def bill(versions: dict[str, str], project: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of materials.

    Args:
        versions: The version of each locked package.
        project: The table ``project`` of pyproject.toml.
    """
    extras = project["optional-dependencies"].values()
    required = [*project["dependencies"], *(line for extra in extras for line in extra)]
    root = _component(project["name"], project["version"])
    root["licenses"] = [{"expression": project["license"]}]
    components, dependencies = [], [_depends(root, required, versions)]
    for name, version in sorted(versions.items()):
        component = _component(name, version)
        found = _installed(name, version)
        if found is None:
            print(f"{name} {version} is not installed: no licence", file=sys.stderr)
        elif licenses := _licenses(found):
            component["licenses"] = licenses
        components.append(component)
        needs = [] if found is None else found.requires or []
        dependencies.append(_depends(component, needs, versions))
    body = {"components": [root, *components], "dependencies": dependencies}
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH", datetime.now(UTC).timestamp()))
    serial = uuid.uuid5(_NAMESPACE, json.dumps(body, sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(
                timespec="seconds"
            ),
            "component": root,
        },
        "components": components,
        "dependencies": dependencies,
    }


def _component(name: str, version: str) -> dict[str, Any]:
    # A local label such as +cpu is part of the version, escaped in the URL.
    url = f"pkg:pypi/{normalized(name)}@{version.replace('+', '%2B')}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
    }


def _installed(name: str, version: str) -> Distribution | None:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    return found if found.version.partition("+")[0] == version else None


def _licenses(found: Distribution) -> list[dict[str, Any]]:
    fields = found.metadata
    if expression := fields.get("License-Expression"):
        return [{"expression": expression}]
    names = [
        line.rpartition(" :: ")[2]
        for line in fields.get_all("Classifier") or []
        if line.startswith(_CLASSIFIER) and line != f"{_CLASSIFIER}OSI Approved"
    ]
    text = (fields.get("License") or "").strip()
    if not names and text and "\n" not in text and len(text) <= _LONGEST_NAME:
        names = [text]
    return [{"license": {"name": name}} for name in sorted(set(names))]


def _depends(
    component: dict[str, Any], required: Iterable[str], versions: dict[str, str]
) -> dict[str, Any]:
    needs = set()
    for line in required:
        requirement = Requirement(line)
        name = normalized(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate(
            {"extra": ""}
        )
        if wanted and name in versions:
            needs.add(_component(name, versions[name])["bom-ref"])
    return {"ref": component["bom-ref"], "dependsOn": sorted(needs)}


def main() -> None:
    """Print the bill of materials of this repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = locked((ROOT / "constraints.txt").read_text("utf-8"))
    print(json.dumps(bill(versions, project), indent=2))


if __name__ == "__main__":
    main()
