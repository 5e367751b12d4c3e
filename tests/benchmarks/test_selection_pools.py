"""Pools of training runs: interpolation, storage, and what is trained."""

import json

import pytest
import torch

from benchmarks import _selection_pools as pools
from benchmarks import _selection_tasks as tasks
from benchmarks._training_pools import Task

pytestmark = pytest.mark.default_device


def make_pool():
    scores = torch.tensor([[0.9, 0.8, 0.4], [0.5, 0.5, 0.1]], dtype=torch.float64)
    levels = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    return pools.Pool([], levels, scores, scores / 2)


class TestAt:
    def test_is_linear_in_the_logarithm(self):
        train, test = make_pool().at(2.0)
        torch.testing.assert_close(train, torch.tensor([0.6, 0.3]).double())
        torch.testing.assert_close(test, torch.tensor([0.3, 0.15]).double())

    @pytest.mark.parametrize(("level", "column"), [(0.0, 0), (1.0, 1), (4.0, 2)])
    def test_is_exact_where_runs_were_trained(self, level, column):
        pool = make_pool()
        torch.testing.assert_close(pool.at(level)[0], pool.train_scores[:, column])

    @pytest.mark.parametrize("level", [0.5, 4.1])
    def test_does_not_extrapolate(self, level):
        with pytest.raises(ValueError, match="noise_multiplier must be within"):
            make_pool().at(level)


def test_trains_only_what_is_missing(tmp_path, monkeypatch):
    torch.manual_seed(0)
    inputs, targets = torch.randn(30, 2), torch.randint(2, (30,))
    task = Task("adult", inputs, targets, inputs, targets, 2, 0, 0.5, 3)
    monkeypatch.setattr(pools, "TASKS", {"adult": lambda: task})
    monkeypatch.setattr(pools, "NUM_SETTINGS", {"adult": 3})
    monkeypatch.setattr(pools, "SEEDS", range(2))
    path = tmp_path / "pools.json"
    pools.train_missing(["adult"], path)
    before = path.read_text()
    loaded = pools.load_pools("adult", path)
    assert [len(pool.settings) for pool in loaded] == [3, 3]
    assert loaded[0].settings == tasks.SPACES["adult"].draw(3, seed=0)
    assert loaded[0].test_scores.shape == (3, len(pools.LEVELS["adult"]))
    stored = json.loads(before)
    del stored["adult"]["1"]
    path.write_text(json.dumps(stored))
    pools.train_missing(["adult"], path)
    assert json.loads(path.read_text()) == json.loads(before)


def test_nothing_stored_gives_no_pools(tmp_path):
    assert pools.load_pools("mnist", tmp_path / "nothing.json") == []
