"""Runs of one method on one task with one seed, each in a file of its own."""

import json
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks._common import RESULTS
from benchmarks._local_bo.private import PRIVATE, PRIVATE_MU, Case, private_regret
from benchmarks._local_bo.rivals import qlogei, random_search, turbo
from benchmarks._local_bo.tasks import DOUBLE, TASKS, Function

FOLDER = Path("build") / "local_bo"
KEPT = RESULTS / "local_bo_cells.json"
Method = Callable[[Function, int, int, int], Tensor]


def ours(name: str, **kwargs: Any) -> Method:
    """Return one of the library's local optimizers as a method."""

    def search(f: Function, dim: int, budget: int, seed: int) -> Tensor:
        import botorch_dp

        del seed  # nothing in these optimizers is random
        cube = torch.stack([torch.zeros(dim, **DOUBLE), torch.ones(dim, **DOUBLE)])
        opt = getattr(botorch_dp, name)(cube, 1, budget, **kwargs)
        values = torch.empty(0, **DOUBLE)
        while len(values) < budget:
            found = f(opt.ask())
            values = torch.cat([values, found])
            opt.tell(found)
        return values[:budget]

    return search


METHODS: dict[str, Method] = {
    "MinUCB": ours("MinUCB"),
    "gradient trust region": ours("GradientTrustRegion"),
    "MPD": ours("MostProbableDescent"),
    "GIBO": ours("FittedGIBO"),
    "qLogEI": qlogei,
    "TuRBO": turbo,
    "random search": random_search,
}


def run_cell(task: str, method: str, seed: int, folder: Path = FOLDER) -> None:
    """Run a cell unless it is known, and write its file."""
    path = folder / f"{task}__{method.replace(' ', '_')}__{seed}.json"
    if path.exists() or (task, method, seed) in map(_key, _kept()):
        return
    chosen = TASKS[task]
    torch.set_num_threads(1)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        values = METHODS[method](chosen.make(seed), chosen.dim, chosen.budget, seed)
        seconds = time.process_time() - start
    best = values.cummin(dim=0).values
    marks = [len(best) * quarter // 4 - 1 for quarter in (1, 2, 3, 4)]
    cell = {
        "task": task,
        "method": method,
        "seed": seed,
        "start": float(values[0]),
        "best": [float(best[mark]) for mark in marks],
        "seconds": round(seconds, 2),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(cell) + "\n")


def run_private(cases: dict[str, Case], seeds: Iterable[int]) -> None:
    """Run all private cells that are not known."""
    known = {_key(cell) for cell in load_cells()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for name, case in cases.items():
            for method in PRIVATE:
                if (name, method, seed) in known:
                    continue
                with threadpool_limits(limits=1):
                    regret = private_regret(case, method, PRIVATE_MU, seed)
                cell = {"task": name, "method": method, "seed": seed, "best": [regret]}
                path = FOLDER / f"{name}__{method}__{seed}.json".replace(" ", "_")
                path.write_text(json.dumps(cell) + "\n")


def load_cells(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return all cells, those of earlier runs and those in the folder."""
    new = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    cells = {_key(cell): cell for cell in [*_kept(), *new]}
    return [cells[key] for key in sorted(cells)]


def keep_cells(cells: Iterable[dict[str, Any]]) -> None:
    """Write cells beside the tables, a line for each."""
    lines = ",\n".join(json.dumps(cell) for cell in cells)
    KEPT.write_text(f"[\n{lines}\n]\n")


def _kept() -> list[dict[str, Any]]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else []


def _key(cell: dict[str, Any]) -> tuple[str, str, int]:
    return cell["task"], cell["method"], cell["seed"]


def run_all(tasks: Iterable[str], methods: Iterable[str], seeds: Iterable[int]) -> None:
    """Run all cells that are not known, seed by seed."""
    tasks, methods = list(tasks), list(methods)
    for seed in seeds:
        for task in tasks:
            for method in methods:
                run_cell(task, method, seed)
