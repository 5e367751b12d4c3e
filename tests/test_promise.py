"""The privacy promise: every mechanism has a proof, and every proof is listed."""

import inspect
import re
from pathlib import Path

import pytest

from botorch_dp.privacy import mechanisms

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
THEORY = sorted(
    path
    for path in (ROOT / "docs" / "theory").glob("*.md")
    if path.stem != "index"  # a table of contents
)
STATUSES = {"cited", "proven here", "measured"}


def rows():
    """Return what is released, the claim, its status and where, row by row."""
    section = PAGE.partition("\n## Proofs\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[2] not in ("status", "---")]


def mechanisms_that_release():
    return [
        name
        for name in mechanisms.__all__
        if inspect.isclass(getattr(mechanisms, name))
        and not inspect.isabstract(getattr(mechanisms, name))
    ]


def test_there_are_mechanisms():
    assert {"GaussianMechanism", "LaplaceMechanism"} <= set(mechanisms_that_release())
    assert "Mechanism" not in mechanisms_that_release()


@pytest.mark.parametrize("name", mechanisms_that_release())
def test_every_mechanism_has_a_proof(name):
    assert any(row[0].startswith(f"`{name}`") for row in rows()), name


def test_every_row_has_a_claim_a_status_and_a_place():
    assert len(rows()) > 15
    for row in rows():
        assert len(row) == 4
        assert all(row), row
        assert set(row[2].split(", ")) <= STATUSES, row
        if "proven here" in row[2]:
            pages = re.findall(r"\]\((theory/\w+\.md)\)", row[3])
            modules = re.findall(r"`([\w/]+\.py)`", row[3])
            assert pages or modules, row
            for place in (*pages, *modules):
                folder = "docs" if place in pages else "botorch_dp"
                assert (ROOT / folder / place).exists(), place


@pytest.mark.parametrize("page", THEORY, ids=lambda page: page.stem)
def test_every_theory_page_is_listed(page):
    section = PAGE.partition("\n## Proofs\n")[2].partition("\n## ")[0]
    assert f"](theory/{page.name})" in section


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/releasing.md"])
def test_links_and_headings_exist(name):
    folder = (ROOT / name).parent
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", (ROOT / name).read_text("utf-8"))
    assert links
    for target, heading in links:
        text = (folder / target).read_text("utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.M)
        slugs = {
            re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings
        }
        assert not heading or heading in slugs, (target, heading)


def test_nobody_is_asked_to_write_to_an_address_that_does_not_exist():
    assert "@" not in (ROOT / "SECURITY.md").read_text("utf-8")
