"""The cells: how many, all settings, and a split by a hash of the name."""

import hashlib
from collections import Counter

import pytest

from benchmarks._arena_cells import (
    CELLS,
    CHOOSE,
    DIMENSIONS,
    NUM_SETTINGS,
    REPORT,
    SETTINGS,
    Cell,
)


def test_every_task_and_dimension_has_five_settings():
    pairs = Counter((cell.task, cell.dim) for cell in CELLS.values())
    assert set(pairs) == {(task, d) for task, dims in DIMENSIONS.items() for d in dims}
    extremes = {("quadratic", 6), ("levy", 4)}
    for pair, count in pairs.items():
        assert count == NUM_SETTINGS + 2 * (pair in extremes)
    settings = Counter((cell.num_records, cell.epsilon) for cell in CELLS.values())
    assert set(settings) == {*SETTINGS, (50_000, 1.0), (500, 0.1)}
    common = [settings[setting] for setting in SETTINGS]
    assert max(common) - min(common) <= 1
    assert len(CELLS) == 134


def test_names():
    cell = Cell("quadratic", 6, 5000, 1.0)
    assert cell.name == "quadratic-d6-n5000-eps1"
    assert CELLS["levy-d4-n500-eps0.1"] == Cell("levy", 4, 500, 0.1)
    assert cell.signal == 5000


@pytest.mark.parametrize("cell", CELLS.values(), ids=lambda cell: cell.name)
def test_the_split_is_the_parity_of_a_hash(cell):
    number = int(hashlib.sha256(cell.name.encode()).hexdigest(), 16)
    assert cell.half == (REPORT if number % 2 else CHOOSE)


def test_the_split_is_about_even_and_known():
    halves = Counter(cell.half for cell in CELLS.values())
    assert halves == {CHOOSE: 75, REPORT: 59}


def test_smooth_tasks_are_those_without_jumps():
    assert Cell("quadratic", 6, 500, 1.0).is_smooth
    assert Cell("pareto", 2, 500, 1.0).is_smooth
    assert not Cell("cover", 4, 500, 1.0).is_smooth
    assert not Cell("classify", 6, 500, 1.0).is_smooth
