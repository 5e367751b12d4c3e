"""Rewrite docstrings for Sphinx: reference lists as plain lists, names in full.

Modules that cite the same paper each list it, with the theorem that they use. To Sphinx
these would be definitions of one citation, many times over.
"""

import re
from typing import Any

_DEFINITION = re.compile(r"^(\s*)\.\. \[(\w+)\] ")
_ENDS_IN_UNDERSCORE = re.compile(r"^(\s+\w+)_: ")
_CITATION = re.compile(r"\[([A-Za-z]\w*\d{4}\w*)\]_")


def plain_citations(lines: list[str]) -> list[str]:
    """Return a docstring's lines with references as a list and citations as text."""
    plain, indent = [], None
    for line in lines:
        defined = _DEFINITION.match(line)
        if defined:
            indent = len(defined[1])
            if plain and plain[-1].strip() and plain[-1].strip() != "References:":
                plain.append("")
            line = f"{defined[1]}* [{defined[2]}] {line[defined.end() :]}"
        elif indent is not None and line.strip():
            depth = len(line) - len(line.lstrip())
            if depth > indent:
                line = " " * (indent + 2) + line.lstrip()
            else:
                indent = None
        plain.append(_CITATION.sub(r"[\1]", line))
    return plain


def whole_names(lines: list[str]) -> list[str]:
    """Escape names that end in an underscore, which are not references."""
    return [_ENDS_IN_UNDERSCORE.sub(r"\1\\_: ", line) for line in lines]


def process(
    app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Rewrite a docstring in place: a handler of ``autodoc-process-docstring``."""
    lines[:] = whole_names(plain_citations(lines))
    if what in ("attribute", "property"):
        # An empty comment: otherwise Napoleon reads the text before a colon as a type.
        lines[:0] = ["..", ""]
