"""Whole runs of PrivateBO: plans, states, misuse."""

import itertools
from collections import Counter

import pytest
import torch
from gpytorch.kernels import MaternKernel

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.privacy import (
    GaussianEvent,
    PermuteAndFlipEvent,
    PureEvent,
    SeededNoise,
)
from tests.optimizers.problems import (
    DEVICE,
    DOUBLE,
    unit_box,
)
from tests.optimizers.release.problems import (
    Bowls,
    N,
    candidates,
    make,
    not_to_be_evaluated,
)


class TestRuns:
    def test_chunks_and_batches(self):
        problem = Bowls()
        one = make(num_steps=6).run(problem, progress=False)
        chunked = make(num_steps=6).run(lambda X: problem(X).split(77), progress=False)
        batched = make(num_steps=3, batch_size=2).run(problem, progress=False)
        assert one.value == chunked.value
        assert torch.equal(one.x, batched.x)

    def test_in_a_box(self):
        opt = make(bounds=unit_box(2), num_candidates=500)
        result = opt.run(Bowls(), progress=False)
        assert ((result.x >= 0) & (result.x <= 1)).all()
        assert len(opt.candidates) == 500

    def test_other_candidates_or_kernels_are_other_settings(self):
        problem, opt = Bowls(), make()
        opt.run(problem, progress=False)
        with DEVICE:
            kernel = MaternKernel(nu=2.5).double()
            kernel.lengthscale = 0.1
        for other in (make(candidates=candidates(seed=9)), make(kernel=kernel)):
            with pytest.raises(OptimizerStateError):
                other.load_state_dict(opt.state_dict())

    def test_a_finished_state_is_kept_and_an_unfinished_one_starts_over(self):
        problem, first = Bowls(), make()
        for _ in range(3):
            first.tell(problem(first.ask()))
        second = make()
        second.load_state_dict(first.state_dict())
        assert second.history == ()
        second.run(problem, progress=False)
        third = make(ledger=second.ledger)
        third.load_state_dict(second.state_dict())
        assert third.done
        assert torch.equal(third.result().x, second.result().x)


KINDS = [
    {"guarantee": PureDP(1.0), "output": "both"},
    {"guarantee": PureDP(1.0), "output": "point"},
    {"guarantee": PureDP(1.0), "output": "value"},
    {"guarantee": ApproxDP(1.0, 1e-6), "output": "both"},
    {"guarantee": ApproxDP(1.0, 1e-6), "adaptive": True},
    {"guarantee": GDP(1.0), "adaptive": True},
]


class TestPlan:
    """What a run will release is known, and paid for, before anything is evaluated."""

    @pytest.mark.parametrize("secure", [False, True])
    @pytest.mark.parametrize("kwargs", KINDS)
    def test_is_what_is_charged(self, kwargs, secure):
        if secure:
            if isinstance(kwargs["guarantee"], GDP):
                kwargs = {**kwargs, "guarantee": RDP(8.0, 0.5)}
            kwargs = {**kwargs, "secure": True, "generator": None}
        opt = make(**kwargs)
        planned = opt.planned_releases()
        opt.run(Bowls(), progress=False)
        charged = Counter()
        for entry in opt.ledger.entries:
            charged[entry.event] += entry.count
        assert charged == Counter(dict(planned))
        assert opt.planned_releases() == planned

    @pytest.mark.parametrize("kwargs", KINDS)
    def test_a_budget_that_does_not_suffice(self, kwargs):
        guarantee = kwargs["guarantee"]
        less = {
            PureDP: PureDP(0.99),
            ApproxDP: ApproxDP(0.5, 1e-6),
            GDP: GDP(0.99),
        }[type(guarantee)]
        ledger = Ledger(cap=less)
        opt = make(ledger=ledger, **kwargs)
        for call in (opt.ask, lambda: opt.run(not_to_be_evaluated, progress=False)):
            with pytest.raises(BudgetExceededError, match="would bring it to"):
                call()
        assert len(ledger) == 0

    @pytest.mark.parametrize("kwargs", KINDS)
    def test_a_budget_that_suffices(self, kwargs):
        ledger = Ledger(cap=kwargs["guarantee"])
        make(ledger=ledger, **kwargs).run(Bowls(), progress=False)
        assert len(ledger) > 0

    def test_a_ledger_for_other_neighbours(self):
        ledger = Ledger()
        ledger.charge(PureEvent(0.1), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match="'zero_out'"):
            make(ledger=ledger).run(not_to_be_evaluated, progress=False)

    def test_the_point_is_not_drawn_if_the_value_cannot_be(self, monkeypatch):
        # Others spend while this run evaluates: the point would fit, the value not.
        drawn = []
        for name in ("exponential_argmax", "add_laplace"):
            monkeypatch.setattr(SeededNoise, name, lambda *args: drawn.append(args))
        ledger = Ledger(cap=PureDP(1.0))
        opt, problem = make(num_steps=1, ledger=ledger), Bowls()
        losses = problem(opt.ask())
        ledger.charge(PureEvent(0.4))
        assert ledger.allows(PureEvent(0.5))  # the point alone
        with pytest.raises(BudgetExceededError):
            opt.tell(losses)
        assert not drawn
        assert len(ledger) == 1
        assert not opt.done

    def test_checked_from_public_settings(self):
        # Before any private data is there, and the same whatever it is.
        plans = []
        for scale in (1.0, -3.0):
            opt, problem = make(), Bowls(seed=int(scale > 0))
            before = opt.planned_releases()
            opt.run(lambda X, f=problem, s=scale: s * f(X), progress=False)
            plans += [before, opt.planned_releases()]
        assert all(plan == plans[0] for plan in plans)


