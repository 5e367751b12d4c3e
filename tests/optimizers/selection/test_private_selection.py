"""The selection: one charge before the first run, the best run, and nothing else."""

import gc
import logging
import math
import pickle
import random
import sys
import warnings
import weakref

import numpy as np
import pytest
import torch
from scipy import stats

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.optimizers.selection.adaptive import GPProposals
from botorch_dp.optimizers.selection.private_selection import PrivateSelection
from botorch_dp.optimizers.selection.runs import CLAIMED, RunTerms
from botorch_dp.privacy import GaussianEvent, PoissonGaussianEvent
from botorch_dp.privacy.counts import (
    AtLeast,
    AtMost,
    Binomial,
    Count,
    Poisson,
    TruncatedNegativeBinomial,
)
from botorch_dp.privacy.selection import SelectionEvent
from tests.optimizers.selection.cases import XS, Counter

EVENT = GaussianEvent(2.0)
FIVE = Binomial(5, 1.0)  # always five runs


def select(count=FIVE, candidates=XS, base=EVENT, **kwargs):
    return PrivateSelection(candidates, base=base, count=count, **kwargs)


def outcomes(selection, function, num):
    """Return the best runs of many selections, without charges and certificates."""
    terms = RunTerms(function, False, selection.base, "zero_out", "record", True, 0)
    return [selection._best_of_runs(terms) for _ in range(num)]


class TestCharge:
    def test_once_and_before_the_first_run(self):
        ledger = Ledger()

        def looks(x):
            seen.append(len(ledger))
            return 0.0

        seen = []
        select(ledger=ledger).run(looks)
        assert seen == [1] * 5
        (entry,) = ledger.entries
        assert entry.event == SelectionEvent(((EVENT, 1),), FIVE)
        assert (entry.count, entry.adjacency, entry.unit) == (1, "zero_out", "record")
        assert entry.mechanism == "PrivateSelection"

    def test_a_full_ledger_makes_no_run(self):
        problem = Counter()
        ledger = Ledger(cap=GDP(0.1))
        with pytest.raises(BudgetExceededError):
            select(ledger=ledger).run(problem)
        assert not problem.xs
        assert not len(ledger)

    def test_the_cost_does_not_depend_on_the_number_drawn(self):
        # The same charge for every draw of the count.
        entries = []
        for seed in range(4):
            generator = torch.Generator("cpu").manual_seed(seed)
            selection = select(Poisson(3), generator=generator)
            selection.run(lambda x: 0.0)
            entries.append(selection.ledger.entries[0].event)
        assert entries == [SelectionEvent(((EVENT, 1),), Poisson(3))] * 4

    def test_every_call_pays_again(self):
        selection = select()
        for calls in (1, 2):
            certificate = selection.run(Counter()).certificate
            assert len(selection.ledger) == certificate.num_releases == calls
        capped = select(ledger=Ledger(cap=ApproxDP(6.0, 1e-5)))
        problem = Counter()
        capped.run(problem)
        with pytest.raises(BudgetExceededError):
            capped.run(problem)
        assert len(problem.xs) == 5

    def test_seeded_runs_are_for_experiments(self, generator):
        problem = Counter(generator=generator)
        selection = select(generator=generator)
        assert selection.run(problem).certificate.for_experiments_only
        with pytest.raises(InvalidArgumentError, match="must not be seeded"):
            select().run(problem)
        assert not select().run(Counter()).certificate.for_experiments_only

    def test_a_guarantee_that_is_too_small(self):
        with pytest.raises(InvalidArgumentError, match="which costs epsilon="):
            select(guarantee=ApproxDP(1.0, 1e-5))
        selection = select(guarantee=ApproxDP(6.0, 1e-5))
        assert selection.ledger.cap == ApproxDP(6.0, 1e-5)
        assert selection.run(Counter()).certificate.epsilons[1e-5] <= 6.0

    def test_a_file_that_is_opened_again(self, tmp_path):
        path = tmp_path / "ledger"
        select(ledger=Ledger(path)).run(Counter())
        assert Ledger(path).entries[0].event == SelectionEvent(((EVENT, 1),), FIVE)


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
        proposals = GPProposals() if adaptive else None
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
                "_best_of_runs",
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

    def test_an_error_is_selected_like_a_highest_score(self, generator):
        # With m = 4 candidates, one of which fails: 1 - phi(3/4) for the failure.
        def fails(x):
            if x == 0.4:
                raise KeyError
            return x

        selection = select(Poisson(2), generator=generator)
        found = outcomes(selection, fails, 2000)
        failed = sum(one is not None and one.error is not None for one in found)
        expected = 1 - math.exp(-2 / 4)
        # Stopping at the first error must not change the probability.
        assert stats.binomtest(failed, 2000, expected).pvalue > 1e-3


