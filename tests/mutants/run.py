"""Break the library on purpose, one line at a time, and check that a test notices.

``mutants.toml`` lists the breaks. Each has a name, a file, the text to replace (which
must occur exactly once), the replacement, and tests of which at least one must fail.
The runner works on copies in a temporary folder: it never changes the working tree, and
two runners can run at the same time.

    python tests/mutants/run.py                  # all of them, a few minutes
    python tests/mutants/run.py --only NAME ...  # some; or a pattern, such as 'cap-*'
    python tests/mutants/run.py --check          # only check the list itself
    python tests/mutants/run.py --list           # only list their names

First, all named tests run once without any break. A mutant is stale if its text or its
tests no longer exist, or if its tests fail without the break. The exit code is 1 if a
mutant survives or is stale.

Processes are forked from one that has imported torch and other libraries, but nothing
from this one, so a mutant takes little more than the time of its tests.
"""

import argparse
import compileall
import contextlib
import fnmatch
import gc
import importlib
import multiprocessing
import os
import py_compile
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The parts of the repository that the tests need.
COPIED = ("botorch_dp", "examples", "tests", "conftest.py", "pyproject.toml")
# Modules imported before the first fork: they take long, and start no thread.
PRELOADED = (
    "botorch.acquisition",
    "botorch.optim",
    "botorch.test_functions",
    "dp_accounting.pld.privacy_loss_distribution",
    "dp_accounting.rdp",
    "hypothesis",
    "mpmath",
    "multipledispatch",
    "opacus",
    "opendp.prelude",
    "pandas",
    "pytest",
    "scipy.stats",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "sklearn.pipeline",
)
CAUGHT, SURVIVED, STALE, TIMED_OUT = "caught", "SURVIVED", "STALE", "TIMED OUT"


class StaleError(Exception):
    """A mutant that does not fit the current code."""