class TestForgedStates:
    """A state is loaded only with the charges that its run makes."""

    def refuse(self, state, match, **kwargs):
        other = make(**kwargs)
        with pytest.raises(OptimizerStateError, match=match):
            other.load_state_dict(state)
        assert len(other.ledger) == 0
        assert other.history == ()

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_charge_that_is_missing(self, which):
        # Half of what was released would go unpaid.
        opt = make()
        opt.run(Bowls(), progress=False)
        state = opt.state_dict()
        del state["charges"][which]
        self.refuse(state, "only 1 charges")
        state["history"] = []
        self.refuse(state, "without the charges for")

    def test_a_cheap_charge(self):
        opt = make()
        opt.run(Bowls(), progress=False)
        for which, event in itertools.product(
            (0, 1), (PermuteAndFlipEvent(1e-9), PureEvent(0.5), GaussianEvent(1e9))
        ):
            state = opt.state_dict()
            state["charges"][which]["event"] = event.to_dict()
            self.refuse(state, "not in the plan")

    def test_one_release_in_place_of_another(self):
        # The value's Gaussian noise has a delta, the choice has none.
        kwargs = {"guarantee": ApproxDP(1.0, 1e-6)}
        opt = make(**kwargs)
        opt.run(Bowls(), progress=False)
        state = opt.state_dict()
        state["charges"][1]["event"] = state["charges"][0]["event"]
        self.refuse(state, "not in the plan", **kwargs)

    def test_values_that_nobody_paid_for(self):
        kwargs = {
            "guarantee": GDP(1.0),
            "adaptive": True,
            "num_steps": 3,
            "num_peeks": 2,
        }
        opt, problem = make(**kwargs), Bowls()
        opt.tell(problem(opt.ask()))
        opt.tell(problem(opt.ask()))
        state = opt.state_dict()
        del state["charges"][0]
        del state["history"][0]
        self.refuse(state, "2 values, but only 1 charges", **kwargs)

    @pytest.mark.parametrize(
        "forged",
        [
            {"index": 1.5},
            {"index": True},
            {"index": None},
            {"index": N},
            {"value": "x"},
            {"value": float("nan")},
            {"value": None},
            {"details": 3},
        ],
    )
    def test_a_release_that_cannot_be(self, forged):
        opt = make()
        opt.run(Bowls(), progress=False)
        state = opt.state_dict()
        state["released"].update(forged)
        self.refuse(state, "is not a state of PrivateBO")

    def test_an_assumption_that_nobody_made(self):
        opt = make()
        opt.run(Bowls(), progress=False)
        state = opt.state_dict()
        first = state["charges"][0]
        first["condition"] = "luck"
        self.refuse(state, "another condition")


class TestEarlierNames:
    def test_what(self):
        with pytest.warns(DeprecationWarning, match="use output="):
            opt = make(what="point")
        assert opt.output == "point"


class TestMisuse:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"loss_range": (1.0, 0.0)}, "low below high"),
            ({"loss_range": (0.0, float("inf"))}, "low below high"),
            ({"loss_range": 1.0}, r"\(low, high\)"),
            ({"candidates": torch.zeros(1, 2, **DOUBLE)}, "at least two"),
            ({"candidates": torch.zeros(3, **DOUBLE)}, "N x d"),
            ({"candidates": torch.zeros(3, 2, **DOUBLE)}, "vary in every column"),
            ({"bounds": unit_box(2), "candidates": candidates()}, "either"),
            ({"guarantee": GDP(1.0)}, "PureDP or an ApproxDP"),
            ({"guarantee": PureDP(1.0), "adaptive": True}, "Gaussian noise can meet"),
            ({"adaptive": True, "guarantee": GDP(1.0), "batch_size": 2}, "batch_size"),
            ({"num_steps": N + 1}, "number of candidates"),
            ({"output": "all"}, "output must be one of"),
            ({"scoring": "best"}, "scoring must be one of"),
            ({"kernel": "rbf"}, "kernel must be"),
            ({"beta": 0.0}, "beta"),
            ({"noise_variance": 0.0}, "noise_variance"),
        ],
    )
    def test_arguments(self, kwargs, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(**kwargs)

    def test_wrong_shape_costs_nothing(self):
        opt = make(num_steps=1)
        X = opt.ask()
        with pytest.raises(InvalidArgumentError, match="300 x 1"):
            opt.tell(Bowls()(X).mT)
        assert len(opt.ledger) == 0

    def test_an_exhausted_budget(self):
        ledger = Ledger(cap=PureDP(1.0))
        make(ledger=ledger).run(Bowls(), progress=False)
        with pytest.raises(BudgetExceededError, match="would bring it to 2"):
            make(ledger=ledger).run(Bowls(), progress=False)
