"""Writes the description of the package, as package indexes show it.

An index has none of the files that README.md links to. If the environment variable
``BOTORCH_DP_URL`` has the address of the repository, such as
``https://example.org/botorch_dp/blob/v0.1.0``, links become absolute. Otherwise their
texts remain. Everything else is in pyproject.toml.
"""

import os
import re
from pathlib import Path

from setuptools import setup

# An image or a link, whose target is neither an address nor a place on the same page.
_LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)\s]+)\)")


def description(readme: str, url: str) -> str:
    """Return the text of a README whose links lead somewhere from everywhere.

    Args:
        readme: The text.
        url: The address of the folder that links are relative to, or an empty string.
    """

    def replaced(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        if url:
            raw = "?raw=true" if image else ""
            return f"{image}[{text}]({url.rstrip('/')}/{target}{raw})"
        return "" if image else text

    return _LINK.sub(replaced, readme)


if __name__ == "__main__":
    setup(
        long_description=description(
            Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
            os.environ.get("BOTORCH_DP_URL", ""),
        ),
        long_description_content_type="text/markdown",
    )
