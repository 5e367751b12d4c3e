"""Compute the parts of pages: tables and a certificate."""

import math
import statistics
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version

import torch

from benchmarks._arena_cells import CELLS, REPORT
from benchmarks._arena_report import DIMS as BY_DIM
from benchmarks._arena_report import SIGNALS as BY_SIGNAL
from benchmarks._arena_store import load
from benchmarks._arena_verdicts import best, mean_regret
from benchmarks._common import RESULTS
from benchmarks.contenders import ALTERNATIVE, NO_SEARCH
from botorch_dp import DPGIBO, GDP, ApproxDP, Certificate, Ledger, expect
from botorch_dp.privacy import Declaration, GaussianEvent
from botorch_dp.privacy.report import result_card

DELTA = 1e-5
# The rows of a certificate that the front page shows.
SHORT = ("data set", "owner", "epsilon", "guarantee", "cap", "date", "ledger")
DECLARATION = Declaration(
    data_set="Visits of 2025 (made up)",
    purpose="Tune a model of readmissions",
    owner="Ward 3",
    contact="privacy@example.org",
    access_control="Two analysts, on one encrypted machine",
    data_minimization="Deleted after a year",
    other_releases="Yearly counts, without noise",
    records_per_person=1,
)
MUS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
COUNTS = (1, 10, 100, 1000)
COUNTED_MU = 0.1
EPSILONS = (0.1, 1.0, 3.0, 10.0)
SIGNALS, DIMS = (150, 500, 1_500, 5_000, 15_000), (2, 4, 6, 10, 20, 50)


def epsilon_table() -> str:
    """Return a table of mu, its epsilon at a delta, and the power of the best test."""
    rows = [
        "| mu | epsilon at delta = 1e-5 | right guesses, at most |",
        "| --- | --- | --- |",
    ]
    for mu in MUS:
        guarantee = GDP(mu)
        # Equal errors of both kinds, where the tradeoff function meets the diagonal.
        right = 0.5 * (1 + math.erf(mu / 2 / math.sqrt(2)))
        rows.append(f"| {mu:g} | {guarantee.epsilon(DELTA):.3f} | {right:.1%} |")
    return "\n".join(rows) + "\n"


def mu_table() -> str:
    """Return the mu of a few pairs of epsilon and delta."""
    rows = ["| guarantee | mu | largest pure epsilon |", "| --- | --- | --- |"]
    for epsilon in EPSILONS:
        guarantee = ApproxDP(epsilon, DELTA)
        mu, pure = guarantee.to_gdp().mu, guarantee.to_pure().epsilon
        rows.append(f"| `ApproxDP({epsilon:g}, 1e-5)` | {mu:.4f} | {pure:.5f} |")
    return "\n".join(rows) + "\n"


def composition_table() -> str:
    """Return the cost of many equal releases, exactly and by adding up epsilons."""
    rows = [
        "| releases of mu = 0.1 | mu in all | epsilon at delta = 1e-5 "
        "| epsilons added up, at delta = 1e-5 times their number |",
        "| --- | --- | --- | --- |",
    ]
    for count in COUNTS:
        ledger = Ledger()
        ledger.charge(GaussianEvent(1 / COUNTED_MU), count=count)
        total = ledger.accountant().to_gdp()
        assert total is not None
        added = count * GDP(COUNTED_MU).epsilon(DELTA)
        exact = ledger.spent(DELTA)
        rows.append(f"| {count:,} | {total.mu:.4g} | {exact:.2f} | {added:.1f} |")
    return "\n".join(rows) + "\n"


@cache
def example() -> tuple[Certificate, Ledger]:
    """Return the certificate and the ledger of a small run."""
    double = {"dtype": torch.float64, "device": "cpu"}
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **double)
    records = torch.full((2_000, 2), 0.5, **double)
    ledger = Ledger(cap=GDP(mu=1.0))
    optimizer = DPGIBO(
        bounds, 2_000, GDP(mu=1.0), num_steps=20, clip_norm=1.0, ledger=ledger
    )
    result = optimizer.run(
        lambda X: (X - records.unsqueeze(1)).square().sum(dim=-1), progress=False
    )
    return result.certificate, ledger


