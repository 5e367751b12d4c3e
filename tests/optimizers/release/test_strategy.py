"""What all strategies share, with a strategy that releases a constant."""

import copy
import pickle

import pytest
import torch

from botorch_dp import ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.release import strategy
from botorch_dp.optimizers.release.strategy import ReleasedCandidate, ReleaseStrategy
from botorch_dp.privacy import LaplaceMechanism, PureEvent
from botorch_dp.privacy.account import RunAccount
from tests.optimizers.problems import DOUBLE
from tests.optimizers.release.problems import make


class Constant(ReleaseStrategy):
    """Releases zero with Laplace noise, and the candidate that was evaluated last."""

    guarantees = (PureDP,)
    needs = "a PureDP"

    def plan(self):
        return [(PureEvent(0.5), 2)]

    def next(self, step):
        return [step]

    def observe(self, indices, private_losses):
        self.last = indices[-1]
        return 0.0

    def finish(self):
        mechanism = LaplaceMechanism(PureDP(0.5), sensitivity=1.0)
        zero = torch.zeros(1, **DOUBLE)
        value = float(mechanism.release(zero, ledger=self.account))
        return ReleasedCandidate(self.last, value)


@pytest.fixture
def constant():
    return Constant(make(num_steps=3).problem, RunAccount(Ledger(), "a run"))


def test_defaults(constant):
    assert constant.outputs == ("both", "point", "value")
    assert constant.points_are_public
    assert constant.condition is None
    assert constant.failure(PureDP(1.0), "both") == 0.0
    assert not constant.can_resume
    assert constant.so_far() is None
    assert constant.details == {}


def test_guarantees():
    Constant.check_guarantee(PureDP(1.0), secure=False)
    with pytest.raises(InvalidArgumentError, match=r"guarantee must be a PureDP, got"):
        Constant.check_guarantee(ApproxDP(1.0, 1e-6), secure=False)


def test_is_spent_once_anything_was_charged(constant):
    constant.observe([4], torch.zeros(300, 1, **DOUBLE))
    assert not constant.is_spent
    assert constant.finish().index == 4
    assert constant.is_spent


def test_charges_are_due_at_the_end(constant):
    assert [constant.num_due(steps) for steps in range(4)] == [0, 0, 0, 2]


def test_state(constant):
    constant.check_state(constant.state(), 0)
    assert constant.restore({}) is None
    with pytest.raises(ValueError, match=r"unexpected parts \['more'\]"):
        constant.check_state({"more": 1}, 0)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_neither_pickled_nor_copied(constant, copied):
    with pytest.raises(OptimizerStateError, match="cannot be pickled or copied"):
        copied(constant)


def test_no_warning(constant, recwarn):
    constant.warn_if_useless(stacklevel=2)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("old", "new"), [("Release", ReleaseStrategy), ("Released", ReleasedCandidate)]
)
def test_earlier_names(old, new):
    with pytest.warns(DeprecationWarning, match=f"use {new.__name__}"):
        assert getattr(strategy, old) is new


def test_no_such_name():
    with pytest.raises(AttributeError, match="no attribute 'Strategy'"):
        _ = strategy.Strategy
