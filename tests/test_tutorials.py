"""The notebooks as they are stored: their form, their outputs and what they import."""

import ast
import json
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parent.parent / "tutorials"
FOLDERS = sorted(
    path
    for path in TUTORIALS.iterdir()
    if path.is_dir() and not path.name.startswith((".", "_"))
)
# What the core and the extras plots, sklearn and tutorials bring (threadpoolctl comes
# with scikit-learn, IPython with Jupyter): a notebook must open with nothing more.
ALLOWED = {
    "IPython",
    "botorch",
    "botorch_dp",
    "gpytorch",
    "matplotlib",
    "numpy",
    "opacus",
    "sklearn",
    "threadpoolctl",
    "torch",
    *sys.stdlib_module_names,
}
# Of our own, what needs another extra.
NOT_ALLOWED = ("botorch_dp.integrations.flower",)
ENDINGS = ("privacy certificate", "NOT PRIVATE")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def source_of(cell):
    return "".join(cell["source"])


def code_of(notebook):
    """Return the cells that were to be executed: all code that is not empty."""
    return [
        cell
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and source_of(cell).strip()
    ]


def text_of(output):
    """Return the text of an output, whether printed or displayed."""
    data = output.get("data", {})
    parts = [output.get("text", ""), data.get("text/plain", ""), data.get("text/html")]
    return "".join("".join(part) for part in parts if part)


def imports_of(cell):
    """Return the full names of all modules that a cell imports."""
    lines = source_of(cell).splitlines()
    plain = "\n".join("" if line.lstrip().startswith("%") else line for line in lines)
    names = []
    for node in ast.walk(ast.parse(plain)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def faults(notebook):
    """Return what is wrong with a notebook, in words; nothing if it is as it should."""
    found = []
    first, code = notebook["cells"][0], code_of(notebook)
    text = source_of(first)
    if first["cell_type"] != "markdown" or "You will learn" not in text:
        found.append("does not begin with what you will learn")
    if not text.startswith("# "):
        found.append("does not begin with a title")
    counts = [cell["execution_count"] for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"was not executed in order: {counts}")
    outputs = [output for cell in code for output in cell["outputs"]]
    if any(output["output_type"] == "error" for output in outputs):
        found.append("has an error in its outputs")
    if any(output.get("name") == "stderr" for output in outputs):
        found.append("has warnings in its outputs")
    ending = "".join(map(text_of, code[-1]["outputs"])) if code else ""
    if not any(text in ending for text in ENDINGS):
        found.append("does not end with a certificate")
    for name in [name for cell in code for name in imports_of(cell)]:
        if name.partition(".")[0] not in ALLOWED or name.startswith(NOT_ALLOWED):
            found.append(f"imports {name}")
    return found


def test_there_are_notebooks():
    assert len(FOLDERS) >= 9


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_one_notebook_each_named_like_its_folder(folder):
    assert [path.name for path in folder.glob("*.ipynb")] == [f"{folder.name}.ipynb"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_notebook(folder):
    assert faults(read(folder / f"{folder.name}.ipynb")) == []


class TestFaultsAreFound:
    """A small notebook without a fault, and what happens to it when broken."""

    @pytest.fixture
    def notebook(self):
        outputs = [
            {"output_type": "stream", "name": "stdout", "text": ["a ", "picture"]},
            {"output_type": "stream", "name": "stdout", "text": ["a privacy cert"]},
        ]
        outputs[1]["text"].append("ificate\n  protects    every record")
        return {
            "cells": [
                {"cell_type": "markdown", "source": ["# Title\n", "You will learn x."]},
                _code(1, "import torch\nfrom botorch_dp.plots import plot_ledger"),
                _code(2, "%matplotlib inline\nimport os", *outputs[:1]),
                _code(3, "print(certificate)", *outputs[1:]),
                {"cell_type": "markdown", "source": "And this was that."},
                _code(None, ""),  # an empty cell is never executed
            ]
        }

    def test_none(self, notebook):
        assert faults(notebook) == []

    def test_a_certificate_may_be_displayed(self, notebook):
        for data in (
            {"text/plain": ["NOT PRIVATE: no noise"]},
            {"text/html": "<caption>Differential privacy certificate</caption>"},
        ):
            output = {"output_type": "execute_result", "data": data}
            notebook["cells"][3]["outputs"] = [output]
            assert faults(notebook) == []

    @pytest.mark.parametrize(
        ("cell", "changes", "fault"),
        [
            (0, {"source": "# Title\nThis is about x."}, "what you will learn"),
            (0, {"cell_type": "raw"}, "what you will learn"),
            (0, {"source": "You will learn x."}, "title"),
            (1, {"execution_count": None}, "executed in order"),
            (2, {"execution_count": 3}, "executed in order"),
            (2, {"outputs": [{"output_type": "error"}]}, "an error"),
            (
                2,
                {"outputs": [{"output_type": "stream", "name": "stderr"}]},
                "warnings",
            ),
            (3, {"outputs": []}, "end with a certificate"),
            (1, {"source": "import pandas as pd"}, "imports pandas"),
            (1, {"source": "if True:\n    from flwr import app"}, "imports flwr.app"),
            (
                1,
                {"source": "import botorch_dp.integrations.flower"},
                "botorch_dp.integrations.flower",
            ),
            (
                1,
                {"source": "from botorch_dp.integrations.flower.settings import x"},
                "flower",
            ),
        ],
    )
    def test_each(self, notebook, cell, changes, fault):
        notebook["cells"][cell].update(changes)
        (found,) = faults(notebook)
        assert fault in found

    def test_the_certificate_must_be_in_the_last_code_cell(self, notebook):
        notebook["cells"].append(_code(4, "print(1)"))
        assert faults(notebook) == ["does not end with a certificate"]


def _code(count, source, *outputs):
    return {
        "cell_type": "code",
        "execution_count": count,
        "source": source,
        "outputs": list(outputs),
    }