class TestDistribution:
    """Against the closed form: a level of scores wins with phi(F) - phi(F-)."""

    @pytest.mark.parametrize(
        "count",
        [
            Poisson(1.5),
            TruncatedNegativeBinomial(3, 1.0),
            Binomial(4, 0.4),
            AtLeast(TruncatedNegativeBinomial(3, 1.0), 2),
            AtMost(Poisson(3), 2),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("pad_to", [None, 3])
    def test_of_the_selected_candidate(self, count, pad_to, generator):
        scores = {"a": 0.0, "b": 2.0, "c": 1.0, "d": 2.0, "e": math.nan}
        selection = select(
            count, list(scores), pad_to=pad_to, default="none", generator=generator
        )
        found = [
            "none" if one is None else one.x
            for one in outcomes(selection, scores.get, 2000)
        ]
        used = count if pad_to is None else AtMost(count, pad_to)
        probabilities = used.probabilities(200)

        def phi(z):
            return float((probabilities * z ** np.arange(201)).sum())

        levels = [phi(k / 5) for k in (0, 1, 2, 3, 5)]
        none, e, a, c, b_or_d = np.diff([0.0, *levels])
        expected = {
            "none": none, "e": e, "a": a, "c": c, "b": b_or_d / 2, "d": b_or_d / 2
        }  # fmt: skip
        possible = [x for x, share in expected.items() if share > 0]
        assert set(found) <= set(possible)
        # 2000 draws reject, with power 0.99, a level that is off by 5 points.
        test = stats.chisquare(
            [found.count(x) for x in possible],
            [2000 * expected[x] for x in possible],
        )
        assert test.pvalue > 1e-3

    def test_seeds_reproduce_and_jobs_do_not_matter(self):
        def scores(x):
            return x + float(torch.rand((), dtype=torch.float64, device="cpu")) / 10

        found = []
        for seed in (1, 1, 2):
            generator = torch.Generator("cpu").manual_seed(seed)
            selection = select(Poisson(5), generator=generator)
            found.append(selection.run(scores).score)
        assert found[0] == found[1] != found[2]


class TestNoRun:
    def test_the_default(self, generator, double):
        nothing = Binomial(3, 1e-12)
        points = torch.arange(6.0, **double).reshape(3, 2)
        bounds = torch.tensor([[1e-2], [1.0]], **double)
        for kwargs, expected in (
            ({"candidates": ["a", "b"]}, "a"),
            ({"candidates": ["a", "b"], "default": "z"}, "z"),
            ({"candidates": points}, points[0]),
            ({"candidates": points, "default": points[2]}, points[2]),
            ({"candidates": None, "bounds": bounds, "transform": "log"}, 0.1),
        ):
            result = select(nothing, generator=generator, **kwargs).run(None or abs)
            assert result.model is None
            assert result.score is None
            if isinstance(expected, torch.Tensor):
                assert torch.equal(result.x, expected)
            elif isinstance(expected, float):
                assert float(result.x) == pytest.approx(expected)
            else:
                assert result.x == expected


class TestPadding:
    @pytest.mark.parametrize("seed", range(6))
    def test_the_number_of_calls_is_fixed(self, seed):
        generator = torch.Generator("cpu").manual_seed(seed)
        problem = Counter(generator=generator)
        selection = select(Poisson(2), base=problem.base, pad_to=4, generator=generator)
        assert selection.event.count == AtMost(Poisson(2), 4)
        result = selection.run(problem)
        assert len(problem.xs) == 4
        assert "always 4 runs are made" in str(result.certificate)
        assert "running time is not hidden" not in str(result.certificate)

    def test_errors_wait_for_the_last_run(self):
        calls = []

        def fails(x):
            calls.append(x)
            raise KeyError

        with pytest.raises(KeyError):
            select(FIVE, pad_to=7).run(fails)
        assert len(calls) == 7

    def test_errors_of_runs_that_do_not_count_are_dropped(self):
        calls = []

        def fails_late(x):
            calls.append(x)
            if len(calls) > 5:
                raise KeyError
            return 0.0

        assert select(FIVE, pad_to=7).run(fails_late).score == 0.0
        assert len(calls) == 7


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

    def test_global_generators_do_not_tell_the_number_of_runs(self):
        def draws(x):
            random.random(), np.random.rand()
            return float(torch.rand((), device="cpu"))

        states = []
        for count in (Binomial(2, 0.999999), FIVE):
            torch.manual_seed(1), np.random.seed(1), random.seed(1)
            select(count).run(draws)
            states.append(
                (random.random(), np.random.rand(), torch.rand((), device="cpu"))
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


class TestCertificate:
    def test_with_an_account(self):
        text = str(select().run(Counter()).certificate)
        assert "a run costs at most its base: every run had an account" in text
        assert "number of runs and all other runs are hidden" in text
        assert "running time is not hidden" in text
        assert "runs are independent given the data" in text
        assert "NOT worst case" not in text
        assert repr(FIVE) in text

    def test_without_an_account(self):
        text = str(select().run(lambda x: x).certificate)
        assert f"NOT worst case: some releases hold assuming {CLAIMED}" in text
        assert "every run had an account" not in text

    def test_json(self):
        certificate = select().run(Counter()).certificate
        assert certificate.from_json(certificate.to_json()) == certificate

    def test_nothing_charged(self):
        with pytest.raises(InvalidArgumentError, match="at least one charge"):
            select().certificate()


class TestMeter:
    def test_a_run_that_spends_more_than_its_base(self):
        problem = Counter(mu=0.6)
        with pytest.raises(BudgetExceededError, match="left of the base"):
            select().run(problem)
        assert len(problem.xs) == 1

    def test_every_run_may_spend_the_whole_base(self):
        problem = Counter()
        select(base=[(EVENT, 1)]).run(problem)
        assert len(problem.xs) == 5

    def test_another_adjacency(self):
        with pytest.raises(InvalidArgumentError, match="as in the selection"):
            select().run(Counter(adjacency="replace_one"))
        problem = Counter(adjacency="replace_one")
        select(adjacency="replace_one").run(problem)
        assert len(problem.xs) == 5


class TestParallel:
    @pytest.mark.parametrize("backend", ["threading", "loky"])
    def test_the_best_of_all(self, backend):
        joblib = pytest.importorskip("joblib")
        found = []
        for jobs in (1, 2):
            generator = torch.Generator("cpu").manual_seed(4)
            selection = select(Poisson(6), n_jobs=jobs, generator=generator)
            with joblib.parallel_config(backend=backend):
                found.append(selection.run(_score_and_name))
        assert found[0].x == found[1].x
        assert found[0].model == found[1].model == f"model at {found[0].x}"
        assert len(selection.ledger) == 1

    def test_processes_have_their_own_randomness(self):
        joblib = pytest.importorskip("joblib")
        with joblib.parallel_config(backend="loky"):
            results = [select(n_jobs=2).run(_random_score).score for _ in range(3)]
        assert len(set(results)) == 3

    @pytest.mark.parametrize("backend", ["threading", "loky"])
    def test_errors(self, backend):
        joblib = pytest.importorskip("joblib")
        selection = select(n_jobs=2)
        with (
            joblib.parallel_config(backend=backend),
            pytest.raises(ZeroDivisionError) as caught,
        ):
            selection.run(_divides)
        shown = "".join(getattr(caught.value, "__notes__", []))
        assert ("in _divides" in shown) == (backend == "loky")
        assert len(selection.ledger) == 1

    def test_missing_joblib(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "joblib", None)
        with pytest.raises(ImportError, match=r"botorch-dp\[sklearn\]"):
            select(n_jobs=2)


def _score_and_name(x):
    return x, f"model at {x}"


def _random_score(x):
    return float(torch.rand((), dtype=torch.float64, device="cpu"))


def _divides(x):
    return 1 / 0


class TestAdaptive:
    def test_event_and_grid(self, double):
        bounds = torch.tensor([[1e-3], [1.0]], **double)
        selection = PrivateSelection(
            bounds=bounds,
            transform="log",
            base=EVENT,
            count=FIVE,
            proposals=GPProposals(ratios=(0.5, 3.0), num_points=16),
        )
        assert selection.event.proposal_ratios == (0.5, 3.0)
        problem = Counter()
        result = selection.run(problem)
        assert len({float(x) for x in problem.xs}) <= 16
        assert result.x.dtype == torch.float64
        assert "GPProposals(ratios=(0.5, 3.0))" in str(result.certificate)

    def test_finds_better_scores(self, double):
        points = torch.linspace(0, 1, 64, **double).unsqueeze(-1)

        def scores(x):
            return -((float(x) - 0.8) ** 2)

        means = []
        for proposals in (None, GPProposals(ratios=(0.1, 8.0), num_uniform=3)):
            generator = torch.Generator("cpu").manual_seed(1)
            selection = select(FIVE, points, proposals=proposals, generator=generator)
            found = outcomes(selection, scores, 60)
            means.append(np.mean([one.score for one in found]))
        assert means[1] > means[0]

    def test_not_in_parallel(self, double):
        points = torch.linspace(0, 1, 4, **double).unsqueeze(-1)
        with pytest.raises(InvalidArgumentError, match="n_jobs must be 1"):
            select(candidates=points, proposals=GPProposals(), n_jobs=2)


class TestArguments:
    def test_dtype_and_device(self, tkwargs, generator):
        bounds = torch.tensor([[1e-3], [1.0]], **tkwargs)
        selection = select(candidates=None, bounds=bounds, transform="log")
        x = selection.run(Counter()).x
        assert x.dtype == tkwargs["dtype"]
        assert x.shape == (1,)

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"pad_to": 0}, "pad_to"),
            ({"n_jobs": 0}, "n_jobs"),
            ({"n_jobs": True}, "n_jobs"),
            ({"unit": "house"}, "unit"),
            ({"adjacency": "near"}, "adjacency"),
            ({"base": []}, "base"),
            ({"count": 16}, "count"),
            ({"ledger": 1.0}, "ledger"),
            ({"guarantee": 1.0}, "guarantee"),
            ({"candidates": []}, "candidates"),
            ({"candidates": None}, "candidates or bounds"),
            ({"generator": 3}, "generator"),
        ],
    )
    def test_wrong(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            select(**kwargs)

    def test_poisson_steps_need_their_adjacency(self):
        base = [(PoissonGaussianEvent(1.0, 0.1), 3), (EVENT, 1)]
        with pytest.raises(InvalidArgumentError, match="adjacency"):
            select(base=base, adjacency="replace_one")
        assert set(select(base=base).base) == set(base)

    def test_what_is_no_function(self):
        selection = select()
        with pytest.raises(InvalidArgumentError, match="train_and_score"):
            selection.run(0.5)
        assert not len(selection.ledger)

    def test_count_is_public(self):
        assert isinstance(select().count, Count)
        assert "Poisson" in repr(select(Poisson(3)))
