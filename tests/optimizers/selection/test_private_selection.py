"""The selection: one charge before the first run, the best run, and nothing else."""

import sys

import numpy as np
import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.optimizers.selection.adaptive import GPProposals
from botorch_dp.optimizers.selection.private_selection import PrivateSelection
from botorch_dp.optimizers.selection.runs import CLAIMED, BestRun
from botorch_dp.privacy import GaussianEvent, PoissonGaussianEvent
from botorch_dp.privacy.counts import (
    AtMost,
    Binomial,
    Count,
    Poisson,
)
from botorch_dp.privacy.selection import SelectionEvent
from tests.optimizers.selection.cases import XS, Counter, outcomes

EVENT = GaussianEvent(2.0)
FIVE = Binomial(5, 1.0)  # always five runs


def select(count=FIVE, candidates=XS, base=EVENT, **kwargs):
    return PrivateSelection(candidates, base=base, count=count, **kwargs)


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

    def test_the_tie_decides_which_error(self, monkeypatch):
        # Not which of them is the first to end: all runs are compared.
        joblib = pytest.importorskip("joblib")
        ties = []

        def offer(best, outcome, tie):
            assert isinstance(outcome.error, ZeroDivisionError)
            ties.append(tie)

        monkeypatch.setattr(BestRun, "offer", offer)
        with joblib.parallel_config(backend="threading"):
            select(n_jobs=2).run(_divides)
        assert len(set(ties)) == 5

    @pytest.mark.parametrize("backend", ["threading", "loky"])
    def test_exits(self, backend):
        joblib = pytest.importorskip("joblib")
        with joblib.parallel_config(backend=backend), pytest.raises(SystemExit):
            select(n_jobs=2).run(sys.exit)

    def test_interruptions_of_the_caller(self, monkeypatch):
        joblib = pytest.importorskip("joblib")

        def interrupted(*args, **kwargs):
            num_runs = 5  # noqa: F841
            raise KeyboardInterrupt

        monkeypatch.setattr(joblib, "Parallel", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            select(n_jobs=2).run(_divides)
        names, trace = [], caught.value.__traceback__
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert names[1:] == ["run"]

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
        assert "GPProposals(ratios=(0.5, 3.0)" in str(result.certificate)

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

    def test_the_rule_of_the_caller_is_not_changed(self, double):
        proposals = GPProposals((0.5, 2.0))
        before = dict(vars(proposals))
        for num in (4, 9):
            points = torch.linspace(0, 1, num, **double).unsqueeze(-1)
            selection = select(candidates=points, proposals=proposals)
            assert len(selection.proposals.density([])) == num
        assert vars(proposals) == before

    def test_not_in_parallel(self, double):
        points = torch.linspace(0, 1, 4, **double).unsqueeze(-1)
        with pytest.raises(InvalidArgumentError, match="n_jobs must be 1"):
            select(candidates=points, proposals=GPProposals((0.5, 2.0)), n_jobs=2)


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
            ({"proposals": "gp"}, "proposals"),
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
