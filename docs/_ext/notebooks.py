"""Show the notebooks as pages with their stored outputs, and a gallery of pictures.

The notebooks are not executed here: ``make tutorials`` does that.
"""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[2] / "tutorials"
# In the order in which a reader may want them; others follow by name.
ORDER = (
    "private_search",
    "hospital",
    "train_and_tune",
    "dp_gibo_quickstart",
    "privacy_utility",
    "private_release",
    "auditing",
    "gradient_information",
    "streaming_ldp",
    "federated",
)


@dataclass(frozen=True)
class Picture:
    """A picture among the outputs of a notebook.

    Attributes:
        file: The name of its file.
        title: The heading above it in the notebook.
        data: The picture, as PNG.
    """

    file: str
    title: str
    data: bytes


@dataclass(frozen=True)
class Notebook:
    """A notebook and what the site shows of it.

    Attributes:
        name: The name of its folder.
        title: The title.
        learned: The sentence that begins with "You will learn".
        text: The notebook, in JSON.
        pictures: The pictures among its outputs, in order.
    """

    name: str
    title: str
    learned: str
    text: str
    pictures: tuple[Picture, ...]

    @classmethod
    def read(cls, path: Path) -> "Notebook":
        """Read a notebook."""
        text = path.read_text(encoding="utf-8")
        cells = json.loads(text)["cells"]
        title, _, rest = _source(cells[0]).removeprefix("# ").partition("\n")
        paragraphs = [" ".join(one.split()) for one in rest.split("\n\n")]
        (learned,) = [one for one in paragraphs if one.startswith("You will learn")][:1]
        title = title.strip()
        pictures = tuple(_pictures(path.stem, title, cells))
        return cls(path.stem, title, learned, text, pictures)


def read_all() -> list[Notebook]:
    """Return all notebooks, in the order in which the site lists them."""
    found = [Notebook.read(path) for path in sorted(TUTORIALS.glob("*/*.ipynb"))]
    return sorted(
        found,
        key=lambda one: ORDER.index(one.name) if one.name in ORDER else len(ORDER),
    )


def cards(notebooks: list[Notebook]) -> str:
    """Return a card for each notebook, with its last picture, and the toctree."""
    parts = ["::::{grid} 1 1 2 2", ":gutter: 3", ""]
    for one in notebooks:
        parts += [f":::{{grid-item-card}} {one.title}"]
        parts += [f":link: generated/tutorials/{one.name}", ":link-type: doc"]
        if one.pictures:
            parts += [f":img-top: generated/pictures/{one.pictures[-1].file}"]
            parts += [f":img-alt: {one.pictures[-1].title}"]
        parts += ["", one.learned, ":::", ""]
    parts += ["::::", "", "```{toctree}", ":hidden:", ":maxdepth: 1", ""]
    parts += [f"generated/tutorials/{one.name}" for one in notebooks]
    return "\n".join([*parts, "```", ""])


def gallery(notebooks: list[Notebook], others: dict[str, tuple[str, str]]) -> str:
    """Return a card for each picture, which leads to its page.

    Args:
        notebooks: The notebooks whose pictures are shown.
        others: Titles and pages of further pictures, by their paths.
    """
    parts = ["::::{grid} 1 2 2 3", ":gutter: 3", ""]
    for path, (title, page) in others.items():
        parts += _card(title, page, path)
    for one in notebooks:
        for picture in one.pictures:
            page = f"generated/tutorials/{one.name}"
            title = f"{one.title}: {picture.title}"
            title = one.title if picture.title == one.title else title
            parts += _card(title, page, f"generated/pictures/{picture.file}")
    return "\n".join([*parts, "::::", ""])


def _card(title: str, page: str, picture: str) -> list[str]:
    """Return a card with a picture and its title below it."""
    parts = [":::{grid-item-card}", f":link: {page}", ":link-type: doc"]
    return [*parts, f":img-top: {picture}", f":img-alt: {title}", "", title, ":::", ""]


def _pictures(name: str, title: str, cells: list[dict[str, Any]]) -> Iterator[Picture]:
    number = 0
    for cell in cells:
        if cell["cell_type"] == "markdown":
            headings = re.findall(r"^#+ (.+)$", _source(cell), flags=re.MULTILINE)
            title = headings[-1].strip() if headings else title
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                data = base64.b64decode("".join(output["data"]["image/png"]))
                yield Picture(f"{name}_{number}.png", title, data)
                number += 1


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])
