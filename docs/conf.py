"""Sphinx configuration. Build with ``make docs``; no network is needed to build."""

import re
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
import notebooks  # noqa: E402
import papers  # noqa: E402

project = "botorch_dp"
author = "The botorch_dp developers"
copyright = f"2026, {author}"
release = version = installed("botorch-dp")

extensions = [
    "mathml",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
html_theme = "pydata_sphinx_theme"
html_title = "botorch_dp"
html_theme_options = {
    "collapse_navigation": True,
    "footer_end": [],
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navigation_depth": 2,
    "show_nav_level": 1,
    "show_prev_next": True,
}
html_sidebars = {"index": [], "gallery": []}
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_extra_path = ["generated/extra"]  # pages that are no part of the site's tree
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
exclude_patterns: list[str] = []
nb_execution_mode = "off"  # the outputs are stored; `make tutorials` runs the notebooks
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
# Types stand beside the explanation of a parameter, not in the signature.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

GENERATED = DOCS / "generated"
(GENERATED / "extra").mkdir(parents=True, exist_ok=True)
# Pictures of the gallery that are not from a notebook: their titles and pages.
PICTURES = {
    "gradient_posterior.png": ("Gradients of a SingleTaskGP", "from_botorch"),
    "demo.png": ("The demo: nine hyperparameters, tuned privately", "quickstart"),
    "generated/benchmarks/arena.png": (
        "The arena: regret by the size of the data and the budget",
        "generated/benchmarks/arena",
    ),
    "generated/benchmarks/selection.png": (
        "Private selection of training runs",
        "generated/benchmarks/selection",
    ),
}


def write_pages(app: Any) -> None:
    """Write the pages that come from code and measurements, before they are read."""
    tutorials = notebooks.read_all()
    texts = {
        **{f"api/{name}": text for name, text in api_pages.pages()},
        **{f"benchmarks/{name}": text for name, text in benchmark_pages.pages()},
        **dict(computed.pages()),
        **dict(papers.pages()),
        **{f"tutorials/{one.name}.ipynb": one.text for one in tutorials},
        "tutorials.inc": notebooks.cards(tutorials),
        "gallery.inc": notebooks.gallery(tutorials, PICTURES),
    }
    pages = {name: text.encode() for name, text in texts.items()}
    for path in benchmark_pages.pictures():
        pages[f"benchmarks/{path.name}"] = path.read_bytes()
    for one in tutorials:
        for picture in one.pictures:
            pages[f"pictures/{picture.file}"] = picture.data
    for old in GENERATED.rglob("*.*"):
        if old.relative_to(GENERATED).as_posix() not in pages:
            old.unlink()
    for name, content in pages.items():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (
            not path.exists() or path.read_bytes() != content
        ):  # else Sphinx reads it anew
            path.write_bytes(content)


def skip_member(
    app: Any, what: str, name: str, obj: object, skip: bool, options: Any
) -> bool | None:
    """Leave out what scikit-learn adds to every class: its metadata requests."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Any) -> None:
    """Connect what runs during a build."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-docstring", citations.process, priority=400)
    app.connect("autodoc-process-bases", api_pages.process_bases)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("missing-reference", cross_references.resolve)