def certificate() -> str:
    """Return the certificate as text."""
    return f"{example()[0]}\n"


def certificate_card() -> str:
    """Return the certificate as a part of a page."""
    found, _ = example()
    return found.with_declaration(DECLARATION)._repr_html_()


def certificate_summary() -> str:
    """Return the most important rows of the certificate, as a part of a page."""
    found, _ = example()
    declared = found.with_declaration(DECLARATION)
    rows = [row for row in declared.rows() if row[0] in SHORT]
    return result_card("Differential privacy certificate", rows, declared)


def report() -> str:
    """Return the report of the certificate: a page of its own."""
    found, ledger = example()
    return found.with_declaration(DECLARATION).to_html(ledger)


def bibtex() -> str:
    """Return the entry that cites this library, at its version."""
    return f"""@software{{botorch_dp,
  title   = {{botorch\\_dp: Differentially Private Bayesian Optimization for BoTorch}},
  author  = {{{{The botorch\\_dp developers}}}},
  year    = {{2026}},
  version = {{{version("botorch-dp")}}},
  license = {{MIT}},
}}
"""


def expectation_table() -> str:
    """Return what ``minimize`` leaves of the start's excess loss: d by n epsilon."""
    heads = " | ".join(f"n epsilon = {signal:,}" for signal in SIGNALS)
    rows = [f"| parameters | {heads} |", "| --- " * (len(SIGNALS) + 1) + "|"]
    for dim in DIMS:
        outlooks = [
            expect(signal, dim, ApproxDP(1.0, DELTA)).outlook for signal in SIGNALS
        ]
        shares = " | ".join(
            f"{one.median:.1%} (to {one.high:.0%})" if one.is_measured else "–"
            for one in outlooks
        )
        rows.append(f"| {dim} | {shares} |")
    return "\n".join(rows) + "\n"


def expectation() -> str:
    """Return an example of ``expect``."""
    return f"{expect(800, 20, ApproxDP(1.0, DELTA))}\n"


def arena_table() -> str:
    """Return mean regrets of the arena's reported cells, by n epsilon and method."""
    results = load(RESULTS / "arena.json")
    cells = {name: one for name, one in results.items() if CELLS[name].half == REPORT}
    columns = {
        "no search": lambda cell: mean_regret(cell, NO_SEARCH),
        "permute-and-flip, 1,000 points": lambda cell: mean_regret(
            cell, "permute-and-flip 1000"
        ),
        "best alternative": lambda cell: mean_regret(cell, best(cell, ALTERNATIVE)),
        "`minimize`": lambda cell: mean_regret(cell, "minimize"),
        "random search, NOT private": lambda cell: mean_regret(cell, "random search"),
    }
    rows = [f"| | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    for buckets in (BY_SIGNAL, BY_DIM):
        for label, is_inside in buckets.items():
            inside = [one for name, one in cells.items() if is_inside(CELLS[name])]
            if inside:
                means = (statistics.mean(map(of, inside)) for of in columns.values())
                shown = " | ".join(f"{max(0.0, mean):.4f}" for mean in means)
                rows.append(f"| {label} ({len(inside)} cells) | {shown} |")
    return "\n".join(rows) + "\n"


def pages() -> Iterator[tuple[str, str]]:
    """Return the names of the computed fragments, and their text."""
    yield "epsilon_table.inc", epsilon_table()
    yield "mu_table.inc", mu_table()
    yield "composition_table.inc", composition_table()
    yield "certificate.inc", certificate()
    yield "certificate_card.inc", certificate_card()
    yield "certificate_summary.inc", certificate_summary()
    yield "extra/report.html", report()
    yield "citation.inc", bibtex()
    yield "expectation_table.inc", expectation_table()
    yield "expectation.inc", expectation()
    yield "arena_table.inc", arena_table()
