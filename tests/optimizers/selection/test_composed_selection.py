"""Composed runs: each paid for before it begins, and BoTorch follows the scores."""

import math

import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.optimizers.selection.composed_selection import (
    ComposedSelection,
    point_of_improvement,
)
from botorch_dp.optimizers.selection.runs import CLAIMED
from botorch_dp.privacy import GaussianEvent, PoissonGaussianEvent
from tests.optimizers.selection.cases import XS, Counter

EVENT = GaussianEvent(2.0)


def select(candidates=XS, base=EVENT, num_runs=4, **kwargs):
    return ComposedSelection(candidates, base=base, num_runs=num_runs, **kwargs)


class TestCharges:
    def test_every_run_pays_before_it_begins(self):
        ledger = Ledger()

        def looks(x):
            seen.append(len(ledger))
            return 0.0

        seen = []
        certificate = select(ledger=ledger).run(looks).certificate
        assert seen == [1, 2, 3, 4]
        assert certificate.guarantee == GDP(1.0)
        assert CLAIMED in str(certificate)

    def test_nothing_runs_if_not_all_fit(self):
        problem = Counter()
        with pytest.raises(BudgetExceededError):
            select(guarantee=GDP(0.99)).run(problem)
        assert not problem.xs
        select(guarantee=GDP(1.0)).run(problem)
        assert len(problem.xs) == 4

    def test_an_interrupted_run_has_paid(self):
        def fails(x):
            calls.append(x)
            if len(calls) == 2:
                raise KeyError
            return 0.0

        calls, selection = [], select()
        with pytest.raises(KeyError):
            selection.run(fails)
        assert len(selection.ledger) == 2

    def test_several_releases_in_a_run(self):
        base = [(PoissonGaussianEvent(1.5, 0.1), 3), (EVENT, 1)]
        selection = select(base=base)
        assert dict(selection.planned_releases()) == {base[0][0]: 12, EVENT: 4}
        selection.run(lambda x: 0.0)
        assert sum(entry.count for entry in selection.ledger.entries) == 16

    def test_a_run_stays_within_its_base(self):
        with pytest.raises(BudgetExceededError, match="left of the base"):
            select().run(Counter(mu=0.6))

    def test_seeded(self, generator):
        problem = Counter(generator=generator)
        with pytest.raises(InvalidArgumentError, match="must not be seeded"):
            select().run(problem)
        assert select(generator=generator).run(problem).certificate.for_experiments_only


class TestResult:
    def test_the_best_and_the_history(self):
        result = select(list("abcd"), num_runs=12).run(lambda x: (ord(x), x.upper()))
        assert len(result.history) == 12
        best = max(result.history, key=lambda one: one[1])
        assert (result.x, result.score) == best
        assert result.model == result.x.upper()
        assert "model" not in repr(result)

    @pytest.mark.default_device
    def test_follows_the_scores(self, tkwargs, generator):
        bounds = torch.tensor([[1e-3], [1.0]], **tkwargs)
        selection = select(
            None,
            bounds=bounds,
            transform="log",
            num_runs=9,
            num_random=4,
            generator=generator,
        )

        def score(x):
            return -((math.log10(float(x)) + 1.0) ** 2)

        result = selection.run(score)
        assert result.x.dtype == tkwargs["dtype"]
        # Nine random points come as near as this with probability 0.2.
        assert result.score > -(0.04**2)

    def test_infinite_scores_are_left_out(self, double):
        points = torch.linspace(0, 1, 5, **double).unsqueeze(-1)
        result = select(points, num_random=1).run(lambda x: math.nan)
        assert result.score == -math.inf


@pytest.mark.default_device
def test_point_of_improvement(double):
    points = torch.linspace(0, 1, 21, **double).unsqueeze(-1)
    told = [(index, -((index / 20 - 0.6) ** 2)) for index in (0, 5, 10, 15, 20)]
    assert point_of_improvement(points, told) in range(10, 15)


class TestArguments:
    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"num_runs": 0}, "num_runs"),
            ({"num_random": 0}, "num_random"),
            ({"candidates": None}, "candidates or bounds"),
            ({"base": None}, "base"),
            ({"unit": "house"}, "unit"),
            ({"ledger": 3}, "ledger"),
            ({"ledger": Ledger(), "guarantee": ApproxDP(1, 1e-5)}, "exclude"),
        ],
    )
    def test_wrong(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            select(**kwargs)

    def test_what_is_no_function(self):
        selection = select()
        with pytest.raises(InvalidArgumentError, match="train_and_score"):
            selection.run(1.0)
        assert not len(selection.ledger)
