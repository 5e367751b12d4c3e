"""Local Bayesian optimization on its standards, without privacy and with it.

Writes ``benchmarks/results/local_bo.json`` and the table made from it. Each run of a
method on a task with a seed is a cell, saved as soon as it ends, so that
``python -m benchmarks.local_bo`` continues where it stopped. ``--report SECTION ...``
only writes tables, and ``--seeds 3`` runs three seeds of every method.
"""

import argparse
import statistics
from typing import Any

import torch

from benchmarks._common import Row, mean_and_error, report
from benchmarks._local_bo.cells import (
    METHODS,
    keep_cells,
    load_cells,
    run_all,
    run_private,
)
from benchmarks._local_bo.private import (
    CHOOSE,
    JUDGE,
    PRIVATE,
    Bumps,
)
from benchmarks._local_bo.tasks import DOUBLE, TASKS


def _rows(dim: int, key: str = "best") -> list[Row]:
    cells = load_cells()
    rows: list[Row] = []
    for name, task in TASKS.items():
        of_task = [cell for cell in cells if cell["task"] == name]
        if task.dim != dim or not of_task:
            continue
        row: Row = {"task": name, "evaluations": task.budget}
        seeds = _common_seeds(of_task)
        of_task = [cell for cell in of_task if cell["seed"] in seeds]
        if key == "best":
            row["at the centre"] = statistics.mean(
                {cell["seed"]: cell["start"] for cell in of_task}.values()
            )
        for method in METHODS:
            found = [c for c in of_task if c["method"] == method]
            row[method] = _entry(found, key)
        rows.append(row)
    return rows


def _common_seeds(cells: list[dict[str, Any]]) -> set[int]:
    """Return the seeds that all methods of some cells have run."""
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        seeds.setdefault(cell["method"], set()).add(cell["seed"])
    return set.intersection(*seeds.values())


def _entry(cells: list[dict[str, Any]], key: str) -> str:
    if not cells:
        return "not run"
    values = [cell["best"][-1] if key == "best" else cell["seconds"] for cell in cells]
    return f"{statistics.mean(values):.3g} ({len(cells)})"


def few_dimensions() -> list[Row]:
    """20 dimensions: the best value found

    The mean over the seeds that all methods of a row have run, with their number in
    parentheses: a run of qLogEI takes so long that there are few. "Not run" is a
    method that there was no time for. Less is better, and the least value of the four
    test functions is 0. All methods start at the centre. The first four columns are
    this library's local optimizers with their defaults, which were chosen with seed 100
    on quadratics, Rosenbrock's and Ackley's functions in 20 and 100 dimensions. qLogEI
    uses `SingleTaskGP` with its default priors, TuRBO is our loop from the paper's
    description; both start with Sobol points for a fifth of the evaluations (a
    twentieth in 100 dimensions and more).
    """
    return _rows(20)


def hundred_dimensions() -> list[Row]:
    """100 dimensions: the best value found

    As above. qLogEI and TuRBO ask for four points at a time, and the local optimizers
    for twelve.
    """
    return _rows(100)


def three_hundred_dimensions() -> list[Row]:
    """300 dimensions: the best value found

    As above; there are no more evaluations than dimensions.
    """
    return _rows(300)


def seconds_in_20_dimensions() -> list[Row]:
    """20 dimensions: CPU seconds of a run

    Everything included, on one core of a busy machine. Runs were not alternated, so
    only large ratios mean anything.
    """
    return _rows(20, "seconds")


def seconds_in_100_dimensions() -> list[Row]:
    """100 dimensions: CPU seconds of a run

    As above.
    """
    return _rows(100, "seconds")


def seconds_in_300_dimensions() -> list[Row]:
    """300 dimensions: CPU seconds of a run

    As above.
    """
    return _rows(300, "seconds")


def _private(cases: dict[str, Any]) -> list[Row]:
    cells, rows = load_cells(), []
    for name, case in cases.items():
        row: Row = {"task": name}
        for method in PRIVATE:
            found = {
                cell["seed"]: cell["best"][0]
                for cell in cells
                if (cell["task"], cell["method"]) == (name, method)
            }
            if len(found) < 2:
                row[method] = "not run"
                continue
            starts = [
                Bumps(*case, seed).regret(torch.full((case[0],), 0.5, **DOUBLE))
                for seed in found
            ]
            row["at the centre"] = statistics.mean(starts)
            row[method] = f"{mean_and_error(found.values())} ({len(found)})"
        rows.append(row)
    return rows


def private_chosen() -> list[Row]:
    """Private: regret on the tasks that chose the settings

    "3 of 30" has 30 parameters of which 3 matter. Each record is protected with
    mu = 0.1. Mean and standard error, with the number of seeds; every run plans about
    30 (d + 1) evaluations. The region's first radius and checks were chosen here.
    """
    return _private(CHOOSE)


def private_judged() -> list[Row]:
    """Private: regret on the other tasks

    As above.
    """
    return _private(JUDGE)


SECTIONS = (
    few_dimensions,
    hundred_dimensions,
    three_hundred_dimensions,
    seconds_in_20_dimensions,
    seconds_in_100_dimensions,
    seconds_in_300_dimensions,
    private_chosen,
    private_judged,
)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help="only these sections")
    parser.add_argument("--report", action="store_true", help="run no further cells")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    if not arguments.report:
        run_private({**CHOOSE, **JUDGE}, range(arguments.seeds))
        run_all(TASKS, METHODS, range(arguments.seeds))
    keep_cells(load_cells())
    report(
        "local_bo",
        "Local Bayesian optimization on its standards",
        SECTIONS,
        arguments.sections,
    )
