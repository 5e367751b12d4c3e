"""Sphinx configuration. Build with ``make docs``; no network is needed to build."""

import re
import shutil
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

import api_pages  # noqa: E402
import benchmark_pages  # noqa: E402
import citations  # noqa: E402
import computed  # noqa: E402
import cross_references  # noqa: E402

project = "botorch_dp"
author = "The botorch_dp developers"
copyright = f"2026, {author}"
release = version = installed("botorch-dp")

# The theme of GPyTorch, the docstrings of BoTorch.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "sphinx_rtd_theme"
html_theme_options = {"navigation_depth": 3}
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_sphinx = False
html_copy_source = False
exclude_patterns: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

GENERATED = DOCS / "generated"


def write_pages(app: Any) -> None:
    """Write the pages that come from code and measurements, before they are read."""
    pages = {
        **{f"api/{name}": text for name, text in api_pages.pages()},
        **{f"benchmarks/{name}": text for name, text in benchmark_pages.pages()},
        **dict(computed.pages()),
    }
    pictures = {f"benchmarks/{path.name}": path for path in benchmark_pages.pictures()}
    for old in GENERATED.rglob("*.*"):
        if str(old.relative_to(GENERATED)) not in {*pages, *pictures}:
            old.unlink()
    (GENERATED / "benchmarks").mkdir(parents=True, exist_ok=True)
    for name, path in pictures.items():
        shutil.copyfile(path, GENERATED / name)
    for name, text in pages.items():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:  # else Sphinx reads it anew
            path.write_text(text)


def skip_member(
    app: Any, what: str, name: str, obj: object, skip: bool, options: Any
) -> bool | None:
    """Leave out what scikit-learn adds to every class: its metadata requests."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Any) -> None:
    """Connect what runs during a build."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", citations.process, priority=400)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("missing-reference", cross_references.resolve)
