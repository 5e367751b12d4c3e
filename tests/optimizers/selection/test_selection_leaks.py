"""What leaves a selection: the best run, and nothing else, even if it fails."""

import gc
import logging
import pickle
import random
import warnings
import weakref

import numpy as np
import pytest
import torch

from botorch_dp.optimizers.selection.adaptive import GPProposals
from botorch_dp.optimizers.selection.private_selection import PrivateSelection
from botorch_dp.optimizers.selection.runs import CLAIMED
from botorch_dp.privacy import GaussianEvent
from botorch_dp.privacy.counts import (
    Binomial,
    Poisson,
)
from tests.devices import DEVICE
from tests.optimizers.selection.cases import XS, Counter

EVENT = GaussianEvent(2.0)
FIVE = Binomial(5, 1.0)  # always five runs


def _warns(x):
    warnings.warn("one step", stacklevel=1)
    return x


def select(count=FIVE, candidates=XS, base=EVENT, **kwargs):
    return PrivateSelection(candidates, base=base, count=count, **kwargs)


def warns(x):
    warnings.warn("mine", UserWarning, stacklevel=1)
    return x


class TestWarnings:
    """Their number would be the number of runs."""

    @pytest.mark.parametrize("adaptive", [False, True])
    def test_of_runs(self, adaptive, double):
        candidates = torch.linspace(0, 1, 4, **double).unsqueeze(-1)
        proposals = GPProposals((0.5, 2.0)) if adaptive else None
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            select(candidates=candidates, proposals=proposals).run(warns)
            assert [w for w in shown if "mine" in str(w.message)] == []
            warns(0.5)  # afterwards they are shown again
        assert len([w for w in shown if "mine" in str(w.message)]) == 1

    def test_in_processes(self, capfd):
        select(n_jobs=2).run(warns)
        assert "mine" not in capfd.readouterr().err


class TestInterrupted:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, KeyError])
    def test_paid_and_nothing_released(self, error):
        calls = []

        def interrupted(x):
            calls.append(x)
            if len(calls) == 3:
                raise error("mine")
            return 0.5

        selection = select()
        before = dict(vars(selection), _runs=None)
        with pytest.raises(error, match="mine"):
            selection.run(interrupted)
        assert len(calls) == 3
        assert len(selection.ledger) == 1
        assert dict(vars(selection), _runs=None) == before
        assert selection.certificate().num_releases == 1

    @pytest.mark.parametrize("error", [KeyboardInterrupt, KeyError])
    @pytest.mark.parametrize("adaptive", [False, True])
    def test_the_error_carries_nothing_of_other_runs(self, error, adaptive, double):
        class Model:
            pass

        models = []

        def interrupted(x):
            if len(models) == 3:
                raise error("mine")
            model = Model()
            models.append(weakref.ref(model))
            return 0.1234567 + len(models), model

        candidates = torch.linspace(0, 1, 4, **double).unsqueeze(-1)
        proposals = GPProposals((0.5, 2.0)) if adaptive else None
        selection = select(candidates=candidates, proposals=proposals)
        try:
            selection.run(interrupted)
        except BaseException as caught:
            kept = caught
        gc.collect()
        assert [model() for model in models] == [None] * 3
        frames, trace = [], kept.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        names = [frame.f_code.co_name for frame in frames]
        assert names[1:] == ["run", "interrupted"]
        shown = repr([frame.f_locals for frame in frames[1:2]])
        assert "0.1234567" not in shown
        behind = frames[2].f_back
        while behind is not None:
            assert "1234567" not in repr(behind.f_locals)
            assert not behind.f_locals or behind.f_code.co_name not in (
                "best",
                "_one_by_one",
                "make_run",
            )
            behind = behind.f_back

    def test_causes_of_the_users_errors_are_kept(self):
        def fails(x):
            try:
                raise KeyError("first")
            except KeyError as error:
                raise RuntimeError("second") from error

        with pytest.raises(RuntimeError) as caught:
            select().run(fails)
        assert isinstance(caught.value.__cause__, KeyError)


class TestNothingLeaks:
    def test_attributes(self):
        selection = select(Poisson(16))
        before = {k: repr(v) for k, v in vars(selection).items() if k != "_runs"}
        size = len(repr(selection))
        problem = Counter()
        result = selection.run(problem)
        after = {k: repr(v) for k, v in vars(selection).items() if k != "_runs"}
        assert after.keys() == before.keys()
        assert {k for k in after if after[k] != before[k]} <= {"ledger"}
        assert len(repr(selection)) == size
        assert len(selection._runs) == 1
        assert set(vars(result)) == {"x", "model", "score", "certificate"}

    def test_losers_are_dropped(self):
        class Model:
            pass

        models = []

        def train_and_score(x):
            alive.append(sum(model() is not None for model in models))
            model = Model()
            models.append(weakref.ref(model))
            return float(len(models) == 3), model

        alive = []
        result = select().run(train_and_score)
        assert max(alive) <= 2  # the best, and the one that was just returned
        assert [model() is result.model for model in models].count(True) == 1
        assert sum(model() is not None for model in models) == 1

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_silent(self, jobs, capfd, caplog):
        joblib = pytest.importorskip("joblib")
        caplog.set_level(logging.DEBUG)
        with (
            warnings.catch_warnings(),
            joblib.parallel_config(backend="threading", verbose=100),
        ):
            warnings.simplefilter("error")
            select(Poisson(16), n_jobs=jobs).run(Counter())
        captured = capfd.readouterr()
        assert captured.out == captured.err == ""
        assert not caplog.records

    @pytest.mark.parametrize("backend", [None, "threading", "loky"])
    def test_warnings_do_not_tell_the_number_of_runs(self, backend, capfd):
        joblib = pytest.importorskip("joblib")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with joblib.parallel_config(backend=backend or "threading"):
                select(n_jobs=2 if backend else 1).run(_warns)
            assert not caught
            _warns(0.5)  # the filters were restored
            assert len(caught) == 1
        assert capfd.readouterr().err == ""  # of other processes

    def test_global_generators_do_not_tell_the_number_of_runs(self):
        def draws(x):
            random.random(), np.random.rand()
            return float(torch.rand((), device=DEVICE))

        states = []
        for count in (Binomial(2, 0.999999), FIVE):
            torch.manual_seed(1), np.random.seed(1), random.seed(1)
            select(count).run(draws)
            states.append(
                (random.random(), np.random.rand(), torch.rand((), device=DEVICE))
            )
        assert states[0] == states[1]

    def test_the_same_ledger_row_for_every_number_of_runs(self):
        rows = set()
        for seed in range(3):
            generator = torch.Generator("cpu").manual_seed(seed)
            selection = select(Poisson(4), generator=generator)
            selection.run(lambda x: x)
            entry = selection.ledger.entries[0]
            rows.add(pickle.dumps((entry.event, entry.count, entry.condition)))
            assert entry.condition == CLAIMED
        assert len(rows) == 1
