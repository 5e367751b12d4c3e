"""Adaptive releases: budgets, and what the points depend on."""

import math

import pytest
import torch

from botorch_dp import GDP, RDP, ApproxDP
from botorch_dp.exceptions import (
    OptimizerStateError,
)
from botorch_dp.privacy import (
    GaussianMechanism,
    SeededNoise,
)
from tests.optimizers.problems import (
    DOUBLE,
    differing,
    same_state,
)
from tests.optimizers.release.problems import Bowls, candidates, make


class TestAdaptive:
    @pytest.mark.parametrize(
        "guarantee", [GDP(1.0), ApproxDP(1.0, 1e-6), RDP(8.0, 0.5)]
    )
    def test_budget(self, guarantee):
        opt = make(guarantee=guarantee, adaptive=True, num_steps=8)
        opt.run(Bowls(), progress=False)
        assert len(opt.ledger) == 8
        assert opt.ledger.accountant().within(guarantee)

    def test_noise(self):
        opt = make(guarantee=GDP(2.0), adaptive=True, num_steps=4, n=10)
        assert math.isclose(opt.details["noise_std"], 1.0 / 10 * 2 / 2.0)

    def test_finds_a_good_candidate(self):
        problem = Bowls(n=5000)
        opt = make(n=5000, num_steps=15, adaptive=True, guarantee=GDP(1.0))
        result = opt.run(problem, progress=False)
        truth = problem(candidates()).mean(dim=0)
        chosen = problem(result.x.unsqueeze(0)).mean()
        assert (truth < chosen).double().mean() < 0.1

    def test_everything_follows_from_what_was_released(self, monkeypatch):
        # Two unlike data sets, the same releases: then nothing may differ, neither the
        # points that are asked for nor what the state and the result say.
        given, values = [], (0.3, 0.8, 0.1, 0.6)

        def release(self, private_value, *, ledger, batch_dims=0):
            given.append(float(private_value))
            self._charge(ledger, self.event(1), 1, private_value.device)
            return torch.tensor([values[(len(given) - 1) % len(values)]], **DOUBLE)

        monkeypatch.setattr(GaussianMechanism, "release", release)
        opts, found = [], []
        for seed, scale in ((0, 1.0), (1, 0.2)):
            opt = make(guarantee=GDP(1.0), adaptive=True, num_steps=len(values))
            problem, public = Bowls(seed=seed), []
            while not opt.done:
                X = opt.ask()
                opt.tell(scale * problem(X))
                state = opt.state_dict()
                result = opt.result()
                public.append([X, state["release"], result.x, result.value])
            assert state["release"]["values"] == list(values)
            opts.append(opt)
            found.append(public)
        assert given[:4] != pytest.approx(given[4:], abs=0.01)  # the data do differ
        assert same_state(*found)
        assert differing(*opts) == []

    def test_what_was_paid_for_can_be_read(self, monkeypatch):
        opt, problem = make(num_steps=3, adaptive=True, guarantee=GDP(1.0)), Bowls()
        opt.tell(problem(opt.ask()))
        first = opt.result()
        assert first.x.isfinite().all()  # released, hence public
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())

        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(SeededNoise, "add_gaussian", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opt.tell(losses)
        assert opt.done
        assert opt.result().x.isfinite().all()

    def test_damaged_states(self):
        problem, opt = Bowls(), make(num_steps=3, adaptive=True, guarantee=GDP(1.0))
        opt.tell(problem(opt.ask()))
        for damage in (
            lambda state: state["release"].update(indices=[10**6]),
            lambda state: state["release"].update(values=[float("nan")]),
            lambda state: state["release"].update(indices=[], values=[1.0]),
            lambda state: state.update(released={"index": 10**6, "value": None}),
            lambda state: state["charges"][0].pop("adjacency"),
            lambda state: state["charges"][0].update(adjacency="anybody"),
            lambda state: state["charges"][0].update(run="other run"),
            lambda state: state["charges"][0].update(unit="agent"),
            lambda state: state["charges"][0].update(mechanism=3),
            lambda state: state["charges"][0].update(condition=3),
            lambda state: state.update(runs=[""]),
        ):
            state = opt.state_dict()
            damage(state)
            other = make(num_steps=3, adaptive=True, guarantee=GDP(1.0))
            with pytest.raises(OptimizerStateError):
                other.load_state_dict(state)
            assert len(other.ledger) == 0
            assert other.history == ()

    def test_goes_on(self):
        problem = Bowls()
        whole = make(num_steps=6, adaptive=True, guarantee=GDP(1.0))
        whole.run(problem, progress=False)
        first = make(num_steps=6, adaptive=True, guarantee=GDP(1.0))
        for _ in range(3):
            first.tell(problem(first.ask()))
        second = make(num_steps=6, adaptive=True, guarantee=GDP(1.0))
        second.load_state_dict(first.state_dict())
        second.run(problem, progress=False)
        assert second.result().value == whole.result().value
        assert sum(entry.count for entry in second.ledger.entries) == 6
