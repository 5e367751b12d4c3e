"""The tables of the benchmark of selection."""

import json

import pytest

from benchmarks import _selection_plans as plans
from benchmarks import selection
from benchmarks._selection_pools import LEVELS, NUM_SETTINGS
from benchmarks._selection_tables import outline
from benchmarks._selection_tasks import SPACES, TASKS

pytestmark = pytest.mark.default_device


def test_every_task_has_a_section_and_settings():
    names = {section.__name__ for section in selection.SECTIONS}
    assert set(TASKS) <= names
    assert set(TASKS) == set(SPACES) == set(LEVELS) == set(NUM_SETTINGS)


def test_the_frontier_is_the_best_within_epsilon():
    curve = [(3.2, 90.0, 2.0), (2.9, 89.0, 1.0), (3.4, 96.0, 9.0)]
    row = selection._frontier("some", "bound", curve)
    assert row["ε 3"] == "89.00 (1)"
    assert row["ε 3.5"] == "96.00 (9)"
    assert row["ε for 95.6"] == "3.40"


def test_the_summary_follows_the_tables(tmp_path, monkeypatch):
    def entry(value):
        return {f"ε {e:g}": f"{value:.2f} ± 0.10 (1.00)" for e in plans.EPSILONS}

    rows = {
        "no tuning, a": 80.0,
        "no tuning, b": 81.0,
        "no tuning, b, knows the units": 99.0,
        "16 composed, scores nearly free": 78.0,
        "16 composed, JointBudget's default": 77.0,
        "selection, Poisson": 79.0,
        "selection, geometric": 70.0,
        "selection, geometric, at least 3": 79.5,
    }
    table = [{"": label, **entry(value)} for label, value in rows.items()]
    table.append({"": "simulated", **dict.fromkeys(entry(0), "not possible")})
    (tmp_path / "selection.json").write_text(json.dumps({"adult": table}))
    monkeypatch.setattr(selection, "RESULTS", tmp_path)
    summary = selection.summary()
    assert len(summary) == len(plans.EPSILONS)
    assert summary[0]["best guess"] == 81.0
    assert summary[0]["best count"] == "geometric, at least 3"
    assert summary[0]["best count - composed"] == "+1.50"
    assert summary[0]["- JointBudget's default"] == "+2.50"
    assert summary[0]["- best guess"] == "-1.50"


class TestPlans:
    task = outline("mnist_6000")

    def test_scores_of_few_records_have_more_noise(self):
        assert plans.score_noise(self.task) == pytest.approx(40 / 6000)
        assert plans.score_noise(outline("mnist")) == 0.002
        assert plans.score_event(self.task).noise_multiplier == pytest.approx(40.0)

    def test_selection_needs_less_noise_than_composition(self):
        count = plans.count_named("geometric, at least 3", 16)
        one = plans.noise_of_one(self.task, 4.0)
        selected = plans.noise_of_selection(self.task, 4.0, count)
        assert one < selected < plans.noise_of_composition(self.task, 4.0)

    def test_adaptive_proposals_cost_more_or_are_impossible(self):
        count = plans.count_named("geometric", 4)
        uniform = plans.noise_of_selection(self.task, 6.0, count)
        adaptive = plans.noise_of_selection(self.task, 6.0, count, (0.8, 1.25))
        assert uniform < adaptive < plans.MOST_NOISE
        ratios = (0.1, 10.0)
        assert plans.noise_of_selection(self.task, 1.0, count, ratios) == float("inf")
