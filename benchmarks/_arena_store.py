"""Results of the arena on disk: read, write, and add seeds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Found = dict[str, dict[str, dict[str, Any]]]


def load(path: Path) -> Found:
    """Return the results so far."""
    return json.loads(path.read_text()) if path.exists() else {}


def save(results: Mapping[str, Any], path: Path) -> None:
    """Write the results, a line for each method in a cell."""
    cells = []
    for name, cell in results.items():
        lines = [f"    {json.dumps(key)}: {json.dumps(cell[key])}" for key in cell]
        cells.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    temporary = path.with_suffix(".tmp")
    temporary.write_text("{\n" + ",\n".join(cells) + "\n}\n")
    temporary.replace(path)


def merge(results: Found, new: Found, key: str = "regret") -> None:
    """Append the values of further seeds, and update the mean times.

    Args:
        results: The results so far, which are changed.
        new: Results of further seeds, with one time for each.
        key: The name of the values.
    """
    for name, cell in new.items():
        for method, entry in cell.items():
            known = results.setdefault(name, {}).setdefault(
                method, {key: [], "seconds": 0.0}
            )
            before, added = len(known[key]), len(entry[key])
            seconds = known["seconds"] * before + sum(entry["seconds"])
            known[key] += entry[key]
            known["seconds"] = round(seconds / (before + added), 4)
