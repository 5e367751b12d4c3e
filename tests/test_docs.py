"""The documentation's code runs, its numbers are computed, and it forgets no name."""

import ast
import importlib
import json
import math
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import pytest

import botorch_dp

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS / "_ext"), str(ROOT)]

import api_pages  # noqa: E402
import benchmark_pages  # noqa: E402
import citations  # noqa: E402
import computed  # noqa: E402
import notebooks  # noqa: E402

PAGES = {path.name: path.read_text() for path in sorted(DOCS.glob("*.md"))}
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
BLOCKS = [
    (name, number)
    for name, text in PAGES.items()
    for number in range(len(BLOCK.findall(text)))
]
# Libraries that a reader of a page has, and a developer may not.
OPTIONAL = ("ax", "dask", "optuna", "pandas", "ray", "sklearn")
# A cluster of threads in place of one that is elsewhere.
CLUSTER = (
    'Client("tcp://127.0.0.1:8786")',
    "Client(processes=False, n_workers=2, dashboard_address=None)",
)


def optional_imports(code):
    found = set()
    for node in ast.walk(ast.parse(code)):
        names = [alias.name for alias in getattr(node, "names", ())]
        if isinstance(node, ast.ImportFrom):
            names = [node.module]
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {name.split(".")[0] for name in names}
    return [name for name in OPTIONAL if name in found]


# A file in place of a server: tests/privacy/stores tests servers.
SERVER = (re.compile(r'"postgresql://[^"]*ledger=([\w-]+)"'), r'"\1.sqlite"')


@pytest.mark.default_device
@pytest.mark.parametrize(("name", "number"), BLOCKS)
def test_code_runs(name, number, capsys, monkeypatch, tmp_path):
    """After those blocks of its page that need no other library, as pasted."""
    blocks = BLOCK.findall(PAGES[name])
    for library in optional_imports(blocks[number]):
        pytest.importorskip(library)
    if "secure=True" in blocks[number]:
        pytest.importorskip("opendp")
    before = [code for code in blocks[:number] if not optional_imports(code)]
    namespace = {}
    monkeypatch.chdir(tmp_path)  # for blocks that write files
    for code in (*before, blocks[number]):
        capsys.readouterr()
        pattern, file = SERVER
        code = pattern.sub(file, code.replace(*CLUSTER))
        exec(compile(code, name, "exec"), namespace)
    assert capsys.readouterr().out or "def released" in blocks[number]


def test_the_cluster_is_where_the_page_says():
    assert CLUSTER[0] in PAGES["cluster.md"]


def exporters():
    """Every package with ``__all__``, and every module at the top."""
    found = []
    for info in pkgutil.walk_packages(botorch_dp.__path__, "botorch_dp."):
        if "._" in info.name or info.name == "botorch_dp.privacy.mechanisms":
            continue  # the room above exports what is in it
        if info.ispkg or info.name.count(".") == 1:
            found.append(info.name)
    return found


@pytest.fixture(scope="module")
def api():
    return dict(api_pages.pages())


def test_every_exported_name_is_documented_once(api):
    everything = "\n".join(api.values())
    documented = re.findall(r"^\.\. \S+:: (\S+)$", everything, flags=re.MULTILINE)
    checked = 0
    for exporter in exporters():
        module = importlib.import_module(exporter)
        for name in api_pages.public_names(module):
            assert documented.count(f"{exporter}.{name}") == 1, f"{exporter}.{name}"
            checked += 1
    assert checked > 150
    assert "botorch_dp.integrations.sklearn.PrivateSearch" in documented
    assert "botorch_dp.integrations.opacus.JointBudget" in documented


def test_the_first_api_page_lists_what_the_package_exports(api):
    for name in botorch_dp.__all__:
        assert re.search(
            rf"\| {{py:obj}}`{name} <botorch_dp\.\w+\.{name}>`", api["index.md"]
        )
    for page in api:
        stem = page.partition(".")[0]
        assert stem == "index" or f"\n{stem}\n" in api["index.md"]


def test_names_are_documented_where_users_import_them(api):
    assert ".. autoclass:: botorch_dp.privacy.GDP\n" in api["guarantees.md"]
    compress = ".. autofunction:: botorch_dp.models.compress\n"
    assert compress in api["surrogates.md"]


def test_the_api_has_no_internal_module(api):
    everything = "\n".join(api.values())
    assert "automodule" not in everything
    for full in re.findall(r"^\.\. \S+:: (\S+)$", everything, flags=re.MULTILINE):
        room, _, name = full.rpartition(".")
        assert room in api_pages.room_names()
        assert name in api_pages.public_names(importlib.import_module(room))


