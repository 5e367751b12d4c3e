"""States: resumed runs, damaged and foreign states, ledgers that agree."""

import copy

import pytest
import torch
from gpytorch.kernels import MaternKernel

from botorch_dp import (
    DPGIBO,
    GDP,
    GIBO,
    GPUCB,
    ApproxDP,
    Ledger,
    NoisyGradientDescent,
    PrivateBO,
    PureDP,
    RandomSearch,
)
from botorch_dp.exceptions import BudgetExceededError, OptimizerStateError
from botorch_dp.optimizers.core.state import Stateful
from botorch_dp.privacy import GaussianEvent, PureEvent, ZCDPEvent
from tests.optimizers.core.test_checkpoint import steps
from tests.optimizers.gibo.test_dp_gibo_privacy import assert_equal
from tests.optimizers.problems import DEVICE, Quadratics, make, seeded, unit_box


class TestState:
    def test_a_check_changes_and_charges_nothing(self):
        first, second = make(num_steps=4), make(num_steps=4)
        steps(first, Quadratics(), 2)
        state = first.state_dict()
        checked = second.check_state_dict(state)
        checked["history"].clear()
        assert len(state["history"]) == 2
        assert len(second.history) == len(second.ledger) == 0
        with pytest.raises(OptimizerStateError, match="must have version"):
            second.check_state_dict({})

    def test_goes_on_as_if_nothing_had_happened(self):
        problem = Quadratics()
        whole = make(num_steps=6)
        steps(whole, problem, 6)
        first = make(num_steps=6)
        steps(first, problem, 3)
        second = make(num_steps=6)
        second.load_state_dict(first.state_dict())
        assert len(second.ask()) == 12 + 4  # the window's losses were not saved
        steps(second, problem, 3)
        assert second.done
        assert torch.allclose(second.x, whole.x, atol=1e-9)
        assert len(second.history) == 6

    def test_a_new_ledger_is_charged_for_what_was_spent(self):
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        second = make(num_steps=4)
        second.load_state_dict(first.state_dict())
        spent = second.ledger.accountant().to_gdp().mu
        assert abs(spent - 0.75**0.5) < 1e-9
        steps(second, Quadratics(), 1)
        assert second.done
        assert abs(second.certificate().guarantee.mu - 1.0) < 1e-9

    def test_the_same_ledger_is_not_charged_twice(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger", cap=GDP(1.0))
        first = make(num_steps=4, ledger=ledger)
        steps(first, Quadratics(), 3)
        second = make(num_steps=4, ledger=ledger)
        second.load_state_dict(first.state_dict())
        assert len(ledger) == 3

    def test_a_charge_that_the_state_lacks_is_a_step_paid_for(self, tmp_path):
        # As after a crash between the charge and the checkpoint.
        ledger = Ledger(tmp_path / "ledger", cap=GDP(1.0))
        first = make(num_steps=4, ledger=ledger)
        steps(first, Quadratics(), 2)
        state = first.state_dict()
        steps(first, Quadratics(), 1)
        second = make(num_steps=4, ledger=ledger)
        second.load_state_dict(state)
        steps(second, Quadratics(), 1)
        assert second.done
        assert len(second.history) == 3
        assert len(ledger) == 4

    def test_a_full_ledger_refuses_the_state(self):
        # And nothing of it is taken over: what was released is not paid for here.
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        second = make(num_steps=4, ledger=Ledger(cap=GDP(0.6)))
        before = second.state_dict()
        with pytest.raises(BudgetExceededError):
            second.load_state_dict(first.state_dict())
        assert_equal(second.state_dict(), before)
        assert second.history == ()
        assert len(second.ledger) == 0  # not even the one that would fit

    @pytest.mark.parametrize(
        "damage",
        [
            lambda state: state.pop("settings"),
            lambda state: state.pop("charges"),
            lambda state: state.update(charges=[]),
            lambda state: state["charges"][0].update(count=0),
            lambda state: state["charges"][0].update(event={"type": "Nothing"}),
            lambda state: state.update(runs=[]),
            lambda state: state.update(update={}),
            lambda state: state.update(points=torch.zeros(3, 7, device=DEVICE)),
            lambda state: state.update(history=[{}]),
        ],
    )
    def test_a_damaged_state_changes_nothing(self, damage):
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        state = first.state_dict()
        damage(state)
        second = make(num_steps=4)
        before = second.state_dict()
        with pytest.raises(OptimizerStateError):
            second.load_state_dict(state)
        assert_equal(second.state_dict(), before)
        assert len(second.ledger) == 0

    @pytest.mark.parametrize("cls", [DPGIBO, NoisyGradientDescent])
    @pytest.mark.parametrize(
        ("damage", "match"),
        [
            # Loaded, it would certify GDP(1.7e-9) for three steps of mu = 0.5.
            ({"event": GaussianEvent(1e9).to_dict()}, "not in the plan"),
            ({"event": GaussianEvent(2.0 * (1 + 1e-6)).to_dict()}, "not in the plan"),
            ({"event": ZCDPEvent(0.125).to_dict()}, "not in the plan"),
            ({"event": PureEvent(1e-9).to_dict()}, "not in the plan"),
            ({"adjacency": "zero_out"}, "not in the plan"),
            ({"count": 5}, "not in the plan"),
            ({"noise": "secure"}, "secure noise"),
            ({"unit": "agent"}, "every agent"),
            ({"run": "another"}, "another run"),
        ],
    )
    def test_charges_that_are_not_of_the_run(self, cls, damage, match):
        first, problem = make(num_steps=4, cls=cls), Quadratics()
        for _ in range(3):
            X = first.ask()
            first.tell(problem.gradients(X[0]) if len(X) == 1 else problem(X))
        for which in ([0], [0, 1, 2]):
            state = first.state_dict()
            for index in which:
                state["charges"][index].update(damage)
            second = make(num_steps=4, cls=cls)
            with pytest.raises(OptimizerStateError, match=match):
                second.load_state_dict(state)
            assert len(second.ledger) == 0
            assert second.history == ()

    def test_charges_of_another_machine(self):
        # Which may round noise differently.
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        state = first.state_dict()
        for charge in state["charges"]:
            charge["event"]["noise_multiplier"] *= 1 + 1e-14
        second = make(num_steps=4)
        second.load_state_dict(state)
        assert len(second.ledger) == 3

    def test_secure_noise_is_not_mixed_with_other_noise(self):
        kwargs = {"num_steps": 4, "guarantee": ApproxDP(1.0, 1e-5), "generator": None}
        first = make(secure=True, **kwargs)
        steps(first, Quadratics(), 2)
        second = make(secure=True, **kwargs)
        second.load_state_dict(first.state_dict())
        assert len(second.ledger) == 2
        with pytest.raises(OptimizerStateError, match="secure noise"):
            make(**kwargs).load_state_dict(first.state_dict())

    def test_a_baseline_has_no_charges(self):
        first = GIBO(unit_box(3), 200, 4)
        steps(first, Quadratics(), 2)
        state = first.state_dict()
        assert not {"runs", "charges"} & set(state)
        charged = make(num_steps=4)
        steps(charged, Quadratics(), 1)
        with pytest.raises(OptimizerStateError, match="of 'dp-gibo', not of 'gibo'"):
            GIBO(unit_box(3), 200, 4).load_state_dict(charged.state_dict())
        with pytest.raises(OptimizerStateError, match="of 'gibo', not of 'dp-gibo'"):
            make(num_steps=4).load_state_dict(state)

    def test_what_is_charged_again_is_what_was_drawn(self):
        # Not what the new optimizer would have drawn.
        first = make(num_steps=4)  # seeded
        steps(first, Quadratics(), 3)
        second = make(num_steps=4, generator=None)
        second.load_state_dict(first.state_dict())
        assert second.certificate().for_experiments_only
        assert second.ledger.entries[0].event == first.ledger.entries[0].event

    def test_copies_of_a_state_are_told_apart(self):
        first = make(num_steps=4)
        steps(first, Quadratics(), 2)
        forks = [make(num_steps=4), make(num_steps=4)]
        for fork in forks:
            fork.load_state_dict(first.state_dict())
            steps(fork, Quadratics(), 1)
        ledger = Ledger()
        for fork in forks:
            make(num_steps=4, ledger=ledger).load_state_dict(fork.state_dict())
        # Two steps in common, and one each.
        assert sum(entry.count for entry in ledger.entries) == 4

    def test_a_step_back_is_remembered(self):
        # What was drawn after the state was saved stays paid for, in later states too.
        problem, opt = Quadratics(), make(num_steps=4)
        steps(opt, problem, 1)
        state = opt.state_dict()
        steps(opt, problem, 2)
        opt.load_state_dict(state)
        steps(opt, problem, 1)
        assert opt.done
        other = make(num_steps=4)
        other.load_state_dict(opt.state_dict())
        assert abs(other.ledger.accountant().to_gdp().mu - 1.0) < 1e-6
        assert other.done

    def test_a_ledger_that_others_have_charged_is_not_left_behind(self, tmp_path):
        first = make(mu=0.5)
        second = make(mu=0.3, ledger=first.ledger)
        steps(second, Quadratics(), 1)
        with pytest.raises(OptimizerStateError, match="outlives the process"):
            first.run(Quadratics(), progress=False, checkpoint=tmp_path / "run.pt")

    def test_a_state_is_a_snapshot(self):
        problem, opt = Quadratics(), make(num_steps=4)
        steps(opt, problem, 1)
        state = opt.state_dict()
        kept = copy.deepcopy(state)
        other = make(num_steps=4)
        other.load_state_dict(state)
        steps(opt, problem, 2)
        steps(other, problem, 2)
        assert_equal(state, kept)

    def test_bounds_are_ones_own(self):
        bounds = unit_box(3)
        opt = make(bounds=bounds)
        bounds[1] = 0.1
        assert float(opt.bounds[1, 0]) == 1.0

    def test_other_settings(self):
        state = make(num_steps=4).state_dict()
        with pytest.raises(OptimizerStateError, match="num_steps=4 there, 5 here"):
            make(num_steps=5).load_state_dict(state)
        with DEVICE:
            other = make(num_steps=4, kernel=MaternKernel(nu=2.5))
        with pytest.raises(OptimizerStateError, match="kernel="):
            other.load_state_dict(state)
        with pytest.raises(OptimizerStateError, match="version"):
            make(num_steps=4).load_state_dict({**state, "version": 99})

    @pytest.mark.parametrize("cls", [GIBO, RandomSearch, GPUCB])
    def test_baselines_go_on(self, cls):
        def new():
            kwargs = {} if cls is GIBO else {"generator": seeded()}
            return cls(unit_box(2), 200, 4, **kwargs)

        problem = Quadratics(d=2)
        first = new()
        steps(first, problem, 1)
        second = new()
        second.load_state_dict(first.state_dict())
        assert torch.equal(second.history[0].x, first.history[0].x)
        assert second.num_evaluations == first.num_evaluations
        if cls is RandomSearch:  # other points than before, the same as without a stop
            assert torch.equal(second.ask(), first.ask())


class Counter(Stateful):
    """The smallest thing with a state."""

    def __init__(self, step=1, method="counter"):
        self.step, self.count, self.charged, self._method = step, 0, [], method

    def settings(self):
        return {"method": self._method, "step": self.step}

    def _state(self):
        return {"count": self.count}

    def _check_state(self, state):
        if state["count"] < 0:
            raise ValueError("a negative count")

    def _charge_state(self, state):
        self.charged.append(state["count"])

    def _restore(self, state):
        self.count = state["count"]


class TestProtocol:
    def test_round_trip(self):
        first, second = Counter(), Counter()
        first.count = 3
        second.load_state_dict(first.state_dict())
        assert second.count == 3
        assert second.charged == [3]

    @pytest.mark.parametrize(
        ("state", "match"),
        [
            ({}, "must have version 2, got None"),
            ({"version": 1, "settings": {}}, "must have version 2, got 1"),
            ({"version": 2}, "not a state of Counter: KeyError"),
            (
                {"version": 2, "settings": {"method": "other"}},
                "a state of 'other', not of 'counter'",
            ),
            (
                {"version": 2, "settings": {"method": "counter", "step": 5}},
                "other settings: step=5 there, 1 here",
            ),
            (
                {"version": 2, "settings": {"method": "counter", "step": 1}},
                "KeyError",
            ),
            (
                {
                    "version": 2,
                    "settings": {"method": "counter", "step": 1},
                    "count": -1,
                },
                "a negative count",
            ),
            (7, "not a state of Counter: TypeError"),
            ([1], "not a state of Counter: TypeError"),
        ],
    )
    def test_what_is_no_such_state(self, state, match):
        counter = Counter()
        with pytest.raises(OptimizerStateError, match=match):
            counter.load_state_dict(state)
        assert counter.count == 0
        assert counter.charged == []

    def test_a_state_is_a_copy(self):
        counter = Counter()
        counter.count = [1]
        state = counter.state_dict()
        counter.count.append(2)
        assert state["count"] == [1]


OPTIMIZERS = {
    "dp-gibo": lambda: make(num_steps=2),
    "noisy gradient descent": lambda: make(num_steps=2, cls=NoisyGradientDescent),
    "gibo": lambda: GIBO(unit_box(3), 200, 2),
    "gp-ucb": lambda: GPUCB(unit_box(3), 200, 2),
    "random search": lambda: RandomSearch(unit_box(3), 200, 2),
    "private-bo": lambda: PrivateBO(
        bounds=unit_box(3),
        num_candidates=16,
        num_records=200,
        guarantee=PureDP(1.0),
        num_steps=2,
        loss_range=(0.0, 1.0),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_other_optimizers_are_refused(name):
    opt = OPTIMIZERS[name]()
    for other, start in OPTIMIZERS.items():
        if other != name:
            match = f"a state of '{other}', not of '{name}'"
            with pytest.raises(OptimizerStateError, match=match):
                opt.load_state_dict(start().state_dict())
    for state in ({}, {"version": 1}, {**opt.state_dict(), "version": 1}):
        with pytest.raises(OptimizerStateError, match="must have version"):
            opt.load_state_dict(state)
    for key in set(opt.state_dict()) - {"version"}:
        state = opt.state_dict()
        del state[key]
        with pytest.raises(OptimizerStateError, match="not a state of"):
            opt.load_state_dict(state)
    opt.load_state_dict(opt.state_dict())
