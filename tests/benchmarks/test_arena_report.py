"""The page of the arena: numbers by hand."""

from benchmarks._arena_cells import CELLS, CHOOSE, REPORT
from benchmarks._arena_report import DIMS, SIGNALS, markdown, measured, medians


def some(half):
    """Results of three methods in two cells of a half."""
    names = [name for name, cell in CELLS.items() if cell.half == half][:2]
    regrets = {
        "dp-gibo (old)": [0.2, 0.2],
        "no search": [0.1, 0.1],
        "TPE": [0.01, 0.01],
    }
    entry = {name: {"regret": r, "seconds": 1.0} for name, r in regrets.items()}
    return dict.fromkeys(names, entry)


def test_every_cell_is_in_one_bucket():
    for buckets in (SIGNALS, DIMS):
        for cell in CELLS.values():
            assert sum(is_inside(cell) for is_inside in buckets.values()) == 1


def test_halves_losses_and_no_search():
    page = markdown({**some(CHOOSE), **some(REPORT)})
    assert "## Cells to choose defaults on" in page
    assert "## Cells that only report" in page
    assert page.count("| dp-gibo (old) | 2 | 0 | 0 | 0 | 2 | 2 |") == 2
    (name, _) = some(REPORT)
    loss = f"| dp-gibo (old) | {name} | 0.2000 | no search | 0.1000 | 0.1000 ± 0.0000 |"
    assert loss in page
    assert f"| dp-gibo (old) | {name} | 0.2000 | 0.1000 ± 0.0000 |" in page


def test_a_half_without_results_has_no_section():
    page = markdown(some(CHOOSE))
    assert "that only report" not in page


def test_medians():
    results = {
        name: {"SPSA": {"regret": [value, value], "seconds": 1.0}}
        for name, value in {
            "quadratic-d6-n500-eps1": 0.1,
            "quadratic-d2-n500-eps1": 0.2,
            "levy-d4-n500-eps1": 0.6,
        }.items()
    }
    (row,) = medians(results, SIGNALS)
    assert row["method"] == "SPSA"
    assert row["nε = 500"] == "0.2000"
    assert row["nε = 5,000"] == ""
    (row,) = medians(results, DIMS)
    assert (row["d = 2–3"], row["d = 4–6"]) == ("0.2000", "0.3500")


def test_measured_is_what_minimize_leaves_of_the_start():
    name = "quadratic-d6-n500-eps1"
    cell = {
        "minimize": {"regret": [0.01, 0.03]},
        "no search": {"regret": [0.1, 0.3]},
    }
    assert measured({name: cell}) == [[500.0, 6, 0.1]]
    assert measured({name: {"minimize": cell["minimize"]}}) == []
