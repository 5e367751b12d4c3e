"""Generate the API pages from the names that packages and modules export.

A room (a package, or a module by itself) becomes one page. Its names are grouped by the
module that defines them, whose docstring stands above them, and are documented under
the name by which users import them.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import citations

PACKAGE = "botorch_dp"
# A test fails if a package is missing here.
ROOMS = (
    "privacy",
    "optimizers",
    "models",
    "acquisition",
    "integrations.sklearn",
    "integrations.opacus",
    "integrations.flower",
    "problems",
    "plots",
    "exceptions",
)
# Modules whose names no room exports but that docstrings refer to: formulas, base
# classes, and what is run by name.
BESIDE = {
    "privacy": ("privacy.curves",),
    "optimizers": (
        "optimizers.core.search_box",
        "optimizers.gibo.gradient_descent",
        "optimizers.gibo.bounds",
        "optimizers.release.stable",
        "optimizers.release.adaptive",
        "optimizers.release.scores",
        "optimizers.release.kusner.releases",
        "optimizers.release.kusner.setting",
        "optimizers.release.kusner.sensitivity",
        "optimizers.release.kusner.lipschitz",
        "optimizers.release.kusner.utility",
        "optimizers.release.kusner.information_gain",
        "optimizers.ldp.averaging",
        "optimizers.fts.private_state",
        "optimizers.fts.regions",
        "optimizers.fts.weights",
    ),
    "models": ("models.kernels.closed_forms",),
    "integrations.flower": (
        "integrations.flower.client_app",
        "integrations.flower.server_app",
        "integrations.flower.gateway",
    ),
    "integrations.sklearn": ("integrations.sklearn.refitted",),
    "integrations.opacus": (
        "integrations.opacus.plan",
        "integrations.opacus.steps",
        "integrations.opacus.private_module",
        "integrations.opacus.batches",
        "integrations.opacus.modules",
    ),
}


def room_names() -> tuple[str, ...]:
    """Return all packages, by their full names."""
    base = Path(import_module(PACKAGE).__path__[0])

    def exists(room: str) -> bool:
        path = base / room.replace(".", "/")
        return path.with_suffix(".py").exists() or (path / "__init__.py").exists()

    return tuple(f"{PACKAGE}.{room}" for room in ROOMS if exists(room))


def public_names(module: ModuleType) -> list[str]:
    """Return the names in a module's ``__all__``, or those that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def home(module: ModuleType, name: str) -> str:
    """Return the module that defines a name, or the one that exports it."""
    return getattr(getattr(module, name), "__module__", None) or module.__name__


def directive(module: ModuleType, name: str) -> str:
    """Return the directive that documents an exported name."""
    value = getattr(module, name)
    full = f"{module.__name__}.{name}"
    if inspect.isclass(value):
        return f".. autoclass:: {full}\n   :members:\n   :show-inheritance:\n"
    if callable(value) and hasattr(value, "__name__"):
        return f".. autofunction:: {full}\n"
    kind = type(value).__name__
    text = f"   :type: {kind}\n"
    if isinstance(value, dict):
        text += "\n   Its keys: " + ", ".join(f"``{key}``" for key in value) + ".\n"
    return f".. py:data:: {full}\n{text}"


def room_page(room: str) -> str:
    """Return the page of a room, in reStructuredText."""
    module = import_module(room)
    groups: dict[str, list[str]] = {}
    for name in public_names(module):
        groups.setdefault(home(module, name), []).append(name)
    parts = [_title(room, "="), f".. automodule:: {room}\n   :no-members:\n"]
    for place in sorted(groups):
        if place != room and place.startswith(f"{PACKAGE}."):
            heading = place.removeprefix(f"{PACKAGE}.")
            parts += [_title(heading, "-"), _docstring_of(place)]
        parts += [directive(module, name) for name in groups[place]]
    for place in BESIDE.get(room.removeprefix(f"{PACKAGE}."), ()):
        parts.append(_title(place, "-"))
        parts.append(f".. automodule:: {PACKAGE}.{place}\n   :members:\n")
    return "\n".join(parts)


def index_page() -> str:
    """Return the page of the names that the package itself exports, in Markdown."""
    top = import_module(PACKAGE)
    lines = ["# API", "", inspect.getdoc(top) or "", ""]
    lines += ["What you import from `botorch_dp` itself:", ""]
    lines += ["| name | what |", "| --- | --- |"]
    for name in sorted(public_names(top), key=str.lower):
        value = getattr(top, name)
        room = _room_of(name, value)
        summary = _markdown((inspect.getdoc(value) or "").splitlines()[0])
        lines.append(f"| {{py:obj}}`{name} <{room}.{name}>` | {summary} |")
    lines += ["", "Everything, room by room:", "", "```{toctree}", ":maxdepth: 2", ""]
    lines += [_file_name(room) for room in room_names()]
    return "\n".join([*lines, "```", ""])


def pages() -> Iterator[tuple[str, str]]:
    """Return the names of all API pages, and their text."""
    yield "index.md", index_page()
    for room in room_names():
        yield f"{_file_name(room)}.rst", room_page(room)


def _room_of(name: str, value: object) -> str:
    place = getattr(value, "__module__", "")
    for room in room_names():
        if f"{place}.".startswith(f"{room}.") and name in public_names(
            import_module(room)
        ):
            return room
    raise LookupError(f"{name} of {PACKAGE} is defined in {place}, which is no room.")


def _markdown(line: str) -> str:
    """Return a line of a docstring with its roles and citations in Markdown."""
    line = "".join(citations.plain_citations([line]))
    line = re.sub(r":math:`([^`]+)`", r"{math}`\1`", line)
    line = re.sub(r":\w+:`[~.]?([^`]+)`", r"`\1`", line)
    return line.replace("``", "`").replace("|", "\\|")


def _docstring_of(module: str) -> str:
    return f".. automodule:: {module}\n   :no-members:\n"


def _file_name(room: str) -> str:
    return room.removeprefix(f"{PACKAGE}.").replace(".", "_")


def _title(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"
