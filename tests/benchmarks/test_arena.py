"""The runner: what is missing, shared tasks, saved results, and pages from JSON."""

import json

import pytest
import torch

from benchmarks import _arena_report, arena
from benchmarks._arena_cells import CELLS, Cell
from benchmarks.contenders import CONTENDERS, NOT_PRIVATE, OURS, Contender

pytestmark = pytest.mark.default_device  # benchmarks run on the CPU

CELL, OTHER = CELLS["quadratic-d6-n500-eps1"], CELLS["quadratic-d6-n500-eps0.3"]


@pytest.fixture
def methods(monkeypatch):
    """Two methods whose results show epsilon and seed, and the calls of each."""
    calls = []

    def method(name):
        def run(task, epsilon, seed):
            calls.append((name, epsilon, seed))
            return task.start

        return run

    ours = Contender("ours", OURS, method("ours"))
    public = Contender("public", NOT_PRIVATE, method("public"), most_seeds=2)
    monkeypatch.setitem(CONTENDERS, "ours", ours)
    monkeypatch.setitem(CONTENDERS, "public", public)
    return [ours, public], calls


def test_missing(methods):
    contenders, _ = methods
    assert arena.missing(CELL, {}, contenders, 3) == {
        "ours": range(3),
        "public": range(2),
    }
    known = {"ours": {"regret": [0.1]}, "public": {"regret": [0.1, 0.2]}}
    assert arena.missing(CELL, known, contenders, 3) == {"ours": range(1, 3)}
    low = Contender("low", OURS, contenders[0].run, most_dims=5)
    assert arena.missing(CELL, {}, [low], 3) == {}


def test_cells_of_one_task_share_what_needs_no_privacy(methods):
    contenders, calls = methods
    (todo,) = arena.groups([CELL, OTHER], {}, contenders, 2)
    found = arena.run_group(todo)
    assert set(found) == {CELL.name, OTHER.name}
    assert sorted(calls) == [
        ("ours", 0.3, 0),
        ("ours", 0.3, 1),
        ("ours", 1.0, 0),
        ("ours", 1.0, 1),
        *[("public", epsilon, seed) for _, epsilon, seed in sorted(calls)[4:]],
    ]
    assert len(calls) == 6
    regrets = found[CELL.name]["ours"]["regret"]
    assert regrets == found[OTHER.name]["public"]["regret"]  # the start for all
    task = arena.make_task("quadratic", 6, 500, 1)
    expected = float(task.fresh_mean(task.start[None])) - task.least()
    assert regrets[1] == pytest.approx(expected, abs=1e-6)


def test_groups_begin_with_the_largest(methods):
    small, large = CELL, Cell("quadratic", 50, 20_000, 1.0)
    groups = list(arena.groups([small, large], {}, methods[0], 1))
    assert [next(iter(group)) for group in groups] == [large, small]


def test_a_failure_names_its_cell(methods, monkeypatch):
    def fail(task, epsilon, seed):
        raise RuntimeError("no")

    monkeypatch.setitem(CONTENDERS, "ours", Contender("ours", OURS, fail))
    with pytest.raises(RuntimeError, match="no") as caught:
        arena.run_group({CELL: {"ours": range(1)}})
    assert CELL.name in caught.value.__notes__[0]


def test_results_grow(tmp_path):
    path = tmp_path / "arena.json"
    assert arena.load(path) == {}
    results = {}
    arena.merge(results, {"a": {"m": {"regret": [0.1, 0.2], "seconds": [1.0, 3.0]}}})
    arena.merge(results, {"a": {"m": {"regret": [0.3], "seconds": [8.0]}}})
    assert results == {"a": {"m": {"regret": [0.1, 0.2, 0.3], "seconds": 4.0}}}
    arena.save(results, path)
    assert arena.load(path) == json.loads(path.read_text()) == results


def test_run_resumes_and_writes_pages(methods, tmp_path, monkeypatch):
    contenders, calls = methods
    monkeypatch.setattr(
        arena, "completed", lambda run, parts, jobs: [run(*part) for part in parts]
    )
    path = tmp_path / "arena.json"
    arena.run([CELL], contenders, seeds=1, jobs=1, path=path)
    arena.run([CELL], contenders, seeds=2, jobs=1, path=path)
    assert sorted(calls) == [
        ("ours", 1.0, 0),
        ("ours", 1.0, 1),
        ("public", 1.0, 0),
        ("public", 1.0, 1),
    ]
    assert len(arena.load(path)[CELL.name]["ours"]["regret"]) == 2
    _arena_report.write_report(tmp_path)
    assert (tmp_path / "arena.md").read_text() == _arena_report.page_of(tmp_path)
    assert (tmp_path / "arena.png").stat().st_size > 1000


def test_select():
    chosen, reported = arena.select("choose", "*"), arena.select("report", "*")
    assert {*chosen, *reported} == set(CELLS.values())
    assert not {*chosen} & {*reported}
    assert arena.select("all", "levy-d4-n500-eps1") == [CELLS["levy-d4-n500-eps1"]]


def test_choose_methods():
    names = [method.name for method in arena.choose_methods("SPSA, TPE")]
    assert names == ["SPSA", "TPE"]
    with pytest.raises(SystemExit, match="spsa"):
        arena.choose_methods("spsa")
    assert all("," not in name for name in CONTENDERS)
    assert {method.kind for method in arena.choose_methods(None)} == {
        "ours",
        "alternative",
        "not private",
    }


def test_regret_is_of_the_point_that_was_returned(monkeypatch):
    corner = torch.zeros(6, dtype=torch.float64)
    method = Contender("ours", OURS, lambda task, epsilon, seed: corner)
    monkeypatch.setitem(CONTENDERS, "ours", method)
    found = arena.run_group({CELL: {"ours": range(1)}})
    task = arena.make_task("quadratic", 6, 500, 0)
    expected = float(task.fresh_mean(corner[None])) - task.least()
    assert found[CELL.name]["ours"]["regret"] == [pytest.approx(expected, abs=1e-6)]


def test_the_halves_share_no_records(methods):
    contenders, calls = methods
    cells = [CELL, CELLS["quadratic-d6-n500-eps0.1"]]
    assert {cell.half for cell in cells} == {"choose", "report"}
    for todo in arena.groups(cells, {}, contenders[:1], 2):
        arena.run_group(todo)
    seeds = {
        epsilon: {s for _, e, s in calls if e == epsilon} for epsilon in (1.0, 0.1)
    }
    assert seeds == {1.0: {0, 1}, 0.1: {1000, 1001}}
