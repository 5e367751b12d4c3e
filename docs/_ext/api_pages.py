"""Generate the API pages from the names that the packages export.

Names are documented under the package from which users import them, on the page that
``api_groups`` chooses. What no package exports is not part of the API.
"""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import api_groups
import citations

PACKAGE = "botorch_dp"


@cache
def room_names() -> tuple[str, ...]:
    """Return the packages and the modules at the top, by their full names."""
    found = []
    for info in pkgutil.walk_packages(import_module(PACKAGE).__path__, f"{PACKAGE}."):
        is_room = info.ispkg or info.name.count(".") == 1
        if is_room and "._" not in info.name and public_names(import_module(info.name)):
            found.append(info.name)
    return tuple(sorted(found))


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
    place = getattr(getattr(module, name), "__module__", None) or module.__name__
    return place if place.startswith(f"{PACKAGE}.") else module.__name__


@cache
def documented() -> dict[str, tuple[str, ...]]:
    """Return the full names on each page, in the order of its modules.

    A name that two packages export is documented in the outer one.
    """
    places: dict[tuple[str, str], str] = {}
    for room in sorted(room_names(), key=lambda room: room.count(".")):
        module = import_module(room)
        for name in public_names(module):
            places.setdefault((home(module, name), name), room)
    pages: dict[str, list[tuple[int, str, str]]] = {}
    for (module_name, name), room in places.items():
        page, place = api_groups.page_of(module_name.removeprefix(f"{PACKAGE}."))
        entry = (place, module_name, f"{room}.{name}")
        pages.setdefault(page.name, []).append(entry)
    return {
        page: tuple(e[2] for e in sorted(entries)) for page, entries in pages.items()
    }


def value_of(full: str) -> Any:
    """Return the object with a full name."""
    room, _, name = full.rpartition(".")
    return getattr(import_module(room), name)


@cache
def public_classes() -> frozenset[type]:
    """Return all classes that are documented."""
    values = [value_of(full) for names in documented().values() for full in names]
    return frozenset(value for value in values if inspect.isclass(value))


def public_bases(cls: type) -> list[type]:
    """Return the nearest ancestors of a class that users can know.

    Bases of our own that are not public are replaced by theirs.
    """
    found: list[type] = []
    for base in cls.__bases__:
        ours = base.__module__.startswith(f"{PACKAGE}.")
        nearest = (
            public_bases(base) if ours and base not in public_classes() else [base]
        )
        found += [one for one in nearest if one not in found]
    plain = {"object", "ABC", "Protocol", "Generic"}
    return [
        base
        for base in found
        if base.__name__ not in plain
        and not any(base is not one and issubclass(one, base) for one in found)
    ]


def directive(full: str) -> str:
    """Return the directive that documents a name."""
    value = value_of(full)
    if inspect.isclass(value):
        lines = [f".. autoclass:: {full}", "   :members:"]
        ours = [one for one in value.__mro__[1:] if _is_internal(one)]
        if ours:  # what internal bases define is a part of the class
            known = [one for one in value.__mro__[1:] if not _is_internal(one)]
            names = ", ".join(sorted({one.__name__ for one in known}))
            lines.append(f"   :inherited-members: {names}")
        if public_bases(value):
            lines.append("   :show-inheritance:")
        return "\n".join(lines) + "\n"
    if callable(value) and hasattr(value, "__name__"):
        return f".. autofunction:: {full}\n"
    text = f"   :type: {type(value).__name__}\n"
    if isinstance(value, dict):
        text += "\n   Its keys: " + ", ".join(f"``{key}``" for key in value) + ".\n"
    return f".. py:data:: {full}\n{text}"


def process_bases(
    app: Any, name: str, obj: type, options: Any, bases: list[type]
) -> None:
    """Show the public bases of a class: a handler of ``autodoc-process-bases``."""
    bases[:] = public_bases(obj)


def page_text(page: api_groups.Page) -> str:
    """Return a page of the API, in Markdown."""
    names = documented()[page.name]
    parts = [f"# {page.title}", page.text, _table(names)]
    parts += [f"```{{eval-rst}}\n{directive(full)}```" for full in names]
    return "\n\n".join(parts) + "\n"


def index_page() -> str:
    """Return the first page: the groups, and the names that the package exports."""
    top = import_module(PACKAGE)
    parts = ["# API", inspect.getdoc(top) or ""]
    for group, pages in _filled_groups().items():
        parts += [f"## {group}"]
        lines = [f"- [](./{page.name}.md): {page.text}" for page in pages]
        parts += ["\n".join(lines)]
        entries = "\n".join(page.name for page in pages)
        parts += [f"```{{toctree}}\n:hidden:\n:caption: {group}\n\n{entries}\n```"]
    parts += ["## What you import from `botorch_dp` itself"]
    names = sorted(public_names(top), key=str.lower)
    parts += [_table([_full_name(name, getattr(top, name)) for name in names])]
    return "\n\n".join(parts) + "\n"


def pages() -> Iterator[tuple[str, str]]:
    """Return the names of all API pages, and their text."""
    yield "index.md", index_page()
    for group in _filled_groups().values():
        for page in group:
            yield f"{page.name}.md", page_text(page)


def _filled_groups() -> dict[str, list[api_groups.Page]]:
    return {
        group: [page for page in pages if page.name in documented()]
        for group, pages in api_groups.GROUPS.items()
    }


def _is_internal(cls: type) -> bool:
    return cls.__module__.startswith(f"{PACKAGE}.") and cls not in public_classes()


def _full_name(name: str, value: object) -> str:
    for names in documented().values():
        for full in names:
            if full.endswith(f".{name}") and value_of(full) is value:
                return full
    raise LookupError(f"{PACKAGE} exports {name}, but no package in it does.")


def _table(names: list[str] | tuple[str, ...]) -> str:
    """Return a table of names and the first lines of their docstrings."""
    lines = ["| name | what |", "| --- | --- |"]
    for full in names:
        value = value_of(full)
        known = inspect.isclass(value) or inspect.isroutine(value)
        summary = _summary(inspect.getdoc(value) or "") if known else ""
        name = full.rpartition(".")[2]
        lines.append(f"| {{py:obj}}`{name} <{full}>` | {summary} |")
    return "\n".join(lines)


def _summary(docstring: str) -> str:
    """Return the first line of a docstring with its roles and citations in Markdown."""
    line = "".join(citations.plain_citations(docstring.splitlines()[:1]))
    line = re.sub(r":math:`([^`]+)`", r"{math}`\1`", line)
    line = re.sub(r":\w+:`[~.]?([^`]+)`", r"`\1`", line)
    return line.replace("``", "`").replace("|", "\\|")
