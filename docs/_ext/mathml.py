"""Render formulas as MathML, which browsers show without a script or a network.

A formula that the converter does not understand is an error of the build, not a piece
of TeX on the page.
"""

import re
import unicodedata
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import ExtensionError

# What the converter passes on when it does not know it: commands and alignments.
_UNKNOWN = re.compile(r"\\|<m[a-z]+>&</m|\$")
# Browsers know no variant but "normal"; Unicode has letters of their own for the rest.
_VARIANT = re.compile(r'<mi mathvariant="(?!normal)([a-z-]+)">(\w)</mi>')
# A thin space, as in TeX, between the name of a function and an argument without
# parentheses.
_FUNCTION = re.compile(r"(<mi>\w{2,}</mi>)(?=<m(?!o\b|space))")


def mathml(latex: str, *, block: bool = False) -> str:
    """Return a formula in MathML.

    Args:
        latex: The formula in TeX, without dollars around it.
        block: If True, the formula is set on a line of its own.

    Raises:
        ExtensionError: The formula has commands that are not known.

    Example:
        >>> mathml("x^2")[:5]
        '<math'
    """
    try:
        text = convert(latex, display="block" if block else "inline")
    except Exception as error:
        raise ExtensionError(
            f"Cannot convert {latex!r} to MathML: {error!r}"
        ) from error
    if unknown := _UNKNOWN.search(text):
        raise ExtensionError(
            f"Cannot convert {latex!r} to MathML: {text[unknown.start() :][:40]!r} is "
            "not known. Write the formula with other commands."
        )
    text = _VARIANT.sub(_letter, text)
    return _FUNCTION.sub(r'\1<mspace width="0.17em"/>', text)


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Write a formula inside a line."""
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, which scrolls if it is too long."""
    formula = mathml(node.astext(), block=True)
    translator.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def _letter(variant: re.Match[str]) -> str:
    """Return a letter of another alphabet: script, double-struck, bold or fraktur."""
    case = "CAPITAL" if variant[2].isupper() else "SMALL"
    name = f"{variant[1].upper()} {case} {variant[2].upper()}"
    for full in (f"MATHEMATICAL {name}", name.replace("FRAKTUR", "BLACK-LETTER")):
        try:
            return f"<mi>{unicodedata.lookup(full)}</mi>"
        except KeyError:  # some letters had a name before the others got theirs
            continue
    raise ExtensionError(f"Unicode has no letter {name!r}.")


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer; ``html_math_renderer = "mathml"`` selects it."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
