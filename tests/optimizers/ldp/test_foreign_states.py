"""Every class refuses states of other classes and versions, and says why."""

import pytest
import torch

from botorch_dp import DPGIBO, GDP, LDPBO, LDPSGD, LDPBOServer, StepSchedule
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers import OnlineBO, OnlineSGD
from botorch_dp.optimizers.ldp.averaging import IterateAverage
from botorch_dp.privacy.user_account import UserAccount
from tests.optimizers.ldp.streams import P
from tests.optimizers.problems import DOUBLE, same_state

X = torch.zeros(P, **DOUBLE)
BOUNDS = torch.tensor([[0.0] * P, [1.0] * P], **DOUBLE)
OURS = {
    "LDPBO": lambda: LDPBO(X, GDP(1.0), 1.0),
    "LDPSGD": lambda: LDPSGD(X, GDP(1.0), 1.0),
    "OnlineBO": lambda: OnlineBO(X, step_sizes=StepSchedule(0.1)),
    "OnlineSGD": lambda: OnlineSGD(X, step_sizes=StepSchedule(0.1)),
    "LDPBOServer": lambda: LDPBOServer(X, step_sizes=StepSchedule(0.1), max_norm=9.0),
    "IterateAverage": lambda: IterateAverage("suffix", X),
}
OTHERS = {
    "UserAccount": UserAccount,
    "DPGIBO": lambda: DPGIBO(
        bounds=BOUNDS, num_records=9, guarantee=GDP(1.0), num_steps=2, clip_norm=1.0
    ),
}


@pytest.mark.parametrize("name", OURS)
class TestStates:
    def check(self, name, state, match):
        ours = OURS[name]()
        before = ours.state_dict()
        with pytest.raises(OptimizerStateError, match=match):
            ours.load_state_dict(state)
        assert same_state(ours.state_dict(), before)

    @pytest.mark.parametrize("other", [*OURS, *OTHERS])
    def test_of_another_class(self, name, other):
        if name != other:
            state = {**OURS, **OTHERS}[other]().state_dict()
            self.check(name, state, r"state_dict (is|must have)")

    @pytest.mark.parametrize("state", [{}, None, 3, [], {"version": None}, "state"])
    def test_that_are_none(self, name, state):
        self.check(name, state, r"state_dict (is not a state of|must have version)")

    def test_of_another_version(self, name):
        state = OURS[name]().state_dict()
        self.check(name, {**state, "version": 1}, "must have version 2, got 1")
        del state["version"]  # as in states of the first release
        self.check(name, state, "must have version 2, got None")

    def test_with_a_missing_entry(self, name):
        state = OURS[name]().state_dict()
        for key in state:
            rest = {k: v for k, v in state.items() if k != key}
            self.check(name, rest, key)

    def test_with_a_missing_setting(self, name):
        state = OURS[name]().state_dict()
        for key, value in state["settings"].items():
            if value is not None:
                rest = {k: v for k, v in state["settings"].items() if k != key}
                self.check(name, {**state, "settings": rest}, r"settings|state of None")

    def test_of_its_own(self, name):
        state = OURS[name]().state_dict()
        ours = OURS[name]()
        ours.load_state_dict(state)
        assert same_state(ours.state_dict(), state)


@pytest.mark.parametrize("state", [{}, None, 3, {"num_users": 1}, {"worst": [0]}])
def test_user_account(state):
    with pytest.raises(InvalidArgumentError, match="not a state of a UserAccount"):
        UserAccount.from_state_dict(state)