def test_internal_bases_are_replaced_by_public_ones():
    optimizers = importlib.import_module("botorch_dp.optimizers")
    assert api_pages.public_bases(optimizers.DPGIBO) == [optimizers.PrivateOptimizer]
    assert api_pages.public_bases(optimizers.Optimizer) == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("privacy.mechanisms.new", "mechanisms"),
        ("privacy.new", "accounting"),
        ("privacy.ledger", "ledger"),
        ("privacy.ledgers", "accounting"),  # only begins like another
        ("integrations.new", "integrations"),
        ("new", "more"),
    ],
)
def test_a_new_module_lands_on_the_page_of_its_package(module, name):
    assert api_pages.api_groups.page_of(module)[0].name == name


@pytest.fixture(scope="module")
def mathml():
    pytest.importorskip("latex2mathml")
    pytest.importorskip("sphinx")
    return importlib.import_module("mathml")


def test_formulas_become_mathml(mathml):
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in mathml.mathml("x^2")
    assert 'display="block"' in mathml.mathml("x", block=True)
    assert "<mi>\u211b</mi>" in mathml.mathml(r"\mathcal R")
    assert "<mi>\U0001d4b1</mi>" in mathml.mathml(r"\mathcal V")
    assert "<mspace" in mathml.mathml(r"\log x")
    assert "<mspace" not in mathml.mathml(r"\log(x)")


@pytest.mark.parametrize("latex", [r"\unknown x", "a & b", "$x$"])
def test_formulas_that_are_not_understood_fail_the_build(mathml, latex):
    with pytest.raises(mathml.ExtensionError, match="Cannot convert"):
        mathml.mathml(latex)


