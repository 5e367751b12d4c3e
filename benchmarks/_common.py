"""Shared by all benchmarks: timing, replications, and writing tables."""

import inspect
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from botorch.exceptions.warnings import BotorchWarning
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

RESULTS = Path(__file__).parent / "results"
Row = dict[str, object]


def seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of a call, in seconds."""
    return statistics.median(_times(call, repeats))


def race(
    calls: dict[str, Callable[[], object]], rounds: int = 7, slice_seconds: float = 0.02
) -> dict[str, float]:
    """Return the median time of each call, measured in turns to share the load.

    Args:
        calls: The functions to call, by name.
        rounds: The number of turns of each function.
        slice_seconds: The minimum length of a turn. A turn is at least one call.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # warm up
    for _ in range(rounds):
        for name, call in calls.items():
            end = time.perf_counter() + slice_seconds
            while True:
                times[name] += _times(call, 1)
                if time.perf_counter() >= end:
                    break
    return {name: statistics.median(taken) for name, taken in times.items()}


def _times(call: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def in_parallel(run: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Any:
    """Run replications on both cores, one thread each."""
    return Parallel(n_jobs=2)(delayed(_one_thread)(run, *args) for args in arguments)


def completed(
    run: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], jobs: int = 2
) -> Iterator[Any]:
    """Yield the results of replications as they finish, in any order."""
    calls = (delayed(_one_thread)(run, *args) for args in arguments)
    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)


def _one_thread(run: Callable[..., Any], *args: Any) -> Any:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BotorchWarning)
    with threadpool_limits(limits=1):
        return run(*args)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mean_and_error(values: Iterable[float]) -> str:
    """Return the mean and its standard error, as text."""
    values = list(values)
    if len(values) == 1:
        return f"{values[0]:.4g}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.4g} ± {error:.2g}"


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""

    def text(value: object) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[text(row.get(column, "")) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(
    title: str, texts: Mapping[str, str | None], results: Mapping[str, list[Row]]
) -> str:
    """Return the page of a benchmark, as Markdown.

    Args:
        title: The title of the page.
        texts: The heading and text of each section, by name and in order.
        results: The rows of the sections that were run.
    """
    parts = [f"# {title}", "Made by `make benchmarks`; times on one core."]
    for name, text in texts.items():
        if name in results:
            parts += [f"## {inspect.cleandoc(text or name)}", table(results[name])]
    return "\n\n".join(parts) + "\n"


def report(
    name: str,
    title: str,
    sections: Sequence[Callable[[], list[Row]]],
    only: Sequence[str] = (),
) -> None:
    """Run the sections, write ``results/name.json`` and ``.md``, print the latter.

    Args:
        name: The name of the files, without suffix.
        title: The title of the page.
        sections: Functions that return a table each. The docstring of a function is the
            heading and text of its section.
        only: The names of the sections to run. The others keep their results.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    results = json.loads(path.read_text()) if only and path.exists() else {}
    for section in sections:
        if not only or section.__name__ in only:
            results[section.__name__] = section()
            path.write_text(json.dumps(results, indent=2) + "\n")
    texts = {section.__name__: section.__doc__ for section in sections}
    text = page(title, texts, results)
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def resident(field: str) -> float:
    """Return the memory of this process in GB: VmRSS now, VmHWM at its peak (Linux)."""
    # The peak of getrusage includes that of the parent process, so read /proc instead.
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) / 2**20
