"""One run, the best of several, and what an error may carry with it."""

import functools
import gc
import math
import os
import sys
import weakref

import numpy as np
import pytest
import torch

from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.optimizers.selection.runs import (
    BestRun,
    RunOutcome,
    RunTerms,
    check_base,
    make_run,
    takes_account,
    user_traceback,
)
from botorch_dp.privacy import GaussianEvent, PoissonGaussianEvent
from tests.devices import DEVICE

BASE = ((GaussianEvent(2.0), 1),)


def terms(function, **kwargs):
    return RunTerms(
        **{
            "train_and_score": function,
            "takes_account": takes_account(function),
            "base": BASE,
            "adjacency": "zero_out",
            "unit": "record",
            "seeded": False,
            "process": os.getpid(),
            **kwargs,
        }
    )


def run(function, x="x", **kwargs):
    return make_run(terms(function, **kwargs), x, seed=1)


def paid(result):
    def train_and_score(x, account):
        account.charge(GaussianEvent(2.0), adjacency="zero_out")
        return result

    return train_and_score


class TestOneRun:
    @pytest.mark.parametrize(
        ("returned", "score", "model"),
        [
            (0.5, 0.5, None),
            ((0.5, "model"), 0.5, "model"),
            ([0.5], None, None),
            ((0.5, "model", "more"), None, None),
            (np.float32(0.25), 0.25, None),
            (None, None, None),
            ("high", None, None),
            (-math.inf, -math.inf, None),
            ((math.nan, "model"), -math.inf, "model"),
        ],
    )
    def test_what_it_returns(self, returned, score, model):
        outcome = run(paid(returned))
        if score is None:
            assert isinstance(outcome.error, InvalidArgumentError)
            assert "one number" in str(outcome.error)
            assert "0.5" not in str(outcome.error)  # private, and not shown
            assert "high" not in str(outcome.error)
            return
        assert outcome.error is None
        assert (outcome.x, outcome.score, outcome.model) == ("x", score, model)

    def test_tensors(self, tkwargs):
        for shape in ((), (1,)):
            score = torch.full(shape, 0.5, requires_grad=True, **tkwargs)
            assert run(paid((score, None))).score == 0.5
        outcome = run(paid(torch.zeros(2, **tkwargs)))
        assert "of shape (2,)" in str(outcome.error)

    def test_without_an_account(self):
        assert run(lambda x: len(x)).score == 1

    def test_an_account_that_is_not_charged(self):
        outcome = run(lambda x, account: 0.5)
        assert "must charge its account" in str(outcome.error)

    def test_overspending(self):
        def greedy(x, account):
            for _ in range(2):
                account.charge(GaussianEvent(2.0), adjacency="zero_out")
            return 1.0

        assert isinstance(run(greedy).error, BudgetExceededError)

    def test_every_run_has_an_account_of_its_own_that_ends_with_it(self):
        kept = []

        def keeps(x, account):
            kept.append(account)
            return paid(0.5)(x, account)

        run(keeps), run(keeps)
        assert kept[0] is not kept[1]
        with pytest.raises(BudgetExceededError, match="has ended"):
            kept[0].charge(GaussianEvent(100.0), adjacency="zero_out")

    def test_interruptions_are_not_caught(self):
        def interrupted(x):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(interrupted)

    def test_global_seeds_in_another_process_only(self):
        def draws(x):
            return float(torch.rand((), dtype=torch.float64, device=DEVICE))

        assert run(draws).score != run(draws).score
        elsewhere = {"process": -1}
        assert run(draws, **elsewhere).score == run(draws, **elsewhere).score

    def test_an_error_elsewhere_tells_where(self):
        def fails(x):
            raise KeyError("lost")

        assert not hasattr(run(fails).error, "__notes__")
        (note,) = run(fails, process=-1).error.__notes__
        assert "in fails" in note
        assert "make_run" not in note


class TestBest:
    def test_highest_score(self):
        best = BestRun()
        assert best.outcome is None
        for x, score in enumerate([0.1, 0.7, -math.inf, 0.3]):
            best.offer(RunOutcome(x, score), tie=0.5)
        assert best.outcome.x == 1

    def test_ties(self):
        best = BestRun()
        for x, tie in enumerate([0.2, 0.9, 0.5]):
            best.offer(RunOutcome(x, 1.0), tie)
        assert best.outcome.x == 1

    def test_an_error_counts_as_the_highest_score(self):
        best = BestRun()
        best.offer(RunOutcome(0, math.inf), 0.9)
        best.offer(RunOutcome(1, error=KeyError()), 0.1)
        best.offer(RunOutcome(2, math.inf), 0.95)
        assert best.outcome.x == 1

    def test_outcomes_are_not_shown(self):
        assert "0.123" not in repr(RunOutcome("x", 0.123))


class TestSignature:
    def test_takes_account(self):
        class Both:
            def __call__(self, x, account):
                return 0.0

        for function in (
            lambda x, account: 0.0,
            lambda x, run: 0.0,
            lambda x, account=None: 0.0,
            lambda x, account, *, seed=0: 0.0,
            functools.partial(lambda data, x, account: 0.0, "data"),
            Both(),
        ):
            assert takes_account(function)

    def test_takes_none(self):
        for function in (
            lambda x: 0.0,
            lambda x, epochs=3: 0.0,
            lambda x, *, account: 0.0,
            lambda *xs: 0.0,
            max,
            functools.partial(lambda x, data: 0.0, data="data"),
        ):
            assert not takes_account(function)


class TestBase:
    def test_an_event_or_pairs(self):
        step = PoissonGaussianEvent(1.0, 0.1)
        assert check_base(step, "zero_out") == ((step, 1),)
        assert check_base([(step, 3)], "zero_out") == ((step, 3),)

    @pytest.mark.parametrize("wrong", [[], None, 3, [GaussianEvent(1.0)]])
    def test_wrong(self, wrong):
        with pytest.raises(InvalidArgumentError, match="base must be"):
            check_base(wrong, "zero_out")

    def test_wrong_adjacency(self):
        with pytest.raises(InvalidArgumentError, match="adjacency must be"):
            check_base(PoissonGaussianEvent(1.0, 0.1), "replace_one")


class TestTraceback:
    def test_the_frames_of_the_library_are_cleared(self):
        class Secret:
            pass

        def user(x):
            raise KeyError("mine")

        def library():
            secret = Secret()
            secrets.append(weakref.ref(secret))
            make_run(terms(interrupted), "x", seed=1)

        def interrupted(x):
            raise KeyboardInterrupt

        # A function counts as the library's if its file is in the package.
        secrets = []
        package = sys.modules["botorch_dp"].__path__[0]
        library.__code__ = library.__code__.replace(co_filename=f"{package}/some.py")
        try:
            library()
        except KeyboardInterrupt as caught:
            error = caught
        own = error.__traceback__.tb_next  # what pytest's frame would be in a session
        error = error.with_traceback(own)
        found = user_traceback(error, sys._getframe())
        assert found.tb_frame.f_code.co_name == "interrupted"
        error = error.with_traceback(found)
        gc.collect()
        assert secrets[0]() is None
        assert run(user).error.__traceback__.tb_frame.f_code.co_name == "user"