def test_modules_without_all_export_what_they_define(tmp_path, monkeypatch):
    (tmp_path / "bare.py").write_text(
        "from math import pi\nfrom pathlib import Path\n"
        "class Seen: ...\ndef seen(): ...\ndef _hidden(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert api_pages.public_names(importlib.import_module("bare")) == ["Seen", "seen"]


def test_references_become_plain_lists():
    docstring = [
        "Text [Dwork2014foundations]_.",
        "",
        "References:",
        "    .. [Dwork2014foundations] C. Dwork. A title",
        "        on two lines.",
        "    .. [Other2020] Another.",
        "",
        "After.",
    ]
    assert citations.plain_citations(docstring) == [
        "Text [Dwork2014foundations].",
        "",
        "References:",
        "    * [Dwork2014foundations] C. Dwork. A title",
        "      on two lines.",
        "",
        "    * [Other2020] Another.",
        "",
        "After.",
    ]


def test_names_keep_their_last_underscore():
    lines = ["Attributes:", "    best_params_: What was found.", "    x: A point."]
    assert citations.whole_names(lines) == [
        lines[0],
        r"    best_params\_: What was found.",
        lines[2],
    ]


def test_summaries_of_the_first_api_page_have_no_raw_markup(api):
    table = [line for line in api["index.md"].splitlines() if line.startswith("| {")]
    assert len(table) == len(botorch_dp.__all__)
    for line in table:
        summary = line.split(" | ", 1)[1]
        assert "]_" not in summary
        assert not re.search(r"(?<!\{):\w+:`", summary)
    assert any("{math}`" in line for line in table)


def test_short_names_find_their_documentation():
    pytest.importorskip("docutils")
    find = importlib.import_module("cross_references").find
    names = ["optimizers.LDPBO", "optimizers.LDPBO.run", "optimizers.DPGIBO.run"]
    entry = ("page", "id", "class", False)
    objects = {f"botorch_dp.{name}": entry for name in [*names, "acquisition.ucb_beta"]}
    assert find("LDPBO", objects) == "botorch_dp.optimizers.LDPBO"
    assert find("LDPBO.run", objects) == "botorch_dp.optimizers.LDPBO.run"
    home = "botorch_dp.optimizers.ldp.simulation.LDPBO.run"
    assert find(home, objects) == "botorch_dp.optimizers.LDPBO.run"
    home = "botorch_dp.acquisition.private_ucb.ucb_beta"
    assert find(home, objects) == "botorch_dp.acquisition.ucb_beta"
    assert find("run", objects) is None  # of two
    assert find("torch.Tensor", objects) is None


@pytest.mark.parametrize("path", benchmark_pages.files(), ids=lambda path: path.stem)
def test_benchmark_pages_are_the_tables_of_the_benchmarks(path):
    page = benchmark_pages.benchmark_page(path)
    assert page == path.with_suffix(".md").read_text()
    assert dict(benchmark_pages.pages())[f"{path.stem}.md"].startswith(page)


def test_results_without_a_benchmark_have_a_page(tmp_path, monkeypatch):
    rows = [{"what": "this", "seconds": 1.23456}]
    (tmp_path / "new.json").write_text(json.dumps({"speed": rows}))
    monkeypatch.setattr(benchmark_pages, "RESULTS", tmp_path)
    ((name, text),) = benchmark_pages.pages()
    assert name == "new.md"
    assert "## speed\n\n| what | seconds |\n| --- | --- |\n| this | 1.235 |" in text


def rows_of(table):
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def normal(x):
    return math.erfc(-x / math.sqrt(2)) / 2


def gaussian_delta(mu, epsilon):
    low = math.exp(epsilon) * normal(-epsilon / mu - mu / 2)
    return normal(-epsilon / mu + mu / 2) - low


def test_the_table_of_epsilons():
    rows = rows_of(computed.epsilon_table())
    assert len(rows) == len(computed.MUS)
    for mu, epsilon, right in rows:
        mu, epsilon = float(mu), float(epsilon)
        assert (
            gaussian_delta(mu, epsilon - 6e-4)
            > 1e-5
            > gaussian_delta(mu, epsilon + 6e-4)
        )
        assert float(right.rstrip("%")) == pytest.approx(100 * normal(mu / 2), abs=0.06)


def test_the_table_of_mus():
    for guarantee, mu, pure in rows_of(computed.mu_table()):
        epsilon = float(re.search(r"ApproxDP\(([\d.]+),", guarantee)[1])
        mu = float(mu)
        assert (
            gaussian_delta(mu - 6e-5, epsilon)
            < 1e-5
            < gaussian_delta(mu + 6e-5, epsilon)
        )
        assert 0 <= float(pure) - epsilon < 1e-3


def test_the_table_of_compositions():
    for count, mu, epsilon, added in rows_of(computed.composition_table()):
        count = int(count.replace(",", ""))
        mu, epsilon = float(mu), float(epsilon)
        assert mu == pytest.approx(0.1 * math.sqrt(count), rel=1e-3)
        assert gaussian_delta(0.1 * math.sqrt(count), epsilon + 0.006) < 1e-5
        assert gaussian_delta(0.1 * math.sqrt(count), epsilon - 0.006) > 1e-5
        assert float(added) >= epsilon - 0.05


def test_every_line_of_the_certificate_is_explained():
    text = computed.certificate()
    labels = {line[2:22].strip() for line in text.splitlines() if line[:2] == "  "}
    labels -= {""}
    terms = re.findall(r"^(.+)\n: ", PAGES["concepts.md"], flags=re.MULTILINE)
    explained = {label.strip() for term in terms for label in term.split(",")}
    assert labels == explained
    assert "GDP(mu=1)" in text


def test_the_notebooks_are_listed():
    stored = {path.stem for path in (ROOT / "tutorials").glob("*/*.ipynb")}
    listed = notebooks.read_all()
    assert {one.name for one in listed} == stored
    cards, gallery = notebooks.cards(listed), notebooks.gallery(listed, {})
    for one in listed:
        assert cards.count(f"\ngenerated/tutorials/{one.name}\n") == 1
        assert f":link: generated/tutorials/{one.name}\n" in cards
        assert one.learned in cards
        for picture in one.pictures:
            assert picture.data.startswith(b"\x89PNG")
            assert f":img-top: generated/pictures/{picture.file}\n" in gallery


def test_the_front_page_has_three_cards_and_two_pictures():
    text = PAGES["index.md"]
    assert text.count("{grid-item-card}") == 3
    pictures = re.findall(r"```{image} (\S+)\n:alt: .{20}", text)
    assert pictures == ["demo.png", "generated/benchmarks/arena.png"]


def test_certificates_are_shown_as_cards():
    for page, file in (("index", "summary"), ("certificates", "card")):
        text = PAGES[f"{page}.md"]
        assert f":file: generated/certificate_{file}.inc" in text
        assert '<a href="report.html">' in text
        made = getattr(computed, f"certificate_{file}")()
        assert "class='botorch-dp'" in made
        for sentence in computed.example()[0].sentences:
            assert sentence in made
    assert "agrees with the ledger" in computed.report()
    assert dict(computed.pages())["extra/report.html"] == computed.report()


def test_every_page_is_in_one_toctree():
    trees = re.findall(r"```{toctree}\n(.*?)```", "\n".join(PAGES.values()), re.DOTALL)
    listed = "\n".join(trees).splitlines()
    for name in PAGES:
        assert listed.count(Path(name).stem) == (name != "index.md"), name
    assert "theory/index" in listed
    assert ":glob:" in (DOCS / "theory" / "index.md").read_text()


# Numbers of the guide, and the tables that they are from, as written in both.
CITED = {
    "dp_gibo": ["0.2794", "0.2788", "0.085"],
    "private_release": ["98.5", "95.1", "81.5", "92.3"],
}


@pytest.mark.parametrize("name", CITED)
def test_the_guide_cites_what_was_measured(name):
    measured = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text()
    for number in CITED[name]:
        assert number in PAGES["choosing.md"]
        assert number in measured


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{project['version']}}}" in computed.bibtex()


def test_commands_extras_and_links_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(PAGES.values())
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.M))
    assert {"docs", "demo"} <= named <= targets
    extras = set(re.findall(r"^\| `(\w+)` \|", PAGES["install.md"], re.M))
    assert extras == set(project["optional-dependencies"])
    for target in re.findall(r"\]\(([\w/]+\.md)", text):
        assert target.startswith("generated/") or (DOCS / target).exists()