@dataclass(frozen=True)
class Mutant:
    """One break.

    Attributes:
        name: The unique name of the mutant.
        file: The file to break, relative to the root of the repository.
        old: The text to replace, which occurs exactly once in the file.
        new: The replacement.
        tests: Files, classes or functions as pytest names them. At least one of their
            tests must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def source(self, root: Path) -> str:
        """Return the broken file.

        Raises:
            StaleError: If the text does not occur exactly once, or the result is not
                valid Python.
        """
        path = root / self.file
        if not path.is_file():
            raise StaleError(f"{self.file} is missing{self._elsewhere(root)}")
        source = path.read_text()
        if (found := source.count(self.old)) != 1:
            raise StaleError(
                f"{self.file} has {self.old!r} {found} times, not once"
                f"{self._elsewhere(root)}"
            )
        broken = source.replace(self.old, self.new)
        try:
            compile(broken, self.file, "exec")
        except SyntaxError as error:
            raise StaleError(f"the broken file is not Python: {error}") from error
        return broken

    def _elsewhere(self, root: Path) -> str:
        package = root / Path(self.file).parts[0]
        others = [
            str(path.relative_to(root))
            for path in sorted(package.rglob("*.py"))
            if path != root / self.file and self.old in path.read_text()
        ]
        return f"; the text is in {', '.join(others)}" if others else ""


@dataclass
class Outcome:
    """The outcome of a set of tests.

    Attributes:
        num_passed: The number of tests that passed.
        failed: The node ids of the tests that failed.
        missing: The named tests that do not exist.
        errors: The reasons why tests could not run.
        timed_out: Whether the tests were stopped because they took too long.
        seconds: The duration of the tests.
    """

    num_passed: int = 0
    failed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    timed_out: bool = False
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """The status of the mutant that the tests ran on."""
        if self.timed_out:
            return TIMED_OUT
        if self.errors or self.missing or not (self.failed or self.num_passed):
            return STALE
        return CAUGHT if self.failed else SURVIVED


def load(path: Path) -> list[Mutant]:
    """Read mutants from a TOML file, and check that they are complete."""
    wanted = {item.name for item in fields(Mutant)}
    mutants: list[Mutant] = []
    for entry in tomllib.loads(path.read_text())["mutant"]:
        if set(entry) != wanted:
            raise SystemExit(f"A mutant must have {sorted(wanted)}, got {entry!r}.")
        mutant = Mutant(**{**entry, "tests": tuple(entry["tests"])})
        if not mutant.tests or not mutant.old or mutant.old == mutant.new:
            raise SystemExit(f"Mutant {mutant.name!r} has no tests or changes nothing.")
        mutants.append(mutant)
    names = [mutant.name for mutant in mutants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SystemExit(f"Names of mutants must be unique, got {twice} twice.")
    return mutants


def stale(mutants: Iterable[Mutant], root: Path) -> dict[str, str]:
    """Return the reasons why mutants do not fit the current files, by name."""
    problems: dict[str, str] = {}
    for mutant in mutants:
        try:
            mutant.source(root)
        except StaleError as error:
            problems[mutant.name] = str(error)
        for test in mutant.tests:
            if not (root / _file_of(test)).is_file():
                problems[mutant.name] = f"{test} is missing"
    return problems


@contextlib.contextmanager
def pristine_copy(root: Path) -> Iterator[Path]:
    """Copy the tested files to a temporary folder, and compile them for all mutants."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        pristine = Path(folder).resolve() / "pristine"
        pristine.mkdir()
        ignore = shutil.ignore_patterns("__pycache__", ".hypothesis")
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, pristine / name, ignore=ignore)
            elif (root / name).exists():
                shutil.copy2(root / name, pristine / name)
        # Do not check size and time: a broken file may have those of the old one.
        compileall.compile_dir(
            pristine,
            quiet=1,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        yield pristine


def broken_copy(pristine: Path, mutant: Mutant | None, name: str) -> Path:
    """Return a new folder beside the pristine one, with one file broken."""
    folder = pristine.parent / name
    shutil.copytree(pristine, folder, copy_function=os.link)
    if mutant is not None:
        path = folder / mutant.file
        source = mutant.source(folder)
        path.unlink()  # a link: the pristine file stays as it is
        path.write_text(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
    return folder


class _Plugin:
    """Select the tests that pytest runs, and record their outcomes."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.tests = tests
        self.outcome = Outcome()
        self.last: str | None = None  # the test that started last

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        ids = [item.nodeid for item in items]
        self.outcome.missing = [
            test for test in self.tests if not any(_is_in(name, test) for name in ids)
        ]
        items[:] = [
            item
            for item in items
            if any(_is_in(item.nodeid, test) for test in self.tests)
        ]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.last = nodeid

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        # Some tests interrupt on purpose; Pytest's own interruptions are subclasses.
        if excinfo.type is KeyboardInterrupt and self.last is not None:
            self.outcome.failed.append(self.last)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.outcome.failed.append(report.nodeid)
        elif report.passed and report.when == "call":
            self.outcome.num_passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.outcome.errors.append(f"{report.nodeid}: {report.longreprtext}")


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _is_in(node: str, test: str) -> bool:
    return node == test or node.startswith((f"{test}::", f"{test}["))


def _test(folder: Path, tests: Sequence[str], options: Sequence[str]) -> Outcome:
    """Run tests of a copy, in a process that has not imported the library yet."""
    os.chdir(folder)
    sys.path[:] = [
        str(folder),
        *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE),
    ]
    os.environ["PYTHONPATH"] = str(folder)  # for processes that tests start
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading takes seconds
    sys.dont_write_bytecode = True
    import pytest

    plugin, files = _Plugin(tests), dict.fromkeys(map(_file_of, tests))
    plugins = ["-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
    arguments = ["-q", *plugins, "--hypothesis-seed=0", *options, *files]
    code = pytest.main(arguments, plugins=[plugin])
    outcome = plugin.outcome
    ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if code not in ended and not outcome.failed:
        outcome.errors.append(f"pytest ended with {code!r}")
    imported = getattr(sys.modules.get(COPIED[0]), "__file__", None)
    if imported is None or not Path(imported).is_relative_to(folder):
        outcome.errors.append(f"the copy was not tested, but {imported}")
    return outcome


def _child(
    folder: Path, tests: Sequence[str], options: Sequence[str], answer: Connection
) -> None:
    os.setsid()  # so that it can be stopped together with its children
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        outcome = _test(folder, tests, options)
    except BaseException:
        outcome = Outcome(errors=[traceback.format_exc()])
    answer.send(outcome)
    answer.close()


@dataclass
class _Running:
    name: str
    folder: Path
    process: BaseProcess
    answer: Connection
    start: float


def run_tests(
    tasks: Iterable[tuple[str, Mutant | None, Sequence[str]]],
    pristine: Path,
    *,
    jobs: int,
    timeout: float,
    options: Sequence[str] = (),
) -> Iterator[tuple[str, Outcome]]:
    """Run the tests of each task in a separate copy, and yield the outcomes.

    Args:
        tasks: Triples of a name, a mutant (None for no break), and tests.
        pristine: The copy to start from.
        jobs: The number of tasks that run at the same time.
        timeout: The number of seconds after which a task is stopped.
        options: Additional options for pytest.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = deque(tasks), list[_Running]()
    while waiting or running:
        while waiting and len(running) < jobs:
            name, mutant, tests = waiting.popleft()
            folder = broken_copy(pristine, mutant, name)
            receive, send = context.Pipe(duplex=False)
            process = context.Process(
                target=_child, args=(folder, tests, options, send)
            )
            process.start()
            send.close()
            running.append(_Running(name, folder, process, receive, time.monotonic()))
        wait([one.answer for one in running], timeout=1.0)
        for one in list(running):
            outcome = _outcome(one, timeout)
            if outcome is not None:
                running.remove(one)
                shutil.rmtree(one.folder, ignore_errors=True)
                yield one.name, outcome


def _outcome(one: _Running, timeout: float) -> Outcome | None:
    """Return the outcome of a task that has ended, or None if it is still running."""
    seconds = time.monotonic() - one.start
    if one.answer.poll():
        try:
            outcome: Outcome = one.answer.recv()
        except EOFError:  # killed, or crashed
            log = (one.folder / "log").read_text()[-2000:]
            outcome = Outcome(errors=[f"the process ended early: {log}"])
    elif seconds > timeout:
        outcome = Outcome(timed_out=True)
    else:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(one.process.pid or 0, signal.SIGKILL)  # and what tests left behind
    one.process.join()
    one.answer.close()
    outcome.seconds = seconds
    return outcome


def preload(names: Iterable[str]) -> None:
    """Import what all tests need and no mutant changes."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # so that forks share the memory


def run_unbroken(
    mutants: Sequence[Mutant], pristine: Path, **how: Any
) -> dict[str, str]:
    """Run all named tests once as they are; return why mutants are stale, by name."""
    files: dict[str, set[str]] = {}
    for test in (test for mutant in mutants for test in mutant.tests):
        files.setdefault(_file_of(test), set()).add(test)
    tasks = [
        (f"unbroken-{number}", None, sorted(tests))
        for number, tests in enumerate(files.values())
    ]
    asked = {name: tests for name, _, tests in tasks}
    problems: dict[str, str] = {}  # of tests
    for name, outcome in run_tests(tasks, pristine, **how):
        for test in asked[name]:
            if outcome.errors or outcome.timed_out:
                problems[test] = "\n    ".join(outcome.errors) or "takes too long"
            elif test in outcome.missing:
                problems[test] = "is missing"
            elif any(_is_in(node, test) for node in outcome.failed):
                problems[test] = "fails without any break"
    return {
        mutant.name: f"{test} {problems[test]}"
        for mutant in mutants
        for test in mutant.tests
        if test in problems
    }


def run_mutants(mutants: Sequence[Mutant], pristine: Path, **how: Any) -> list[str]:
    """Run the mutants, print a table, and return the names of those not caught."""
    width = max((len(mutant.name) for mutant in mutants), default=0)
    tasks = [(mutant.name, mutant, mutant.tests) for mutant in mutants]
    missed: list[str] = []
    for name, outcome in run_tests(tasks, pristine, options=["-x"], **how):
        detail = outcome.failed[0] if outcome.failed else "no test noticed"
        if outcome.status != CAUGHT:
            missed.append(name)
            detail = "\n    ".join(outcome.errors) or detail
        line = f"{name:<{width}}  {outcome.status:<9}  {outcome.seconds:5.1f} s"
        print(f"{line}  {detail}", flush=True)
    return missed


def run(
    mutants: Sequence[Mutant], problems: dict[str, str], root: Path, **how: Any
) -> int:
    """Run everything, and return the exit code.

    Args:
        mutants: All of them.
        problems: Why some are stale, by name.
        root: The repository.
        **how: The jobs and the timeout, for :func:`run_tests`.
    """
    start, missed = time.monotonic(), []
    fit = [mutant for mutant in mutants if mutant.name not in problems]
    preload(PRELOADED if root == ROOT else ["pytest"])
    with pristine_copy(root) as pristine:
        found = run_unbroken(fit, pristine, **how)
        _print_stale(found)
        fit = [mutant for mutant in fit if mutant.name not in found]
        print(f"all other tests pass unbroken ({time.monotonic() - start:.0f} s)")
        missed = run_mutants(fit, pristine, **how)
    not_caught = [*problems, *found, *missed]
    print(
        f"{len(mutants) - len(not_caught)} of {len(mutants)} caught in "
        f"{time.monotonic() - start:.0f} s"
    )
    if not_caught:
        print("NOT caught:", *not_caught, sep="\n    ")
    return 1 if not_caught else 0


def _print_stale(problems: dict[str, str]) -> None:
    for name, problem in problems.items():
        print(f"{name}: mutant is stale: {problem}", flush=True)


def _chosen(mutants: Sequence[Mutant], patterns: Sequence[str]) -> list[Mutant]:
    for pattern in patterns:
        if not any(fnmatch.fnmatch(mutant.name, pattern) for mutant in mutants):
            raise SystemExit(f"There is no mutant {pattern!r}: see --list.")
    return [
        mutant
        for mutant in mutants
        if not patterns or any(fnmatch.fnmatch(mutant.name, p) for p in patterns)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument(
        "--jobs", type=int, default=2, help="how many run at a time (2)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300, help="seconds per mutant (300)"
    )
    parser.add_argument("--list", action="store_true", help="print names, run nothing")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check that the list is up to date, run nothing",
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the repository to break"
    )
    parser.add_argument(
        "--mutants",
        type=Path,
        default=HERE / "mutants.toml",
        help="the list of mutants",
    )
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    mutants = _chosen(load(options.mutants), options.only)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}  ({mutant.file})")
        return 0
    problems = stale(mutants, root)
    _print_stale(problems)
    if options.check:
        print(f"{len(mutants)} mutants, {len(problems)} stale")
        return 1 if problems else 0
    return run(
        mutants, problems, root, jobs=max(1, options.jobs), timeout=options.timeout
    )


if __name__ == "__main__":
    sys.exit(main())
