"""The meter of a run accepts its base, in any order, and nothing more."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from botorch_dp import GDP, GaussianMechanism
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.optimizers.selection.meter import RunMeter
from botorch_dp.privacy import GaussianEvent, PoissonGaussianEvent, PureEvent

STEP, SCORE = PoissonGaussianEvent(1.1, 0.01), GaussianEvent(10.0)
BASE = ((STEP, 5), (SCORE, 1))


def meter(base=BASE, **kwargs):
    return RunMeter(base, adjacency="zero_out", **kwargs)


def charge(one, event, **kwargs):
    one.charge(event, **{"adjacency": "zero_out", **kwargs})


class TestBase:
    def test_accepts_the_base_in_any_order(self):
        one = meter()
        for event, count in ((STEP, 2), (SCORE, 1), (STEP, 3)):
            assert charge(one, event, count=count) is None

    @pytest.mark.parametrize(
        ("event", "count"),
        [
            (STEP, 6),
            (SCORE, 2),
            (GaussianEvent(9.9), 1),
            (PoissonGaussianEvent(1.1, 0.02), 1),
            (PoissonGaussianEvent(1.0, 0.01), 1),
            (PureEvent(1e-6), 1),
        ],
    )
    def test_refuses_anything_else(self, event, count):
        one = meter()
        with pytest.raises(BudgetExceededError, match="Nothing was drawn"):
            charge(one, event, count=count)
        assert not one.is_used
        charge(one, STEP, count=5)  # what was refused is not counted
        charge(one, SCORE)
        assert one.is_used

    def test_refuses_the_last_step_too_many(self):
        one = meter()
        charge(one, STEP, count=5)
        with pytest.raises(BudgetExceededError):
            charge(one, STEP)

    def test_gaussian_releases_are_not_exchanged(self):
        # Two releases with twice the variance cost as much as one, but one of them
        # could be about other records than the one that was planned.
        with pytest.raises(BudgetExceededError):
            charge(meter(), GaussianEvent(10.0 * 2**0.5), count=2)

    def test_rounding_on_another_machine(self):
        charge(meter(), GaussianEvent(10.0 * (1 + 1e-14)))

    def test_an_event_twice_in_the_base(self):
        one = meter(((SCORE, 1), (STEP, 1), (SCORE, 2)))
        charge(one, SCORE, count=3)
        with pytest.raises(BudgetExceededError):
            charge(one, SCORE)

    def test_a_run_that_has_ended(self):
        one = meter()
        one.close()
        with pytest.raises(BudgetExceededError, match="a run that has ended"):
            charge(one, SCORE)

    def test_threads_cannot_overspend_together(self):
        one = meter(((STEP, 100),))

        def spend(_):
            try:
                charge(one, STEP)
            except BudgetExceededError:
                return 0
            return 1

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(spend, range(300))) == 100


class TestTerms:
    def test_another_adjacency_or_unit(self):
        for kwargs in ({"adjacency": "add_or_remove_one"}, {"unit": "user"}):
            with pytest.raises(InvalidArgumentError, match="as in the selection"):
                charge(meter(), STEP, **kwargs)
        charge(meter(unit="user"), STEP, unit="user")

    def test_seeded_noise_only_if_the_selection_is_seeded(self):
        with pytest.raises(InvalidArgumentError, match="must not be seeded"):
            charge(meter(), SCORE, noise="seeded")
        charge(meter(seeded=True), SCORE, noise="seeded")
        charge(meter(), SCORE, noise="secure")

    def test_what_is_no_event(self):
        with pytest.raises(InvalidArgumentError, match="event must be"):
            charge(meter(), 0.5)
        with pytest.raises(InvalidArgumentError, match="count must be"):
            charge(meter(), SCORE, count=-1)

    def test_cannot_be_copied(self):
        for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InvalidArgumentError, match="cannot be pickled"):
                duplicate(meter())

    def test_mechanisms_take_it_as_ledger(self, double):
        mechanism = GaussianMechanism(GDP(0.1), sensitivity=1.0, adjacency="zero_out")
        one = meter()
        mechanism.release(torch.zeros(1, **double), ledger=one)
        with pytest.raises(BudgetExceededError):
            mechanism.release(torch.zeros(1, **double), ledger=one)
