"""Real tasks in the arena: what each method returns, seeds in order, tables by hand."""

import math

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyRegressor

from benchmarks import _arena_real, arena
from benchmarks._arena_real import (
    CHOICE,
    NUM_POINTS,
    RANDOM,
    UNTUNED,
    Trial,
    run_trial,
    sections,
    verdict_rows,
)
from benchmarks.contenders.base import pure_epsilon
from benchmarks.contenders.real_tasks import REAL_TASKS, RealTask
from botorch_dp import ApproxDP
from botorch_dp.integrations.sklearn import Real

pytestmark = pytest.mark.default_device  # benchmarks run on the CPU


def absolute(model, X, y):
    return np.clip(np.abs(model.predict(X) - y), 0.0, 2.0)


def numbers():
    rng = np.random.default_rng(0)
    return rng.normal(size=(400, 2)), 0.7 + 0.1 * rng.normal(size=400)


@pytest.fixture
def task(monkeypatch):
    """A model that predicts its only parameter; 0.7 is best."""
    task = RealTask(
        data=numbers,
        model=lambda: DummyRegressor(strategy="constant", constant=0.1),
        space={"constant": Real(0.0, 1.0)},
        loss=absolute,
        loss_range=(0.0, 2.0),
        sizes=(20, 300, 80),
        epsilons=(1.0, 3.0),
    )
    monkeypatch.setitem(REAL_TASKS, "tiny", task)
    return task


def test_methods_of_a_trial(task):
    trial = Trial(task, seed=0)
    private, test = trial.means
    assert private.shape == test.shape == (NUM_POINTS + 1,)
    expected = np.abs(trial.test[1] - 0.1).mean()
    assert trial.run(UNTUNED, 1.0) == pytest.approx(expected)
    best = np.abs(trial.test[1] - 0.7).mean()
    assert trial.run(RANDOM, 1.0) == pytest.approx(best, abs=0.02)
    assert trial.run(CHOICE, 1000.0) == trial.run(RANDOM, 1.0)
    for method in ("dp-gibo", "stable"):
        assert trial.run(method, 3.0) < expected - 0.1


def test_a_choice_has_noise_in_units_of_the_range(task, monkeypatch):
    seen = []

    def choose(means, scale, noise, generator):
        seen.append(scale)
        return 0

    monkeypatch.setattr(_arena_real, "choose", choose)
    Trial(task, seed=0).run(CHOICE, 1.0)
    # Twice the sensitivity over epsilon: the range is 2, and there are 300 records.
    assert seen == [pytest.approx(2 * (2 / 300) / pure_epsilon(1.0))]


def test_a_trial_of_some_methods(task):
    found = run_trial("tiny", 0, {1.0: [UNTUNED, RANDOM], 3.0: [UNTUNED]})
    assert set(found) == {"tiny-n300-eps1", "tiny-n300-eps3"}
    assert set(found["tiny-n300-eps1"]) == {UNTUNED, RANDOM}
    assert found["tiny-n300-eps3"][UNTUNED]["loss"] == [
        pytest.approx(Trial(task, 0).run(UNTUNED, 3.0), abs=1e-6)
    ]


def test_run_continues_in_the_order_of_seeds(task, tmp_path, monkeypatch):
    monkeypatch.setattr(
        _arena_real,
        "completed",
        lambda run, parts, jobs: [run(*part) for part in parts],
    )
    path = tmp_path / "arena_real.json"
    _arena_real.run([UNTUNED], 1, 1, ["tiny"], path)
    _arena_real.run([UNTUNED, RANDOM], 3, 1, ["tiny"], path)
    results = arena.load(path)
    cell = results["tiny-n300-eps1"]
    expected = [round(Trial(task, seed).run(UNTUNED, 1.0), 6) for seed in range(3)]
    assert cell[UNTUNED]["loss"] == expected
    assert len(cell[RANDOM]["loss"]) == 3


def test_the_settings_of_version_0_1():
    trial = Trial(REAL_TASKS["svm-digits"], 0)
    settings = trial._old_settings(1.0)
    mu = ApproxDP(1.0, 1e-5).to_gdp().mu
    expected = max(0.25, 0.003 * 897 * mu / math.sqrt(10) / 2)
    assert settings["clip_norm"] == pytest.approx(expected)
    assert (settings["method"], settings["num_steps"]) == ("dp-gibo", 10)
    assert settings["method_options"]["batch_size"] == 3


def test_tables():
    cell = {
        "dp-gibo": {"loss": [0.1, 0.1], "seconds": 1.0},
        UNTUNED: {"loss": [0.4, 0.4], "seconds": 1.0},
        CHOICE: {"loss": [0.2, 0.2], "seconds": 1.0},
        RANDOM: {"loss": [0.05, 0.07], "seconds": 1.0},
    }
    assert verdict_rows({"a": cell}) == [
        {
            "task": "a",
            "better alternative": CHOICE,
            "dp-gibo": "-0.1000 ± 0.0000 (win)",
        }
    ]
    page = "\n".join(sections({"a": cell}))
    assert "| a | 0.1 ± 0 | 0.4 ± 0 | 0.2 ± 0 | 0.06 ± 0.01 |" in page
    assert sections({}) == []


def test_unknown_methods_and_tasks(monkeypatch):
    with pytest.raises(SystemExit, match="nothing"):
        arena.run_real("nothing", "*", 1, 1)
    seen = []
    monkeypatch.setattr(_arena_real, "run", lambda *args: seen.append(args))
    arena.run_real(None, "svm-d*", 5, 2)
    assert seen == [(_arena_real.methods(), 5, 2, ["svm-digits"])]


def test_losses_are_clipped_to_their_range(task):
    trial = Trial(task, seed=0)
    model = DummyRegressor(strategy="constant", constant=50.0).fit(*trial.train)
    assert trial.losses(model, trial.test).max() == 2.0
    assert torch.isfinite(trial.means[0]).all()
