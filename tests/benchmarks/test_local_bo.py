"""Standards of local Bayesian optimization: optima, cells and tables."""

import pytest
import torch

from benchmarks import local_bo
from benchmarks._local_bo import cells, tasks
from benchmarks._local_bo.private import JUDGE, Bumps
from benchmarks._local_bo.rivals import _initial, random_search

pytestmark = pytest.mark.cpu_only  # benchmarks run on the CPU
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_cpu():
    with CPU:
        yield


class TestFunctions:
    @pytest.mark.parametrize("f", [tasks.rosenbrock, tasks.ackley, tasks.levy])
    def test_the_optimum_is_zero_at_zero(self, f):
        Z = torch.zeros(1, 4, **tasks.DOUBLE)
        assert abs(float(f(Z))) < 1e-12
        others = torch.randn(50, 4, generator=tasks._seeded(0), **tasks.DOUBLE)
        assert (f(others) > 0).all()

    def test_published_values(self):
        # Rosenbrock at the origin is d - 1; Ackley at (1, 1) is 3.6253849384.
        assert float(tasks.rosenbrock(torch.full((1, 3), -1.0, **tasks.DOUBLE))) == 2
        ackley = tasks.ackley(torch.ones(1, 2, **tasks.DOUBLE))
        assert float(ackley) == pytest.approx(3.6253849384)

    @pytest.mark.parametrize("name", tasks.TASKS)
    def test_same_seed_same_function(self, name):
        task = tasks.TASKS[name]
        X = torch.rand(2, task.dim, generator=tasks._seeded(1), **tasks.DOUBLE)
        if task.dim > 100:
            pytest.skip("as in fewer dimensions")
        first, again, other = (task.make(seed)(X) for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert first.isfinite().all()


class TestCells:
    def test_a_cell_is_run_once(self, tmp_path, monkeypatch):
        calls = []

        def count(*args):
            calls.append(args)
            return random_search(*args)

        monkeypatch.setitem(cells.METHODS, "random search", count)
        monkeypatch.setattr(cells, "KEPT", tmp_path / "kept.json")
        for _ in range(2):
            cells.run_cell("ackley-20", "random search", 0, tmp_path / "cells")
        (found,) = cells.load_cells(tmp_path / "cells")
        assert len(calls) == 1
        assert found["best"] == sorted(found["best"], reverse=True)
        cells.keep_cells([found])
        assert cells.load_cells(tmp_path / "nothing") == [found]
        cells.run_cell("ackley-20", "random search", 0, tmp_path / "nothing")
        assert len(calls) == 1

    def test_rivals_start_at_the_centre(self):
        for dim, budget, count in ((20, 150, 30), (100, 250, 12)):
            X = _initial(dim, budget, 0)
            assert X.shape == (count, dim)
            assert (X[0] == 0.5).all()

    def test_an_entry_says_how_many_seeds(self):
        found = [{"best": [3.0, 1.0]}, {"best": [3.0, 2.0]}]
        assert local_bo._entry(found, "best") == "1.5 (2)"
        assert local_bo._entry([], "best") == "not run"


@pytest.mark.parametrize("name", JUDGE)
def test_private_losses_are_in_their_range(name):
    task = Bumps(*JUDGE[name], seed=0)
    X = torch.rand(5, task.dim, generator=tasks._seeded(0), **tasks.DOUBLE)
    losses = task(X)
    assert losses.shape == (task.num_records, 5)
    assert ((losses >= 0) & (losses <= 1)).all()
