"""The arena: our methods against private alternatives of 20 to 40 lines each.

``python -m benchmarks.arena`` runs what is missing in ``results/arena.json`` and
rewrites the tables and the picture made from it. It can be interrupted, and continues
with what is missing. ``--real`` runs the tasks with real data instead, into
``results/arena_real.json``. ``--table`` only rewrites tables and picture.
"""

import argparse
import fnmatch
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _arena_real
from benchmarks._arena_cells import CELLS, HALVES, Cell
from benchmarks._arena_report import write_report, write_summary
from benchmarks._arena_store import Found, load, merge, save
from benchmarks._common import RESULTS, completed
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.problems.arena_tasks import make_task
from botorch_dp.optimizers.auto import expect

PATH = RESULTS / "arena.json"
EXPECTATIONS = Path(expect.__file__).with_name("measured.json")
NUM_SEEDS = 5
# The seeds to run of each method, in cells of one task, dimension and n.
Todo = dict[Cell, dict[str, range]]


def missing(
    cell: Cell, known: Mapping[str, Any], methods: Sequence[Contender], seeds: int
) -> dict[str, range]:
    """Return the methods that lack seeds in a cell, and which."""
    todo = {}
    for method in methods:
        last = min(seeds, method.most_seeds or seeds)
        done = len(known.get(method.name, {}).get("regret", ()))
        if method.supports(cell.dim) and done < last:
            todo[method.name] = range(done, last)
    return todo


def groups(
    cells: Sequence[Cell], results: Found, methods: Sequence[Contender], seeds: int
) -> Iterator[Todo]:
    """Yield what is to do, by task: the largest first, so that both cores end together.

    Cells that differ in epsilon alone share the records and all exact means.
    """
    by_task: dict[tuple[str, int, int, str], Todo] = {}
    for cell in sorted(cells, key=lambda cell: -cell.num_records * cell.dim):
        todo = missing(cell, results.get(cell.name, {}), methods, seeds)
        if todo:
            key = (cell.task, cell.dim, cell.num_records, cell.half)
            by_task.setdefault(key, {})[cell] = todo
    yield from by_task.values()


def run_group(todo: Todo) -> Found:
    """Run methods on cells of one half, task, dimension and number of records."""
    found: Found = {cell.name: {} for cell in todo}
    first = next(iter(todo))
    seeds = sorted({seed for run in todo.values() for r in run.values() for seed in r})
    for seed in seeds:
        drawn = first.first_seed + seed
        task = make_task(first.task, first.dim, first.num_records, drawn)
        least = task.least()
        shared: dict[str, tuple[float, float]] = {}
        for cell, methods in todo.items():
            for name in [name for name in methods if seed in methods[name]]:
                method = CONTENDERS[name]
                if name not in shared:
                    start = time.perf_counter()
                    try:
                        with warnings.catch_warnings(action="ignore"):
                            x = method.run(task, cell.epsilon, drawn)
                    except Exception as error:
                        error.add_note(f"{name} failed in {cell.name}, seed {seed}.")
                        raise
                    taken = time.perf_counter() - start
                    regret = float(task.fresh_mean(x.to(task.start)[None])) - least
                    shared[name] = regret, taken
                regret, taken = shared[name]
                entry = found[cell.name].setdefault(name, {"regret": [], "seconds": []})
                entry["regret"].append(round(regret, 6))
                entry["seconds"].append(taken)
                if method.uses_epsilon:
                    del shared[name]
    return found


def select(half: str, pattern: str) -> list[Cell]:
    """Return the cells of a half, or of both, whose name matches a pattern."""
    return [
        cell
        for name, cell in CELLS.items()
        if half in ("all", cell.half) and fnmatch.fnmatch(name, pattern)
    ]


def choose_methods(names: str | None) -> list[Contender]:
    """Return the methods named, separated by commas, or all of them."""
    if names is None:
        return list(CONTENDERS.values())
    wanted = [name.strip() for name in names.split(",")]
    if unknown := sorted(set(wanted) - set(CONTENDERS)):
        raise SystemExit(f"Unknown methods: {unknown}. Known: {[*CONTENDERS]}")
    return [CONTENDERS[name] for name in wanted]


def run(
    cells: Sequence[Cell],
    methods: Sequence[Contender],
    seeds: int,
    jobs: int,
    path: Path = PATH,
) -> None:
    """Run what is missing, and save after every group of cells."""
    todo = list(groups(cells, load(path), methods, seeds))
    start = time.perf_counter()
    for done, new in enumerate(completed(run_group, [(part,) for part in todo], jobs)):
        results = load(path)  # another run may have written meanwhile
        merge(results, new)
        save({name: results[name] for name in CELLS if name in results}, path)
        minutes = (time.perf_counter() - start) / 60
        print(f"{done + 1}/{len(todo)} groups, {minutes:.1f} min", flush=True)


def run_real(names: str | None, pattern: str, seeds: int, jobs: int) -> None:
    """Run real tasks whose name matches a pattern, with all methods or some."""
    known = _arena_real.methods()
    wanted = known if names is None else [name.strip() for name in names.split(",")]
    if unknown := sorted(set(wanted) - set(known)):
        raise SystemExit(f"Unknown methods: {unknown}. Known: {known}")
    tasks = fnmatch.filter(_arena_real.available_tasks(), pattern)
    _arena_real.run(wanted, seeds, jobs, tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all")
    parser.add_argument("--methods", help="names, separated by commas")
    parser.add_argument("--cells", default="*", help="a pattern of names")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--real", action="store_true", help="run the real tasks")
    parser.add_argument("--table", action="store_true", help="rewrite tables only")
    options = parser.parse_args()
    if options.real and not options.table:
        run_real(options.methods, options.cells, options.seeds, options.jobs)
    elif not options.table:
        cells = select(options.half, options.cells)
        run(cells, choose_methods(options.methods), options.seeds, options.jobs)
    write_report(expectations=EXPECTATIONS)
    write_summary()


if __name__ == "__main__":
    main()
